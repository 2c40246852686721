# SPDX-License-Identifier: AGPL-3.0-or-later
"""What happened, word for word: a request, what was done for it, the answer, what people thought.

A trace keeps what was written and what came back. What it meant (`Step.action`) and what it was
worth (rewards/) are worked out from that, so both can change after the fact. Any agent's run fits:
ours fills `steps`, a hooked or imported one fills `tool_calls` and `reasoning_steps`. Fields this
version does not know are kept in `extra` and written back as they came.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from typing import Any, TypeVar

from rusty_r2.errors import ProtocolError, TraceError
from rusty_r2.protocol import Action, Msg, parse
from rusty_r2.redact import redact_all

T = TypeVar("T")
DEEPEST = 100
"""tables in tables from outside; what is made of them goes down step by step"""


def new_id() -> str:
    """A name no other trace has, on any machine; ids sort by the time they were made."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


def from_json(text: str) -> Any:
    """JSON that a trace can hold: NaN, infinities, numbers too large and deep nesting are ValueErrors."""
    data = json.loads(text, parse_constant=_finite, parse_float=_finite)
    if text.count("{") + text.count("[") > DEEPEST and _is_deep(data):
        raise ValueError(f"it nests deeper than {DEEPEST}")
    return data


def _is_deep(data: Any) -> bool:
    level = [data]
    for _ in range(DEEPEST):
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [item for some in inner for item in some if isinstance(item, (dict, list))]
        if not level:
            return False
    return True


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} is no number that JSON has")
    return number


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


@dataclass
class ToolCallTrace:
    """One tool call of an agent, and how it ended."""

    tool_name: str
    arguments: dict[str, Any]
    result: Any
    success: bool
    duration_ms: float
    error: str | None = None
    timestamp: str = field(default_factory=now)


@dataclass
class ReasoningStep:
    """One thought an agent wrote down on the way."""

    step_type: str
    content: str
    confidence: float = 0.0
    insights: list[Any] = field(default_factory=list)
    issues: list[Any] = field(default_factory=list)


@dataclass
class Step:
    """One reply of our own protocol, and the gym's answer to it."""

    reply: str
    """the model's words, as they came"""
    observation: str = ""
    """the answer, as the model will see it"""
    ok: bool = True
    """False where the command failed or the reply was no action"""
    reward: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    """the reply's own tokens, where known: training never decodes and encodes again"""
    logprobs: list[float] = field(default_factory=list)
    """their log-probabilities under the distribution they were sampled from"""

    @property
    def action(self) -> Action | None:
        try:
            return parse(self.reply)
        except ProtocolError:
            return None


@dataclass
class ExecutionTrace:
    """A whole run for one request, as data."""

    trace_id: str = field(default_factory=new_id)
    session_id: str = ""
    timestamp: str = field(default_factory=now)
    user_query: str = ""
    tool_calls: list[ToolCallTrace] = field(default_factory=list)
    reasoning_steps: list[ReasoningStep] = field(default_factory=list)
    tasks_created: list[dict[str, Any]] = field(default_factory=list)
    tasks_completed: list[dict[str, Any]] = field(default_factory=list)
    tasks_failed: list[dict[str, Any]] = field(default_factory=list)
    final_response: str = ""
    total_tokens_in: int = 0
    total_tokens_out: int = 0
    total_cost: float = 0.0
    execution_duration_ms: float = 0.0
    llm_calls_count: int = 0
    label: bool | None = None
    """a person's verdict, where one was given"""
    reward_score: float | None = None
    manual_review: bool = False
    """the label is a person's, not a classifier's"""
    review_notes: str = ""
    agent_name: str = ""
    system_prompt: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    """the conversation before this request: {role, content} each"""
    steps: list[Step] = field(default_factory=list)
    ended: str = ""
    """"done"; "turns", "malformed" or "repeats" (the agent found no end); "refused" (a person said no),
    "unasked" (nobody was there to say yes); "stopped", "masked", or the name of the error that ended it"""
    task_name: str = ""
    """the gym's task, where it was one"""
    model: str = ""
    model_digest: str = ""
    sampling: dict[str, Any] = field(default_factory=dict)
    sandbox_level: str = ""
    reward_parts: dict[str, float] = field(default_factory=dict)
    labeled_by: str = ""
    labeled_at: str = ""
    redactions: int = 0
    """secrets cut out at the border"""
    extra: dict[str, Any] = field(default_factory=dict)
    """fields of other versions and other tools, kept as they came"""

    def then(self, step: Step) -> ExecutionTrace:
        """This trace with one more step."""
        return replace(self, steps=[*self.steps, step])

    @property
    def answer(self) -> str:
        """The message the last step ends with, or "" where it ended otherwise."""
        last = self.steps[-1].action if self.steps else None
        return last.message if isinstance(last, Msg) else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; what `extra` holds stands beside our own fields, as it came."""
        data = asdict(self)
        return data | {key: value for key, value in data.pop("extra").items() if key not in data}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ExecutionTrace:
        """Undo `to_dict`. The given data is not changed; a wrong type is a TraceError naming the field."""
        if not isinstance(data, Mapping):
            raise TraceError(f"a trace is a JSON object, not a {type(data).__name__}")
        known = {f.name for f in fields(cls)} - {"extra"}
        given = {key: value for key, value in data.items() if key in known and value is not None}
        for name, kind in (
            ("tool_calls", ToolCallTrace),
            ("reasoning_steps", ReasoningStep),
            ("steps", Step),
        ):
            if name in given:
                given[name] = [_nested(kind, item, name) for item in _typed(given[name], list, name)]
        _check(given)
        return cls(**given, extra={key: value for key, value in data.items() if key not in known})

    def redacted(self) -> ExecutionTrace:
        """A copy with every secret cut out and counted; the tokens of a changed reply go too."""
        data, count = redact_all(self.to_dict())
        clean = type(self).from_dict(data)
        for before, after in zip(self.steps, clean.steps, strict=True):
            if before.reply != after.reply:
                after.token_ids, after.logprobs = [], []
        return replace(clean, trace_id=self.trace_id, redactions=self.redactions + count)


LARGEST = 2**63
"""what numbers stay below, on either side of 0: every database and every float holds them"""
_NUMBER = (int, float)
_NESTED: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("duration_ms", "confidence", "reward"), _NUMBER),
    **dict.fromkeys(("success", "ok"), bool),
    **dict.fromkeys(("insights", "issues", "token_ids", "logprobs"), list),
    "arguments": dict,
    "result": object,
}
"""of what tool calls, reasoning steps and steps hold; the others are texts"""
_INSIDE: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("tasks_created", "tasks_completed", "tasks_failed", "history"), dict),
    "token_ids": int,
    "logprobs": _NUMBER,
}
"""what lists hold"""
_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("total_cost", "execution_duration_ms", "reward_score"), _NUMBER),
    **dict.fromkeys(("total_tokens_in", "total_tokens_out", "llm_calls_count", "redactions"), int),
    **dict.fromkeys(("label", "manual_review"), bool),
    **dict.fromkeys(("tasks_created", "tasks_completed", "tasks_failed", "history"), list),
    **dict.fromkeys(("sampling", "reward_parts"), dict),
}


def by_person(trace: ExecutionTrace) -> bool:
    """Whether a trace carries a person's label; one without a name beside it was set by hand."""
    return trace.label is not None and (trace.manual_review or not trace.labeled_by)


def _check(given: Mapping[str, Any]) -> None:
    nested = ("tool_calls", "reasoning_steps", "steps")
    for name, value in given.items():
        if name not in nested:
            _typed(value, _TYPES.get(name, str), name)


def _typed(value: T, kind: type | tuple[type, ...], name: str) -> T:
    wrong_bool = isinstance(value, bool) and kind not in (bool, object)
    if not isinstance(value, kind) or wrong_bool:
        wanted = kind.__name__ if isinstance(kind, type) else "number"
        raise TraceError(f"trace field {name} must be a {wanted}, not {type(value).__name__}")
    if kind is not object and isinstance(value, (int, float)) and not abs(value) < LARGEST:
        raise TraceError(f"trace field {name} must be a number below {LARGEST:.2g}")
    inside = _INSIDE.get(name.rpartition(".")[2])
    if inside is not None and isinstance(value, list):
        for item in value:
            _typed(item, inside, f"{name}[]")
    return value


def _nested(kind: type[T], item: Any, name: str) -> T:
    if not isinstance(item, Mapping):
        raise TraceError(f"trace field {name} must hold objects, not {type(item).__name__}")
    given = {f.name: item[f.name] for f in fields(kind) if f.name in item}  # type: ignore[arg-type]
    for key, value in given.items():
        if value is not None or key not in ("result", "error"):
            _typed(value, _NESTED.get(key, str), f"{name}.{key}")
    try:
        return kind(**given)
    except TypeError as error:
        raise TraceError(f"trace field {name}: {error}") from error
