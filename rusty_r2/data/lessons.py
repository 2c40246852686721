# SPDX-License-Identifier: AGPL-3.0-or-later
"""Lessons without end: copying what was given, saying no, writing small functions, knowing when to stop.

Copying comes first: names, lines and files that must be said again exactly as they were given. A small
recurrent model would rather know a few hundred names by heart than carry an unknown one from the request to
its reply. Here every name is made of any words of the tokenizer, so nothing can be known by heart: `chmod +x
quark_Lantern7.sh` can only be copied. The requests are none of the gym's families; what a lesson asks for
is in lessons.toml: one line for what is said, one for what is done. The other lessons are refusals.py,
programs.py, talk.py, everyday.py and scripts.py; `SHARES` says how much of each.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.data import everyday, programs, refusals, scripts, talk
from rusty_r2.data.episode import Episode, Turn, say
from rusty_r2.data.names import Namer, vocabulary
from rusty_r2.protocol import Action, Cmd, Edit, Msg

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Namer", "lessons", "vocabulary"]
SOURCE = "lessons"
_SLOT = re.compile(r"(?<!\$)\$([a-z]+\d*)")


def lessons(words: Sequence[str], count: int, *, seed: int = 0) -> Iterator[Episode]:
    """`count` episodes with names made of `words`."""
    makers = [maker for maker, weight in SHARES for _ in range(weight)]
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        yield rng.choice(makers)(Namer(words, rng))


@cache
def _texts() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("lessons.toml").read_text(encoding="utf-8"))


def _filled(namer: Namer, *texts: str) -> list[str]:
    """The texts with their $slots filled; a slot has the same name in all of them."""
    slots = dict.fromkeys(slot for text in texts for slot in _SLOT.findall(text))
    names = {slot: namer[slot] for slot in slots}
    return [Template(text).substitute(names) for text in texts]


def _episode(kind: str, request: str, *turns: Turn) -> Episode:
    return Episode(kind, SOURCE, (("system", SYSTEM), ("user", request), *turns))


def _one(kind: str, request: str, action: Action) -> Episode:
    return _episode(kind, request, say(action))


def _command(namer: Namer) -> Episode:
    """A request with names in it, and the command that has them."""
    lesson = namer.rng.choice(_texts()["command"])
    request, command = _filled(namer, namer.rng.choice(lesson["say"]), lesson["do"])
    return _one("CMD", request, Cmd(command))


def _verbatim(namer: Namer) -> Episode:
    """A command to be run as it stands."""
    lesson = namer.rng.choice(_texts()["command"])
    wording = namer.rng.choice(_texts()["verbatim"]["say"])
    (command,) = _filled(namer, lesson["do"])
    return _one("CMD", wording.replace("@", command), Cmd(command))


def _repeat(namer: Namer) -> Episode:
    said = namer.rng.choice((namer.words, namer.path, namer.name, namer.file))()
    return _one("MSG", namer.rng.choice(_texts()["repeat"]["say"]).replace("@", said), Msg(said))


def _answer(namer: Namer) -> Episode:
    """A question, the command that finds out, and the answer out of what it printed."""
    lesson = namer.rng.choice(_texts()["answer"])
    request, command, seen, message = _filled(
        namer, namer.rng.choice(lesson["say"]), lesson["do"], lesson["see"], lesson["tell"]
    )
    return _episode(
        "STEPS", request, say(Cmd(command)), ("observation", f"exit 0\n{seen}"), say(Msg(message))
    )


def _lines(namer: Namer) -> list[str]:
    made = (
        namer.words,
        namer.name,
        lambda: f"{namer.name()}={namer.name()}",
        lambda: f"{namer.word()}, {namer.number()}",
    )
    make = namer.rng.choice(made)
    return [make() for _ in range(namer.rng.randint(1, 5))]


def _new_file(namer: Namer) -> Episode:
    """Given lines become a file."""
    path, text = namer.file(), "\n".join(_lines(namer))
    request = namer.rng.choice(_texts()["new_file"]["say"]).replace("@", path) + f"\n{text}"
    return _one("EDIT", request, Edit(path, text + "\n"))


def _changed_file(namer: Namer) -> Episode:
    """A shown file comes back with one thing changed."""
    path, lines = namer.file(), _lines(namer)
    at = namer.rng.randrange(len(lines))
    lesson = namer.rng.choice(("swap", "add", "drop"))
    if lesson == "swap":
        old, new = namer.rng.choice(lines[at].split()).strip(","), namer.name()
        after = [line.replace(old, new) for line in lines]
    elif lesson == "add":
        old, new = "", namer.words()
        after = [*lines, new]
    else:
        old, new = lines[at], ""
        after = [line for line in lines if line != old] or [""]
    wording = namer.rng.choice(_texts()["changed_file"][lesson])
    request = Template(wording).substitute(path=path, old=old, new=new)
    text = "\n".join(lines)
    return _one("EDIT", f"{request}\n\nCURRENT_FILE: {path}\n{text}", Edit(path, "\n".join(after) + "\n"))


def _code(namer: Namer) -> Episode:
    """A piece of code with given names, sometimes over a stub that is shown."""
    lesson = namer.rng.choice(_texts()["code"])
    request, code, stub = _filled(namer, namer.rng.choice(lesson["say"]), lesson["do"], lesson.get("see", ""))
    path = re.findall(r"\S+\.py", request)[0]
    if stub:
        request += f"\n\nCURRENT_FILE: {path}\n{stub.rstrip()}"
    return _one("EDIT", request, Edit(path, code))


SHARES: tuple[tuple[Callable[[Namer], Episode], int], ...] = (
    (_command, 8),
    (_verbatim, 2),
    (_repeat, 2),
    (_answer, 3),
    (_new_file, 2),
    (_changed_file, 3),
    (_code, 5),
    (refusals.refused, 6),
    (refusals.granted, 5),
    (programs.program, 12),
    (talk.talk, 4),
    (talk.tool, 2),
    (everyday.everyday, 30),
    (scripts.script, 8),
)
"""how often each kind of lesson comes"""
