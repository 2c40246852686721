# SPDX-License-Identifier: AGPL-3.0-or-later
"""Session files of Codex: one JSON object a line, `{"timestamp", "type", "payload"}`.

`session_meta` opens the file, `response_item` lines are the conversation, `turn_context` names the model and
`token_count` events the tokens of each call. Older files have the items themselves as lines. What the program
tells the model about the machine is no request of a user. Everything else is kept in `extra["codex"]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rusty_r2.agent.plain import amount, count, text
from rusty_r2.data.conversation import Call, Turn, iso, traces_of
from rusty_r2.data.importers.lines import Numbered, Reading, major, small
from rusty_r2.data.importers.openai import arguments_of, content_of
from rusty_r2.errors import TraceError
from rusty_r2.trace import ExecutionTrace

VERSIONS = (0, 1)
ITEMS = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "local_shell_call",
)
_LINES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
_CONTEXT = ("<environment_context>", "<user_instructions>", "<permissions", "# AGENTS.md instructions")
_EXIT = re.compile(r"\A(?:Exit code|Process exited with code):? (-?\d+)", re.M)


def looks(record: Any) -> bool:
    """Whether a line is one of such a file."""
    if not isinstance(record, dict):
        return False
    if record.get("type") in _LINES and isinstance(record.get("payload"), dict):
        return True
    return record.get("type") in ITEMS or {"id", "timestamp", "instructions"} <= set(record)


def read(records: list[Numbered], reading: Reading) -> list[ExecutionTrace]:
    """The traces of a file."""
    session = _Session()
    for number, record in records:
        try:
            session.take(record)
        except TraceError as error:
            reading.problem(number, str(error))
    known = {"agent_name": "codex", "session_id": session.key, "extra": session.about}
    return traces_of(session.turns, **known)


class _Session:
    def __init__(self) -> None:
        self.key = ""
        self.model = ""
        self.about: dict[str, Any] = {}
        self.turns: list[Turn] = []

    def take(self, record: Any) -> None:
        """One more line."""
        if not isinstance(record, Mapping):
            raise TraceError(f"a line must be an object, not a {type(record).__name__}")
        kind, payload = record.get("type"), record.get("payload", record)
        if not isinstance(payload, Mapping):
            raise TraceError("payload must be an object")
        when = iso(record["timestamp"]) if record.get("timestamp") else ""
        if kind == "session_meta" or (kind is None and "id" in record):
            self._open(payload)
        elif kind == "turn_context":
            self.model = text(payload.get("model")) or self.model
        elif kind == "event_msg" and payload.get("type") == "token_count":
            self._count(payload)
        elif kind == "event_msg" and payload.get("type") in (
            "user_message",
            "agent_message",
            "agent_reasoning",
        ):
            return  # the same words again, as the screen showed them
        elif kind == "response_item" or kind in ITEMS or "payload" not in record:
            self._item(payload, when)
        else:
            self.turns.append(Turn("aside", timestamp=when, extra={"codex": [small(record)]}))

    def _open(self, payload: Mapping[str, Any]) -> None:
        version = major(payload.get("cli_version"))
        if version is not None and version not in VERSIONS:
            raise TraceError(
                f"Codex {text(payload['cli_version'])[:20]} is not known; up to {VERSIONS[-1]} is"
            )
        self.key = text(payload.get("id"))
        self.about |= {key: small(payload[key]) for key in ("cli_version", "cwd", "git") if payload.get(key)}
        told = payload.get("base_instructions") or payload.get("instructions")
        told = told.get("text") if isinstance(told, Mapping) else told
        if isinstance(told, str) and told:
            self.turns.append(Turn("system", told))

    def _count(self, payload: Mapping[str, Any]) -> None:
        info = payload.get("info")
        last = info.get("last_token_usage") if isinstance(info, Mapping) else None
        spoken = next((turn for turn in reversed(self.turns) if turn.role in ("assistant", "user")), None)
        if isinstance(last, Mapping) and spoken is not None and spoken.role == "assistant":
            spoken.tokens_in += count(last.get("input_tokens"))
            spoken.tokens_out += count(last.get("output_tokens"))
            spoken.llm_calls += 1

    def _item(self, item: Mapping[str, Any], when: str) -> None:
        spoken = Turn("assistant", timestamp=when, model=self.model)
        key = text(item.get("call_id"))
        match item.get("type"):
            case "message":
                self._message(item, when)
                return
            case "reasoning":
                spoken.thoughts = [
                    words for part in ("summary", "content") if (words := content_of(item.get(part)))
                ]
            case "function_call":
                spoken.calls = [Call(text(item.get("name")), arguments_of(item.get("arguments")), key)]
            case "custom_tool_call":
                spoken.calls = [Call(text(item.get("name")), {"input": item.get("input")}, key)]
            case "local_shell_call":
                spoken.calls = [Call("shell", item.get("action"), key)]
            case "function_call_output" | "custom_tool_call_output":
                spoken = _result(item.get("output"), key, when)
            case _:
                spoken = Turn("aside", timestamp=when, extra={"codex": [small(item)]})
        self.turns.append(spoken)

    def _message(self, item: Mapping[str, Any], when: str) -> None:
        said, role = content_of(item.get("content")), item.get("role")
        if role == "user" and said.startswith(_CONTEXT):
            self.turns.append(Turn("aside", timestamp=when, extra={"codex": [small(item)]}))
        elif role in ("user", "assistant", "system", "developer"):
            kind = "system" if role in ("system", "developer") else str(role)
            model = self.model if role == "assistant" else ""
            self.turns.append(Turn(kind, said, timestamp=when, model=model))
        else:
            raise TraceError(f"the role {text(role)[:40]!a} is not known")


def _result(output: Any, key: str, when: str) -> Turn:
    """A tool's answer: words, or JSON with the exit code and the time it took."""
    turn = Turn("tool", answers=key, timestamp=when)
    made = arguments_of(output) if isinstance(output, str) and output.startswith("{") else output
    if isinstance(made, Mapping):
        about = made.get("metadata")
        about = about if isinstance(about, Mapping) else {}
        turn.content = content_of(made.get("output", made.get("content", made.get("body"))))
        turn.failed = made.get("success") is False or about.get("exit_code") not in (None, 0)
        turn.duration_ms = amount(about.get("duration_seconds")) * 1000
    else:
        turn.content = content_of(made)
        exit_code = _EXIT.search(turn.content)
        turn.failed = exit_code is not None and exit_code[1] != "0"
    return turn
