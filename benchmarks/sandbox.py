# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a sandboxed run costs, beside a bare subprocess and beside bubblewrap, measured in one run.

    OMP_NUM_THREADS=1 python benchmarks/sandbox.py [--runs 20] [--rounds 5]

CPU milliseconds of everything a run needs (supervisor, spawner and payload), and runs per second of one
thread. The rivals take turns in every round; the median over the rounds is printed with its spread. The
kernel's own cleaning up after namespaces is in nobody's CPU column.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rusty_r2.gym.levels import bwrap, host, kernel, ns
from rusty_r2.gym.sandbox import Limits, Sandbox, open_sandbox

TICK = os.sysconf("SC_CLK_TCK")
IMPORTS = "import unittest, json"
SERVE = """
import json, socket, unittest
channel = socket.socket(fileno=3)
def add(a, b): return a + b
file = channel.makefile("rw")
for line in file:
    file.write(json.dumps(add(*json.loads(line))) + "\\n")
    file.flush()
"""


def cpu_seconds(spawners: list[int]) -> float:
    """Ours, our dead children's, and the spawners' with their dead children."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    for pid in spawners:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / TICK
    return total


def five_calls(box: Sandbox) -> None:
    """A verdict in small: a fresh process, five questions, five answers compared outside."""
    with box.guest(SERVE) as guest, guest.channel.makefile("rw") as file:
        for number in range(5):
            file.write(f"[{number}, 1]\n")
            file.flush()
            assert file.readline() == f"{number + 1}\n"


def guest_run(box: Sandbox, source: str) -> None:
    with box.guest(source) as guest:
        assert guest.wait().ok


def fresh_verdict() -> None:
    with open_sandbox(level="ns", files={"solution.py": "def add(a, b): return a + b\n"}) as box:
        five_calls(box)


def bare(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin"})


def plain_bwrap(*command: str) -> None:
    """bubblewrap as people call it: one process a command, the same binds as ours."""
    words = bwrap.command(Limits(), workspace=None, mode="rw")
    words = words[: words.index("--")]
    skip = words.index("--seccomp")
    del words[skip : skip + 2]
    bare(*words, "--", *command)
    adopt()


def adopt() -> None:
    """bubblewrap does not wait for its first process; we do, so that its CPU time is counted."""
    time.sleep(0.005)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def rivals(box: Sandbox) -> dict[str, Callable[[], object]]:
    python = host.reachable_python()
    table: dict[str, Callable[[], object]] = {
        "bare true": lambda: bare("true"),
        "ns true": lambda: box.run(["true"]),
        "bare python3 -c pass": lambda: bare(python, "-c", "pass"),
        "ns python3 -c pass": lambda: box.run([python, "-c", "pass"]),
        f"bare python3 -c '{IMPORTS}'": lambda: bare(python, "-c", IMPORTS),
        f"ns guest '{IMPORTS}'": lambda: guest_run(box, IMPORTS),
        "ns guest, five calls": lambda: five_calls(box),
        "ns fresh sandbox + guest, five calls": fresh_verdict,
    }
    if shutil.which("bwrap", path=bwrap.TRUSTED):
        table["bwrap true"] = lambda: plain_bwrap("true")
        table[f"bwrap python3 -c '{IMPORTS}'"] = lambda: plain_bwrap(python, "-c", IMPORTS)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    kernel.adopt_orphans()
    with open_sandbox(level="ns", limits=Limits(wall_s=60)) as box:
        box.run("true")
        launcher = ns.shared_spawner("ns", ns.config())._process.pid
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        table = rivals(box)
        cpu: dict[str, list[float]] = {name: [] for name in table}
        wall: dict[str, list[float]] = {name: [] for name in table}
        for _ in range(options.rounds):
            for name, run in table.items():
                started, spent = time.perf_counter(), cpu_seconds([launcher, *map(int, children)])
                for _ in range(options.runs):
                    run()
                cpu[name].append((cpu_seconds([launcher, *map(int, children)]) - spent) / options.runs * 1e3)
                wall[name].append((time.perf_counter() - started) / options.runs)
    print(f"load {os.getloadavg()[0]:.1f}, {options.rounds} rounds of {options.runs} runs")
    print(f"{'':48} {'CPU ms/run':>10} {'(min–max)':>13} {'runs/s':>7}")
    for name in table:
        low, high, middle = min(cpu[name]), max(cpu[name]), statistics.median(cpu[name])
        print(f"{name:48} {middle:10.1f} {f'({low:.1f}–{high:.1f})':>13} {1 / min(wall[name]):7.0f}")
    verdict = statistics.median(cpu["ns fresh sandbox + guest, five calls"])
    cold = statistics.median(cpu[f"bare python3 -c '{IMPORTS}'"])
    print(f"a confined verdict costs {verdict / cold:.2f} of the CPU of a bare cold python3 -c '{IMPORTS}'")


if __name__ == "__main__":
    main()
