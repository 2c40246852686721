# SPDX-License-Identifier: AGPL-3.0-or-later
"""How long the page takes over 100,000 traces. CPU seconds of one request each, best of five.

OMP_NUM_THREADS=1 python benchmarks/web.py
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from rusty_r2.protocol import Cmd, Edit, Msg, render
from rusty_r2.rewards.learned import LearnedReward
from rusty_r2.store import TraceStore
from rusty_r2.tables import TRACES, to_row
from rusty_r2.trace import ExecutionTrace, Step
from rusty_r2.web.app import Rooms
from rusty_r2.web.guard import Keys
from rusty_r2.web.pages import Ask, Templates
from rusty_r2.web.runs import Runs
from rusty_r2.web.shelf import Shelf

COUNT = 100_000
WORDS = (
    "sort",
    "file",
    "test",
    "count",
    "words",
    "fix",
    "bug",
    "python",
    "shell",
    "grep",
    "error",
    "total",
    "line",
)


def make(number: int, rng: random.Random) -> ExecutionTrace:
    def said(words: int) -> str:
        return " ".join(rng.choices(WORDS, k=words))

    output = "\n".join(said(8) for _ in range(15))
    steps = [
        Step(render(Cmd(f"pytest {said(4)}")), output),
        Step(render(Edit("total.py", output)), "written"),
    ]
    return ExecutionTrace(
        trace_id=f"{number:012x}{rng.getrandbits(80):020x}",
        timestamp=f"2026-{1 + number * 10 // COUNT:02d}-{1 + number % 28:02d}T00:00:00.000+00:00",
        user_query=f"{said(12)} {number}",
        steps=[*steps, Step(render(Msg(said(30))))],
        agent_name=f"agent{number % 5}",
        model="rare" if number == COUNT // 2 else f"model-{number % 7}",
        task_name=f"{'sort' if number % 50 else 'rename'}-1-train-{number}",
        ended="done",
        reward_score=rng.random(),
    )


def fill(store: TraceStore) -> None:
    """Past the redaction, which is measured elsewhere and would take minutes here."""
    rng = random.Random(0)
    for start in range(0, COUNT, 2000):
        rows = [to_row(make(number, rng)) for number in range(start, start + 2000)]
        with store.engine.begin() as connection:
            connection.execute(
                sa.insert(TRACES), [{k: v for k, v in row.items() if k != "tools"} for row in rows]
            )


def spent(work: Callable[[], object]) -> float:
    """Best of five, in CPU milliseconds."""
    best = float("inf")
    for _ in range(5):
        before = time.process_time()
        work()
        best = min(best, time.process_time() - before)
    return 1000 * best


def main() -> None:
    with tempfile.TemporaryDirectory() as name, TraceStore(Path(name) / "t.db") as store:
        fill(store)
        folder = Path(name)
        learned = LearnedReward(folder / "learned.npz")
        some = store.find(limit=200)
        for place, trace in enumerate(some):
            trace.label, trace.manual_review = place % 2 == 0, True
        learned.learn_from_traces(some)
        learned.save()
        rooms = Rooms(store, Templates(Keys()), Runs(folder), Shelf(folder), folder / "learned.npz", "ada")

        def ask(**query: str) -> Ask:
            return Ask("/", query, (), {}, "ada")

        first = store.listing(limit=1)[0]["trace_id"]
        pages: dict[str, Callable[[], object]] = {
            "the list": lambda: rooms.traces(ask()),
            "its last page": lambda: rooms.traces(ask(page=str(COUNT // 50))),
            "words that are nowhere": lambda: rooms.traces(ask(text="nowhere to be found")),
            "one agent of five": lambda: rooms.traces(ask(agent="agent3")),
            "one model of seven": lambda: rooms.traces(ask(model="model-3")),
            "a model only one trace has": lambda: rooms.traces(ask(model="rare")),
            "a family of nearly all": lambda: rooms.traces(ask(family="sort")),
            "a family of one in fifty": lambda: rooms.traces(ask(family="rename")),
            "one trace": lambda: rooms.trace(ask(id=first)),
            "agreement": lambda: rooms.agreement(ask()),
        }
        before = time.process_time()
        rooms.label(ask())
        print(f"{'the queue, lined up by doubt':<30}{1000 * (time.process_time() - before):>8.0f} ms, once")
        pages["the next in the queue"] = lambda: rooms.label(ask())
        for what, work in pages.items():
            print(f"{what:<30}{spent(work):>8.0f} ms")


if __name__ == "__main__":
    main()
