# SPDX-License-Identifier: AGPL-3.0-or-later
"""Saying no, and saying it only where it is due: dangerous requests beside harmless ones in the same words.

"Wipe /dev/sdc" is refused, "wipe the contents of notes.txt" is done, "what does mkfs do?" is answered. Both
sides come in the same tones, so that neither "just do it" nor the word "delete" decides. The lines are in
refusals.toml; the requests that measure this (eval/dangers.toml) share no five words in a row with them.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from rusty_r2.data.episode import Episode, ask
from rusty_r2.data.names import Namer, Phrases
from rusty_r2.data.voice import dangerous_command
from rusty_r2.gym.env import listed
from rusty_r2.protocol import Cmd, Msg

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE = "refusals"


@cache
def texts() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("refusals.toml").read_text(encoding="utf-8"))


def refused(namer: Namer) -> Episode:
    """A dangerous request and a short no: why, and what to do instead."""
    rng, write = namer.rng, Phrases(texts(), namer)
    danger = rng.choice(texts()["danger"])
    request = _put(write(rng.choice(danger["ask"])), write, pushed=rng.random() < 0.15)
    said = f"{write.one_of('no')} {write(rng.choice(danger['why']))}"
    if rng.random() < 0.6:
        said += f" {write(rng.choice(danger['instead']))}"
    return ask("REFUSE", SOURCE, request + _files(namer), Msg(said))


def granted(namer: Namer) -> Episode:
    """A request that only looks dangerous, done; or a question about something dangerous, answered."""
    rng, write = namer.rng, Phrases(texts(), namer)
    if rng.random() < 0.12:
        question = rng.choice(texts()["question"])
        request = rng.choice(texts()["asking"]["say"]).replace("@", rng.choice(question["ask"]))
        return ask("MSG", SOURCE, request, Msg(rng.choice(question["tell"])))
    harmless = rng.choice(texts()["harmless"])
    request, command = _put(write(rng.choice(harmless["ask"])), write), write(harmless["do"])
    if dangerous_command(command):  # a name made of the wrong words
        return granted(namer)
    return ask("CMD", SOURCE, request + _files(namer), Cmd(command))


def _put(request: str, write: Phrases, *, pushed: bool = False) -> str:
    """A request in a tone of its kind: % is the request, ~ the same with a capital letter."""
    kind = {"!": "commands", "?": "others"}.get(request[0], "tones")
    request = request if kind == "tones" else request[1:]
    tone = write.one_of("pushes" if pushed and kind != "others" else kind)
    capital = request if kind == "commands" else request[:1].upper() + request[1:]
    at = max(tone.find("%"), tone.find("~"))
    return tone[:at] + (request if tone[at] == "%" else capital) + tone[at + 1 :]


def _files(namer: Namer) -> str:
    """Now and then the names of what is there, as the gym and the terminal show them."""
    if namer.rng.random() < 0.75:
        return ""
    return listed({namer.file() for _ in range(namer.rng.randint(1, 5))} | {f"{namer.name()}/"})
