# SPDX-License-Identifier: AGPL-3.0-or-later
"""OpenTelemetry spans of generative AI, exported as OTLP JSON (`resourceSpans`).

The spans of one trace are one run: calls of a model give messages and tokens, `execute_tool` spans the tools.
Messages are read from `gen_ai.input.messages`, `gen_ai.output.messages` and `gen_ai.system_instructions`,
from the older events (`gen_ai.user.message`, `gen_ai.choice`) and from numbered attributes
(`gen_ai.prompt.0.role`). Schemas of version 1 are known; other attributes are kept in `extra["otel"]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from rusty_r2.agent.plain import amount, count, plain, text
from rusty_r2.data.conversation import Call, Turn, content_id, iso, traces_of
from rusty_r2.data.importers.lines import Numbered, Reading, major, small
from rusty_r2.data.importers.openai import ROLES, arguments_of, content_of, turn_of
from rusty_r2.errors import TraceError
from rusty_r2.trace import ExecutionTrace, ToolCallTrace

VERSIONS = (1,)
_TOOL = ("gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result")
_TOKENS = {
    "total_tokens_in": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "total_tokens_out": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
}
_MESSAGES = ("gen_ai.system_instructions", "gen_ai.input.messages", "gen_ai.output.messages")
_READ = {*_TOOL, *_MESSAGES, *(name for names in _TOKENS.values() for name in names)}
_NUMBERED = re.compile(r"gen_ai\.(prompt|completion)\.(\d{1,6})\.(role|content)")

Span = dict[str, Any]


def looks(record: Any) -> bool:
    """Whether this is an export of spans."""
    return isinstance(record, dict) and isinstance(record.get("resourceSpans"), list)


def read(records: list[Numbered], reading: Reading) -> list[ExecutionTrace]:
    """One trace for each trace of spans in which a model answered."""
    runs: dict[str, list[Span]] = {}
    for number, record in records:
        try:
            for span in _spans(record):
                runs.setdefault(text(span.get("traceId")), []).append(span)
        except (TraceError, AttributeError, TypeError) as error:
            reading.problem(number, str(error))
    found = []
    for key, spans in runs.items():
        try:
            made = _run(key, sorted(spans, key=_start))
        except (TraceError, AttributeError, TypeError) as error:
            reading.problem(1, f"trace {key[:40]}: {error}")
            continue
        found += made
    return found


def _spans(record: Any) -> Iterator[Span]:
    if not looks(record):
        raise TraceError("a record must have resourceSpans")
    for resource in record["resourceSpans"]:
        about = _attributes((resource.get("resource") or {}).get("attributes"))
        for scope in resource.get("scopeSpans", []):
            schema = text(scope.get("schemaUrl") or resource.get("schemaUrl"))
            version = major(schema.rpartition("/")[2]) if schema else None
            if version is not None and version not in VERSIONS:
                raise TraceError(f"the schema {schema[:80]} is not known; version 1 is")
            for span in scope.get("spans", []):
                yield {**span, "attributes": {**about, **_attributes(span.get("attributes"))}}


def _attributes(given: Any) -> dict[str, Any]:
    """OTLP's list of keys and typed values as a dict."""
    pairs = given if isinstance(given, list) else []
    return {text(pair.get("key")): _value(pair.get("value")) for pair in pairs if isinstance(pair, Mapping)}


def _value(given: Any) -> Any:
    if not isinstance(given, Mapping) or not given:
        return None
    kind, value = next(iter(given.items()))
    if kind == "intValue":
        return count(value)
    if kind == "arrayValue":
        return [_value(item) for item in (value or {}).get("values", [])]
    if kind == "kvlistValue":
        return _attributes((value or {}).get("values"))
    return value


def _run(key: str, spans: list[Span]) -> list[ExecutionTrace]:
    asked = [span for span in spans if _is_chat(span)]
    if not asked:
        return []
    last = asked[-1]["attributes"]
    made = traces_of(_conversation(asked[-1]), **_about(key, spans, last))
    if not made:
        raise TraceError("no messages are recorded in its spans")
    trace = made[-1]
    tools = [_tool(span) for span in spans if "gen_ai.tool.name" in span["attributes"]]
    numbers = {
        field: sum(count(next((s["attributes"][n] for n in names if n in s["attributes"]), 0)) for s in asked)
        for field, names in _TOKENS.items()
    }
    return [
        replace(
            trace,
            trace_id=content_id(key, trace.trace_id),
            timestamp=iso(_start(spans[0])) or trace.timestamp,
            tool_calls=tools or trace.tool_calls,
            llm_calls_count=len(asked),
            execution_duration_ms=max(_end(span) for span in spans) - _start(spans[0]),
            total_tokens_in=numbers["total_tokens_in"],
            total_tokens_out=numbers["total_tokens_out"],
        )
    ]


def _about(key: str, spans: list[Span], last: Mapping[str, Any]) -> dict[str, Any]:
    def first(*names: str) -> str:
        found = (s["attributes"].get(name) for name in names for s in spans)
        return text(next((value for value in found if value), ""))

    kept = {
        name: value for name, value in last.items() if name not in _READ and not _NUMBERED.fullmatch(name)
    }
    return {
        "agent_name": first("gen_ai.agent.name", "service.name"),
        "session_id": first("gen_ai.conversation.id", "session.id") or key,
        "model": first("gen_ai.response.model", "gen_ai.request.model"),
        "extra": {"otel": small(kept), "otel_trace_id": key},
    }


def _is_chat(span: Span) -> bool:
    given = span["attributes"]
    if given.get("gen_ai.operation.name") in ("chat", "text_completion", "generate_content"):
        return True
    return "gen_ai.request.model" in given and "gen_ai.operation.name" not in given


def _conversation(span: Span) -> list[Turn]:
    """The messages of a call of a model, in whichever of the three ways they are written."""
    given = span["attributes"]
    turns = [turn for name in _MESSAGES for turn in _listed(given.get(name), name)]
    return turns or _evented(span.get("events")) or _numbered(given)


def _listed(given: Any, name: str) -> Iterator[Turn]:
    messages = arguments_of(given)
    if not isinstance(messages, list):
        return
    if name == "gen_ai.system_instructions":
        yield Turn("system", content_of(messages))
        return
    for message in messages:
        role = ROLES.get(text(message.get("role")).lower(), "")
        if not role:
            raise TraceError(f"the role {text(message.get('role'))[:40]!a} is not known")
        turn = Turn(role)
        results = list(_parts(turn, message))
        if turn.content or turn.calls or turn.thoughts or not results:
            yield turn
        yield from results


def _parts(turn: Turn, message: Mapping[str, Any]) -> Iterator[Turn]:
    """Fill a turn with the parts of its message; results of tools are turns of their own."""
    for part in message.get("parts", [{"type": "text", "content": message.get("content")}]):
        match part.get("type"):
            case "text":
                turn.content = "\n".join(p for p in (turn.content, text(part.get("content"))) if p)
            case "reasoning":
                turn.thoughts.append(text(part.get("content")))
            case "tool_call":
                call = Call(text(part.get("name")), arguments_of(part.get("arguments")), text(part.get("id")))
                turn.calls.append(call)
            case "tool_call_response":
                said = text(part.get("response", part.get("result")))
                yield Turn("tool", said, answers=text(part.get("id")))
            case _:
                turn.extra.setdefault("parts", []).append(small(part))


def _evented(events: Any) -> list[Turn]:
    turns = []
    for event in events if isinstance(events, list) else []:
        name, given = text(event.get("name")), _attributes(event.get("attributes"))
        role = name.removeprefix("gen_ai.").removesuffix(".message")
        if name == "gen_ai.choice":
            message = arguments_of(given.get("message", {"content": given.get("content")}))
            turns.append(turn_of({"content": "", **message, "role": "assistant"}))
        elif name.startswith("gen_ai.") and role in ROLES:
            key = given.get("id") if role == "tool" else None
            calls = arguments_of(given.get("tool_calls"))
            turns.append(
                turn_of(
                    {"role": role, "content": given.get("content"), "tool_calls": calls, "tool_call_id": key}
                )
            )
    return turns


def _numbered(given: Mapping[str, Any]) -> list[Turn]:
    """`gen_ai.prompt.N.role` and its like."""
    made: dict[tuple[int, int], dict[str, Any]] = {}
    for name, value in given.items():
        if found := _NUMBERED.fullmatch(name):
            made.setdefault((found[1] == "completion", int(found[2])), {})[found[3]] = value
    return [
        turn_of({"role": "assistant" if at[0] else "user", **message}) for at, message in sorted(made.items())
    ]


def _tool(span: Span) -> ToolCallTrace:
    name, _, arguments, result = (span["attributes"].get(key) for key in _TOOL)
    status = span.get("status") or {}
    failed = status.get("code") in (2, "STATUS_CODE_ERROR")
    asked = plain(arguments_of(arguments))
    return ToolCallTrace(
        text(name),
        asked if isinstance(asked, dict) else {"input": asked},
        result if result is None else text(result),
        not failed,
        _end(span) - _start(span),
        text(status.get("message") or span["attributes"].get("error.type") or "error") if failed else None,
        iso(_start(span)),
    )


def _start(span: Span) -> float:
    """Milliseconds."""
    return amount(span.get("startTimeUnixNano")) / 1e6


def _end(span: Span) -> float:
    return max(amount(span.get("endTimeUnixNano")) / 1e6, _start(span))
