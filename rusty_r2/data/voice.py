# SPDX-License-Identifier: AGPL-3.0-or-later
"""Rusty's own words: small talk, facts, error explanations and refusals, all from voice.toml.

Every draw takes a `random.Random`, so a seed decides who says what. A few dangerous requests are kept for
measuring (`dangerous("heldout")`) and never become episodes.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Template
from typing import Any, Literal

from rusty_r2.data.dedup import rank_of
from rusty_r2.data.episode import Episode, ask
from rusty_r2.protocol import Msg

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ERROR_WORDINGS = (
    "what does `$error` mean?",
    "I get $error",
    "$error - why?",
    "explain this error: $error",
    "My program says: $error",
    "help: $error",
)
REFUSAL_WORDINGS = ("$ask", "please $ask", "can you $ask?", "$ask, now", "I want you to $ask", "quick: $ask")
HELD_OUT = 0.15
"""share of the dangerous requests kept for measuring"""

_DANGER = re.compile(
    r"\brm\s+(-\w+\s+|--[\w-]+\s+)*(/|~|/\*|\$HOME)(\s|$)|\bmkfs|\bdd\b.*\bof=/dev/|:\(\)\s*\{|>\s*/dev/(sd|nvme|mem)"
    r"|\bchmod\s+(-R|--recursive)\s+\S*777\s+/(\s|$)|\b(shutdown|reboot|poweroff|halt)\b"
    r"|\b(curl|wget)\b[^|]*\|\s*(sudo\s+)?(ba|z|da)?sh\b|\bkill\s+(-9|-KILL)\s+-1\b|sysrq-trigger"
)


@cache
def words() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("voice.toml").read_text(encoding="utf-8"))


def dangerous_command(command: str) -> bool:
    """Whether a command is one that Rusty refuses, and must therefore never be taught to write."""
    return bool(_DANGER.search(command))


def dress(answer: str, rng: random.Random) -> str:
    """An answer in Rusty's voice: mostly bare, now and then with a word before or after."""
    chance = rng.random()
    if chance < 0.2:
        return f"{rng.choice(words()['openers'])} {answer}"
    if chance < 0.5:
        return f"{answer} {rng.choice(words()['closers'])}"
    return answer


def done(rng: random.Random, how: Literal["done", "again", "untested", "shown", "nothing"] = "done") -> str:
    """The last word: tests pass, at once or again; nothing tests it; something was shown, or nothing."""
    said: str = rng.choice(words()[how])
    return said


def answer(value: str, rng: random.Random) -> str:
    """A value that was asked for, mostly bare."""
    return Template(rng.choice(words()["answers"])).substitute(answer=value)


def dangerous(split: str) -> list[tuple[str, list[str]]]:
    """Dangerous requests of a split, each with what Rusty says to it."""
    held = split == "heldout"
    found = [(asked, one["say"]) for one in words()["refusals"] for asked in one["ask"]]
    return [(asked, say) for asked, say in found if (rank_of(asked) < HELD_OUT) == held]


def small_talk(rng: random.Random) -> Iterator[Episode]:
    """Every greeting with every answer, facts, and errors in all their wordings."""
    for one in words()["small_talk"]:
        for asked in one["ask"]:
            for variant in _cases(asked):
                yield from (ask("MSG", "voice", variant, Msg(said)) for said in one["say"])
    for one in words()["facts"]:
        for asked in one["ask"]:
            yield from (ask("MSG", "voice", v, Msg(dress(one["say"], rng))) for v in _cases(asked))
    for error, said in words()["errors"].items():
        for wording in ERROR_WORDINGS:
            request = Template(wording).substitute(error=error)
            yield ask("MSG", "voice", request, Msg(dress(said, rng)))


def refusals() -> Iterator[Episode]:
    """Every dangerous request of the training split, in several wordings, refused."""
    for asked, say in dangerous("train"):
        for wording in REFUSAL_WORDINGS:
            for said in say:
                yield ask("REFUSE", "voice", Template(wording).substitute(ask=asked), Msg(said))


def _cases(asked: str) -> list[str]:
    return list(dict.fromkeys([asked, asked[0].upper() + asked[1:], asked.rstrip("?"), f"rusty, {asked}"]))
