# SPDX-License-Identifier: AGPL-3.0-or-later
"""How fast one answer is written, and how much memory that takes: measured in processes of their own.

    python -m rusty_r2.eval.speed '{"address": "rusty", "device": "cpu", "turn": 0}'

One request after another, as in a chat, without the grammar (which would say part of the words for free).
Tokens are the mind's own, so characters a second are told too. Memory is the process's peak, or the GPU's;
of a server elsewhere only the client's can be seen, and is not told.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from rusty_r2.agent.address import MindOptions, open_policy
from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.errors import RustyError
from rusty_r2.eval.figures import Figure, absent, mean
from rusty_r2.eval.job import Job
from rusty_r2.trace import ExecutionTrace

TOLD = ("tokens_per_s", "characters_per_s")
REQUESTS = (
    "Explain what a pipe does.",
    "Write a function that adds two numbers to add.py",
    "List all files here",
    "What is a symbolic link?",
    "Count the lines of notes.txt",
    "Write a script that prints the numbers from 1 to 10 to count.py",
)
LONGEST = 64
PROCESSES = 3
"""that share the requests: what differs from one start to the next is in the intervals"""


def measure(job: Job) -> list[Figure]:
    asked = {"address": job.mind.address, "device": job.config.device}
    rows = []
    with job.kept("speed", device=job.config.device) as kept:
        for turn in range(PROCESSES):
            row = kept.rows.get(str(turn)) or _in_a_process({**asked, "turn": turn})
            if "error" in row:
                return [absent("tokens per second", row["error"], unit="tokens/s")]
            if str(turn) not in kept.rows:
                kept.add(str(turn), row)
            rows.append(row)
    note = f"one answer at a time on {job.config.device}, no grammar"
    tokens, characters = ([one for row in rows for one in row[name]] for name in TOLD)
    return [
        mean("tokens per second", tokens, unit="tokens/s", note=note),
        mean("characters per second", characters, unit="characters/s", detail=True, note=note),
        _memory([row["peak_mb"] for row in rows], rows[0]["memory"]),
    ]


def _memory(peaks: Sequence[float], where: str) -> Figure:
    if not all(peaks):
        return absent("peak memory", "a server's cannot be seen from here", unit="MB")
    note = f"{where}, {PROCESSES} processes"
    return mean("peak memory", peaks, unit="MB", lower_is_better=True, note=note)


def _in_a_process(asked: dict[str, Any]) -> dict[str, Any]:
    words = [sys.executable, "-m", "rusty_r2.eval.speed", json.dumps(asked)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["it died"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def speak(address: str, device: str, turn: int) -> dict[str, Any]:
    """Answer this process's share of the requests here and now."""
    policy = open_policy(
        address, MindOptions(grammar=False, temperature=0.8, max_new_tokens=LONGEST, device=device)
    )
    tokens, characters = [], []
    for number, request in enumerate((REQUESTS[turn], *REQUESTS[turn::PROCESSES])):
        reply = policy.reply(ExecutionTrace(system_prompt=SYSTEM, user_query=request))
        took = max(reply.seconds - reply.seconds_to_first, 1e-9)
        if number and reply.tokens_out > 1:  # the first warms up
            tokens.append((reply.tokens_out - 1) / took)
            characters.append(len(reply.text) / took)
    there = address.startswith(("http:", "https:", "ollama:"))
    return {
        "tokens_per_s": tokens,
        "characters_per_s": characters,
        "peak_mb": 0.0 if there else peak_mb(device),
        "memory": "process" if device == "cpu" else "GPU",
    }


def peak_mb(device: str) -> float:
    if device != "cpu":
        import torch

        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


if __name__ == "__main__":
    try:
        print(json.dumps(speak(**json.loads(sys.argv[1]))))
    except RustyError as error:
        sys.exit(str(error))
