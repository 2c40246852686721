# SPDX-License-Identifier: AGPL-3.0-or-later
"""Episodes as tensors: what PPO's update reads, cut into minibatches of whole episodes.

Rows are episodes, the shortest first, padded on the right; columns are tokens. `choices` scores every token
the model chose, under the same distribution it was sampled from: the temperature, and the words that were
possible then (grammar, top-k, top-p: all of them are in the kept bit masks, so the support cannot shift by
rounding). Logits exist for chosen tokens only, a chunk at a time. What all rows begin with (the system's
words) is read once and its state handed to every row. Rows are read in a few parts, each as long as its
longest row, for else half of what is read would be padding. A GPU's kernels are compiled for kinds of sizes:
there sizes are rounded up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rusty_r2.agent.players import Episode
from rusty_r2.lm.rwkv import TinyRWKVLM
from rusty_r2.lm.sampling import Sampling, allowed, log_probs

CHUNK = {"cpu": 512, "cuda": 8192}
"""chosen tokens whose logits exist at once, by device"""
PARTS, PART = 4, 8
"""parts that rows are read in, at most, and the fewest rows of one"""
GRID = {"cpu": (1, 1), "cuda": (16, 64)}
"""rows and columns of a part are made multiples of these, by device"""


class Choices(NamedTuple):
    """About each chosen token, in the order of `Batch.acted`: what a policy thinks of it now."""

    logp: Tensor
    entropy: Tensor
    value: Tensor


@dataclass(frozen=True)
class Batch:
    """Some episodes. [rows, tokens] where not said otherwise; [n] is one number a chosen token."""

    ids: Tensor
    acted: Tensor
    logp: Tensor
    """[n] when the token was sampled"""
    value: Tensor
    """[n] expected then"""
    advantage: Tensor
    """[n]"""
    target: Tensor
    """[n] what the value head should have said"""
    start_logp: Tensor
    """[n] under the policy that training started from"""
    weight: Tensor
    """[n] how much likelier the token was under the trained weights than under those that played"""
    kept: NDArray[np.uint32] | None
    """[n, words/32]"""
    shared: int = 0
    """tokens that every row begins with, before the first choice"""
    parts: tuple[tuple[slice, int], ...] = ()
    """rows that are read together, and their columns; empty: all rows, all columns"""
    places: NDArray[np.int64] | None = None
    """[n] where the chosen tokens stand in the buffer"""

    def choices(self, model: TinyRWKVLM, sampling: Sampling) -> Choices:
        """What `model` thinks of the chosen tokens, with gradients where they are on."""
        state = None
        if self.shared:
            state = model.trunk(self.ids[-1:, : self.shared])[1]
        found = []
        for rows, columns in self.parts or ((slice(None), self.ids.shape[1]),):
            ids, acted = self.ids[rows, self.shared : columns], self.acted[rows, self.shared + 1 : columns]
            known = None if state is None else state.expand(-1, -1, len(ids), -1)
            hidden, _ = model.trunk(ids[:, :-1], known)
            found.append((hidden[acted], ids[:, 1:][acted]))  # a token is chosen by the state before it
        at, words = (torch.cat(part) for part in zip(*found, strict=True))
        parts, chunk = [], CHUNK.get(words.device.type, CHUNK["cpu"])
        for start in range(0, len(words), chunk):
            stop = start + chunk
            mask = None if self.kept is None else self._mask(start, stop, model.config.vocab_size)
            given = (model, at[start:stop], words[start:stop], sampling, mask)
            keep = torch.is_grad_enabled() and len(words) > chunk
            parts.append(checkpoint(_score, *given, use_reentrant=False) if keep else _score(*given))
        logp, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
        return Choices(logp, entropy, model.value(at).float())

    def _mask(self, start: int, stop: int, words: int) -> Tensor:
        assert self.kept is not None
        return torch.from_numpy(allowed(self.kept[start:stop], words)).to(self.ids.device)


def _score(
    model: TinyRWKVLM, hidden: Tensor, words: Tensor, sampling: Sampling, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Log-probability of each word, and the entropy of the distribution it was drawn from."""
    logp = log_probs(model.head(hidden), Sampling(temperature=sampling.temperature), mask)
    sure = logp.masked_fill(logp == float("-inf"), 0.0)  # 0 · log 0 is 0, and so is its gradient
    entropy = -(logp.exp() * sure).sum(-1)
    return sure.gather(-1, words[:, None])[:, 0], entropy


def _shared(ids: NDArray[np.int64], acted: NDArray[np.bool_]) -> int:
    """How many tokens all rows begin with; the one that the first choice follows stays with its row."""
    differ = np.any(ids != ids[0], axis=0)
    differ[:-1] |= np.any(acted[:, 1:], axis=0)
    differ[-1] = True
    return int(np.argmax(differ))


def _rounded(
    ids: NDArray[np.int64],
    acted: NDArray[np.bool_],
    shared: int,
    ends: NDArray[np.int64],
    grid: tuple[int, int],
) -> tuple[NDArray[np.int64], NDArray[np.bool_], int, tuple[tuple[slice, int], ...]]:
    """Rows (the shortest first) cut into parts of sizes that the grid allows; added rows choose nothing."""
    count = max(1, min(PARTS, len(ids) // max(PART, grid[0])))
    size = -(-len(ids) // (count * grid[0])) * grid[0]
    more = count * size - len(ids) if grid[0] > 1 else 0
    shared = shared // min(grid[1], 16) * min(grid[1], 16)
    ends = np.concatenate([np.full(more, ends[0]), ends])
    parts = []
    for start in range(0, len(ends), size):
        rows = slice(start, min(start + size, len(ends)))
        read = int(ends[rows].max()) - shared - 1
        parts.append((rows, shared + 1 + -(-read // grid[1]) * grid[1]))
    wider = ((more, 0), (0, parts[-1][1] - ids.shape[1]))
    return np.pad(ids, wider), np.pad(acted, wider), shared, tuple(parts)


class RolloutBuffer:
    """The episodes of one round of play, with what was worked out about them."""

    def __init__(self, episodes: Sequence[Episode], device: str | torch.device = "cpu") -> None:
        self.episodes = [episode for episode in episodes if not episode.masked and any(episode.acted)]
        self.device = device
        self._ids = [np.array(episode.ids, np.int64) for episode in self.episodes]
        self._acted = [np.array(episode.acted, bool) for episode in self.episodes]
        self._ends = np.array([np.flatnonzero(acted)[-1] + 1 for acted in self._acted], np.int64)
        self._grid = GRID.get(torch.device(device).type, GRID["cpu"])
        ends = np.cumsum([0, *(acted.sum() for acted in self._acted)]).tolist()
        self._spans = [slice(start, end) for start, end in itertools.pairwise(ends)]
        self.advantage, self.target, self.start_logp = (np.zeros(ends[-1], np.float32) for _ in range(3))
        self.weight = np.ones(ends[-1], np.float32)
        self.logp = self._chosen("logp")
        self.value = self._chosen("value")

    def __len__(self) -> int:
        return len(self.episodes)

    def spans(self) -> list[slice]:
        """Where each episode's chosen tokens stand among all chosen tokens."""
        return self._spans

    def rewards(self) -> list[NDArray[np.float32]]:
        """For each episode, the rewards of its chosen tokens."""
        both = zip(self.episodes, self._acted, strict=True)
        return [np.array(episode.reward, np.float32)[acted] for episode, acted in both]

    def batch(self, rows: Sequence[int]) -> Batch:
        """These episodes up to their last choices, the shortest first."""
        rows = sorted(rows, key=lambda row: int(self._ends[row]))
        ids = np.zeros((len(rows), int(self._ends[rows[-1]])), np.int64)
        acted = np.zeros(ids.shape, bool)
        for place, row in enumerate(rows):
            end = self._ends[row]
            ids[place, :end], acted[place, :end] = self._ids[row][:end], self._acted[row][:end]
        shared = _shared(ids, acted) if len(rows) > 1 else 0
        ids, acted, shared, parts = _rounded(ids, acted, shared, self._ends[rows], self._grid)
        order = np.concatenate([np.arange(self._spans[row].start, self._spans[row].stop) for row in rows])
        kept = [mask for row in rows for mask in self.episodes[row].kept]

        def part(numbers: NDArray[np.float32]) -> Tensor:
            return torch.from_numpy(numbers[order]).to(self.device)

        return Batch(
            ids=torch.from_numpy(ids).to(self.device),
            acted=torch.from_numpy(acted).to(self.device),
            logp=part(self.logp),
            value=part(self.value),
            advantage=part(self.advantage),
            target=part(self.target),
            start_logp=part(self.start_logp),
            weight=part(self.weight),
            kept=np.stack(kept) if kept else None,
            shared=shared,
            parts=parts,
            places=order,
        )

    def minibatches(self, count: int, chance: torch.Generator) -> Iterator[Batch]:
        """All episodes in a new order, in `count` parts of about the same number of episodes."""
        order = torch.randperm(len(self), generator=chance).tolist()
        for part in np.array_split(np.array(order), min(count, len(order))):
            yield self.batch(part.tolist())

    def in_order(self, size: int) -> Iterator[Batch]:
        """All episodes as they are, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.batch(range(start, min(start + size, len(self))))

    def _chosen(self, name: str) -> NDArray[np.float32]:
        both = zip(self.episodes, self._acted, strict=True)
        parts = [np.array(getattr(episode, name), np.float32)[acted] for episode, acted in both]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)
