# SPDX-License-Identifier: AGPL-3.0-or-later
"""Several processes that train as one. Under `torchrun` each finds its place; alone, every verb is free.

    torchrun --nproc_per_node 2 -m rusty_r2.cli train supervised …

A step's rows are shared out, gradients are summed once a step, and the sum is divided by what all of
them supervised, so one process and eight take the same step. Words between processes (stop now, this
is the folder) travel over gloo on the CPU, so no process waits for its GPU to hear them.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rusty_r2.errors import ConfigError

T = TypeVar("T")

BUCKET = 1 << 25
"""numbers sent at once"""


@dataclass(frozen=True)
class World:
    """This process among the others."""

    device: torch.device
    rank: int = 0
    size: int = 1
    words: Any = None
    """the gloo group for small talk"""

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, rows: int) -> range:
        """The rows of a step that are this process's."""
        if rows < self.size:
            raise ConfigError(
                f"{rows} rows a step cannot be shared by {self.size} processes. Raise --batch-size"
            )
        return range(rows * self.rank // self.size, rows * (self.rank + 1) // self.size)

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Make every tensor the sum over all processes, in place, on the device."""
        if self.size == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
            dist.all_reduce(flat)
            parts = flat.split([tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.detach().copy_(part.view_as(tensor))

    def copy(self, tensors: Sequence[Tensor]) -> None:
        """Make every tensor what the first process has, in place."""
        for tensor in tensors if self.size > 1 else ():
            dist.broadcast(tensor.detach(), src=0)

    def any(self, said: bool) -> bool:
        """Whether any process says so."""
        if self.size == 1:
            return said
        flag = torch.tensor(int(said))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.words)
        return bool(flag)

    def tell(self, word: T) -> T:
        """What the first process says, heard by all."""
        if self.size == 1:
            return word
        heard = [word]
        dist.broadcast_object_list(heard, src=0, group=self.words)
        return heard[0]

    def gather(self, part: Tensor, dim: int) -> Tensor:
        """All processes' parts of one tensor, put together along `dim` in their order, on the CPU."""
        if self.size == 1:
            return part.cpu()
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, part.cpu(), group=self.words)
        return torch.cat(parts, dim=dim)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(t.numel() for t in bucket) + tensor.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


@contextlib.contextmanager
def join(device: str) -> Iterator[World]:
    """Take this process's place (`RANK`, `WORLD_SIZE`, `LOCAL_RANK` of torchrun), and leave it after."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(torch.device(device))
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    own = torch.device(device, local) if device == "cuda" else torch.device(device)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    patience = datetime.timedelta(minutes=10)
    dist.init_process_group("nccl" if own.type == "cuda" else "gloo", timeout=patience)
    try:
        words = dist.new_group(backend="gloo", timeout=patience)
        yield World(own, rank=dist.get_rank(), size=size, words=words)
    finally:
        dist.destroy_process_group()
