# SPDX-License-Identifier: AGPL-3.0-or-later
"""What puts traces into the store: a run begins, tools are called, thoughts are had, the run ends.

    collector = TraceCollector()                 # the store of the data home
    collector.start_trace("session", "What is 2+2?")
    collector.record_tool_call("calc", {"x": "2+2"}, "4", True, 1.5)
    collector.finish_trace("4")

Which run a record belongs to is known from a context variable, so any number of tasks and threads may
each have a run open. Code in a thread that was started without the context of its run still finds it
where only one is open. Existing agents are wired up by hooks.py. A trace is in the store when
`finish_trace` returns, without its secrets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count as counter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rusty_r2.agent.plain import amount, count, plain, text
from rusty_r2.closing import Closing
from rusty_r2.config import home
from rusty_r2.errors import StoreError, TraceError
from rusty_r2.store import TraceStore
from rusty_r2.tables import Filter
from rusty_r2.trace import ExecutionTrace, ReasoningStep, ToolCallTrace

REMEMBERED = 1000
"""finished traces kept in `traces`; the store has all"""
TASK_STATES = ("created", "completed", "failed")


class NoTrace(TraceError, ValueError):
    """Nothing is being recorded here."""


class UnknownTrace(StoreError, ValueError):
    """No trace has this id."""


@dataclass
class Running:
    """A run that has not ended."""

    trace: ExecutionTrace
    began: float = field(default_factory=time.monotonic)
    over: bool = False
    before: Running | None = None
    """the run this one was started in, on the way out again"""


_RUNNING: ContextVar[Mapping[int, Running | None]] = ContextVar("rusty_running", default=MappingProxyType({}))
_KEYS = counter()


class TraceCollector(Closing):
    def __init__(self, storage_path: str | Path | None = None, *, agent_name: str = "") -> None:
        """`storage_path` is a folder (its traces.db), a database file or a URL; None is the data home."""
        self.storage_path: str | Path = storage_path if storage_path is not None else home()
        self.agent_name = agent_name
        self.store = TraceStore(store_path(storage_path))
        self.traces: list[ExecutionTrace] = []
        """what this collector finished, oldest first"""
        self.unattached = 0
        """tool calls that could not be told apart between several open runs"""
        self._key = next(_KEYS)
        self._open: dict[str, Running] = {}
        self._lock = threading.Lock()

    # ── one run ─────────────────────────────────────────────────────────────────────────────────

    @property
    def current_trace(self) -> ExecutionTrace | None:
        """The trace being recorded here."""
        running = self.running()
        return running.trace if running else None

    def start_trace(self, session_id: str, user_query: str, **known: Any) -> ExecutionTrace:
        """Begin a run in this context; `known` are other fields of the trace."""
        running = self.begin(session_id, user_query, **known)
        self._enter(running)
        return running.trace

    def record_tool_call(
        self,
        tool_name: str,
        arguments: Any,
        result: Any,
        success: bool,
        duration_ms: float,
        error: str | None = None,
    ) -> None:
        """One tool call of the run that is open here; without one, nothing happens."""
        made = arguments if isinstance(arguments, Mapping) else {"args": arguments}
        said = result if result is None or isinstance(result, str) else text(result)
        call = ToolCallTrace(
            text(tool_name),
            plain(made),
            plain(said),
            bool(success),
            amount(duration_ms),
            text(error) if error is not None else None,
        )
        running = self.running()
        if running is None:
            self.unattached += len(self._open) > 1
        else:
            running.trace.tool_calls.append(call)

    def record_reasoning_step(
        self,
        step_type: str,
        content: str,
        confidence: float = 0.0,
        insights: list[Any] | None = None,
        issues: list[Any] | None = None,
    ) -> None:
        """One thought of the run that is open here."""
        step = ReasoningStep(
            text(step_type), text(content), amount(confidence), plain(insights or []), plain(issues or [])
        )
        running = self.running()
        if running is not None:
            running.trace.reasoning_steps.append(step)

    def record_task(self, task_data: dict[str, Any], status: str) -> None:
        """A task the agent set itself: created, completed or failed."""
        if status not in TASK_STATES:
            raise TraceError(f"a task is {', '.join(TASK_STATES)}, not {status!a}")
        made = plain(task_data if isinstance(task_data, Mapping) else {"task": task_data})
        running = self.running()
        if running is not None:
            getattr(running.trace, f"tasks_{status}").append(made)

    def record_usage(
        self, tokens_in: int = 0, tokens_out: int = 0, cost: float = 0.0, llm_calls: int = 1
    ) -> None:
        """One call of a model, added to this run's own numbers: exact however many runs are open."""
        running = self.running()
        if running is not None:
            trace = running.trace
            trace.total_tokens_in += count(tokens_in)
            trace.total_tokens_out += count(tokens_out)
            trace.total_cost += amount(cost)
            trace.llm_calls_count += count(llm_calls)

    def finish_trace(
        self,
        final_response: str,
        total_tokens_in: int = 0,
        total_tokens_out: int = 0,
        total_cost: float = 0.0,
        execution_duration_ms: float = 0.0,
        llm_calls_count: int = 0,
    ) -> ExecutionTrace:
        """End the run of this context and keep it. Numbers not given are those recorded on the way."""
        running = self.running()
        if running is None:
            raise NoTrace("no trace is in progress here. Call start_trace first")
        trace = running.trace
        trace.total_tokens_in = count(total_tokens_in) or trace.total_tokens_in
        trace.total_tokens_out = count(total_tokens_out) or trace.total_tokens_out
        trace.total_cost = amount(total_cost) or trace.total_cost
        trace.llm_calls_count = count(llm_calls_count) or trace.llm_calls_count
        trace.execution_duration_ms = amount(execution_duration_ms)
        self._leave(running)
        return self.end(running, final_response)

    # ── a run in pieces, for hooks ──────────────────────────────────────────────────────────────

    def begin(self, session_id: str, user_query: str, **known: Any) -> Running:
        """A run that is open, though not yet that of any context."""
        known.setdefault("agent_name", self.agent_name)
        trace = ExecutionTrace(session_id=text(session_id), user_query=text(user_query), **known)
        running = Running(trace)
        with self._lock:
            self._open[trace.trace_id] = running
        return running

    def end(self, running: Running, final_response: Any, ended: str = "done") -> ExecutionTrace:
        """Keep a run; it cannot be ended twice."""
        with self._lock:
            if running.over:
                return running.trace
            running.over = True
            self._open.pop(running.trace.trace_id, None)
        trace = running.trace
        trace.final_response = text(final_response)
        trace.ended = trace.ended or ended
        trace.execution_duration_ms = trace.execution_duration_ms or (time.monotonic() - running.began) * 1000
        self.store.append(trace)
        self.traces.append(trace)
        del self.traces[:-REMEMBERED]
        return trace

    @contextmanager
    def within(self, running: Running) -> Iterator[None]:
        """What is recorded inside belongs to `running`."""
        token = _RUNNING.set({**_RUNNING.get(), self._key: running})
        try:
            yield
        finally:
            with suppress(ValueError):  # a coroutine thrown away is closed in whatever context comes by
                _RUNNING.reset(token)

    def running(self) -> Running | None:
        """The open run of this context; where the context has never had one, the only one there is."""
        if self._key in _RUNNING.get():
            running = self.here()
            return running if running is not None and not running.over else None
        with self._lock:
            return next(iter(self._open.values())) if len(self._open) == 1 else None

    def here(self) -> Running | None:
        """The run of this very context, also where it is over."""
        return _RUNNING.get().get(self._key)

    def _enter(self, running: Running) -> None:
        here = _RUNNING.get()
        running.before = here.get(self._key)
        _RUNNING.set({**here, self._key: running})

    def _leave(self, running: Running) -> None:
        here = _RUNNING.get()
        if here.get(self._key) is running:
            _RUNNING.set({**here, self._key: running.before})

    # ── what was kept ───────────────────────────────────────────────────────────────────────────

    def load_traces(
        self,
        start_date: str | None = None,
        end_date: str | None = None,
        labeled_only: bool = False,
        min_tool_calls: int = 0,
    ) -> list[ExecutionTrace]:
        """Traces of the store, oldest first; a date is YYYY-MM-DD and includes its day."""
        wanted = Filter(
            since=_date(start_date),
            until=_date(end_date),
            labeled=True if labeled_only else None,
            min_tool_calls=min_tool_calls,
            limit=None,
            newest_first=False,
        )
        return self.store.find(wanted)

    def get_unlabeled_traces(self, limit: int = 100) -> list[ExecutionTrace]:
        """Traces nobody labelled, newest first."""
        return self.store.find(labeled=False, limit=limit)

    def label_trace(self, trace_id: str, label: bool, notes: str = "") -> None:
        """A person's verdict; a ValueError where there is no such trace."""
        try:
            self.store.get(trace_id)
        except StoreError as error:
            raise UnknownTrace(str(error)) from error
        self.store.label(trace_id, bool(label), note=notes)

    def get_statistics(self) -> dict[str, Any]:
        """Counts and means of everything in the store, or {"total": 0}."""
        return self.store.statistics()

    def close(self) -> None:
        self.store.close()


def store_path(given: str | Path | None) -> str | Path | None:
    """Where the store is: a URL or a database file as given, `traces.db` in a folder, or the default."""
    if given is None or (isinstance(given, str) and "://" in given):
        return given
    path = Path(given)
    return path if path.suffix in (".db", ".sqlite", ".sqlite3") and not path.is_dir() else path / "traces.db"


def _date(given: Any) -> str | None:
    """A date or a time, also where it is a `datetime` object."""
    if given is None:
        return None
    return str(given.isoformat()) if hasattr(given, "isoformat") else str(given)
