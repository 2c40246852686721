# SPDX-License-Identifier: AGPL-3.0-or-later
"""Mistakes that a small model makes, and what puts them right.

    slip(task, Cmd("mv a.txt b.txt"), rng)      Cmd("mv a.txt bat.txt"), Cmd("mv bat.txt b.txt")

It says another name than it was given: a near one, one of the others in the request, a shorter one, another
number; or it leaves out an option. Then the work stands under a wrong name, or was not done at all. Whether
the remedy really works is for whoever plays it (played.py): what does not pass is not taught.
"""

from __future__ import annotations

import random
import re
import shlex
from functools import cache

from rusty_r2.gym.families.base import is_held
from rusty_r2.gym.families.words import WORDS
from rusty_r2.protocol import Action, Cmd, Edit
from rusty_r2.task import Task, Tree

_NAME = re.compile(r"(?<![\w$./-])\w[\w./-]*\w")
_WORD = re.compile(r"[A-Za-z]{3,}|\d+")
_OPTION = re.compile(r" -[a-z]+(?= )")


def slip(task: Task, action: Cmd | Edit, rng: random.Random) -> tuple[Action, Action] | None:
    """A wrong action in place of a right one, and what to do after it; None where nothing can go wrong."""
    text = action.path if isinstance(action, Edit) else action.command
    options = _OPTION.findall(text)
    if isinstance(action, Cmd) and options and rng.random() < 0.2:
        return Cmd(text.replace(rng.choice(options), "", 1)), action
    asked, program = set(_NAME.findall(task.prompt)), text.partition(" ")[0]
    given = [name for name in dict.fromkeys(_NAME.findall(text)) if name in asked]
    given = [name for name in given if name != program or isinstance(action, Edit)]
    if not given:
        return None
    name = rng.choice(given)
    wrong = _other(name, given, rng)
    if wrong == name:
        return None
    said = re.sub(rf"(?<![\w$./-]){re.escape(name)}(?![\w-])", lambda _: wrong, text)
    if isinstance(action, Edit):
        return Edit(said, action.content), action
    moved = Cmd(shlex.join(["mv", wrong, name]))
    return Cmd(said), moved if _makes(task, name) else action


def _makes(task: Task, name: str) -> bool:
    """Whether this file or folder is to be made: then the work stands under the wrong name."""
    expect = task.check.expect if isinstance(task.check, Tree) else {}
    made = [path for path, content in expect.items() if content is not None and path not in task.files]
    return made == [name] or any(path.startswith(f"{name}/") for path in made)


def _other(name: str, given: list[str], rng: random.Random) -> str:
    """Another name in place of one."""
    others = [one for one in given if one != name]
    if others and rng.random() < 0.25:
        return rng.choice(others)
    word = rng.choice(_WORD.findall(name) or [name])
    return name.replace(word, _number(word, rng) if word.isdecimal() else _near(word, rng), 1)


def _number(digits: str, rng: random.Random) -> str:
    made = str(rng.randrange(10 ** len(digits)))
    return made if int(made) % 5 != 3 else str(int(made) + 1)  # those are held out


def _near(word: str, rng: random.Random) -> str:
    chance = rng.random()
    shorter = word[: -rng.randint(1, max(1, min(3, len(word) - 3)))]
    if chance < 0.2 and not is_held(shorter.lower()):
        return shorter
    alike = _alike().get(word[:2].lower(), ()) if chance < 0.7 else ()
    return rng.choice(alike or _trained())


@cache
def _trained() -> tuple[str, ...]:
    return tuple(word for word in WORDS if not is_held(word))


@cache
def _alike() -> dict[str, list[str]]:
    """The words that training may say, by their first two letters."""
    found: dict[str, list[str]] = {}
    for word in _trained():
        found.setdefault(word[:2], []).append(word)
    return found
