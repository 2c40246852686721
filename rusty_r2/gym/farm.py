# SPDX-License-Identifier: AGPL-3.0-or-later
"""Many episodes in many processes: what vector.py does with threads, for machines with many cores.

    with open_envs(512, config) as envs:            # threads on a few cores, a Farm on many
        ...

A Farm keeps VectorEnv's verbs. Its slots are dealt out to processes, each with a few threads of its own, so
that reading replies, filling sandboxes and judging hold nobody up here. `Makers` makes tasks the same way.
Processes are started fresh (spawn), import the gym alone, and end with this one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from rusty_r2.errors import SandboxError, TaskError
from rusty_r2.gym.curriculum import Curriculum
from rusty_r2.gym.env import CodingEnv, EnvConfig, Info, opening
from rusty_r2.gym.vector import Step, VectorEnv
from rusty_r2.task import Task

MANY = 4
"""cores from which on processes pay"""
WORTH = 64
"""slots below which they do not"""
THREADS = 3
"""of each process: one waits for its sandbox, the others work"""


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_envs(size: int, config: EnvConfig | None = None, *, workers: int = 0) -> VectorEnv | Farm:
    """`size` slots: in threads (`workers` of them) or, on many cores, in processes."""
    if size < WORTH or cores() < MANY:
        return VectorEnv(size, config=config, workers=workers)
    return Farm(size, config, processes=workers or cores())


class Farm:
    """`size` slots, dealt out to processes."""

    def __init__(self, size: int, config: EnvConfig | None = None, *, processes: int) -> None:
        self.size, self.config = size, config or EnvConfig()
        spawn = multiprocessing.get_context("spawn")
        self._lines: list[Connection] = []
        self._hands = []
        for _ in range(min(processes, size)):
            here, there = spawn.Pipe()
            hand = spawn.Process(target=_work, args=(there, self.config), daemon=True)
            hand.start()
            there.close()
            self._lines.append(here)
            self._hands.append(hand)
        self._busy: set[int] = set()

    def __len__(self) -> int:
        return self.size

    def reset(self, slot: int, task: Task) -> tuple[str, Info]:
        """Begin an episode in one slot; what is shown first is known here, so nothing is waited for."""
        self._must_be_idle(slot)
        self._line(slot).send((slot, task))
        return opening(task, self.config), {}

    def submit(self, slot: int, reply: str) -> None:
        """Let its process carry out `reply`; `poll` hands back what came of it."""
        self._must_be_idle(slot)
        self._busy.add(slot)
        self._line(slot).send((slot, reply))

    def poll(self, *, wait: bool = True) -> list[Step]:
        """The steps that have finished since; with `wait` at least one, where any is under way."""
        finished: list[Step] = []
        if not self._busy:
            return finished
        for line in _ready(self._lines, None if wait else 0.0):
            try:
                while line.poll():
                    finished.append(_step(line.recv()))
            except (EOFError, OSError) as error:
                raise SandboxError("a process of the gym has ended. Type: rusty doctor") from error
        self._busy -= {step.slot for step in finished}
        return finished

    @property
    def busy(self) -> int:
        """How many steps are under way."""
        return len(self._busy)

    def close(self) -> None:
        """Let every process finish what is under way and give its sandboxes back."""
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.send(None)
            line.close()
        for hand in self._hands:
            hand.join(timeout=30)
            hand.kill()
        self._lines, self._hands = [], []
        self._busy.clear()

    def __enter__(self) -> Farm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _line(self, slot: int) -> Connection:
        return self._lines[slot % len(self._lines)]

    def _must_be_idle(self, slot: int) -> None:
        if slot in self._busy:
            raise TaskError(f"slot {slot} is still carrying out its last reply. Call poll() first")


def _ready(lines: list[Connection], timeout: float | None) -> list[Connection]:
    found: list[Any] = wait(lines, timeout)
    return found


def _step(said: Step | Exception) -> Step:
    if isinstance(said, Exception):
        raise said
    return said


def _work(line: Connection, config: EnvConfig) -> None:
    """One process: takes tasks and replies, sends steps, until it is told to stop or its parent is gone."""
    _deaf()
    envs: dict[int, CodingEnv] = {}
    speaking = threading.Lock()

    def carry_out(slot: int, reply: str) -> None:
        try:
            said: Step | Exception = Step(slot, *envs[slot].step(reply))
        except Exception as error:  # told there, where somebody can read it
            said = error
        with speaking, contextlib.suppress(OSError):
            line.send(said)

    pool = ThreadPoolExecutor(THREADS, "gym")
    with contextlib.suppress(EOFError, OSError):
        while (asked := line.recv()) is not None:
            slot, what = asked
            if isinstance(what, Task):
                envs.setdefault(slot, CodingEnv((), config)).reset(options={"task": what})
            else:
                pool.submit(carry_out, slot, what)
    pool.shutdown(wait=True, cancel_futures=True)
    for env in envs.values():
        env.close()


class Makers:
    """Processes that make a curriculum's next tasks; on a few cores none, and they are made here."""

    def __init__(self, processes: int | None = None) -> None:
        self.count = (cores() if cores() >= MANY else 0) if processes is None else processes
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self.count, spawn, _deaf) if self.count else None

    def draw(self, curriculum: Curriculum, count: int) -> list[Task]:
        """What `count` calls of `curriculum.next()` give: each depends on its number and the rates alone."""
        if self._pool is None or count < WORTH:
            return [curriculum.next() for _ in range(count)]
        size = -(-count // (4 * self.count))
        starts = range(curriculum.drawn, curriculum.drawn + count, size)
        parts = [(curriculum, start, min(size, starts.stop - start)) for start in starts]
        made = [task for some in self._pool.map(_draw, parts) for task in some]
        curriculum.drawn = starts.stop
        return made

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _deaf() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear


def _draw(part: tuple[Curriculum, int, int]) -> list[Task]:
    curriculum, start, count = part
    curriculum.drawn = start
    return [curriculum.next() for _ in range(count)]
