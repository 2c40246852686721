# SPDX-License-Identifier: AGPL-3.0-or-later
"""What to say when there is nothing to do, and where to stop: short answers to talk, noise and walls of text.

A small model that meets something unknown repeats itself until it is cut, and a reply that is cut is no
action. Here the unknown is practised: topics, tongues and tools made up of any words, answered in one short
line. The lines are in talk.toml.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from rusty_r2.data.episode import Episode, ask
from rusty_r2.data.names import Namer, Phrases
from rusty_r2.data.voice import dangerous_command
from rusty_r2.protocol import Cmd, Msg

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE = "talk"
LONGEST = 90
"""words of a pasted text"""
SIGNS = ("", ".", "?", "??", "...", "!!!", "-", ",", "/", "\\", "~", "#", "0", "1", "x", "\n", "()", "{}")


@cache
def texts() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("talk.toml").read_text(encoding="utf-8"))


def talk(namer: Namer) -> Episode:
    """Something that is no task, and a short answer."""
    chance = namer.rng.random()
    if chance < 0.15:
        return _noise(namer)
    return _paste(namer) if chance < 0.27 else _talk(namer)


def tool(namer: Namer) -> Episode:
    """A command of a tool that nobody knows, with the given values, and no more."""
    write = Phrases(texts(), namer)
    one = namer.rng.choice(texts()["tool"])
    request, command = write(namer.rng.choice(one["say"])), write(one["do"])
    if dangerous_command(command):  # a name made of the wrong words
        return tool(namer)
    return ask("CMD", SOURCE, request, Cmd(command))


def _talk(namer: Namer) -> Episode:
    rng, write = namer.rng, Phrases(texts(), namer)
    one, asked = rng.choice(_asked())
    request = write(asked)
    if rng.random() < 0.4:
        request = request[:1].upper() + request[1:]
    if rng.random() < 0.3:
        request += rng.choice((".", "!", "?", "...", " please", "??", " :(", " :)"))
    return ask("MSG", SOURCE, request, Msg(write(rng.choice(one["say"]))))


@cache
def _asked() -> list[tuple[dict[str, Any], str]]:
    """Every sentence with what it is one of."""
    return [(one, asked) for one in texts()["talk"] for asked in one["ask"]]


def _noise(namer: Namer) -> Episode:
    """Nothing, signs, keys hit at random, one thing over and over."""
    rng = namer.rng
    kind = rng.randrange(6)
    if kind == 0:
        text = rng.choice(SIGNS)
    elif kind == 1:
        text = "".join(rng.choices("asdfghjklqwertyuiopzxcvbnm ", k=rng.randint(3, 24)))
    elif kind == 2:
        text = " ".join([namer.word()] * rng.randint(3, 14))
    elif kind == 3:
        text = " ".join(namer.opaque() for _ in range(rng.randint(1, 4)))
    elif kind == 4:
        text = "".join(rng.choices("!?#%&*+-=~^_.,;:<>|@", k=rng.randint(2, 16)))
    else:
        text = " ".join(namer.number() for _ in range(rng.randint(1, 8)))
    return ask("MSG", SOURCE, text, Msg(rng.choice(texts()["noise"][0]["say"])))


def _paste(namer: Namer) -> Episode:
    """A long text, with no task in it."""
    rng, one = namer.rng, texts()["paste"][0]
    count = rng.randint(25, LONGEST)
    words = [namer.word() for _ in range(count)]
    if rng.random() < 0.5:
        text = " ".join(word + "." * (at % 11 == 10) for at, word in enumerate(words))
    else:
        size = rng.randint(3, 8)
        lines = (" ".join(words[at : at + size]) for at in range(0, count, size))
        text = "\n".join(f"{namer.opaque()} {line}" if rng.random() < 0.5 else line for line in lines)
    return ask("MSG", SOURCE, rng.choice(one["ask"]) + text, Msg(rng.choice(one["say"])))
