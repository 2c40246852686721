# SPDX-License-Identifier: AGPL-3.0-or-later
"""A person with a queue of traces: what comes next, what was said, and how to take it back.

The queue is what nobody labelled, where the learned reward doubts most first (among the newest CANDIDATES;
before anything was learned simply newest first), or, for second opinions, what others judged and this person
did not. Labels go through the store's own verb. Undoing gives a trace back the label it had before.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from rusty_r2.errors import DataError, StoreError
from rusty_r2.rewards.labeler import by_doubt
from rusty_r2.rewards.learned import LearnedReward
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace
from rusty_r2.web.search import second_opinions

CANDIDATES = 2000
"""newest unlabelled traces among which the most doubtful are sought"""
QUEUE = 200
"""how many are lined up at once"""


@dataclass(frozen=True)
class Given:
    """One key that was pressed: the trace as it was before; a skip changed nothing."""

    before: ExecutionTrace
    skipped: bool


@dataclass
class Sitting:
    store: TraceStore
    who: str
    learned: Path
    second: bool = False
    """give second opinions instead of first ones"""
    labelled: int = 0
    given: list[Given] = field(default_factory=list)
    order: str = "newest first"
    _queue: list[str] = field(default_factory=list)
    _passed: set[str] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def next(self) -> ExecutionTrace | None:
        """The trace to judge now; the same one until it was judged or skipped."""
        with self._lock:
            for _ in range(2):
                while self._queue:
                    trace = self._waiting(self._queue[0])
                    if trace is not None:
                        return trace
                    self._queue.pop(0)
                self._queue = self._line_up()
            return None

    def judge(self, trace_id: str, label: bool, note: str = "") -> None:
        """Label one trace, of the queue or not."""
        with self._lock:
            before = self.store.get(trace_id)
            self.store.label(trace_id, label, note=note, who=self.who)
            self.labelled += 1
            self._done(Given(before, skipped=False))

    def skip(self, trace_id: str) -> None:
        with self._lock:
            self._done(Given(self.store.get(trace_id), skipped=True))

    def undo(self) -> str | None:
        """Take the last key back; returns the trace it was about."""
        with self._lock:
            if not self.given:
                return None
            last = self.given.pop()
            before = last.before
            if not last.skipped:
                self.store.take_back(before, who=self.who)
                self.labelled -= 1
            self._passed.discard(before.trace_id)
            self._queue.insert(0, before.trace_id)
            return before.trace_id

    def _done(self, given: Given) -> None:
        self.given.append(given)
        self._passed.add(given.before.trace_id)
        self._queue = [key for key in self._queue if key != given.before.trace_id]

    def _waiting(self, trace_id: str) -> ExecutionTrace | None:
        """The trace, unless somebody else judged it or took it away in the meantime."""
        try:
            trace = self.store.get(trace_id)
        except StoreError:
            return None
        return trace if self.second or trace.label is None else None

    def _line_up(self) -> list[str]:
        if self.second:
            found = second_opinions(self.store, self.who, QUEUE + len(self._passed))
            return [key for key in found if key not in self._passed][:QUEUE]
        reward = learned_reward(self.learned)
        if reward is None:
            self.order = "newest first"
            rows = self.store.listing(labeled=False, limit=QUEUE + len(self._passed))
            return [row["trace_id"] for row in rows if row["trace_id"] not in self._passed][:QUEUE]
        self.order = "the learned reward's doubts first"
        waiting = self.store.find(labeled=False, limit=CANDIDATES + len(self._passed))
        fresh = [trace for trace in waiting if trace.trace_id not in self._passed]
        return [trace.trace_id for trace in by_doubt(fresh, reward)[:QUEUE]]


def learned_reward(path: Path) -> LearnedReward | None:
    """What was learned from people's labels so far; a file that cannot be read teaches nothing."""
    try:
        reward = LearnedReward(path)
    except DataError:
        return None
    return reward if reward.weights is not None else None
