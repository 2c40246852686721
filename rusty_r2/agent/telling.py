# SPDX-License-Identifier: AGPL-3.0-or-later
"""A trace as a person reads it in a terminal: what was asked, what was done, what came of it.

Everything a trace holds came from somebody else: control characters are spelt out and every line of it stands
behind a bar, so nothing can pass for words of ours (gym/safetext.py). Long parts are cut, and say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rusty_r2.agent.plain import text
from rusty_r2.gym.safetext import neutral, one_line
from rusty_r2.protocol import Cmd, Edit, Msg
from rusty_r2.trace import LARGEST, ExecutionTrace, Step, ToolCallTrace

LINES = 40
"""lines of one part that are shown"""
WIDE = 2000
"""characters of one line"""


def tell(trace: ExecutionTrace, *, lines: int = LINES) -> str:
    """The whole trace."""
    return "\n".join(_told(trace, lines))


def parts(trace: ExecutionTrace, *, lines: int = LINES) -> Iterator[str]:
    """The same, one thing that was said or done after the other."""
    held: list[str] = []
    for line in _told(trace, lines):
        if held and not line.startswith("  "):
            yield "\n".join(held)
            held = []
        held.append(line)
    yield "\n".join(held)


def headline(row: dict[str, Any], width: int = 100) -> str:
    """One trace of a list: the end of its id, when, its label, its reward, the request."""
    mark = {True: "good", False: "bad", None: "-"}[row["label"]]
    reward = f"{row['reward']:.2f}" if row["reward"] is not None else "-"
    when, agent = one_line(row["timestamp"][:16], 16), one_line(row["agent"], 14)
    start = f"{short(row['trace_id'])}  {when}  {mark:<5}  {reward:>6}  {row['tool_calls']:>5}  {agent:<14}  "
    return start + opening(row["query"], max(20, width - len(start)))


def opening(text: str, width: int) -> str:
    """The first line of a text, cut where it does not fit."""
    first = next(iter(text.strip().splitlines()), "")
    shown = one_line(first, 16 * max(1, len(first)))
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def short(trace_id: str) -> str:
    """The end of an id, enough to name it."""
    return one_line(trace_id[-10:], 10)


def verdict(trace: ExecutionTrace) -> str:
    if trace.label is None:
        return "not labelled"
    who = trace.labeled_by or ("person" if trace.manual_review else "somebody")
    note = f": {one_line(trace.review_notes)}" if trace.review_notes else ""
    return f"{'good' if trace.label else 'bad'}, says {one_line(who, 40)}{note}"


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' if number != 1 else ''}"


def some(names: Iterable[str]) -> str:
    """The first few of them, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(found[:5]) + more


def _told(trace: ExecutionTrace, lines: int) -> Iterator[str]:
    about = (
        trace.agent_name,
        trace.model,
        trace.timestamp,
        f"session {trace.session_id}" if trace.session_id else "",
    )
    yield f"trace {one_line(trace.trace_id, 80)}  " + "  ".join(one_line(part, 60) for part in about if part)
    if trace.history:
        yield f"({counted(len(trace.history), 'message')} before)"
    yield from _part("request", trace.user_query, lines)
    for step in trace.steps:
        yield from _step(step, lines)
    for thought in trace.reasoning_steps:
        yield from _part(f"thought ({one_line(thought.step_type, 30)})", thought.content, lines)
    for call in trace.tool_calls:
        yield from _call(call, lines)
    if trace.final_response and not trace.answer:
        yield from _part("answer", trace.final_response, lines)
    for name in ("created", "completed", "failed"):
        if tasks := getattr(trace, f"tasks_{name}"):
            yield f"tasks {name}: {len(tasks)}"
    yield _numbers(trace)
    yield f"label: {verdict(trace)}"


def _step(step: Step, lines: int) -> Iterator[str]:
    match step.action:
        case Cmd(command):
            yield from _part("$", command, lines)
        case Edit(path, content):
            yield from _part(f"edit {one_line(path, 80)}", content, lines)
        case Msg(message):
            yield from _part("answer", message, lines)
        case _:
            yield from _part("reply that is no action", step.reply, lines)
    if step.observation:
        yield from _part("came back" if step.ok else "FAILED", step.observation, lines)


def _call(call: ToolCallTrace, lines: int) -> Iterator[str]:
    spent = f" ({call.duration_ms:.0f} ms)" if call.duration_ms else ""
    yield from _part(f"tool {one_line(call.tool_name, 60)}", text(call.arguments), lines)
    came = call.error if call.error and not call.result else call.result
    yield from _part(("came back" if call.success else "FAILED") + spent, text(came), lines)


def _part(title: str, content: str, most: int) -> Iterator[str]:
    found = neutral(content).split("\n")
    yield title
    for line in found[:most]:
        yield f"  │ {line[:WIDE]}{f' … {len(line) - WIDE} more' if len(line) > WIDE else ''}"
    if len(found) > most:
        yield f"  ({len(found) - most} more lines)"


def _numbers(trace: ExecutionTrace) -> str:
    said = [
        f"{trace.total_tokens_in} tokens in, {trace.total_tokens_out} out" if trace.total_tokens_out else "",
        f"{counted(trace.llm_calls_count, 'call')} of the model" if trace.llm_calls_count else "",
        f"{trace.execution_duration_ms / 1000:.1f} s" if trace.execution_duration_ms else "",
        f"cost {trace.total_cost:.4f}" if trace.total_cost else "",
        f"{counted(trace.redactions, 'secret')} cut out" if trace.redactions else "",
        f"ended: {one_line(trace.ended, 40)}" if trace.ended else "",
    ]
    if trace.reward_score is not None:
        parts = "  ".join(
            f"{one_line(name, 40)} {value:.2f}"
            for name, value in trace.reward_parts.items()
            if isinstance(value, (int, float)) and abs(value) < LARGEST
        )
        said.append(f"reward {trace.reward_score:.2f}" + (f" = {parts}" if parts else ""))
    return "; ".join(part for part in said if part) or "no numbers were recorded"
