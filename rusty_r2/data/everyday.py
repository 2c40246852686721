# SPDX-License-Identifier: AGPL-3.0-or-later
"""The commands of every day, asked for in many ways, in a folder with made-up files.

What is asked and done is in everyday.toml; the notation is that of names.py, and `here` names what lies in
the folder. A command that prints nothing is now and then followed by the word that it is done; what others
print is for the gym and the terminal to show.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.data import voice
from rusty_r2.data.episode import Episode, Turn, say
from rusty_r2.data.names import Namer, Phrases
from rusty_r2.gym.env import listed
from rusty_r2.protocol import Cmd, Msg

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE = "everyday"
_SILENT = re.compile(r"(mkdir|touch|cp|mv|rm|rmdir|chmod|ln|sed -i) [^|]*|[^|]*>>? \S+")


@cache
def entries() -> list[dict[str, Any]]:
    text = Path(__file__).with_name("everyday.toml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = tomllib.loads(text)["everyday"]
    return found


def everyday(namer: Namer) -> Episode:
    """A request and its command; sometimes how that ended, and the last word."""
    rng, write = namer.rng, Phrases({}, namer)
    one = rng.choice(entries())
    request, command = _dressed(write(rng.choice(one["say"])), namer), write(one["do"])
    if voice.dangerous_command(command):  # a name made of the wrong words
        return everyday(namer)
    names = {write(name) for name in one.get("here", ())}
    if names or rng.random() < 0.7:
        names |= {
            namer.file() if rng.random() < 0.7 else f"{namer.word()}/" for _ in range(rng.randint(0, 6))
        }
    turns: list[Turn] = [("user", request + listed(names)), say(Cmd(command))]
    if _SILENT.fullmatch(command) and rng.random() < 0.5:
        turns += [("observation", "exit 0"), say(Msg(voice.done(rng, "untested")))]
    return Episode("STEPS" if len(turns) > 2 else "CMD", SOURCE, (("system", SYSTEM), *turns))


def _dressed(request: str, namer: Namer) -> str:
    """As people type: with or without a capital, a full stop, a please."""
    rng = namer.rng
    if rng.random() < 0.3:
        request = request[:1].upper() + request[1:]
    if request[-1] not in ".?!" and rng.random() < 0.35:
        request += rng.choice((".", ".", ".", "!", " please", " pls", ", please.", ", thanks", " now"))
    return request
