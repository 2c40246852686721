# SPDX-License-Identifier: AGPL-3.0-or-later
"""An episode: one conversation in the protocol, from the system's first word to Rusty's last.

A line of an episodes file is

    {"kind": "CMD", "source": "tldr", "licence": "CC-BY-4.0", "split": "train",
     "turns": [["system", "…"], ["user", "…"], ["assistant", "{…}"], ["observation", "…"], …]}

A third element `false` marks an assistant's turn that is shown but not learned: a mistake that the next
turns put right. Making episodes is data/episodes.py; making batches of them is data/rows.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.errors import DataError, ProtocolError
from rusty_r2.lm.chat import ROLES
from rusty_r2.lm.documents import records
from rusty_r2.protocol import Action, parse, render

KINDS = ("CMD", "EDIT", "MSG", "STEPS", "DEBUG", "REPAIR", "REFUSE", "CHAT")
Turn = tuple[str, str] | tuple[str, str, bool]
_SAME_ROLE = {"tool": "observation", "assistant_masked": "assistant"}


@dataclass(frozen=True)
class Episode:
    kind: str
    source: str
    turns: tuple[Turn, ...]
    licence: str = "AGPL-3.0-or-later"
    split: str = "train"

    def to_json(self) -> str:
        facts = {"kind": self.kind, "source": self.source, "licence": self.licence, "split": self.split}
        return json.dumps(facts | {"turns": self.turns}, ensure_ascii=False)


def ask(kind: str, source: str, request: str, action: Action, licence: str = "AGPL-3.0-or-later") -> Episode:
    """The shortest episode: one request, one action."""
    return Episode(kind, source, (("system", SYSTEM), ("user", request), say(action)), licence)


def say(action: Action, *, learned: bool = True) -> Turn:
    """An action as the assistant's turn."""
    return ("assistant", render(action)) if learned else ("assistant", render(action), False)


def from_record(record: dict[str, Any], where: str) -> Episode:
    """Read an episode of ours, or one with role/content turns; every learned reply must be an action."""
    turns = tuple(_turn(turn, where) for turn in record.get("turns", ()))
    if not any(_learned(turn) for turn in turns):
        raise DataError(f"{where}: no turn of the assistant to learn from")
    if turns[0][0] != "system":
        turns = (("system", SYSTEM), *turns)
    for turn in turns:
        if _learned(turn):
            _check(turn[1], where)
    facts = {name: str(record.get(name) or "unknown") for name in ("kind", "source", "licence")}
    return Episode(turns=turns, split=str(record.get("split") or "train"), **facts)


def read(path: Path, split: str = "train") -> Iterator[Episode]:
    """The episodes of a split in a JSONL(.xz) file, checked."""
    for number, record in enumerate(records(path), 1):
        if str(record.get("split") or "train") == split:
            yield from_record(record, f"{path}:{number}")


def _turn(turn: Any, where: str) -> Turn:
    if isinstance(turn, dict):
        role, text = str(turn.get("role")), turn.get("content")
        learned = role != "assistant_masked"
    elif isinstance(turn, Sequence) and not isinstance(turn, str) and len(turn) in (2, 3):
        role, text = str(turn[0]), turn[1]
        learned = len(turn) == 2 or bool(turn[2])
    else:
        raise DataError(f"{where}: a turn must be [role, text], not {str(turn)[:60]!a}")
    role = _SAME_ROLE.get(role, role)
    if role not in ROLES or not isinstance(text, str):
        raise DataError(f"{where}: role {role!a} with {type(text).__name__}; roles are {', '.join(ROLES)}")
    return (role, text) if learned else (role, text, False)


def _learned(turn: Turn) -> bool:
    return turn[0] == "assistant" and (len(turn) == 2 or turn[2])


def _check(reply: str, where: str) -> None:
    try:
        parse(reply)
    except ProtocolError as error:
        raise DataError(f"{where}: a reply to learn is not an action: {error}") from error
