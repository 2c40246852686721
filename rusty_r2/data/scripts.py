# SPDX-License-Identifier: AGPL-3.0-or-later
"""Small files that people ask a terminal for: scripts, configurations, pages, and changes of shown code.

Every entry of scripts.toml is one file: its name, its text and what it does or is, in several phrases. The
phrases stand in sentences (`frames`) of their kind, beside sentences of the entry's own (`say`). The notation
is that of names.py, but in a text only known slots count: `$i` or `(a | b)` of a shell script stay as they
are. `before` is code that is shown with the request as the agent shows it (CURRENT_FILE), `of` its name
where another file is written; `here` are files that the request may name. `prints` (or `proof`, the lines as
Python), `args`, `stdin` and `check` (code that goes on after the file's) are for the tests, which run every
script that needs nothing from `outside`; code before a change may be `broken`.
"""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.data import voice
from rusty_r2.data.episode import Episode, Turn, say
from rusty_r2.data.names import PLEASE, SHELL, Namer, Phrases
from rusty_r2.gym.env import listed
from rusty_r2.protocol import Edit, Msg

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE = "scripts"
SLOT = re.compile(r"\$(?:identifier|module|words|word|number|name|port|host|ip)\d*\b|@[a-z]+\d*\b")
_SHELL = SHELL | {"function", "help", "test", "time"}
_TAKEN = frozenset((*dir(builtins), *keyword.kwlist, *keyword.softkwlist, *sys.stdlib_module_names, *_SHELL))
"""names that a script cannot have: those of the languages and of what it may import"""
_SPOKEN = re.compile(r"[\w./-]+")


@cache
def texts() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("scripts.toml").read_text(encoding="utf-8"))


def entries() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = texts()["script"]
    return found


def slots(*parts: str) -> set[str]:
    """The made-up names of a text: $kind, or @table where there is such a table."""
    return {mark for part in parts for mark in SLOT.findall(part) if mark[0] == "$" or _table(mark)}


def wordings(one: dict[str, Any]) -> list[str]:
    """Every sentence that asks for an entry, with its choices and slots."""
    framed = [
        frame.replace("{file}", one["file"]).replace("{do}", _bare(what)).replace("{does}", _third(what))
        for what in one.get("what", ())
        for frame in texts()["frames"][one["kind"]]
    ]
    return [*one.get("say", ()), *framed]


@cache
def _asked() -> list[tuple[dict[str, Any], list[str]]]:
    return [(one, wordings(one)) for one in entries()]


def script(namer: Namer) -> Episode:
    """A request for a file and the file; in every other one also that it was written, and the last word."""
    rng = namer.rng
    one, framed = rng.choice(_asked())
    own = one.get("say")
    wording = rng.choice(own if own and rng.random() < 0.2 else framed)
    names = filled(one, namer)
    quoted = re.sub(r"(\$words\d*)", rng.choice((r"\1", r"\1", r'"\1"', r"'\1'")), wording)
    request = _dressed(Phrases({}, namer)(put(quoted, names)), wording, namer)
    path = put(one["file"], names)
    turns: list[Turn] = [
        ("user", request + _shown(one, request, names, namer)),
        say(Edit(path, put(one["text"], names))),
    ]
    if rng.random() < 0.5:
        turns += [("observation", f"wrote {path}"), say(Msg(voice.done(rng, "untested")))]
    return Episode("EDIT", SOURCE, (("system", SYSTEM), *turns))


def filled(one: dict[str, Any], namer: Namer) -> dict[str, str]:
    """A name for every slot, no two alike and none that the code uses itself."""
    marks = _marks((one["file"], one["text"], one.get("before", ""), one.get("of", ""), *one.get("here", ())))
    used = _used(f"{one['text']}\n{one.get('before', '')}")
    while True:
        write = Phrases(texts(), namer)
        names = {mark: write(mark) for mark in marks}
        code = [name.removesuffix(".py") for mark, name in names.items() if mark[:4] in ("$ide", "$mod")]
        if len(set(names.values())) == len(names) and len(set(code)) == len(code) and used.isdisjoint(code):
            return names


@cache
def _marks(parts: tuple[str, ...]) -> list[str]:
    return sorted(slots(*parts))


@cache
def _used(code: str) -> frozenset[str]:
    return _TAKEN | frozenset(re.findall(r"(?<!\$)\b[A-Za-z_]\w*", code))


def put(text: str, names: dict[str, str]) -> str:
    """A text with its slots filled; whatever else looks like one stays."""
    return SLOT.sub(lambda mark: names.get(mark.group(), mark.group()), text)


def _shown(one: dict[str, Any], request: str, names: dict[str, str], namer: Namer) -> str:
    """What the agent shows with a request: the code it names, or what is in the folder if it names a file."""
    if "before" in one:
        shown = put(one.get("of", one["file"]), names)
        return f"\n\nCURRENT_FILE: {shown}\n{put(one['before'], names).rstrip()}"
    there = (put(name, names).partition("/") for name in one.get("here", ()))
    here = {name + slash for name, slash, _ in there}
    spoken = {word.strip(".,:;?!").partition("/")[0] for word in _SPOKEN.findall(request)}
    if not spoken & {name.rstrip("/") for name in here}:
        return ""
    others = {namer.file() for _ in range(namer.rng.randint(0, 5))} - {put(one["file"], names)}
    return listed(here | {name for name in others if not name.endswith(".py")})


def _dressed(request: str, wording: str, namer: Namer) -> str:
    """As people type: with or without a capital (a name keeps its own), a full stop, a please."""
    rng = namer.rng
    if rng.random() < 0.3 and not slots(wording.split()[0]) and "." not in wording.split()[0]:
        request = request[:1].upper() + request[1:]
    if wording[-1].isalpha() and not slots(wording.split()[-1]) and rng.random() < 0.3:
        request += rng.choice(PLEASE)
    return request


def _table(mark: str) -> bool:
    return mark[1:].rstrip("0123456789") in texts()


def _bare(what: str) -> str:
    """print+s a line, has+ an end: print a line, have an end"""
    plain = what.replace("has+", "have").replace("does+", "do")
    return re.sub(r"\+e?s\b", "", plain)


def _third(what: str) -> str:
    """print+s a line, has+ an end: prints a line, has an end"""
    return what.replace("+", "")
