# SPDX-License-Identifier: AGPL-3.0-or-later
"""How long 10,000 mixed traces take from a folder of JSON files to rows, and how fast code is judged.

    OMP_NUM_THREADS=1 python benchmarks/rows.py [COUNT]

Three tenths of the traces answer with Python that differs from trace to trace and must run; the rest is
chat, tool use and runs of our own protocol. Prints seconds on the clock, in all and for each stage.
"""

import json
import random
import sys
import tempfile
import time
from pathlib import Path

from rusty_r2.data import pipeline
from rusty_r2.data.judged import gather, judge
from rusty_r2.rewards import running
from rusty_r2.rewards.engine import RewardEngine
from rusty_r2.rewards.redteam import CHEATS, REQUESTS, failing, honest

WORDS = [
    "river",
    "stone",
    "bread",
    "light",
    "engine",
    "winter",
    "garden",
    "copper",
    "signal",
    "harbor",
    "violet",
    "thunder",
    "paper",
    "silver",
]


def mixed(count: int) -> list[dict]:
    """Traces of every kind, each a little different; about eight to a request."""
    rng = random.Random(0)
    cheats = list(CHEATS.values())
    made = []
    for number in range(count):
        request = REQUESTS[number % len(REQUESTS)]
        policy = rng.choice([honest, honest, failing, rng.choice(cheats[:8])])
        trace = policy(request)
        group = number // 40
        trace.user_query = f"{trace.user_query} (case {group}: {WORDS[group % len(WORDS)]})"
        tail = " ".join(rng.choices(WORDS, k=12))
        if request.kind == "code":
            trace.final_response = trace.final_response.replace("\n```", f"\n# {tail}\n```", 2)
        elif trace.final_response:
            trace.final_response += f" {tail}."
        trace.trace_id, trace.timestamp = f"{number:012x}", f"2026-11-15T00:00:00.{number % 1000:03d}+00:00"
        trace.total_tokens_in, trace.total_tokens_out = 200, rng.randrange(20, 900)
        made.append(trace.to_dict())
    return made


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "traces"
        source.mkdir()
        for trace in mixed(count):
            (source / f"{trace['trace_id']}.json").write_text(json.dumps(trace))
        config = pipeline.RowsConfig(source=source, output_dir=Path(folder) / "rows")
        began = time.perf_counter()
        print(pipeline.build(config))
        whole = time.perf_counter() - began
        print(
            f"\n{count:,} traces to rows of four kinds: {whole:.1f} s, {running.OUTCOMES.runs:,} programs run"
        )

        began = time.perf_counter()
        traces, _ = gather(config)
        read = time.perf_counter() - began
        began = time.perf_counter()
        judge(traces, RewardEngine())
        again = time.perf_counter() - began
        print(
            f"of that: reading and redacting {read:.1f} s; judging again, every program known, {again:.1f} s"
        )


if __name__ == "__main__":
    main()
