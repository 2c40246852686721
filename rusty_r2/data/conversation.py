# SPDX-License-Identifier: AGPL-3.0-or-later
"""A recorded conversation in one form, whatever program wrote it, and the traces it is made of.

Every request of a user begins a trace; what the assistant said, thought and called until the next request
belongs to it, and what came before is its history. Ids follow from the content: the same conversation read
twice, or found in two checkpoints, gives the same ids, while two answers to one question stay two traces.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from rusty_r2.agent.plain import plain, text
from rusty_r2.trace import ExecutionTrace, ReasoningStep, ToolCallTrace, now

REMEMBERED = 50
"""messages of the conversation before a request that are kept with it"""


@dataclass
class Call:
    """A tool the assistant asked for."""

    name: str
    arguments: Any
    key: str = ""
    """what the answer refers to"""


@dataclass
class Turn:
    """One message."""

    role: str
    """system, user, assistant or tool; `aside` for what is only kept"""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    answers: str = ""
    """the key of the call a tool's message answers"""
    name: str = ""
    failed: bool = False
    thoughts: list[str] = field(default_factory=list)
    timestamp: str = ""
    model: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    llm_calls: int = 0
    duration_ms: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)


def traces_of(turns: Iterable[Turn], **known: Any) -> list[ExecutionTrace]:
    """One trace a request that was answered or worked on; `known` are fields all of them have."""
    found: list[ExecutionTrace] = []
    before: list[dict[str, Any]] = []
    system = ""
    for turn, answer in _exchanges(turns):
        if turn.role == "system":
            system = turn.content if not system else f"{system}\n\n{turn.content}"
            continue
        if any(part.content or part.calls or part.role == "tool" for part in answer):
            found.append(_trace(turn, answer, before, {"system_prompt": system, **known}))
        before = [*before, _said(turn), *(_said(part) for part in answer if part.content or part.calls)][
            -REMEMBERED:
        ]
    return found


def iso(value: Any) -> str:
    """A time as traces write it (UTC); "" for what is none. Numbers are seconds, milli- or nanoseconds."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            seconds = float(value)
            while 1e11 < seconds < math.inf:
                seconds /= 1000
            return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
        moment = datetime.fromisoformat(str(value).strip().replace("Z", "+00:00"))
    except (ValueError, OverflowError, OSError):
        return ""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return aware.astimezone(timezone.utc).isoformat(timespec="milliseconds")


def content_id(*parts: Any) -> str:
    """An id that follows from what is said, and from nothing else."""
    words = json.dumps(parts, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(words.encode()).hexdigest()[:24]


def distinct(traces: Iterable[ExecutionTrace]) -> list[ExecutionTrace]:
    """Each trace once; one that was cut off gives way to the same run seen further on."""
    first: dict[str, ExecutionTrace] = {}
    for trace in traces:
        first.setdefault(trace.trace_id, trace)
    kept = list(first.values())
    whole: dict[tuple[str, str, str], list[ExecutionTrace]] = {}
    for trace in kept:
        whole.setdefault((trace.agent_name, trace.session_id, trace.user_query), []).append(trace)
    return [
        trace
        for trace in kept
        if trace.final_response
        or not any(
            _begins(trace, other) for other in whole[trace.agent_name, trace.session_id, trace.user_query]
        )
    ]


def _begins(trace: ExecutionTrace, other: ExecutionTrace) -> bool:
    done = [(call.tool_name, call.arguments) for call in trace.tool_calls]
    more = [(call.tool_name, call.arguments) for call in other.tool_calls]
    return other is not trace and bool(other.final_response) and more[: len(done)] == done


def _exchanges(turns: Iterable[Turn]) -> Iterator[tuple[Turn, list[Turn]]]:
    """Each request with what followed it, and system messages alone; what else comes first is dropped."""
    request: Turn | None = None
    answer: list[Turn] = []
    for turn in turns:
        if turn.role == "system" and request is None:
            yield turn, []
        elif turn.role == "user":
            if request is not None:
                yield request, answer
            request, answer = turn, []
        elif request is not None and turn.role != "system":
            answer.append(turn)
    if request is not None:
        yield request, answer


def _trace(
    request: Turn, answer: Sequence[Turn], before: Sequence[dict[str, Any]], known: Mapping[str, Any]
) -> ExecutionTrace:
    calls = _calls(answer)
    spoken = [turn for turn in answer if turn.role == "assistant"]
    last = _last_words(answer)
    response = last.content if last else ""
    thoughts = [ReasoningStep("thinking", thought) for turn in spoken for thought in turn.thoughts]
    aside = [ReasoningStep("message", turn.content) for turn in spoken if turn.content and turn is not last]
    fields = dict(known)
    agent, session = fields.get("agent_name", ""), fields.get("session_id", "")
    extra = {**fields.pop("extra", {})}
    for turn in (request, *answer):
        for key, value in turn.extra.items():
            extra[key] = [*extra[key], *value] if isinstance(extra.get(key), list) else value
    done = [(call.tool_name, call.arguments, call.result) for call in calls]
    return ExecutionTrace(
        trace_id=content_id(agent, session, request.timestamp, request.content, response, done),
        timestamp=request.timestamp or fields.pop("timestamp", "") or now(),
        user_query=request.content,
        final_response=response,
        tool_calls=calls,
        reasoning_steps=thoughts + aside,
        history=list(before),
        model=next((turn.model for turn in reversed(spoken) if turn.model), fields.pop("model", "")),
        total_tokens_in=sum(turn.tokens_in for turn in answer),
        total_tokens_out=sum(turn.tokens_out for turn in answer),
        llm_calls_count=sum(turn.llm_calls for turn in answer),
        execution_duration_ms=_between(request, answer),
        ended="done" if response else "cut off",
        extra=extra,
        **{key: value for key, value in fields.items() if key not in ("timestamp", "model")},
    )


def _last_words(answer: Sequence[Turn]) -> Turn | None:
    """What was said after the last tool, if anything was."""
    for turn in reversed(answer):
        if turn.role == "tool" or turn.calls:
            return None
        if turn.role == "assistant" and turn.content:
            return turn
    return None


def _calls(answer: Sequence[Turn]) -> list[ToolCallTrace]:
    """Calls with their results, matched by key; by order where there are no keys."""
    made: list[tuple[Call, ToolCallTrace]] = []
    waiting: list[int] = []
    for turn in answer:
        for call in turn.calls:
            arguments = plain(
                call.arguments if isinstance(call.arguments, Mapping) else {"input": call.arguments}
            )
            waiting.append(len(made))
            trace = ToolCallTrace(
                call.name or "unknown", arguments, None, False, 0.0, "no result was recorded"
            )
            trace.timestamp = turn.timestamp
            made.append((call, trace))
        if turn.role != "tool":
            continue
        match = next((at for at in waiting if turn.answers and made[at][0].key == turn.answers), None)
        if match is None and waiting and not (turn.answers and made[waiting[0]][0].key):
            match = waiting[0]
        if match is None:
            made.append((Call(turn.name, {}), ToolCallTrace(turn.name or "unknown", {}, None, True, 0.0)))
            match = len(made) - 1
        else:
            waiting.remove(match)
        trace = made[match][1]
        trace.result, trace.success, trace.duration_ms = turn.content, not turn.failed, turn.duration_ms
        trace.error = turn.content[:500] if turn.failed else None
        trace.timestamp = trace.timestamp or turn.timestamp
    return [trace for _, trace in made]


def _between(request: Turn, answer: Sequence[Turn]) -> float:
    """From the request to the last thing done for it; what a log notes later is no work."""
    times = [turn.timestamp for turn in (request, *answer) if turn.timestamp and turn.role != "aside"]
    if len(times) < 2:
        return 0.0
    return max(
        0.0, (datetime.fromisoformat(times[-1]) - datetime.fromisoformat(times[0])).total_seconds() * 1000
    )


def _said(turn: Turn) -> dict[str, Any]:
    said: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.calls:
        said["tool_calls"] = [
            {
                "id": call.key,
                "type": "function",
                "function": {"name": call.name, "arguments": text(call.arguments)},
            }
            for call in turn.calls
        ]
    if turn.role == "tool" and turn.answers:
        said["tool_call_id"] = turn.answers
    return said
