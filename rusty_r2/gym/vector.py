# SPDX-License-Identifier: AGPL-3.0-or-later
"""Many episodes side by side: threads carry out replies while the model thinks about the next ones.

    with VectorEnv(32) as envs:
        seen = [envs.reset(slot, task) for slot, task in zip(range(32), tasks)]
        envs.submit(3, reply)              # does not wait
        for step in envs.poll():           # whatever has finished; waits for at least one
            ...

A slot is one CodingEnv (env.py). Nothing here knows about models; refilling a slot is calling `reset`.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rusty_r2.closing import Closing
from rusty_r2.errors import TaskError
from rusty_r2.gym.env import CodingEnv, EnvConfig, Info
from rusty_r2.task import Task


class Step(NamedTuple):
    slot: int
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Info

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class VectorEnv(Closing):
    """`size` slots, each an episode of its own."""

    def __init__(
        self,
        size: int,
        tasks: Sequence[Task] | Path | None = None,
        config: EnvConfig | None = None,
        *,
        workers: int = 0,
    ) -> None:
        self.envs = [CodingEnv(tasks, config) for _ in range(size)]
        self._pool = ThreadPoolExecutor(workers or min(size, 2 * (os.cpu_count() or 1)), "gym")
        self._ended: queue.SimpleQueue[tuple[int, Future[Step]]] = queue.SimpleQueue()
        self._busy: set[int] = set()

    def __len__(self) -> int:
        return len(self.envs)

    def reset(self, slot: int, task: Task | None = None, *, seed: int | None = None) -> tuple[str, Info]:
        """Begin an episode in one slot. It is quick: a sandbox is opened at the first command."""
        self._must_be_idle(slot)
        options: Mapping[str, Task] = {} if task is None else {"task": task}
        return self.envs[slot].reset(seed=seed, options=options)

    def submit(self, slot: int, reply: str) -> None:
        """Let a thread carry out `reply`; `poll` hands back what came of it."""
        self._must_be_idle(slot)
        self._busy.add(slot)
        future = self._pool.submit(self._step, slot, reply)
        future.add_done_callback(lambda ended: self._ended.put((slot, ended)))

    def poll(self, *, wait: bool = True) -> list[Step]:
        """The steps that have finished since; with `wait` at least one, where any is under way."""
        finished: list[Step] = []
        while self._busy:
            try:
                slot, future = self._ended.get(block=wait and not finished)
            except queue.Empty:
                break
            self._busy.discard(slot)
            finished.append(future.result())
        return finished

    def step(self, replies: Sequence[str]) -> list[Step]:
        """One reply for every slot, all at once; the steps come back in slot order."""
        if len(replies) != len(self.envs):
            raise TaskError(f"{len(replies)} replies were given for {len(self.envs)} slots")
        for slot, reply in enumerate(replies):
            self.submit(slot, reply)
        steps: list[Step] = []
        while self._busy:
            steps += self.poll()
        return sorted(steps)

    @property
    def busy(self) -> int:
        """How many steps are under way."""
        return len(self._busy)

    def close(self) -> None:
        """Wait for what is under way and give every sandbox back."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._busy.clear()
        for env in self.envs:
            env.close()

    def _step(self, slot: int, reply: str) -> Step:
        return Step(slot, *self.envs[slot].step(reply))

    def _must_be_idle(self, slot: int) -> None:
        if slot in self._busy:
            raise TaskError(f"slot {slot} is still carrying out its last reply. Call poll() first")
