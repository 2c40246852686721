# SPDX-License-Identifier: AGPL-3.0-or-later
"""Everyday lessons: each wording says all that its command needs, and none of them is an exam item."""

import itertools
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rusty_r2.data.everyday import RUNS, _dressed, _silent, entries, everyday, played
from rusty_r2.data.names import Namer, vocabulary
from rusty_r2.data.voice import words
from rusty_r2.eval import evaluate
from rusty_r2.gym.families import FAMILIES
from rusty_r2.gym.families.base import part
from rusty_r2.gym.families.wordings import wordings
from rusty_r2.lm.tokenizer import Tokenizer
from rusty_r2.protocol import Cmd, Msg, parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SLOT = re.compile(r"(?<!\$)\$([a-z]+\d*)")
EVERY = [pytest.param(one, id=one["do"]) for one in entries()]
WORDS = vocabulary(Tokenizer.load())


def made(count, seed=0):
    return [everyday(Namer(WORDS, random.Random(f"{seed}/{number}"))) for number in range(count)]


def bare(text):
    """Words alone; whatever is filled in stands as one sign."""
    found = re.findall(r"[a-z]+|#", re.sub(r"\$[a-z]+\d*", "#", text.lower()))
    return tuple(word for word in found if word != "please")


def plainly(text):
    """In small letters, without signs."""
    return " ".join(re.findall(r"\w+", text.lower()))


def spelled(text):
    """A wording in every one of its choices."""
    parts = re.split(r"\(([^()|]*(?:\|[^()|]*)+)\)", text)
    return ("".join(made) for made in itertools.product(*(one.split("|") for one in parts)))


@pytest.mark.parametrize("one", EVERY)
def test_every_wording_names_what_the_command_needs(one):
    needed = set(SLOT.findall(one["do"].replace("$$", "")))
    for said in one["say"]:
        assert set(SLOT.findall(said.replace("$$", ""))) == needed, said
    assert len(set(one["say"])) == len(one["say"]) >= 7


def test_no_two_entries_have_the_same_command():
    commands = [one["do"] for one in entries()]
    assert sorted(commands) == sorted(set(commands))


def test_no_wording_is_one_of_the_gyms_held_out_ones():
    """Of families that are held out as a whole, none at all."""
    said = {bare(made) for one in entries() for text in one["say"] for made in spelled(text)}
    whole = {name for name, family in FAMILIES.items() if family.split == "heldout"}
    for name, lines in wordings().items():
        held = lines if name.partition(".")[0] in whole else part(lines, held=True)
        assert not said & set(map(bare, held)), name


def test_none_is_an_exam_item():
    folder = Path(evaluate.__file__).parent
    pairs, risks = (
        tomllib.loads((folder / name).read_text(encoding="utf-8"))
        for name in ("commands.toml", "dangers.toml")
    )
    asked = {plainly(item[0]) for item in pairs["heldout"]}
    asked |= {plainly(item) for kind in ("dangerous", "harmless") for item in risks[kind]}
    said = {plainly(text) for one in entries() for wording in one["say"] for text in spelled(wording)}
    drawn = {plainly(episode.turns[1][1].partition("\n\nFILES:")[0]) for episode in made(3000)}
    assert not asked & (drawn | said)


def test_none_stands_in_the_exam_of_plain_requests():
    """Neither as a lesson says it nor as a wording without its names."""
    file = Path(__file__).parents[2] / "benchmarks/plain_exam.toml"
    kinds = tomllib.loads(file.read_text(encoding="utf-8"))
    exam = {plainly(item["ask"]) for kind, items in kinds.items() if kind != "here" for item in items}
    drawn = {plainly(episode.turns[1][1].partition("\n\nFILES:")[0]) for episode in made(1500)}
    said = {plainly(text) for one in entries() for wording in one["say"] for text in spelled(wording)}
    both = exam & (drawn | said)
    assert not both


def test_every_command_is_one_that_bash_can_read():
    """All at once, each in a function of its own: a syntax error names its line."""
    commands = [parse(episode.turns[2][1]).command for episode in made(1500)]
    script = "\n".join(f"f{number}() {{ {command}\n}}" for number, command in enumerate(commands))
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=60)
    assert checked.stderr == ""


def test_names_are_said_as_they_were_given():
    for episode in made(2000):
        command = parse(episode.turns[2][1]).command
        known = episode.turns[1][1].lower()
        files = re.findall(r"(?<![\w'/*.-])[\w-]+\.[a-z]{1,4}(?![\w'/*.])", command)
        said = [name for name in files if name.lower() in known]
        assert all(name in episode.turns[1][1] for name in said), command


@pytest.mark.parametrize("request_", ["a.sh: print it", "a.sh's lines", "a.sh, sorted", "a.sh"])
def test_a_name_keeps_its_small_letter(request_):
    assert {_dressed(request_, "cat a.sh", random.Random(seed))[0] for seed in range(40)} == {"a"}
    assert {_dressed("print it", "cat a.sh", random.Random(seed))[0] for seed in range(40)} == {"p", "P"}


def test_what_is_shown_was_really_printed():
    episodes = list(played(WORDS, 60))
    assert 12 < len(episodes) < 60
    assert episodes == list(played(WORDS, 60)), "the same seed, the same episodes"
    for episode in episodes:
        command, (role, seen), last = (parse(episode.turns[2][1]).command, *episode.turns[3:5])
        assert (role, seen[:6]) == ("observation", "exit 0")
        assert RUNS.fullmatch(command) and not RUNS.fullmatch(f"ls -lt; {command}")
        answer = parse(last[1]).message
        if re.fullmatch(r"wc -l [^\s*<]+", command):
            assert re.search(r"\d+", answer).group() == seen.split()[2]
        assert (seen == "exit 0") == (answer in (*words()["untested"], *words()["nothing"]))


def test_two_in_one_are_silent_only_where_both_are():
    assert _silent("mkdir a && cp b a/") and _silent("sort a > b")
    assert (
        not _silent("mkdir a && ls a")
        and not _silent("ls a && mkdir b")
        and not _silent("sort a 2> b | head")
    )


def test_what_is_done_ends_with_a_word_only_where_nothing_is_printed():
    episodes = made(1500)
    for episode in episodes:
        action = parse(episode.turns[2][1])
        assert isinstance(action, Cmd)
        if len(episode.turns) > 3:
            assert episode.turns[3] == ("observation", "exit 0")
            last = parse(episode.turns[4][1])
            assert isinstance(last, Msg)
            assert not re.search("pass|test|green", last.message.lower())
    assert 100 < sum(len(episode.turns) > 3 for episode in episodes) < 600
