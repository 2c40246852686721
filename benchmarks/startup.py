# SPDX-License-Identifier: AGPL-3.0-or-later
"""How long the light commands take, beside a bare interpreter and beside importing torch, in one run.

python benchmarks/startup.py
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

CASES = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "rusty --help": [sys.executable, "-m", "rusty_r2.cli", "--help"],
    "rusty doctor": [sys.executable, "-m", "rusty_r2.cli", "doctor"],
    "import torch": [sys.executable, "-c", "import torch"],
}


def timed(argv: list[str]) -> tuple[float, float]:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(rounds: int = 9) -> None:
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, argv in CASES.items():
            seen[name].append(timed(argv))
    print(f"{'command':<16} {'wall median s':>13} {'wall max s':>11} {'CPU median s':>13}")
    for name, times in seen.items():
        walls, cpus = sorted(w for w, _ in times), sorted(c for _, c in times)
        print(f"{name:<16} {walls[rounds // 2]:>13.3f} {walls[-1]:>11.3f} {cpus[rounds // 2]:>13.3f}")


if __name__ == "__main__":
    main()
