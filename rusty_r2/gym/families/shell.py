# SPDX-License-Identifier: AGPL-3.0-or-later
"""What terminal families share: small trees of files, and the task made of them.

A task is decided by the state of the tree at the end, or by the final message; the gold is one short
command, or two, and for a question the answer that can be read off its output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import Template

from rusty_r2.gym.families import names, words
from rusty_r2.gym.families.base import Draw
from rusty_r2.task import Task, Tree

DEEDS = ("login", "logout", "upload", "delete", "search", "download", "rename", "print", "share", "comment")


def change(
    prompt: str, files: Mapping[str, str], expect: Mapping[str, str | None], *commands: str, **slots: object
) -> Task:
    """A task whose tree must end up as `expect` says, everything else untouched."""
    asked = Template(prompt).substitute(slots)
    return Task("", asked, Tree(expect=dict(expect)), files=dict(files), commands=commands)


def question(prompt: str, files: Mapping[str, str], answer: object, *commands: str, **slots: object) -> Task:
    """A task whose final message must hold `answer`, the tree untouched."""
    check = Tree(answer=str(answer))
    asked = Template(prompt).substitute(slots)
    return Task("", asked, check, files=dict(files), commands=commands, message=f"{answer}")


def file_names(draw: Draw, count: int, end: str = "") -> list[str]:
    """Different file names of the draw's split, all with one ending where it is given."""
    return names.distinct(lambda: names.file(draw, end), count)


def lines(draw: Draw, count: int) -> str:
    """Some lines of two or three words."""
    made = (" ".join(draw.words(words.WORDS, draw.integer(2, 3))) for _ in range(count))
    return "".join(f"{line}\n" for line in made)


def word_list(draw: Draw, count: int) -> list[str]:
    return draw.words(words.WORDS, count)


def text(items: list[str]) -> str:
    return "".join(f"{item}\n" for item in items)


def extras(draw: Draw, taken: Mapping[str, str], count: int) -> dict[str, str]:
    """Other files that must stay as they are."""
    others = [name for name in file_names(draw, count + len(taken)) if name not in taken]
    return {name: lines(draw, 2) for name in others[:count]}


def users(draw: Draw, count: int) -> list[str]:
    """Users of a log; none can be mistaken for another word of a line."""
    return names.apart(lambda: names.user(draw), count, avoid=DEEDS)


def without(draw: Draw, *wanted: str) -> Callable[[], str]:
    """A source of words that hold none of `wanted` and are no part of one."""
    return lambda: names.apart(lambda: draw.word(words.WORDS), 1, avoid=wanted)[0]


def log(draw: Draw, count: int, people: list[str]) -> list[str]:
    """Lines of a log: time, level, user, and what they did."""
    return [
        f"{8 + i // 6:02d}:{draw.below(60):02d} {draw.any(words.LEVELS)} {draw.any(people)} {draw.any(DEEDS)}"
        for i in range(count)
    ]
