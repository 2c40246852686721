# SPDX-License-Identifier: AGPL-3.0-or-later
"""The trace store at 100,000 traces: appending, listing, filtering, searching; beside a folder of JSON files.

python benchmarks/store.py [--traces 100000] [--url postgresql://…]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace, ToolCallTrace

WORDS = [f"word{n}" for n in range(5000)]


def made(n: int, chance: random.Random) -> ExecutionTrace:
    text = " ".join(chance.choices(WORDS, k=60))
    calls = [
        ToolCallTrace(chance.choice(["shell", "search", "edit"]), {"q": text[:80]}, text[:400], True, 3.0)
    ]
    return ExecutionTrace(
        agent_name=f"agent{n % 7}",
        user_query=text[:200],
        final_response=text,
        tool_calls=calls * (n % 4),
        timestamp=f"2026-{n % 12 + 1:02d}-{n % 28 + 1:02d}T{n % 24:02d}:00:00+00:00",
        reward_score=chance.random(),
        label=chance.choice([True, False, None]),
    )


def median_ms(ask: Callable[[], object], rounds: int = 7) -> tuple[float, float]:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        ask()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times), max(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=int, default=100_000)
    parser.add_argument("--url", default=None)
    options = parser.parse_args()
    chance = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        store = TraceStore(options.url or Path(folder) / "traces.db")
        start = time.perf_counter()
        for first in range(0, options.traces, 1000):
            store.append_many([made(n, chance) for n in range(first, min(first + 1000, options.traces))])
        took = time.perf_counter() - start
        print(
            f"{options.traces:,} traces appended in batches of 1,000: {options.traces / took:,.0f} a second"
        )
        asks: dict[str, Callable[[], object]] = {
            "append one": lambda: store.append(made(0, chance)),
            "newest 100": lambda: store.listing(limit=100),
            "newest 100 of an agent": lambda: store.listing(agent="agent3", limit=100),
            "unlabelled, page 50": lambda: store.listing(labeled=False, limit=100, offset=5000),
            "by tool": lambda: store.listing(tool="edit", limit=100),
            "by reward": lambda: store.listing(min_reward=0.99, limit=100),
            "text, common word": lambda: store.listing(text="word4711", limit=100),
            "text, no match": lambda: store.listing(text="nowhere to be found", limit=100),
            "count of a month": lambda: store.count(since="2026-03-01", until="2026-03-31"),
            "statistics": store.statistics,
            "100 whole traces": lambda: store.find(limit=100),
        }
        print(f"{'question':<24} {'median ms':>10} {'worst ms':>10}")
        for name, ask in asks.items():
            middle, worst = median_ms(ask)
            print(f"{name:<24} {middle:>10.1f} {worst:>10.1f}")
        peer = Path(folder) / "files"
        peer.mkdir()
        for n in range(1000):
            (peer / f"{n}.json").write_text(json.dumps(made(n, chance).to_dict(), indent=2))
        middle, _ = median_ms(lambda: [json.loads(path.read_text()) for path in peer.glob("*.json")], 3)
        whole = middle * options.traces / 1000
        print(f"{'1,000 JSON files (peer)':<24} {middle:>10.1f}   so {whole:,.0f} ms for all")


if __name__ == "__main__":
    main()
