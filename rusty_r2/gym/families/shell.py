# SPDX-License-Identifier: AGPL-3.0-or-later
"""What terminal families share: small trees of files, and the task made of them.

A task is decided by the state of the tree at the end, or by the final message; the gold is one short
command, or two, and for a question the answer that can be read off its output.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from rusty_r2.gym.families import words
from rusty_r2.gym.families.base import Draw
from rusty_r2.task import Task, Tree


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
    stems = draw.words(words.STEMS, count)
    return [f"{stem}.{end or draw.any(('txt', 'md', 'log', 'csv', 'dat'))}" for stem in stems]


def lines(draw: Draw, count: int) -> str:
    """Some lines of two or three words."""
    made = (" ".join(draw.shuffled(words.WORDS)[: draw.integer(2, 3)]) for _ in range(count))
    return "".join(f"{line}\n" for line in made)


def word_list(draw: Draw, count: int) -> list[str]:
    return draw.shuffled(words.WORDS)[:count]


def text(items: list[str]) -> str:
    return "".join(f"{item}\n" for item in items)


def extras(draw: Draw, taken: Mapping[str, str], count: int) -> dict[str, str]:
    """Other files that must stay as they are."""
    names = [f"{stem}.txt" for stem in draw.words(words.STEMS, count + len(taken))]
    return {name: lines(draw, 2) for name in [name for name in names if name not in taken][:count]}


def log(draw: Draw, count: int, users: list[str]) -> list[str]:
    """Lines of a log: time, level, user, and what they did."""
    deeds = ("login", "logout", "upload", "delete", "search")
    return [
        f"{8 + i // 6:02d}:{draw.below(60):02d} {draw.any(words.LEVELS)} {draw.any(users)} {draw.any(deeds)}"
        for i in range(count)
    ]
