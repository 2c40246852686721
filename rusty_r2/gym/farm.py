# SPDX-License-Identifier: AGPL-3.0-or-later
"""Many episodes in many processes: what vector.py does with threads, for machines with many cores.

    with open_envs(512, config) as envs:            # threads on a few cores, a Farm on many
        ...

A Farm keeps VectorEnv's verbs. Its slots are dealt out to processes, each with a few threads of its own, so
that reading replies, filling sandboxes and judging hold nobody up here. `Makers` makes tasks the same way.
A process (`Hand`) is a fresh interpreter that imports the gym alone; it ends when this one closes its line.
One that dies is replaced, and the episodes it had under way do not count, as where a sandbox breaks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from typing import Any

from rusty_r2.closing import Closing
from rusty_r2.errors import SandboxError, TaskError
from rusty_r2.gym.curriculum import Curriculum
from rusty_r2.gym.env import CodingEnv, EnvConfig, Info, opening
from rusty_r2.gym.vector import Step, VectorEnv
from rusty_r2.task import Task

MANY = 4
"""cores from which on processes pay"""
WORTH = 64
"""slots, or tasks, below which they do not"""
THREADS = 3
"""of each process: one waits for its sandbox, the others work"""
DEATHS = 32
"""processes that may die before the farm gives up"""
PATIENCE_S = 30.0
"""how long a process may take to finish what it was doing when it is told to go"""


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_envs(size: int, config: EnvConfig | None = None, *, workers: int = 0) -> VectorEnv | Farm:
    """`size` slots: in threads (`workers` of them) or, on many cores, in processes."""
    if size < WORTH or cores() < MANY:
        return VectorEnv(size, config=config, workers=workers)
    return Farm(size, config, processes=workers or cores())


class Hand:
    """One process that works for us; `line` goes both ways."""

    def __init__(self, config: EnvConfig | None = None) -> None:
        here, there = socket.socketpair()
        program = f"from rusty_r2.gym.farm import serve; serve({there.fileno()})"
        paths = os.pathsep.join(filter(None, sys.path))
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C is ours to hear
            )
        self.line = Connection(here.detach())
        self.line.send(config or EnvConfig())

    def hear(self) -> Any:
        """What it says next; what went wrong there is raised here, EOFError or OSError where it is gone."""
        said = self.line.recv()
        if isinstance(said, Exception):
            raise said
        return said

    def close(self) -> None:
        """Let it finish and give its sandboxes back."""
        self.line.close()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Farm(Closing):
    """`size` slots, dealt out to processes."""

    def __init__(self, size: int, config: EnvConfig | None = None, *, processes: int) -> None:
        self.size, self.config = size, config or EnvConfig()
        self.hands = [Hand(self.config) for _ in range(min(processes, size))]
        self._busy: set[int] = set()
        self._lost: list[Step] = []
        self._deaths = 0

    def __len__(self) -> int:
        return self.size

    def reset(self, slot: int, task: Task) -> tuple[str, Info]:
        """Begin an episode in one slot; what is shown first is known here, so nothing is waited for."""
        self._must_be_idle(slot)
        self._send(slot, task)
        return opening(task, self.config), {}

    def submit(self, slot: int, reply: str) -> None:
        """Let its process carry out `reply`; `poll` hands back what came of it."""
        self._must_be_idle(slot)
        self._busy.add(slot)
        self._send(slot, reply)

    def poll(self, *, wait: bool = True) -> list[Step]:
        """The steps that have finished since; with `wait` at least one, where any is under way."""
        finished, self._lost = self._lost, []
        lines = {hand.line: place for place, hand in enumerate(self.hands)}
        for line in _ready(list(lines), None if wait and not finished else 0.0) if self._busy else []:
            try:
                while line.poll():
                    finished.append(self.hands[lines[line]].hear())
                    self._busy.discard(finished[-1].slot)  # if it dies now, this step is not lost
            except (EOFError, OSError):
                finished += self._replace(lines[line])
        self._busy -= {step.slot for step in finished}
        return finished

    @property
    def busy(self) -> int:
        """How many steps are under way."""
        return len(self._busy)

    def close(self) -> None:
        """Let every process finish what is under way and give its sandboxes back."""
        for hand in self.hands:
            hand.close()
        self.hands, self._lost = [], []
        self._busy.clear()

    def _send(self, slot: int, what: Task | str) -> None:
        place = slot % len(self.hands)
        try:
            self.hands[place].line.send((slot, what))
        except OSError:
            self._lost += self._replace(place)
            if isinstance(what, Task):  # a reply is among what was lost
                self.hands[place].line.send((slot, what))

    def _replace(self, place: int) -> list[Step]:
        """Start a process in place of one that is gone; the steps it had under way, lost."""
        self._deaths += 1
        if self._deaths > DEATHS:
            raise SandboxError(f"{DEATHS} processes of the gym have died. Type: rusty doctor")
        self.hands[place].close()
        slots = [slot for slot in self._busy if slot % len(self.hands) == place]
        ended = self.hands[place].process.returncode
        print(f"a process of the gym died (exit status {ended}); another takes its place", file=sys.stderr)
        self.hands[place] = Hand(self.config)
        known = {step.slot for step in self._lost}
        return [_lost(slot) for slot in slots if slot not in known]

    def _must_be_idle(self, slot: int) -> None:
        if slot in self._busy:
            raise TaskError(f"slot {slot} is still carrying out its last reply. Call poll() first")


class Makers:
    """Processes that make a curriculum's next tasks; on a few cores none, and they are made here."""

    def __init__(self, processes: int | None = None) -> None:
        count = (cores() if cores() >= MANY else 0) if processes is None else processes
        self.hands = [Hand() for _ in range(count)]

    def draw(self, curriculum: Curriculum, count: int) -> list[Task]:
        """What `count` calls of `curriculum.next()` give: each depends on its number and the rates alone."""
        if not self.hands or count < WORTH:
            return [curriculum.next() for _ in range(count)]
        size = -(-count // len(self.hands))
        starts = range(curriculum.drawn, curriculum.drawn + count, size)
        parts = [(curriculum, start, min(size, starts.stop - start)) for start in starts]
        made: list[Task] = []
        for hand, part in zip(self.hands, parts, strict=False):
            with contextlib.suppress(OSError):
                hand.line.send(part)
        for hand, part in zip(self.hands, parts, strict=False):
            try:
                made += hand.hear()
            except (EOFError, OSError):  # that process is gone
                made += _draw(*part)
        curriculum.drawn = starts.stop
        return made

    def close(self) -> None:
        for hand in self.hands:
            hand.close()


def _lost(slot: int) -> Step:
    """The step of an episode whose process is gone."""
    info: Info = {"valid": True, "passed": False, "masked": True, "why": "a process of the gym has died"}
    return Step(slot, "SYSTEM_MSG: the sandbox failed; this episode does not count.", 0.0, False, True, info)


def _ready(lines: list[Connection], timeout: float | None) -> list[Connection]:
    found: list[Any] = wait(lines, timeout)
    return found


# ── in the process ──────────────────────────────────────────────────────────────────────────────


def serve(number: int) -> None:
    """Take tasks, replies and draws from this descriptor and answer, until the other end is closed."""
    line = Connection(number)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt), Worker(line, line.recv()) as worker:
        while True:
            worker.take(line.recv())


class Worker(Closing):
    """The slots of one process."""

    def __init__(self, line: Connection, config: EnvConfig) -> None:
        self.line, self.config = line, config
        self._envs: dict[int, CodingEnv] = {}
        self._pool = ThreadPoolExecutor(THREADS, "gym")
        self._speaking = threading.Lock()

    def take(self, asked: tuple[Any, ...]) -> None:
        if isinstance(asked[0], Curriculum):
            self._answer(_draw, *asked)
        elif isinstance(asked[1], Task):
            env = self._envs.setdefault(asked[0], CodingEnv((), self.config))
            env.reset(options={"task": asked[1]})
        else:
            self._pool.submit(self._answer, self._step, *asked)

    def _step(self, slot: int, reply: str) -> Step:
        env = self._envs.get(slot)  # none: the episode began in a process that is gone
        return _lost(slot) if env is None else Step(slot, *env.step(reply))

    def _answer(self, work: Any, *given: Any) -> None:
        try:
            said = work(*given)
        except Exception as error:  # raised there, where somebody can read it
            said = error
        with self._speaking, contextlib.suppress(OSError):
            self.line.send(said)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for env in self._envs.values():
            env.close()


def _draw(curriculum: Curriculum, start: int, count: int) -> list[Task]:
    curriculum.drawn = start
    return [curriculum.next() for _ in range(count)]
