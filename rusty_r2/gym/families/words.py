# SPDX-License-Identifier: AGPL-3.0-or-later
"""The pools names are drawn from: thousands of words, so that a name can only be copied, not known by heart.

words.txt holds common English words, one to a line: plain letters, no Python word, module or shell command.
The smaller pools below are what people really call such things; the families mix both. One word in four
is held out, whichever pool it stands in (base.is_held).
"""

from __future__ import annotations

from pathlib import Path

from rusty_r2.gym.families.base import AnyWord


def _pool(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.split()))


WORDS = AnyWord(_pool((Path(__file__).parent / "words.txt").read_text(encoding="utf-8")))
SHORT_WORDS = AnyWord(word for word in WORDS if len(word) < 7)
"""for names of two words"""

MODULES = _pool(
    "main utils helpers tools core app calc work job script lib program parts shapes rules steps logic "
    "engine basics numbers strings convert quick handy kit bench forge gears tasks extra misc common shared "
    "models views forms orders prices filters checks lists texts words maths counter sorter finder reader "
    "writer parser loader runner builder worker manager handler service client store report results"
)

VERBS = _pool(
    "get calc make compute find do give take build run work fetch show pick load read count check apply "
    "solve turn handle process prepare derive measure figure produce create obtain extract format gauge "
    "convert parse scan collect resolve update choose decide answer tell want use try spot seek call"
)

INT_NAMES = _pool(
    "x n a k p q i t v w z value number num amount size count weight width age price cost score points "
    "level length total_count quantity distance minutes hours days year month speed degrees volume units "
    "base given start current left_side money steps pages rank index seconds items_sold temperature balance "
    "stock"
)
OTHER_INT_NAMES = _pool(
    "y m b j c r s u e f g h other second step limit rate height bound target factor offset end stop "
    "right_side bonus extra_points fee tax delta goal maximum minimum depth top bottom next_value divisor "
    "discount growth"
)
STR_NAMES = _pool(
    "text word name line title s t label phrase string sentence message letters city country key code body "
    "content path note comment answer question first_name last_name user_name street email token color "
    "symbol"
)
OTHER_STR_NAMES = _pool(
    "other suffix prefix tail part second extra piece ending addition mark sign end rest second_word follow "
    "glue insert other_text next_word surname filler cap header footer"
)
LIST_NAMES = _pool(
    "items values numbers nums data xs scores rows list_of_numbers prices ages amounts points grades counts "
    "ys results samples weights sizes readings marks costs levels speeds digits series entries lengths "
    "totals"
)
WORDS_NAMES = _pool(
    "words names lines labels tags keys parts cities titles texts letters phrases strings people colors "
    "animals fruits countries files users friends books songs teams tokens pieces codes notes topics towns"
)
DICT_NAMES = _pool(
    "table prices stock ages scores counts d record mapping lookup settings options inventory phone_book "
    "points grades votes data config totals wages budget menu weights index entries shelf amounts basket "
    "levels"
)

STEMS = _pool(
    "notes report data list names todo log plan draft users items orders events prices budget menu recipe "
    "summary invoice backup readme index people cities colors animals scores results input output words "
    "tasks stock parts robots bolts wires gears panels motors letters songs books movies games teams "
    "countries fruits tools planets rivers trees birds cars trains ships config settings access errors "
    "server clients emails addresses contacts shopping inventory sales expenses salaries students grades "
    "journal diary"
)

MARKS = _pool(
    "v1 v2 v3 v4 v5 v6 v7 v8 v9 v10 v11 v12 final old new draft copy backup a b c en de fr east west"
)
"""what is tagged on to a name with a dash"""

FRONTS = _pool(
    "my our old new the all last next big more full daily weekly monthly team home work first best"
)
"""what is put in front of a name"""

FOLDERS = _pool(
    "docs src data logs old archive backup temp work files drafts notes reports config bin lib assets "
    "images inbox outbox public private server client build dist store vault attic cellar shelf drawer "
    "garage shed music photos videos downloads projects scripts tests tools static templates"
)

PEOPLE = _pool(
    "alice bob carol dave erin frank grace heidi ivan judy karl lena mona nils olga peter quinn rosa sven "
    "tina uma victor wanda xena yuri zoe anna ben clara dora emil fred gina hugo ines jonas adam bella carl "
    "diana edgar fiona george hannah igor jane kevin laura martin nora oscar paula ralf sarah tom ursula "
    "vera walter yvonne zack amir bianca chen dina elias farah gustav helen imran julia kofi leila marco "
    "nadia omar priya rahul sofia tariq umar vikram wei ximena yasmin zara andrea boris celia derek elsa "
    "felix greta henry iris jack katja liam maria noah olivia pablo ravi simon teresa ugo viola wendy "
    "yannick akira berta cyril"
)

KEYS = _pool(
    "port host mode level color theme debug timeout retries workers cache limit name path size speed volume "
    "language region width height depth rate threads batch memory verbose proxy token prefix suffix format "
    "encoding locale zone interval delay backlog buffer quota ttl domain scheme title owner group scale "
    "margin padding font opacity zoom quality bitrate channel brand currency priority weight seed epochs "
    "steps version build channel_id api_key log_level max_size min_size page_size max_users base_url"
)
"""of settings and columns"""

LEVELS = ("INFO", "WARNING", "ERROR", "DEBUG")
COMMON_ENDS = ("txt", "md", "log", "csv", "dat")
TEXT_ENDS = _pool(
    "txt md log csv dat list out text rst tex tsv doc note json yaml xml html css js c h sh toml sql java "
    "rb go rs php lua r m tpl lst inp def srt ics vcf bib org adoc asc nfo diz idx map dic cue pls sub msg "
    "eml"
)
JUNK_ENDS = _pool(
    "tmp bak old swp log cache orig part temp save copy lock pid dump trash junk crdownload rej prev err"
)
ENDS = tuple(dict.fromkeys(TEXT_ENDS + JUNK_ENDS))
SETTING_ENDS = ("ini", "conf", "cfg", "env", "properties", "cnf", "config", "settings")
