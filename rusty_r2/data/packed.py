# SPDX-License-Identifier: AGPL-3.0-or-later
"""Episodes become rows for the trainer: several to a row, none cut, loss on Rusty's own words only.

    source = EpisodeRows.read(tokenizer, Path("episodes.jsonl"), length=1024, batch=32)
    source.rows(step, range(32))         # ids, targets, mask, reset: (rows, length)

Every episode begins with <bos>, where the state is forgotten, so what stands beside it in a row does not
matter; rows are packed once and their order is shuffled anew each epoch. The rows of a step depend on the
seed, the step and the row's number alone (as in data/shards.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rusty_r2.data.episode import Episode, read
from rusty_r2.data.shards import Rows
from rusty_r2.errors import DataError
from rusty_r2.lm.chat import encode_conversations
from rusty_r2.lm.tokenizer import BOS, PAD, Tokenizer

OPEN = 32
"""rows that are being filled at the same time"""
Encoded = tuple[NDArray[np.uint16], NDArray[np.bool_]]
"""the ids of an episode, and which of them are Rusty's own"""


class PackedRows:
    """Rows that are there already, in memory or on disk: `ids` and which of them are Rusty's `own`.

    `kinds` are ranges of rows that are shuffled apart and then dealt out evenly: where a fifth of the rows
    are of one kind, so are a fifth of those of any step, give or take one. By default all are of one.
    """

    def __init__(
        self,
        ids: NDArray[np.uint16],
        own: NDArray[np.bool_],
        *,
        batch: int,
        seed: int = 0,
        kinds: Sequence[range] = (),
    ) -> None:
        self._ids, self._own, self.batch, self.seed = ids, own, batch, seed
        self._kinds = [kind for kind in kinds or [range(len(ids))] if kind]
        self._orders: dict[int, NDArray[np.int64]] = {}

    @property
    def count(self) -> int:
        """Rows in an epoch."""
        return sum(map(len, self._kinds))

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.count // self.batch)

    def rows(self, step: int, which: range | None = None) -> Rows:
        """The rows numbered `which` of step 0, 1, …"""
        which = range(self.batch) if which is None else which
        places = [divmod(step * self.batch + row, self.count) for row in which]
        wanted, known = {epoch for epoch, _ in places}, self._orders
        self._orders = {epoch: known[epoch] if epoch in known else self._order(epoch) for epoch in wanted}
        chosen = [int(self._orders[epoch][at]) for epoch, at in places]
        ids, own = self._ids[chosen].astype(np.int64), self._own[chosen].astype(np.bool_)
        reset = ids[:, :-1] == BOS
        reset[:, 0] = True  # plain text may begin in the middle
        return Rows(ids[:, :-1], ids[:, 1:], own[:, 1:], reset)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        random = np.random.default_rng([self.seed, epoch])
        rows = np.concatenate([kind.start + random.permutation(len(kind)) for kind in self._kinds])
        places = np.concatenate([(np.arange(len(kind)) + 0.5) / len(kind) for kind in self._kinds])
        dealt: NDArray[np.int64] = rows[np.argsort(places, kind="stable")]
        return dealt


class EpisodeRows(PackedRows):
    """Episodes packed here and now. `dropped` of `episodes` were longer than a row."""

    def __init__(
        self, tokenizer: Tokenizer, episodes: Iterable[Episode], *, length: int, batch: int, seed: int = 0
    ) -> None:
        encoded = list(encode(tokenizer, episodes))
        fitting = [(ids, own) for ids, own in encoded if len(ids) <= length]
        self.episodes, self.dropped = len(encoded), len(encoded) - len(fitting)
        if not fitting:
            advice = "Type: rusty data episodes --help"
            raise DataError(f"none of {self.episodes} episodes fits a row of {length} tokens. {advice}")
        self.tokens = sum(len(ids) for ids, _ in fitting)
        self.supervised = int(sum(own.sum() for _, own in fitting))
        if self.supervised in (0, self.tokens):
            share = 100 * self.supervised // self.tokens
            raise DataError(
                f"{share}% of {self.tokens:,} tokens are supervised: the mask is wrong. Episodes need "
                "turns of the user and of the assistant. Type: rusty data episodes --help"
            )
        random.Random(seed).shuffle(fitting)
        super().__init__(*pack(fitting, length), batch=batch, seed=seed)

    @classmethod
    def read(
        cls, tokenizer: Tokenizer, path: Path, *, length: int, batch: int, seed: int = 0, split: str = "train"
    ) -> EpisodeRows:
        """Rows of an episodes file."""
        return cls(tokenizer, read(path, split), length=length, batch=batch, seed=seed)


def encode(tokenizer: Tokenizer, episodes: Iterable[Episode], size: int = 512) -> Iterable[Encoded]:
    """The ids of each episode."""
    left = iter(episodes)
    while batch := list(islice(left, size)):
        for ids, own in encode_conversations(tokenizer, [episode.turns for episode in batch]):
            yield np.array(ids, dtype=np.uint16), np.array(own, dtype=np.bool_)


def pack(fitting: list[Encoded], length: int) -> Encoded:
    """All rows as one array: first fit into a few open rows; the fullest closes when none has room."""
    rows: list[list[Encoded]] = []
    room: list[int] = []
    open_: list[int] = []
    for episode in fitting:
        size = len(episode[0])
        at = next((row for row in open_ if room[row] >= size), None)
        if at is None:
            at = len(rows)
            rows.append([])
            room.append(length)
            open_.append(at)
            if len(open_) > OPEN:
                open_.remove(min(open_, key=room.__getitem__))
        rows[at].append(episode)
        room[at] -= size
    ids = np.full((len(rows), length + 1), PAD, dtype=np.uint16)
    own = np.zeros((len(rows), length + 1), dtype=np.bool_)
    for number, row in enumerate(rows):
        used = length - room[number]
        ids[number, :used] = np.concatenate([words for words, _ in row])
        own[number, :used] = np.concatenate([mine for _, mine in row])
    return ids, own
