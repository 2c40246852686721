# SPDX-License-Identifier: AGPL-3.0-or-later
"""Conversations in ShareGPT's words: {"conversations": [{"from": "human", "value": "…"}, …]}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rusty_r2.agent.plain import plain, text
from rusty_r2.data.conversation import Call, Turn, traces_of
from rusty_r2.data.importers.openai import arguments_of
from rusty_r2.errors import TraceError
from rusty_r2.trace import ExecutionTrace

ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bot", "model", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response", "function"), "tool"),
    "system": "system",
}


def looks(record: Any) -> bool:
    """Whether this is such a conversation."""
    return isinstance(record, dict) and isinstance(record.get("conversations"), list)


def read(record: Mapping[str, Any]) -> list[ExecutionTrace]:
    """The traces of one conversation."""
    turns = [Turn("system", record["system"])] if isinstance(record.get("system"), str) else []
    turns += [_turn(message) for message in record["conversations"]]
    ours = {"conversations", "system", "id"}
    extra = {key: plain(value) for key, value in record.items() if key not in ours}
    return traces_of(turns, session_id=text(record.get("id")), extra=extra)


def _turn(message: Any) -> Turn:
    if not isinstance(message, Mapping) or not isinstance(message.get("from"), str):
        raise TraceError("a message must be an object with `from` and `value`")
    role = ROLES.get(message["from"].lower())
    if role is None:
        raise TraceError(f"`from` is {message['from'][:40]!a}, which is not known")
    said = text(message.get("value"))
    if message["from"].lower() != "function_call":
        return Turn(role, said, llm_calls=int(role == "assistant"))
    asked = arguments_of(said)
    if not isinstance(asked, Mapping):
        raise TraceError("a function_call must hold a name and arguments as JSON")
    call = Call(text(asked.get("name")), arguments_of(asked.get("arguments")))
    return Turn(role, calls=[call], llm_calls=1)
