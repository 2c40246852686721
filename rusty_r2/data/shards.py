# SPDX-License-Identifier: AGPL-3.0-or-later
"""Token shards: a folder that data/corpus.py writes once and a trainer reads in any order, mapped to memory.

    manifest.json               sources, licences, counts, the tokenizer's fingerprint
    train_00000.tokens          uint16, little endian; every document is <bos> text <eos>
    train_00000.documents       uint32 pairs: tokens and text bytes of each document
    heldout_00000.tokens …

    shards = Shards(folder, length=1024, batch=64)
    shards.rows(step, range(64))        # ids, targets, mask, reset: (rows, length)

The rows of a step depend on the seed, the step and the row's number, on nothing else: a resumed run sees
what it would have seen, and several processes take different rows. Nothing is seen twice in an epoch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rusty_r2.errors import DataError
from rusty_r2.lm.tokenizer import BOS

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Rows of a step, all (row, token)."""

    ids: Ids
    targets: Ids
    """what should follow each token"""
    mask: Flags
    """True where the target counts"""
    reset: Flags
    """True where a document begins, and what was before it is forgotten"""

    @property
    def supervised(self) -> int:
        return int(self.mask.sum())


class Shards:
    """One split of a corpus folder, cut into windows of `length` tokens.

    Without `carry` every row is a window of its own, in an order shuffled anew each epoch, and the cut
    begins elsewhere each epoch. With `carry` row r continues at step s + 1 where it stopped at step s
    (documents are shuffled instead), for training that carries the state from window to window.
    """

    def __init__(
        self,
        folder: Path,
        split: str = "train",
        *,
        length: int,
        batch: int,
        seed: int = 0,
        carry: bool = False,
    ) -> None:
        self.manifest = read_manifest(folder)
        self.length, self.batch, self.seed, self.carry = length, batch, seed, carry
        found = self.manifest["splits"].get(split, {"shards": []})["shards"]
        self._tokens = [np.memmap(folder / shard["file"], dtype="<u2", mode="r") for shard in found]
        self._sizes = np.array([len(tokens) for tokens in self._tokens], dtype=np.int64)
        self._lengths = [
            np.fromfile((folder / shard["file"]).with_suffix(".documents"), dtype="<u4").reshape(-1, 2)
            for shard in found
        ]
        self.tokens = int(self._sizes.sum())
        self._order: tuple[NDArray[np.int64], NDArray[np.int64], int] | None = None
        needed = (length + 1) * (batch if carry else 1) + (0 if carry else length)
        if self.tokens < needed:
            raise DataError(
                f"{folder}: {split} holds {self.tokens:,} tokens; rows of {length} need {needed:,}. "
                "Make a larger corpus: rusty data corpus --source machine"
            )

    @property
    def text_bytes(self) -> int:
        """Bytes of text in this split, for bits per byte."""
        return int(sum(lengths[:, 1].sum(dtype=np.int64) for lengths in self._lengths))

    @property
    def documents(self) -> int:
        return sum(len(lengths) for lengths in self._lengths)

    def document(self, number: int) -> Ids:
        """The tokens of one document, for measuring text by text."""
        start, end = int(self._starts[number]), int(self._starts[number + 1])
        return self._read(start, end - start).astype(np.int64)

    def everything(self) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
        """All documents end to end as they lie on the disk, and the size of each."""
        return np.concatenate(self._tokens), np.diff(self._starts)

    @property
    def steps_per_epoch(self) -> int:
        """Steps (rounded up, or whole with `carry`) after which every window was seen once."""
        return self._lane_steps if self.carry else -(-self._windows // self.batch)

    def rows(self, step: int, which: range | None = None) -> Rows:
        """The rows numbered `which` of step 0, 1, …"""
        which = range(self.batch) if which is None else which
        read = self._carried if self.carry else self._window
        windows = np.stack([read(step, row) for row in which]).astype(np.int64)
        ids, targets = windows[:, :-1], windows[:, 1:]
        reset = ids == BOS
        if not self.carry or step % self._lane_steps == 0:
            reset[:, 0] = True
        return Rows(ids, targets, targets != BOS, reset)

    @property
    def _windows(self) -> int:
        return (self.tokens - 1) // self.length - 1

    @property
    def _lane_steps(self) -> int:
        return max((self.tokens // self.batch - 1) // self.length, 1)

    def _window(self, step: int, row: int) -> NDArray[np.uint16]:
        epoch, at = divmod(step * self.batch + row, self._windows)
        offset, order = _shuffle(self.seed, epoch, self._windows, self.length)
        return self._read(offset + int(order[at]) * self.length, self.length + 1)

    def _carried(self, step: int, row: int) -> NDArray[np.uint16]:
        epoch, at = divmod(step, self._lane_steps)
        starts, ends, _ = self._epoch(epoch)
        begin = row * (self.tokens // self.batch) + at * self.length
        pieces, wanted = [], self.length + 1
        document = int(np.searchsorted(ends, begin, side="right"))
        while wanted:
            inside = begin - (int(ends[document - 1]) if document else 0)
            size = min(wanted, int(ends[document]) - begin)
            pieces.append(self._read(int(starts[document]) + inside, size))
            begin, wanted, document = begin + size, wanted - size, document + 1
        return np.concatenate(pieces)

    def _epoch(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Where each document of the shuffled epoch starts on disk, and where it ends in the epoch."""
        if self._order is None or self._order[2] != epoch:
            starts = self._starts
            order = np.random.default_rng([self.seed, epoch]).permutation(len(starts) - 1)
            self._order = (starts[:-1][order], np.cumsum(np.diff(starts)[order]), epoch)
        return self._order

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Where each document begins in all shards end to end, and where the last one ends."""
        sizes = np.concatenate([lengths[:, 0] for lengths in self._lengths]).astype(np.int64)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

    def _read(self, start: int, size: int) -> NDArray[np.uint16]:
        """Tokens `start` to `start + size` of all shards end to end."""
        ends = np.cumsum(self._sizes)
        shard = int(np.searchsorted(ends, start, side="right"))
        start -= int(ends[shard - 1]) if shard else 0
        pieces = [self._tokens[shard][start : start + size]]
        while sum(map(len, pieces)) < size:
            shard += 1
            pieces.append(self._tokens[shard][: size - sum(map(len, pieces))])
        return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]


@lru_cache(maxsize=4)
def _shuffle(seed: int, epoch: int, windows: int, length: int) -> tuple[int, NDArray[np.int64]]:
    random = np.random.default_rng([seed, epoch])
    return int(random.integers(length)), random.permutation(windows)


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        manifest["splits"]["train"]["shards"]
    except FileNotFoundError as error:
        advice = f"Make shards: rusty data corpus --output-dir {folder}"
        raise DataError(f"{folder} holds no manifest.json. {advice}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a corpus manifest ({error})") from error
    return manifest
