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

Ids = NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Rows of a step, all (row, token)."""

    ids: Ids
    targets: Ids
    """what should follow each token"""
    mask: Ids | None = None
    """True where the target counts; None: everywhere"""
    reset: Ids | None = None
    """True where a document begins, and what was before it is forgotten; None: nowhere"""

    @property
    def supervised(self) -> int:
        return int(self.ids.size if self.mask is None else self.mask.sum())


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
    ids: Tensor
    targets: Tensor
    mask: Tensor | None
    reset: Tensor | None

    def parts(self, size: int) -> Iterator[tuple[slice, Batch]]:
        """At most `size` rows at a time, and where they are."""
        for start in range(0, len(self.ids), size):
            rows = slice(start, start + size)
            mask = None if self.mask is None else self.mask[rows]
            reset = None if self.reset is None else self.reset[rows]
            yield rows, Batch(self.step, self.supervised, self.ids[rows], self.targets[rows], mask, reset)


def to_batch(step: int, rows: Rows, *, pin: bool = False) -> Batch:
    def tensor(array: Ids | None, dtype: Any) -> Tensor | None:
        if array is None:
            return None
        made = torch.from_numpy(np.ascontiguousarray(array, dtype=dtype))
        return made.pin_memory() if pin else made

    ids, targets = tensor(rows.ids, np.int32), tensor(rows.targets, np.int32)
    assert ids is not None and targets is not None
    mask, reset = tensor(rows.mask, np.bool_), tensor(rows.reset, np.bool_)
    return Batch(step, rows.supervised, ids, targets, mask, reset)


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Ids travel as 32 bit, without a wait, and become the 64 bit that indexing wants where they arrive."""

    def move(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(device, non_blocking=True)

    ids, targets = batch.ids.to(device, non_blocking=True), batch.targets.to(device, non_blocking=True)
    return Batch(
        batch.step, batch.supervised, ids.long(), targets.long(), move(batch.mask), move(batch.reset)
    )


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
        try:
            for step in range(start, stop):
                if self._closed.is_set():
                    return
                pin = self._device.type == "cuda"
                self._put(to_batch(step, self._source.rows(step, self._which), pin=pin))
            self._put(None)
        except BaseException as error:  # raised where the batch was asked for
            self._put(error)

    def _put(self, item: Batch | BaseException | None) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(item, timeout=0.1)
                return
