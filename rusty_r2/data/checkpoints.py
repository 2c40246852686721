# SPDX-License-Identifier: AGPL-3.0-or-later
"""Conversations out of the checkpoints that agents save: pickles of both shapes, and JSON.

    loader = CheckpointLoader()                     # DATA_HOME/Agents/checkpoint/AGENT/*.pkl, *.json
    loader.discover_all_agents()
    CheckpointLoader("Coder").load_all_traces()

Shape 1 keeps `session_data: {id: {history}}`, shape 2 `sessions_data: {sessions: {id: {chat_history}}}`; a
plain dict of either, or one with `messages`, will do. Pickles are hostile and read as data (pickles.py). What
could not be read is in `problems`, a line a file. Tasks, thoughts and totals of a checkpoint belong to its
last request; where that is not certain they are given to no trace.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rusty_r2.agent.plain import amount, count, plain, text
from rusty_r2.config import home
from rusty_r2.data import pickles
from rusty_r2.data.conversation import Turn, distinct, iso, traces_of
from rusty_r2.data.importers.openai import turn_of
from rusty_r2.errors import DataError, RustyError, TraceError
from rusty_r2.rewards.reading import wants_code
from rusty_r2.trace import ExecutionTrace, ReasoningStep

SUFFIXES = (".pkl", ".pickle", ".json")
VERSIONS = ("1", "2", "4")
"""first figures of known versions; shape 1 called itself 4.1"""
_TOTALS = {
    "total_tokens_in": ("total_tokens_in", "tokens_in"),
    "total_tokens_out": ("total_tokens_out", "tokens_out"),
    "total_cost": ("total_cost", "total_cost_accumulated", "cost"),
    "llm_calls_count": ("total_llm_calls", "llm_calls"),
}


class CheckpointLoader:
    def __init__(self, agent_name: str | None = None, checkpoint_path: str | Path | None = None) -> None:
        """`checkpoint_path` holds a folder for each agent, or one agent's checkpoints."""
        self.agent_name = agent_name
        self.checkpoint_path = Path(checkpoint_path) if checkpoint_path else home() / "Agents" / "checkpoint"
        self.problems: list[str] = []
        """what the last reading could not read, and why"""

    def discover_all_agents(self) -> list[str]:
        """The agents that have a checkpoint here."""
        return sorted(self._folders())

    def list_checkpoints(self) -> list[dict[str, Any]]:
        """This agent's checkpoints (everybody's where none was named), newest first."""
        found = []
        for path in self._paths():
            about = path.stat()
            when = datetime.fromtimestamp(about.st_mtime, timezone.utc)
            size = about.st_size / 2**20
            told = {"path": str(path), "filename": path.name, "size_mb": size, "modified": when.isoformat()}
            found.append((about.st_mtime, path.name, told))
        return [told for *_, told in sorted(found, key=lambda row: row[:2], reverse=True)]

    def load_checkpoint(self, filepath: str | Path) -> dict[str, Any]:
        """One checkpoint as plain data. A hostile or broken file is a DataError of one line."""
        path = Path(filepath)
        try:
            with open(path, "rb") as file:
                first = file.read(1)
            if path.suffix == ".json" or first in (b"{", b"["):
                data = json.loads(path.read_text(encoding="utf-8"))
            else:
                data = pickles.load(path)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise DataError(f"{path} holds a {type(data).__name__}, not a checkpoint")
        return data

    def extract_traces_from_checkpoint(
        self, checkpoint: Any, agent_name: str | None = None
    ) -> list[ExecutionTrace]:
        """A trace for each answered request; a TraceError where this is no checkpoint we know."""
        data = _as_dict(checkpoint)
        _check_version(data)
        agent = agent_name or self.agent_name or text(data.get("agent_name")) or _named(data)
        when = iso(data.get("timestamp"))
        found: list[ExecutionTrace] = []
        for session, messages in _sessions(data):
            turns = list(_turns(messages))
            found += traces_of(turns, agent_name=agent, session_id=session, timestamp=when)
        _give_whole(data, found)
        return found

    def load_all_traces(
        self, deduplicate: bool = True, max_age_hours: float | None = None
    ) -> list[ExecutionTrace]:
        """The traces of this agent's checkpoints (everybody's where none was named), oldest first."""
        self.problems = []
        names = [self.agent_name] if self.agent_name else self.discover_all_agents()
        return [trace for name in names for trace in self._of(name, deduplicate, max_age_hours)]

    def load_all_agents_traces(self, deduplicate: bool = True) -> dict[str, list[ExecutionTrace]]:
        """The same for every agent, by name."""
        self.problems = []
        return {name: self._of(name, deduplicate, None) for name in self.discover_all_agents()}

    def get_training_statistics(self) -> dict[str, Any]:
        """What there is to learn from."""
        traces = self.load_all_traces()
        tools = sorted({call.tool_name for trace in traces for call in trace.tool_calls})
        return {
            "total_traces": len(traces),
            "unique_sessions": len({(trace.agent_name, trace.session_id) for trace in traces}),
            "labeled_traces": sum(trace.label is not None for trace in traces),
            "unlabeled_traces": sum(trace.label is None for trace in traces),
            "traces_with_tool_calls": sum(bool(trace.tool_calls) for trace in traces),
            "traces_with_reasoning": sum(bool(trace.reasoning_steps) for trace in traces),
            "unique_tools_used": len(tools),
            "tools_list": tools,
            "avg_query_length": _mean([len(trace.user_query) for trace in traces]),
            "avg_response_length": _mean([len(trace.final_response) for trace in traces]),
            "total_tokens_in": sum(trace.total_tokens_in for trace in traces),
            "total_tokens_out": sum(trace.total_tokens_out for trace in traces),
            "total_cost": sum(trace.total_cost for trace in traces),
            "agents_discovered": self.discover_all_agents(),
            "checkpoints_available": len(self.list_checkpoints()),
        }

    def generate_synthetic_tasks(self, num_tasks: int = 100) -> list[dict[str, str]]:
        """Up to so many different requests that people really made, as tasks to try again."""
        tasks: dict[str, dict[str, str]] = {}
        for trace in self.load_all_traces():
            prompt = trace.user_query.strip()
            if prompt and len(tasks) < num_tasks:
                made = {"prompt": prompt, "category": _category(trace), "source": "checkpoint_derived"}
                tasks.setdefault(prompt, made)
        return list(tasks.values())

    def _of(self, agent: str, deduplicate: bool, max_age_hours: float | None) -> list[ExecutionTrace]:
        oldest = time.time() - max_age_hours * 3600 if max_age_hours is not None else 0.0
        found: list[ExecutionTrace] = []
        for path in self._files(agent):
            if path.stat().st_mtime < oldest:
                continue
            try:
                traces = self.extract_traces_from_checkpoint(self.load_checkpoint(path), agent)
            except RustyError as error:
                said = str(error)
                self.problems.append(said if said.startswith(str(path)) else f"{path}: {said}")
                continue
            if not traces:
                self.problems.append(f"{path}: no answered request in it")
            found += traces
        return distinct(found) if deduplicate else found

    def _paths(self) -> list[Path]:
        names = [self.agent_name] if self.agent_name else self.discover_all_agents()
        return [path for name in names for path in self._files(name)]

    def _files(self, agent: str) -> list[Path]:
        """Oldest first, so that what is kept of two is what was written first."""
        folder = self._folders().get(agent)
        return (
            sorted(_checkpoints(folder), key=lambda path: (path.stat().st_mtime, path.name)) if folder else []
        )

    def _folders(self) -> dict[str, Path]:
        """Agents and where their checkpoints are; a name is never made into a path."""
        root = self.checkpoint_path
        if not root.is_dir():
            return {}
        found = {path.name: path for path in sorted(root.iterdir()) if path.is_dir() and _checkpoints(path)}
        if _checkpoints(root):
            found.setdefault(self.agent_name or root.name, root)
        return found


def _checkpoints(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.iterdir()
        if path.suffix in SUFFIXES and path.is_file() and not path.name.endswith(".meta.json")
    ]


def _as_dict(checkpoint: Any) -> Mapping[str, Any]:
    if isinstance(checkpoint, Mapping):
        return checkpoint
    if hasattr(checkpoint, "__dict__"):
        return dict(vars(checkpoint))
    raise TraceError(f"a checkpoint is an object or a dict, not a {type(checkpoint).__name__}")


def _check_version(data: Mapping[str, Any]) -> None:
    metadata = data.get("metadata")
    said = data.get("version") or (
        metadata.get("checkpoint_version") if isinstance(metadata, Mapping) else None
    )
    if said is not None and not str(said).startswith(VERSIONS):
        raise TraceError(
            f"the checkpoint's version {str(said)[:40]!a} is not known. Type: pip install -U rusty-r2"
        )


def _named(data: Mapping[str, Any]) -> str:
    metadata = data.get("metadata")
    return text(metadata.get("agent_name")) if isinstance(metadata, Mapping) else ""


def _sessions(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(session, messages) of every shape; a TraceError where there is none of them."""
    second, first = data.get("sessions_data"), data.get("session_data")
    if isinstance(second, Mapping):
        sessions = second.get("sessions", second)
        yield from _histories(sessions, "chat_history")
    elif isinstance(first, Mapping) and first:
        yield from _histories(first, "history")
    else:
        names = ("conversation_history", "chat_history", "history", "messages")
        history = next((data[name] for name in names if isinstance(data.get(name), list)), None)
        if history is None and not isinstance(first, Mapping):
            raise TraceError("neither session_data nor sessions_data is in it: no checkpoint we know")
        yield text(data.get("session_id")), history or []


def _histories(sessions: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(sessions, Mapping):
        raise TraceError(f"its sessions are a {type(sessions).__name__}, not a table")
    for key, session in sessions.items():
        if isinstance(session, Mapping):
            yield str(key), session.get(name, session.get("history", session.get("messages", [])))
        elif isinstance(session, list):
            yield str(key), session


def _turns(messages: Any) -> Iterator[Turn]:
    """Messages one can read; what an agent noted beside them is passed over."""
    for message in messages if isinstance(messages, list) else []:
        try:
            yield turn_of(message)
        except TraceError:
            continue


def _give_whole(data: Mapping[str, Any], traces: list[ExecutionTrace]) -> None:
    """Tasks, thoughts and totals are the checkpoint's; a trace gets them only where it is certain which."""
    metadata = data.get("metadata")
    about = metadata if isinstance(metadata, Mapping) else {}
    asked = about.get("last_query")
    fits = [
        t
        for t in traces
        if asked and t.user_query == asked and about.get("session_id") in (None, t.session_id)
    ]
    last = fits[-1] if fits else traces[0] if len(traces) == 1 else None
    if last is None:
        return
    tasks = data.get("task_state")
    for task in tasks.values() if isinstance(tasks, Mapping) else []:
        made = plain(task) if isinstance(task, Mapping) else {"task": plain(task)}
        last.tasks_created.append(made)
        if made.get("status") in ("completed", "failed"):
            getattr(last, f"tasks_{made['status']}").append(made)
    scopes = data.get("variable_scopes")
    thoughts = scopes.get("reasoning") if isinstance(scopes, Mapping) else None
    for name, value in thoughts.items() if isinstance(thoughts, Mapping) else ():
        last.reasoning_steps.append(ReasoningStep(str(name), text(value)))
    if len(traces) == 1:
        _give_totals(data, last)


def _give_totals(data: Mapping[str, Any], trace: ExecutionTrace) -> None:
    totals: Mapping[str, Any] = next(
        (data[k] for k in ("statistics", "agent_state") if isinstance(data.get(k), Mapping)), {}
    )
    for name, words in _TOTALS.items():
        given = next((totals[word] for word in words if word in totals), None)
        if given is not None:
            setattr(trace, name, amount(given) if name == "total_cost" else count(given))


def _category(trace: ExecutionTrace) -> str:
    if trace.tool_calls:
        return "tools"
    if wants_code(trace.user_query) or "```" in trace.final_response:
        return "code"
    return "question" if trace.user_query.rstrip().endswith("?") else "conversation"


def _mean(numbers: list[int]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
