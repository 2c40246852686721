# SPDX-License-Identifier: AGPL-3.0-or-later
"""What collecting costs: a recorded run, a hooked run, an import, a pickle read as data. CPU seconds.

OMP_NUM_THREADS=1 python benchmarks/traces.py
"""

from __future__ import annotations

import asyncio
import json
import pickle
import tempfile
import time
from pathlib import Path

from rusty_r2.agent.collector import TraceCollector
from rusty_r2.agent.hooks import hook_into_agent
from rusty_r2.data import pickles
from rusty_r2.traces import ImportConfig, bring_in

RUNS = 200
CHATS = 10_000


class Agent:
    async def a_run(self, query: str, session_id: str = "default") -> str:
        for number in range(5):
            await self.arun_function("tool", number)
        return "done"

    async def arun_function(self, function_name: str, *args: object) -> str:
        return "result"


def spent(work: object) -> float:
    before = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - before


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with TraceCollector(folder) as collector:
            bare, hooked = Agent(), Agent()
            hook_into_agent(hooked, collector)

            async def runs(agent: Agent) -> None:
                for number in range(RUNS):
                    await agent.a_run(f"question {number}")

            alone = min(spent(lambda: asyncio.run(runs(bare))) for _ in range(3))
            both = min(spent(lambda: asyncio.run(runs(hooked))) for _ in range(3))
        print(f"a hooked run with 5 tool calls: {(both - alone) / RUNS * 1e3:.2f} ms more")
        chat = [{"role": "user", "content": "q " * 50}, {"role": "assistant", "content": "a " * 100}]
        lines = (json.dumps({"messages": chat, "session_id": str(n)}) for n in range(CHATS))
        (folder / "chats.jsonl").write_text("\n".join(lines))
        store = str(folder / "t.db")
        took = spent(lambda: bring_in(ImportConfig((folder / "chats.jsonl",), store=store)))
        print(f"import of {CHATS:,} chats: {took:.2f} s")
        said = [
            {"role": "user", "content": f"message {n} " * 20, "timestamp": "2026-01-01"}
            for n in range(20_000)
        ]
        data = pickle.dumps({"session_data": {"s": {"history": said}}})
        ours = min(spent(lambda: pickles.loads(data)) for _ in range(3))
        theirs = min(spent(lambda: pickle.loads(data)) for _ in range(3))
        print(
            f"a checkpoint of {len(data) / 1e6:.1f} MB, 20,000 messages: {ours:.2f} s, pickle {theirs:.3f} s"
        )


if __name__ == "__main__":
    main()
