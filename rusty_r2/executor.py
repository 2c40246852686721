# SPDX-License-Identifier: AGPL-3.0-or-later
"""Where independent pieces of work run: processes of this machine, or a Ray cluster. One verb, `map`.

    with open_executor("local", workers=2) as executor:
        scores = executor.map(score, traces)          # results in the order of the items

`function` stands in a module (not in a closure) and, like each item and result, can be pickled. It must
not depend on which process it runs in: then every engine gives the same results, and which one is used is
only a question of speed. One worker is this process itself. `ray` joins the cluster that RAY_ADDRESS names
or that runs here already, and otherwise starts one of its own on this machine; the package must be
installed on every machine of a cluster. Rewards (train/grpo_rewards.py) and play (data/collect.py) use it.
`Processes` is for streams that are too long to hold (data/drills.py, eval/contamination.py). Workers end with
the process that started them, however it ended.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

from rusty_r2.closing import Closing
from rusty_r2.errors import ConfigError, RustyError, need

Engine = Literal["local", "ray"]
Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerError(RustyError):
    """A worker process died; the work itself did not fail."""

    @classmethod
    def died(cls, fewer: str = "--workers 1") -> WorkerError:
        """`fewer` is what to type."""
        return cls(f"a worker process died (out of memory, or killed). Try fewer: {fewer}")


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
            context = get_context("forkserver")
            self._pool = ProcessPoolExecutor(self.workers, context, _begin, (None, ()))
        calls = [_Call(function, item) for item in asked]
        try:
            return _opened(self._pool.map(_carry_out, calls, chunksize=_chunk(len(asked), self.workers)))
        except BrokenProcessPool as error:
            self.close()
            raise WorkerError.died() from error

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


class Processes(Closing):
    """Processes of this machine for a stream of items, of which only a few are read ahead of the results.

    Spawned, not forked: a tokenizer's threads must not be copied. `begin(*given)` runs first in each; `fewer`
    is what to type where one dies.
    """

    def __init__(
        self,
        workers: int,
        begin: Callable[..., None] | None = None,
        *given: Any,
        fewer: str = "--workers 1",
    ) -> None:
        self.workers, self.fewer = workers, fewer
        self._pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (begin, given))

    def stream(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """`function` of every item, in their order."""
        ahead: deque[Future[Any]] = deque()
        try:
            for item in items:
                ahead.append(self._pool.submit(_carry_out, _Call(function, item)))
                if len(ahead) > 4 * self.workers:
                    yield from _opened([ahead.popleft().result()])
            while ahead:
                yield from _opened([ahead.popleft().result()])
        except BrokenProcessPool as error:
            raise WorkerError.died(self.fewer) from error

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


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
    before = signal.getsignal(signal.SIGTERM)
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
    finally:
        # Ray takes SIGTERM for itself and keeps it: a training run would no longer save before it ends
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def follow() -> None:
    """In a worker: end when the process that wanted it is gone, even killed."""
    parent = parent_process()
    if parent is not None:

        def watch(gone: int = parent.sentinel) -> None:
            connection.wait([gone])
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()


def _begin(begin: Callable[..., None] | None, given: Sequence[Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    follow()
    if begin is not None:
        begin(*given)


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
