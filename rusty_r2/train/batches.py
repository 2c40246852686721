# SPDX-License-Identifier: AGPL-3.0-or-later
"""Feeding: which rows a step sees, made ready while the step before it runs.

A `Source` answers one question: the rows of a step. The answer depends on its seed, the step and the
row's number alone, so a resumed run sees what it would have seen, and the rows of a step are the same
whether one process takes them all, two take half each, or memory allows one at a time.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rusty_r2.data.shards import Rows


class Source(Protocol):
    """Where rows come from."""

    def rows(self, step: int, which: range) -> Rows:
        """The rows numbered `which` of step 0, 1, …"""
        ...


@dataclass(frozen=True)
class Batch:
    """Rows as tensors on the device that learns from them."""

    step: int
    supervised: int
    """targets that count"""
    ids: Tensor
    targets: Tensor
    reset: Tensor
    chosen: NDArray[np.bool_]
    """which targets count; here and not on the device, which would have to be waited for to count them"""

    def parts(self, size: int) -> Iterator[tuple[slice, Batch]]:
        """At most `size` rows at a time, and where they are."""
        for start in range(0, len(self.ids), size):
            rows = slice(start, start + size)
            chosen = self.chosen[rows]
            part = (self.ids[rows], self.targets[rows], self.reset[rows], chosen)
            yield rows, Batch(self.step, int(chosen.sum()), *part)

    @property
    def whole(self) -> bool:
        """Whether every target counts."""
        return self.supervised == self.chosen.size

    def where(self) -> Tensor | None:
        """The numbers of the targets that count, row after row; None: all of them."""
        if self.whole:
            return None
        numbers = torch.from_numpy(np.flatnonzero(self.chosen))
        device = self.ids.device
        return (numbers.pin_memory() if device.type == "cuda" else numbers).to(device, non_blocking=True)


def to_batch(step: int, rows: Rows, *, pin: bool = False) -> Batch:
    def tensor(array: NDArray[Any], dtype: Any) -> Tensor:
        made = torch.from_numpy(np.ascontiguousarray(array, dtype=dtype))
        return made.pin_memory() if pin else made

    ids, targets = tensor(rows.ids, np.int32), tensor(rows.targets, np.int32)
    return Batch(step, rows.supervised, ids, targets, tensor(rows.reset, np.bool_), rows.mask)


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Ids travel as 32 bit, without a wait, and become the 64 bit that indexing wants where they arrive."""
    ids, targets, reset = (
        tensor.to(device, non_blocking=True) for tensor in (batch.ids, batch.targets, batch.reset)
    )
    return Batch(batch.step, batch.supervised, ids.long(), targets.long(), reset, batch.chosen)


class Feeder:
    """The batches of steps `start` to `stop`, a few of them made ahead by a thread. Close it after."""

    def __init__(
        self, source: Source, *, start: int, stop: int, which: range, device: torch.device, ahead: int = 2
    ) -> None:
        self._source, self._which, self._device = source, which, device
        self._ready: queue.Queue[Batch | BaseException | None] = queue.Queue(maxsize=ahead)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(start, stop), daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        while (item := self._ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield on_device(item, self._device)

    def close(self) -> None:
        self._closed.set()
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._ready.get(timeout=0.01)
        self._thread.join()

    def _fill(self, start: int, stop: int) -> None:
        pin = self._device.type == "cuda"
        try:
            if pin and self._device.index is not None:  # a thread begins on the first GPU, whoever made it
                torch.cuda.set_device(self._device)
            for step in range(start, stop):
                if self._closed.is_set():
                    return
                self._put(to_batch(step, self._source.rows(step, self._which), pin=pin))
            self._put(None)
        except BaseException as error:  # raised where the batch was asked for
            self._put(error)

    def _put(self, item: Batch | BaseException | None) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(item, timeout=0.1)
                return
