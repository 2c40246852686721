# SPDX-License-Identifier: AGPL-3.0-or-later
"""The pools names are drawn from. Every fourth word of each is held out (base.part)."""

from __future__ import annotations


def _pool(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MODULES = _pool(
    "solution main utils helpers tools core app calc work job script module lib program parts shapes "
    "rules steps logic engine basics numbers strings convert quick handy kit bench forge gears tasks "
    "extra misc common shared"
)

VERBS = _pool("get calc make compute find do give take build run work fetch")

NOUNS = _pool(
    "value result item score price amount entry record field part unit step level rank point mark "
    "report batch order robot bolt wire gear panel motor"
)

INT_NAMES = _pool("x n value number num amount size count a k weight width")
OTHER_INT_NAMES = _pool("y m other second step limit b j rate height")
STR_NAMES = _pool("text word name line title s label phrase")
OTHER_STR_NAMES = _pool("other suffix prefix tail part second extra piece")
LIST_NAMES = _pool("items values numbers nums data xs scores rows")
WORDS_NAMES = _pool("words names lines labels tags keys parts cities")
DICT_NAMES = _pool("table prices stock ages scores counts d record")

STEMS = _pool(
    "notes report data list names todo log plan draft users items orders events prices budget menu recipe "
    "summary invoice backup readme index people cities colors animals scores results input output words "
    "tasks stock parts robots bolts wires gears panels motors letters songs books movies games teams "
    "countries fruits tools planets rivers trees birds cars trains ships"
)

TEXT_ENDS = ("txt", "md", "log", "csv", "dat", "list", "out", "text")

FOLDERS = _pool(
    "docs src data logs old archive backup temp work files drafts notes reports config bin lib assets "
    "images inbox outbox public private server client build dist store vault attic cellar shelf "
    "drawer garage shed"
)

WORDS = _pool(
    "apple river stone cloud tiger lemon maple copper silver garden window bridge candle anchor basket "
    "button camera carpet castle cherry circle coffee cotton dragon engine falcon feather forest hammer "
    "harbor helmet island jacket kettle ladder lantern magnet marble meadow mirror needle ocean orange "
    "paper pebble pencil pepper pillow planet pocket potato powder puzzle rabbit ribbon rocket saddle "
    "salmon shadow signal spider spring summer sunset ticket timber tomato tunnel turtle valley velvet "
    "violin walnut winter wizard yellow zipper"
)

PEOPLE = _pool(
    "alice bob carol dave erin frank grace heidi ivan judy karl lena mona nils olga peter quinn rosa sven "
    "tina uma victor wanda xena yuri zoe anna ben clara dora emil fred gina hugo ines jonas"
)

KEYS = _pool(
    "port host user mode level color theme debug timeout retries workers cache limit name path size speed "
    "volume language region width height depth rate"
)

LEVELS = ("INFO", "WARNING", "ERROR", "DEBUG")
CODE_ENDS = ("py", "js", "sh", "c", "html", "css", "json", "toml")
JUNK_ENDS = ("tmp", "bak", "old", "swp", "log", "cache", "orig", "part")
