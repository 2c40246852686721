# SPDX-License-Identifier: AGPL-3.0-or-later
"""Which distribution the next word comes from, said once for everybody.

Penalty, temperature, mask, top-k, top-p, in that order, then what is left is normalised. `log_probs` is the
definition, in torch, and what PPO's update scores with; the C++ sampler (lm/engine_sampler.h) and `choose`
below draw from the same distribution, and tests hold them to it. Equal logits are kept or cut together.

Chance comes from `uniform(seed, count)`: a word depends on its row's seed and its place in the answer, never
on who else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rusty_r2.errors import ConfigError, RustyError

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float32]
Mask = NDArray[np.uint32]
"""[rows, words/32]: bit j of number i allows word 32·i + j"""


@dataclass(frozen=True)
class Sampling:
    """How the next word is drawn."""

    temperature: float = 0.7
    """0 takes the likeliest word"""
    top_k: int = 0
    """only the k likeliest words; 0: all"""
    top_p: float = 1.0
    """only the likeliest words that together reach this probability"""
    repetition_penalty: float = 1.0
    """above 1: words of this answer become less likely"""
    seed: int = 0
    """the same seed draws the same words"""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature {self.temperature} must be 0 (greedy) or more")
        if self.top_k < 0:
            raise ConfigError(f"top_k {self.top_k} must be 0 (all words) or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p {self.top_p} must be above 0 and at most 1")
        if not 0 < self.repetition_penalty < float("inf"):
            raise ConfigError(f"repetition_penalty {self.repetition_penalty} must be above 0")


_ALL, _STRIDE = 0xFFFFFFFFFFFFFFFF, 0x9E3779B97F4A7C15
BLOCK = 160
"""words whose probabilities are summed before the first look for the drawn one"""
NO_CHOICE = "no word can be chosen: the mask allows none, or the model's numbers are not finite"


def uniform(seeds: Sequence[int], counts: Sequence[int]) -> NDArray[np.float64]:
    """Numbers in [0, 1), one a row: the counts-th of each seed's own sequence (SplitMix64)."""
    return np.array([_uniform(seed, count) for seed, count in zip(seeds, counts, strict=True)], np.float64)


def uniforms(seeds: Sequence[int], counts: Sequence[int], steps: int) -> NDArray[np.float64]:
    """`uniform` of this count and those that follow, [steps, rows], for many at once."""
    first = _mix_all(np.array([int(seed) & _ALL for seed in seeds], np.uint64))
    places = np.array(counts, np.uint64)[None] + np.arange(steps, dtype=np.uint64)[:, None]
    mixed = _mix_all(first[None] + places * np.uint64(_STRIDE))
    return np.asarray((mixed >> np.uint64(11)) * 2.0**-53, np.float64)


def _mix_all(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = z + np.uint64(_STRIDE)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), np.uint64)


def _uniform(seed: int, count: int) -> float:
    return (_mix(_mix(int(seed)) + int(count) * _STRIDE) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = (z + _STRIDE) & _ALL
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _ALL
    return z ^ (z >> 31)


def allowed(mask: Mask, words: int) -> NDArray[np.bool_]:
    """A bit mask [..., words/32] as booleans [..., words]."""
    flat = np.ascontiguousarray(mask).astype("<u4", copy=False).view(np.uint8)
    return np.unpackbits(flat, axis=-1, bitorder="little")[..., :words].astype(bool)


def bits(keep: NDArray[np.bool_]) -> Mask:
    """Booleans [..., words] as a bit mask."""
    padded = np.pad(keep, [(0, 0)] * (keep.ndim - 1) + [(0, -keep.shape[-1] % 32)])
    return np.ascontiguousarray(np.packbits(padded, axis=-1, bitorder="little")).view("<u4").astype(np.uint32)


def log_probs(
    logits: torch.Tensor,
    sampling: Sampling,
    mask: torch.Tensor | None = None,
    history: Sequence[Sequence[int]] | None = None,
) -> torch.Tensor:
    """Normalised log-probabilities [..., words] of the distribution really sampled; −inf where impossible.

    `mask`: booleans [..., words], True where a word is allowed. `history`: for each row of logits
    [rows, words] the words of its answer so far, which the repetition penalty counts.
    """
    import torch

    z = logits.float()
    if history is not None and sampling.repetition_penalty != 1:
        seen = torch.zeros_like(z, dtype=torch.bool)
        for row, ids in enumerate(history):
            seen[row, list(ids)] = True
        weaker = torch.where(z > 0, z / sampling.repetition_penalty, z * sampling.repetition_penalty)
        z = torch.where(seen, weaker, z)
    never = float("-inf")
    if sampling.temperature not in (0, 1):
        z = z * (1 / sampling.temperature)
    if mask is not None:
        z = z.masked_fill(~mask, never)
    if sampling.temperature == 0:
        return torch.full_like(z, never).scatter_(-1, z.argmax(-1, keepdim=True), 0.0)
    if 0 < sampling.top_k < z.shape[-1]:
        z = z.masked_fill(z < z.topk(sampling.top_k, dim=-1).values[..., -1:], never)
    if sampling.top_p < 1:
        ordered = z.detach().sort(dim=-1, descending=True).values
        share = ordered.double().softmax(-1)
        before = share.cumsum(-1) - share
        least = ordered.masked_fill(before >= sampling.top_p, float("inf")).amin(-1, keepdim=True)
        z = z.masked_fill(z < least, never)
    return z.log_softmax(-1)


def draw(logp: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """The word of each row [rows] from log_probs [rows, words] and one number in [0, 1) each.

    It is the first whose cumulated probability exceeds that share of the whole, found in two looks: among
    sums of blocks, then inside one block. Nothing here waits for the device.
    """
    import torch

    share = logp.double().exp()
    if share.shape[-1] % BLOCK:
        share = torch.nn.functional.pad(share, (0, -share.shape[-1] % BLOCK))
    share = share.unflatten(-1, (-1, BLOCK))
    climb = share.sum(-1).cumsum(-1)
    level = chance[:, None] * climb[:, -1:]
    block = _first_reaching(climb, level)
    below = torch.where(block > 0, climb.gather(-1, (block - 1).clamp(min=0)), 0.0)
    inside = share.gather(1, block[:, :, None].expand(-1, 1, BLOCK))[:, 0].cumsum(-1)
    return (block * BLOCK + _first_reaching(inside, level - below))[:, 0]


def _first_reaching(climb: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    """The first place above the level, at most the last that adds anything: rounding draws nothing else."""
    import torch

    last = (climb >= climb[:, -1:]).int().argmax(-1, keepdim=True)
    return torch.minimum(torch.searchsorted(climb, level, right=True), last)


def choose(
    logits: Floats,
    sampling: Sampling,
    uniforms: NDArray[np.float64],
    mask: Mask | None = None,
    history: Sequence[Sequence[int]] | None = None,
    given: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.int32], Floats, NDArray[np.bool_]]:
    """Words, their log-probabilities and which words were possible, in NumPy: the C++ sampler's twin."""
    if not np.isfinite(logits).all() or (mask is not None and not mask.any(-1).all()):
        raise RustyError(NO_CHOICE)
    logp = np.stack(
        [
            _row(
                row,
                sampling,
                None if mask is None else allowed(mask[i], len(row)),
                None if history is None else history[i],
            )
            for i, row in enumerate(logits)
        ]
    )
    if given is None:
        climb = np.exp(logp).cumsum(-1)
        given = np.array([_first_above(c, u * c[-1]) for c, u in zip(climb, uniforms, strict=True)], np.int32)
    taken = np.take_along_axis(logp, given[:, None].astype(np.int64), -1)[:, 0].astype(np.float32)
    return given, taken, logp > -np.inf


def _first_above(climb: NDArray[np.float64], level: float) -> int:
    return int(
        min(np.searchsorted(climb, level, side="right"), np.searchsorted(climb, climb[-1], side="left"))
    )


def _row(
    logits: Floats, sampling: Sampling, mask: NDArray[np.bool_] | None, seen: Sequence[int] | None
) -> NDArray[np.float64]:
    z = logits.astype(np.float32, copy=True)
    if seen and sampling.repetition_penalty != 1:
        ids = np.unique(np.asarray(seen, np.int64))
        penalty = np.float32(sampling.repetition_penalty)
        z[ids] = np.where(z[ids] > 0, z[ids] / penalty, z[ids] * penalty)
    if sampling.temperature > 0:
        z *= np.float32(1 / sampling.temperature)
    if mask is not None:
        z[~mask] = -np.inf
    if sampling.temperature == 0:
        return np.where(np.arange(len(z)) == z.argmax(), 0.0, -np.inf)
    if 0 < sampling.top_k < len(z):
        z[z < np.partition(z, -sampling.top_k)[-sampling.top_k]] = -np.inf
    if sampling.top_p < 1:
        ordered = np.sort(z)[::-1].astype(np.float64)
        share = np.exp(ordered - ordered[0])
        share /= share.sum()
        z[z < ordered[share.cumsum() - share < sampling.top_p][-1]] = -np.inf
    wide = z.astype(np.float64)
    shifted = wide - wide.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), np.float64)
