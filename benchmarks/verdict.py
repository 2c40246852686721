# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a verdict costs beside a bare cold interpreter, in one run: CPU of the whole process tree.

python benchmarks/verdict.py

The cost of starting the sandbox's spawner is taken off by a run that gives only a few verdicts: it is paid
once in a training run. The rivals take turns, round after round; the table shows the median and the range.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Callable

BARE = [sys.executable, "-c", "import unittest, json"]
VERDICTS = """
import sys
from rusty_r2.gym import hacks, verdict
task = {task.name: task for task in hacks.TASKS}[sys.argv[1]]
for _ in range(int(sys.argv[2])):
    assert verdict.judge(task, {hacks.PATH: hacks.GOOD}).passed
"""
FEW, MANY = 3, 103


def cpu(argv: list[str]) -> float:
    """CPU seconds of a command and all it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def per_verdict(kind: str) -> float:
    few, many = (cpu([sys.executable, "-c", VERDICTS, kind, str(count)]) for count in (FEW, MANY))
    return (many - few) / (MANY - FEW)


RIVALS: dict[str, Callable[[], float]] = {
    "bare python -c 'import unittest, json'": lambda: sum(cpu(BARE) for _ in range(10)) / 10,
    "verdict: 5 calls": lambda: per_verdict("calls"),
    "verdict: 6 unittest tests, two sandboxes": lambda: per_verdict("unittest"),
    "verdict: 10 asserts, two sandboxes": lambda: per_verdict("asserts"),
}


def main(rounds: int = 5) -> None:
    seen: dict[str, list[float]] = {name: [] for name in RIVALS}
    for _ in range(rounds):
        for name, measure in RIVALS.items():
            seen[name].append(measure() * 1000)
    bare = statistics.median(next(iter(seen.values())))
    print(f"{'':<42} {'CPU ms':>7} {'range':>13} {'of bare':>8}")
    for name, times in seen.items():
        middle = statistics.median(times)
        print(f"{name:<42} {middle:>7.1f} {min(times):>6.1f}-{max(times):<6.1f} {middle / bare:>7.2f}x")


if __name__ == "__main__":
    main()
