# SPDX-License-Identifier: AGPL-3.0-or-later
"""How fast one answer is written, and how much memory that takes: measured in a process of its own.

    python -m rusty_r2.eval.speed '{"address": "rusty", "device": "cpu"}'

One request after another, as in a chat, without the grammar (which would say part of the words for free).
Tokens are the mind's own, so characters a second are told too. Memory is the process's peak, or the GPU's;
of a server elsewhere only the client's can be seen, and is not told.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import Any

from rusty_r2.agent.address import MindOptions, open_policy
from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.errors import RustyError
from rusty_r2.eval.figures import Figure, absent, mean
from rusty_r2.eval.job import Job
from rusty_r2.trace import ExecutionTrace

REQUESTS = (
    "Explain what a pipe does.",
    "Write a function that adds two numbers to add.py",
    "List all files here",
    "What is a symbolic link?",
    "Count the lines of notes.txt",
    "Write a script that prints the numbers from 1 to 10 to count.py",
)
LONGEST = 64


def measure(job: Job) -> list[Figure]:
    asked = {"address": job.mind.address, "device": job.config.device}
    with job.kept("speed", **{key: value for key, value in asked.items() if key != "address"}) as kept:
        row = kept.rows.get("all") or _in_a_process(asked)
        if "all" not in kept.rows and "error" not in row:
            kept.add("all", row)
    if "error" in row:
        return [absent("tokens per second", row["error"], unit="tokens/s")]
    note = f"one answer at a time on {job.config.device}, no grammar"
    memory = Figure("peak memory", row["peak_mb"], unit="MB", lower_is_better=True, note=row["memory"])
    return [
        mean("tokens per second", row["tokens_per_s"], unit="tokens/s", note=note),
        mean("characters per second", row["characters_per_s"], unit="characters/s", detail=True, note=note),
        memory if row["peak_mb"] else absent("peak memory", "a server's cannot be seen from here", unit="MB"),
    ]


def _in_a_process(asked: dict[str, Any]) -> dict[str, Any]:
    words = [sys.executable, "-m", "rusty_r2.eval.speed", json.dumps(asked)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["it died"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def speak(address: str, device: str) -> dict[str, Any]:
    """Answer the requests here and now."""
    policy = open_policy(
        address, MindOptions(grammar=False, temperature=0.8, max_new_tokens=LONGEST, device=device)
    )
    tokens, characters = [], []
    for number, request in enumerate((REQUESTS[0], *REQUESTS)):
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
