# SPDX-License-Identifier: AGPL-3.0-or-later
"""What minds of every kind share when they speak: whose turn a text is, and how a cut message ends.

`messages` puts our turns into the three roles that every chat template and server knows, and breaks what a
template would take for its own marks. `closing` ends a message that reached the longest reply. `Tokens`
remembers conversations as the tokens they were, because text read a second time may become other tokens, and
then all that was read would have to be read again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rusty_r2 import files
from rusty_r2.agent.prompt import Turn
from rusty_r2.errors import PolicyError
from rusty_r2.protocol import Msg, render

Message = dict[str, str]
Render = Callable[[list[Message]], str]
_MESSAGE = render(Msg(""))[:-2]
_ESCAPE = re.compile(r"\\.", re.S)
_HALF_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u[0-9a-f]{0,3}$")
_MARK = re.compile(
    r"<\|[^\s|<>]{1,40}\|>|<｜[^\s｜<>]{1,60}｜>|</?s>|<[be]os>|\[/?INST\]|<</?SYS>>|</?(?:start|end)_of_turn>"
)
REMEMBERED = 16
"""conversations kept as tokens"""
WHOLE = 1 << 30
"""files up to this size are checksummed whole, larger ones in samples"""


def messages(turns: Sequence[Turn]) -> list[Message]:
    """Turns as {role, content}: what came of an action is said by the user; nobody speaks twice in a row."""
    said: list[Message] = []
    for turn in turns:
        role = "user" if turn.role == "observation" else turn.role
        content = disarmed(turn.text)
        if said and said[-1]["role"] == role:
            said[-1]["content"] += f"\n\n{content}"
        else:
            said.append({"role": role, "content": content})
    return said


def disarmed(text: str) -> str:
    """The text with a space in everything that chat templates use as a mark, so that no file that is read
    and no command's output can begin a turn of its own."""
    return _MARK.sub(lambda found: found[0][0] + " " + found[0][1:], text)


def without_system(said: Sequence[Message]) -> list[Message]:
    """For templates that know no system role: its words begin the first request."""
    if len(said) < 2 or said[0]["role"] != "system":
        return list(said)
    return [{"role": "user", "content": f"{said[0]['content']}\n\n{said[1]['content']}"}, *said[2:]]


def rendered(turns: Sequence[Turn], render: Render) -> str:
    """The conversation in a chat template's words, whether or not it knows a system role."""
    said = messages(turns)
    try:
        return render(said)
    except PolicyError:
        if said[0]["role"] != "system":
            raise
    return render(without_system(said))


def closing(text: str) -> str:
    """What ends a message that reached the longest reply; "" where that is a command or a file, which are
    never completed, or where the cut went through an escape."""
    inside = text.removeprefix(_MESSAGE)
    if inside == text or _HALF_ESCAPE.search(inside):
        return ""
    plain = _ESCAPE.sub("", inside)
    if '"' in plain:
        return "" if plain.rstrip().endswith("}") else "}"
    return '\\"}' if plain.endswith("\\") else '"}'


class Tokens:
    """Conversations as tokens: `of` gives the tokens of a text that goes on from a remembered one."""

    def __init__(self, encode: Callable[[str, bool], list[int]], most: int = REMEMBERED) -> None:
        """`encode(text, begins)`: tokens of a piece; `begins` where it is the first of its text."""
        self._encode, self._most = encode, most
        self._known: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def of(self, text: str) -> list[int]:
        before = max((known for known in self._known if text.startswith(known)), key=len, default="")
        return [*self._known.get(before, ()), *self._encode(text[len(before) :], not before)]

    def keep(self, text: str, ids: Sequence[int]) -> None:
        for known in [known for known in self._known if text.startswith(known)]:
            del self._known[known]
        self._known[text] = tuple(ids)
        while len(self._known) > self._most:
            self._known.popitem(last=False)


def digest_of(folder: Path, pattern: str = "model*.safetensors") -> str:
    """Which weights a folder holds: from its own checksums, or made now; all files count."""
    try:
        sums: Any = json.loads((folder / files.CHECKSUMS).read_text())
        found = [value for name, value in sorted(sums.items()) if Path(name).match(pattern)]
    except (OSError, ValueError, AttributeError):
        found = [fingerprint(path) for path in sorted(folder.glob(pattern))]
    if len(found) > 1:
        return hashlib.sha256("".join(map(str, found)).encode()).hexdigest()[:16]
    return str(found[0])[:16] if found else ""


def fingerprint(path: Path) -> str:
    """A checksum of a file; of a very large one, of its size and 64 places in it."""
    size = path.stat().st_size
    if size <= WHOLE:
        return files.digest(path)
    summed = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for place in range(64):
            file.seek(place * (size - (1 << 20)) // 63)
            summed.update(file.read(1 << 20))
    return summed.hexdigest()
