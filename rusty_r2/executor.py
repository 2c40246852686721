# SPDX-License-Identifier: AGPL-3.0-or-later
"""Where independent pieces of work run: processes of this machine, or a Ray cluster. One verb, `map`.

    with open_executor("local", workers=2) as executor:
        scores = executor.map(score, traces)          # results in the order of the items

`function` stands in a module (not in a closure) and, like each item and result, can be pickled. It must
not depend on which process it runs in: then every engine gives the same results, and which one is used is
only a question of speed. One worker is this process itself. `ray` joins the cluster that RAY_ADDRESS names
or that runs here already, and otherwise starts one of its own on this machine; the package must be
installed on every machine of a cluster. Rewards (train/grpo_rewards.py) and play (data/collect.py) use it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

from rusty_r2.closing import Closing
from rusty_r2.errors import ConfigError, RustyError, need

Engine = Literal["local", "ray"]
Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerError(RustyError):
    """A worker process died; the work itself did not fail."""


class Executor(Protocol):
    """One verb; `with` gives the workers back."""

    workers: int

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """`function` of every item, in the order of the items. The first error is raised."""

    def close(self) -> None: ...

    def __enter__(self) -> Executor: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_executor(engine: Engine = "local", *, workers: int = 0) -> Executor:
    """The executor of this name; 0 workers: one a core."""
    if workers < 0:
        raise ConfigError(f"--workers is {workers}; it must be 0 (one a core) or more")
    if engine == "ray":
        return RayExecutor(workers)
    if engine != "local":
        raise ConfigError(f"there is no engine {engine!a}; say local or ray")
    return LocalExecutor(workers)


class LocalExecutor(Closing):
    """Processes of this machine, started at the first use and kept."""

    def __init__(self, workers: int = 0) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        asked = list(items)
        if self.workers == 1 or len(asked) < 2:
            return [function(item) for item in asked]
        if self._pool is None:
            # a plain fork of a process with threads (torch, the gym) can hang; a fork server has none
            self._pool = ProcessPoolExecutor(self.workers, get_context("forkserver"))
        calls = [_Call(function, item) for item in asked]
        try:
            return _opened(self._pool.map(_carry_out, calls, chunksize=_chunk(len(asked), self.workers)))
        except BrokenProcessPool as error:
            self.close()
            raise WorkerError(
                "a worker process died (out of memory, or killed). Try fewer: --workers 1"
            ) from error

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


class RayExecutor(Closing):
    """A Ray cluster: the one that is there, or one of our own on this machine."""

    def __init__(self, workers: int = 0, *, address: str = "") -> None:
        ray = self._ray = need("ray", extra="ray")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._own = not ray.is_initialized()
        if self._own:
            _join(ray, address or os.environ.get("RAY_ADDRESS", ""), workers)
        self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._remote = ray.remote(num_cpus=1, max_retries=1)(_carry_out_all)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        calls = [_Call(function, item) for item in items]
        size = _chunk(len(calls), self.workers)
        sent = [self._remote.remote(calls[at : at + size]) for at in range(0, len(calls), size)]
        try:
            return _opened(answer for some in self._ray.get(sent) for answer in some)
        except self._ray.exceptions.RaySystemError as error:
            raise WorkerError(f"Ray lost a worker: {error}. Try: --engine local") from error

    def close(self) -> None:
        if self._own and self._ray.is_initialized():
            self._ray.shutdown()


def _join(ray: Any, address: str, workers: int) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            ray.init(
                address="local",
                num_cpus=workers or len(os.sched_getaffinity(0)),
                include_dashboard=False,
                **quiet,
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"Ray could not be reached at {address or 'this machine'}: {error}. Type: ray status"
        ) from error


# ── what travels ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Call:
    function: Callable[[Any], Any]
    item: Any


@dataclass(frozen=True)
class _Failed:
    """An error of ours as data: not every exception survives being pickled."""

    kind: type[RustyError]
    said: str


def _carry_out(call: _Call) -> Any:
    try:
        return call.function(call.item)
    except RustyError as error:
        return _Failed(type(error), str(error))


def _carry_out_all(calls: Sequence[_Call]) -> list[Any]:
    return [_carry_out(call) for call in calls]


def _opened(answers: Iterable[Any]) -> list[Any]:
    results = []
    for answer in answers:
        if isinstance(answer, _Failed):
            error = answer.kind.__new__(answer.kind)
            error.args = (answer.said,)
            raise error
        results.append(answer)
    return results


def _chunk(count: int, workers: int) -> int:
    """Items sent at once: a few parcels for each worker, so that a slow one does not hold up the rest."""
    return max(1, count // (4 * workers))
