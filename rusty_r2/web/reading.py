# SPDX-License-Identifier: AGPL-3.0-or-later
"""A trace as a person reads it on the page: parts in the order they happened, edits as coloured differences.

Words stay words here: escaping and spelling out what is invisible is done once, for everything, where the
page is rendered (pages.py). Where the gym knows the task, an edit is compared with the file it started from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from rusty_r2.agent.diff import diff
from rusty_r2.agent.plain import text as in_words
from rusty_r2.errors import RustyError
from rusty_r2.gym import catalog
from rusty_r2.protocol import Cmd, Edit, Msg
from rusty_r2.trace import ExecutionTrace, Step, ToolCallTrace
from rusty_r2.web.curves import finite

HEAD = 24
"""lines of a part that are open; the rest unfolds"""
MOST = 40_000
"""characters of a part that are sent at all"""
MOST_PARTS = 400
NAMES = ("path", "file_path", "filename", "file", "notebook_path")


@dataclass(frozen=True)
class Words:
    """A text: what is open, what unfolds, and how much was left out."""

    head: str = ""
    rest: str = ""
    rest_lines: int = 0
    left: int = 0


@dataclass(frozen=True)
class Line:
    kind: str
    """added, gone, place or same"""
    text: str


@dataclass(frozen=True)
class Part:
    """One thing that was said or done."""

    kind: str
    """request, command, edit, tool, thought, answer, odd, message"""
    title: str
    said: Words = Words()
    lines: list[Line] = field(default_factory=list)
    """the difference an edit made"""
    came: Words | None = None
    """what came back"""
    ok: bool = True
    about: str = ""


def words(content: str, head: int = HEAD) -> Words:
    kept = content[:MOST]
    lines = kept.split("\n")
    rest = "\n".join(lines[head:])
    return Words("\n".join(lines[:head]), rest, max(0, len(lines) - head), len(content) - len(kept))


def parts(trace: ExecutionTrace, *, blind: bool = False) -> list[Part]:
    """The whole trace; what came before the request is in `before`. Blind, it tells no reward."""
    if blind:
        trace = replace(trace, steps=[replace(step, reward=0.0) for step in trace.steps])
    found = list(_parts(trace))
    if len(found) > MOST_PARTS:
        half = MOST_PARTS // 2
        gap = Part("odd", f"{len(found) - 2 * half} parts are not shown here; rusty trace show has them")
        return [*found[:half], gap, *found[-half:]]
    return found


def before(trace: ExecutionTrace) -> list[Part]:
    """The system prompt and the conversation before the request."""
    system = [Part("message", "system", words(trace.system_prompt))] if trace.system_prompt else []
    history = []
    for turn in trace.history[-100:]:
        role = in_words(turn.get("role")) if isinstance(turn, Mapping) else "message"
        content = turn.get("content") if isinstance(turn, Mapping) else turn
        history.append(Part("message", role[:40], words(in_words(content))))
    return system + history


def _parts(trace: ExecutionTrace) -> Iterator[Part]:
    files = dict(starting_files(trace.task_name))
    yield Part("request", "Request", words(trace.user_query, 60))
    for step in trace.steps:
        yield _step(step, files)
    for thought in trace.reasoning_steps:
        sure = f"confidence {number:g}" if (number := finite(thought.confidence)) else ""
        yield Part(
            "thought", in_words(thought.step_type) or "thought", words(in_words(thought.content)), about=sure
        )
    for call in trace.tool_calls:
        yield _call(call, files)
    if trace.final_response and trace.final_response != trace.answer:
        yield Part("answer", "Answer", words(trace.final_response, 60))
    for name in ("created", "completed", "failed"):
        tasks = getattr(trace, f"tasks_{name}")
        if tasks:
            yield Part("message", f"{len(tasks)} tasks {name}", words(in_words(tasks)), ok=name != "failed")


def _step(step: Step, files: dict[str, str]) -> Part:
    came = words(in_words(step.observation)) if step.observation else None
    about = f"reward {number:+.2f}" if (number := finite(step.reward)) else ""
    match step.action if isinstance(step.reply, str) else None:
        case Cmd(command):
            return Part("command", "Command", words(command), came=came, ok=step.ok, about=about)
        case Edit(path, content):
            made = difference(path, files.get(path), content)
            files[path] = content
            return Part("edit", path, lines=made, came=came, ok=step.ok, about=about)
        case Msg(message):
            return Part("answer", "Answer", words(message, 60), came=came, ok=step.ok, about=about)
        case _:
            title = "A reply that is no action"
            return Part("odd", title, words(in_words(step.reply)), came=came, ok=False, about=about)


def _call(call: ToolCallTrace, files: dict[str, str]) -> Part:
    spent = f"{number:,.0f} ms" if (number := finite(call.duration_ms)) else ""
    came = in_words(call.error if call.error and not call.result else call.result)
    made = _called(call, files)
    return replace(made, came=words(came) if came else None, ok=bool(call.success), about=spent)


def _called(call: ToolCallTrace, files: dict[str, str]) -> Part:
    """What a tool was asked to do: an edit, a command, or anything else."""
    name, given = in_words(call.tool_name), call.arguments if isinstance(call.arguments, Mapping) else {}
    path = next((given[key] for key in NAMES if isinstance(given.get(key), str)), "")
    old, new, content = given.get("old_string"), given.get("new_string"), given.get("content")
    patch = next((given[key] for key in ("patch", "diff") if isinstance(given.get(key), str)), None)
    if isinstance(old, str) and isinstance(new, str):
        return Part("edit", f"{name} {path}", lines=difference(path, old, new))
    if path and isinstance(content, str):
        made = difference(path, files.get(path), content)
        files[path] = content
        return Part("edit", f"{name} {path}", lines=made)
    if patch is not None:
        return Part("edit", f"{name} {path}", lines=_marked(patch[:MOST].split("\n")))
    command = given.get("command", given.get("cmd"))
    if isinstance(command, list):
        command = " ".join(map(in_words, command))
    if isinstance(command, str):
        return Part("command", name, words(command))
    return Part("tool", name, words(in_words(call.arguments)))


def difference(path: str, old: str | None, new: str) -> list[Line]:
    """The lines that an edit changed."""
    was = None if old is None else old.encode("utf-8", "backslashreplace")
    return _marked(diff(path, was, new.encode("utf-8", "backslashreplace"))[2:])


def _marked(lines: list[str]) -> list[Line]:
    kinds = {"+": "added", "-": "gone", "@": "place", "*": "place"}
    made = [Line(kinds.get(line[:1], "same"), line[:2000]) for line in lines[:1000]]
    left = len(lines) - len(made)
    return [*made, Line("place", f"{left} more lines")] if left else made


@lru_cache(maxsize=256)
def starting_files(task: str) -> Mapping[str, str]:
    """The files of a task of the gym before anybody touched them; none where it is not one of ours."""
    if not task or len(task) > 100:
        return {}
    try:
        return dict(catalog.get(task).files)
    except RustyError:
        return {}


def reward_parts(trace: ExecutionTrace) -> list[tuple[str, float]]:
    """The parts of the reward that are numbers."""
    told = ((in_words(name), finite(value)) for name, value in trace.reward_parts.items())
    return [(name, value) for name, value in told if value is not None]


def numbers(trace: ExecutionTrace) -> list[tuple[str, str]]:
    """Sizes and durations worth knowing at a glance."""
    told: list[tuple[str, Any]] = [
        ("agent", trace.agent_name),
        ("model", trace.model),
        ("ended", trace.ended),
        ("task", trace.task_name),
        ("session", trace.session_id),
        ("when", trace.timestamp[:19].replace("T", " ")),
        ("took", f"{trace.execution_duration_ms / 1000:,.1f} s" if trace.execution_duration_ms else ""),
        ("tokens in", f"{trace.total_tokens_in:,}" if trace.total_tokens_in else ""),
        ("tokens out", f"{trace.total_tokens_out:,}" if trace.total_tokens_out else ""),
        ("model calls", trace.llm_calls_count or ""),
        ("cost", f"{trace.total_cost:.4f}" if trace.total_cost else ""),
        ("sandbox", trace.sandbox_level),
        ("secrets cut out", trace.redactions or ""),
    ]
    return [(name, str(value)) for name, value in told if value]
