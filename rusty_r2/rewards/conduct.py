# SPDX-License-Identifier: AGPL-3.0-or-later
"""Rewards for conduct: did the tools work, was the task done, at what price, in what words?

They look at what was recorded, not at what the agent says of itself. Missing numbers are no
efficiency: a count that was never taken is left out, and with none the reward does not apply.
The binary ones are binary: 1 or 0, with the ratio in the details.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from rusty_r2.errors import ConfigError
from rusty_r2.rewards.base import BaseReward, RewardResult, nothing
from rusty_r2.rewards.reading import (
    Call,
    answer,
    calls,
    passed,
    prose,
    real_calls,
    wanted_files,
    wants_code,
    wants_tools,
    wrote_code,
)
from rusty_r2.trace import ExecutionTrace

SPAM = 8
"""calls from which repeating oneself counts as spam"""
_CLAIMS = re.compile(
    r"\bI(?:'ve| have)? (?:just |already |successfully )*"
    r"(?:ran|run|executed|tested|verified|deleted|created the file|installed)\b"
    r"|\ball (?:the )?(?:unit )?tests (?:are |now )?(?:pass|green)",
    re.I,
)


class ToolSuccessReward(BaseReward):
    """The calls that were made did what they should."""

    name = "tool_success"
    weight = 2.0
    is_binary = True

    def compute(self, trace: ExecutionTrace) -> RewardResult:
        every, real = calls(trace), real_calls(trace)
        if not every:
            return self._without(trace)
        if trace.ended in ("refused", "unasked"):
            return RewardResult(0.0, True, {"calls": len(every)}, error="the last call was not allowed")
        verdict = passed(trace)
        if verdict is None and wants_code(trace.user_query) and not wrote_code(trace):
            return nothing(why="code was asked for, and no call wrote it")
        details: dict[str, float] = {"calls": len(every), "different": len(real)}
        if verdict is False:
            return RewardResult(0.0, True, details, error="the task was not done")
        if why := self._pointless(trace, every, real):
            return RewardResult(0.0, True, details, error=why)
        details["success_rate"] = rate = sum(call.ok for call in real) / len(real)
        good = rate >= 0.75 or (rate >= 0.5 and real[-1].ok)
        return RewardResult(float(good), True, details, error=None if good else "the calls failed")

    def _pointless(self, trace: ExecutionTrace, every: list[Call], real: list[Call]) -> str:
        """Why calls earn nothing even where they succeed, or ""."""
        if not real:
            return "only calls that do nothing"
        if len(every) > SPAM and len(real) < len(every) / 2:
            return "the same calls again and again"
        query = trace.user_query
        shown = "\n".join(f"{call.text}\n{call.path}\n{call.result}" for call in real)
        files = wanted_files(query) if wants_tools(query) else []
        untouched = files and not any(name in shown for name in files)
        return f"never touched {files[0]}" if untouched else ""

    def _without(self, trace: ExecutionTrace) -> RewardResult:
        """No calls: a fault where the request cannot be met with words, or the words claim work."""
        if _CLAIMS.search(prose(answer(trace))):
            return RewardResult(0.0, True, {"calls": 0}, error="claims work that is not in the trace")
        if wants_tools(trace.user_query) or passed(trace) is False:
            return RewardResult(0.0, True, {"calls": 0}, error="the request needs tools, none were used")
        return nothing(why="no calls, and none needed")


class TaskCompletionReward(BaseReward):
    """Everything that was begun was finished: tasks of the agent, or the task of the gym."""

    name = "task_completion"
    weight = 1.5
    is_binary = True

    def compute(self, trace: ExecutionTrace) -> RewardResult:
        verdict = passed(trace)
        if verdict is not None:
            return RewardResult(
                float(verdict), True, {"task": trace.task_name}, None if verdict else "not done"
            )
        begun = {_task_key(task) for task in trace.tasks_created}
        failed = {_task_key(task) for task in trace.tasks_failed}
        done = {_task_key(task) for task in trace.tasks_completed} - failed
        wanted = begun or done | failed
        if not wanted:
            return nothing(why="no tasks")
        finished = len(done & wanted) if begun & done or not begun else min(len(done), len(begun))
        details = {"created": len(begun), "completed": len(done), "failed": len(failed)}
        good = finished >= len(wanted) and not failed
        return RewardResult(float(good), True, details, None if good else "tasks were left undone")


def _task_key(task: object) -> str:
    if isinstance(task, dict):
        for name in ("id", "task_id", "name", "description"):
            if task.get(name):
                return str(task[name])
    return str(task)


class EfficiencyReward(BaseReward):
    """How little it took, of what was counted."""

    name = "efficiency"
    weight = 0.5
    is_binary = False

    def __init__(
        self, max_tokens: int = 2000, max_tool_calls: int = 10, max_reasoning_steps: int = 15
    ) -> None:
        if min(max_tokens, max_tool_calls, max_reasoning_steps) < 1:
            raise ConfigError("EfficiencyReward: every maximum must be at least 1")
        self.max_tokens = max_tokens
        self.max_tool_calls = max_tool_calls
        self.max_reasoning_steps = max_reasoning_steps

    def compute(self, trace: ExecutionTrace) -> RewardResult:
        tokens = _tokens(trace)
        used = len(trace.tool_calls) + len(trace.steps)
        thoughts = len(trace.reasoning_steps)
        parts: dict[str, tuple[float, float]] = {}
        if tokens:
            parts["tokens"] = (0.4, _left(tokens, self.max_tokens))
        if used:
            parts["tool_calls"] = (0.3, _left(used, self.max_tool_calls))
        if thoughts:
            parts["reasoning_steps"] = (0.3, _left(thoughts, self.max_reasoning_steps))
        if not parts:
            return nothing(why="nothing was counted")
        weight = sum(share for share, _ in parts.values())
        score = sum(share * value for share, value in parts.values()) / weight
        return RewardResult(score, False, {name: round(value, 4) for name, (_, value) in parts.items()})


def _tokens(trace: ExecutionTrace) -> float:
    """Tokens written, and read where that was counted; 0 where no sound number is there."""
    written = sum(len(step.token_ids) for step in trace.steps) or trace.total_tokens_out
    if not isinstance(written, (int, float)) or not math.isfinite(written) or written <= 0:
        return 0.0
    read = trace.total_tokens_in
    return written + (read if isinstance(read, (int, float)) and math.isfinite(read) and read > 0 else 0)


def _left(used: float, most: float) -> float:
    return max(0.0, 1.0 - used / most)


_HTML_WORDS = """
a abbr b blockquote br center code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li mark ol p pre
q s small span strike strong sub summary sup table tbody td th thead tr tt u ul var
"""
HTML = frozenset(_HTML_WORDS.split())
_OPENED = re.compile(r"<([A-Za-z_][\w.:-]*)(?:\s[^<>]{0,200})?>")
_SPECIAL = re.compile(
    r"<\|[\w ]{2,30}\|>|<\?xml|<!\[CDATA\["
    r"|</?(?:think|tool_call|tool_response|function_calls?|invoke|parameter)\b"
)
_JSON_ACTION = re.compile(r"^[ \t]*\{\s{0,9}\"(?:action|tool|tool_name|function|name|arguments)\"\s*:", re.M)


class FormatComplianceReward(BaseReward):
    """Plain words to the user: no markup of the machinery. Code may hold what it likes."""

    name = "format_compliance"
    weight = 1.0
    is_binary = True

    def __init__(self, forbidden_patterns: Iterable[str] | None = None) -> None:
        self.forbidden = None
        if forbidden_patterns is not None:
            try:
                self.forbidden = [re.compile(pattern) for pattern in forbidden_patterns]
            except re.error as error:
                raise ConfigError(f"forbidden_patterns: {error}") from error

    def compute(self, trace: ExecutionTrace) -> RewardResult:
        said = answer(trace)
        malformed = sum(call.name == "malformed" for call in calls(trace))
        if malformed:
            return RewardResult(0.0, True, {"malformed": malformed}, error="a reply was no action")
        if not said.strip():
            return (
                nothing(why="no words") if calls(trace) else RewardResult(0.0, True, {}, error="said nothing")
            )
        found = self._found(prose(said), trace.user_query)
        return RewardResult(
            float(not found), True, {"found": found}, f"markup in the answer: {found[0]}" if found else None
        )

    def _found(self, text: str, query: str) -> list[str]:
        if self.forbidden is not None:
            return [pattern.pattern for pattern in self.forbidden if pattern.search(text)]
        found = [match[0] for match in _SPECIAL.finditer(text)][:5]
        if not re.search(r"\b(?:xml|html|svg|markup|tags?)\b", query, re.I):
            names = {match[1] for match in _OPENED.finditer(text)}
            found += sorted(
                f"<{name}>" for name in names if name.lower() not in HTML and f"</{name}>" in text
            )[:5]
        if not re.search(r"\bjson\b", query, re.I):
            found += [match[0].strip() for match in _JSON_ACTION.finditer(text)][:5]
        return found
