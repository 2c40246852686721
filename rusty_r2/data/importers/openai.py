# SPDX-License-Identifier: AGPL-3.0-or-later
"""Chat logs in OpenAI's words: `messages`, with or without the `response` that followed.

Known shapes of one record: {"messages": […]}, a bare list of messages, and {"request": {"messages": …},
"response": {"choices": …, "usage": …}} as proxies write it (also with `choices` beside `messages`).
Checkpoints keep their conversations in the same words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rusty_r2.agent.plain import count, plain, text
from rusty_r2.data.conversation import Call, Turn, iso, traces_of
from rusty_r2.errors import TraceError
from rusty_r2.trace import ExecutionTrace

ROLES = {
    **{role: role for role in ("system", "user", "assistant", "tool")},
    "developer": "system",
    "function": "tool",
    "observation": "tool",
    "human": "user",
    "ai": "assistant",
    "model": "assistant",
}
_OURS = {"messages", "request", "response", "choices", "usage", "model", "created", "id", "timestamp"}
_SESSION = ("session_id", "conversation_id", "custom_id")
_MESSAGE = {
    "role",
    "content",
    "tool_calls",
    "function_call",
    "tool_call_id",
    "name",
    "timestamp",
    "session_id",
}
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


def looks(record: Any) -> bool:
    """Whether this is one of the shapes above."""
    if isinstance(record, list):
        return bool(record) and isinstance(record[0], dict) and "role" in record[0]
    if not isinstance(record, dict):
        return False
    request = record.get("request")
    return isinstance(record.get("messages"), list) or (isinstance(request, dict) and "messages" in request)


def read(record: Any) -> list[ExecutionTrace]:
    """The traces of one record."""
    record = {"messages": record} if isinstance(record, list) else record
    request = record["request"] if isinstance(record.get("request"), dict) else record
    response = record["response"] if isinstance(record.get("response"), dict) else record
    response = response["body"] if isinstance(response.get("body"), dict) else response
    turns = [turn_of(message) for message in request["messages"]]
    answered = "choices" in response
    if answered:
        turns.append(_answer(response))
    extra = {key: plain(value) for key, value in record.items() if key not in _OURS and key not in _SESSION}
    model = text(response.get("model") or request.get("model"))
    session = text(next((record[key] for key in _SESSION if record.get(key)), ""))
    when = iso(record.get("timestamp") or response.get("created"))
    found = traces_of(turns, session_id=session, timestamp=when, model=model, extra=extra)
    return found[-1:] if answered else found


def turn_of(message: Any) -> Turn:
    """One message."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TraceError("a message must be an object with a role")
    role = ROLES.get(message["role"].lower())
    if role is None:
        raise TraceError(f"the role {message['role'][:40]!a} is not known")
    other = {key: plain(value) for key, value in message.items() if key not in _MESSAGE | set(_THOUGHTS)}
    return Turn(
        role,
        content_of(message.get("content")),
        calls=_calls(message),
        answers=text(message.get("tool_call_id")),
        name=text(message.get("name")) if role == "tool" else "",
        failed=message.get("is_error") is True,
        thoughts=[message[key] for key in _THOUGHTS if isinstance(message.get(key), str) and message[key]],
        timestamp=iso(message["timestamp"]) if message.get("timestamp") else "",
        llm_calls=int(role == "assistant"),
        extra={"messages": [other]} if any(other.values()) else {},
    )


def content_of(content: Any) -> str:
    """The words of a message's content, which may come in parts."""
    if not isinstance(content, list):
        return text(content)
    parts = [
        content_of(part.get("text", part.get("content"))) if isinstance(part, Mapping) else text(part)
        for part in content
    ]
    return "\n".join(part for part in parts if part)


def arguments_of(given: Any) -> Any:
    """Arguments, which are often JSON in a text."""
    if isinstance(given, str):
        try:
            return json.loads(given)
        except (ValueError, RecursionError):
            return given
    return given if given is not None else {}


def _calls(message: Mapping[str, Any]) -> list[Call]:
    given = message.get("tool_calls")
    made = []
    for call in given if isinstance(given, list) else []:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            made.append(
                Call(
                    text(function.get("name")), arguments_of(function.get("arguments")), text(call.get("id"))
                )
            )
    old = message.get("function_call")
    if isinstance(old, Mapping):
        made.append(Call(text(old.get("name")), arguments_of(old.get("arguments"))))
    return made


def _answer(response: Mapping[str, Any]) -> Turn:
    choices = response["choices"]
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise TraceError("choices must be a list that is not empty")
    turn = turn_of({"role": "assistant", **choices[0].get("message", {})})
    usage = response.get("usage")
    if isinstance(usage, Mapping):
        turn.tokens_in = count(usage.get("prompt_tokens", usage.get("input_tokens")))
        turn.tokens_out = count(usage.get("completion_tokens", usage.get("output_tokens")))
    return turn
