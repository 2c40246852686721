# SPDX-License-Identifier: AGPL-3.0-or-later
"""Before and after: base and result read the same held-out rows; what changed, and how surely.

Every held-out completion gets its mean log-probability a token from both. What is compared depends on the
rows: how much likelier the good ones are than the bad ones (KTO, DPO), or how well the completions are
foreseen (SFT). Intervals are bootstraps over rows, and the change is paired: both are read on the same drawn
rows. A result surely below its base is marked `worse` in run.json, and is not to be promoted; one that is
below and perhaps by chance is `doubtful`, and promoted by a person only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from rusty_r2.eval.rates import ROUNDS
from rusty_r2.train.distributed import World
from rusty_r2.train.encoded import Said

FEWEST = 4
"""rows of a kind from which a bootstrap says anything; of one row every draw is the same"""
TOKENS_AT_ONCE = 2048
"""read in one go: their logits are the largest thing in memory"""
Floats = NDArray[np.float64]
Drawn = tuple[NDArray[np.int64], ...]
"""places of rows, drawn from each kind of row"""


@dataclass(frozen=True)
class Scores:
    """What a model thinks of some completions."""

    logp: Floats
    """sum of log p over the completion's own tokens"""
    tokens: Floats
    hits: Floats
    """tokens that were the likeliest ones"""

    @property
    def mean(self) -> Floats:
        return self.logp / np.maximum(self.tokens, 1)


@dataclass(frozen=True)
class Line:
    """One number of the table: before, after and the change, each with its interval."""

    name: str
    before: tuple[float, float, float]
    after: tuple[float, float, float]
    change: tuple[float, float, float]
    higher_is_better: bool = True
    enough: bool = True
    """whether there were rows enough for an interval"""

    @property
    def gain(self) -> float:
        return self.change[0] if self.higher_is_better else -self.change[0]

    @property
    def sure(self) -> bool:
        """Whether the change is more than chance."""
        return self.enough and not self.change[1] <= 0 <= self.change[2]


@dataclass(frozen=True)
class Comparison:
    """Base and result on the same rows; the first line decides."""

    lines: tuple[Line, ...]
    rows: int
    held_out: bool = True
    """False: there were none, and these are rows it was trained on"""

    @property
    def worse(self) -> bool:
        """Surely below the base, or no number at all."""
        return math.isnan(self.lines[0].gain) or (self.lines[0].sure and self.lines[0].gain < 0)

    @property
    def doubtful(self) -> bool:
        """Below the base, and perhaps by chance."""
        return not self.worse and self.lines[0].gain < 0

    @property
    def lost(self) -> list[str]:
        """Numbers beside the first that surely got worse: what a gain was paid with, such as forgetting."""
        return [line.name for line in self.lines[1:] if line.sure and line.gain < 0]

    def facts(self) -> dict[str, Any]:
        numbers = {
            line.name: {"before": list(line.before), "after": list(line.after), "change": list(line.change)}
            for line in self.lines
        }
        return {
            "rows": self.rows,
            "held_out": self.held_out,
            "sure": self.lines[0].sure,
            "doubtful": self.doubtful,
            "lost": self.lost,
            **numbers,
        }

    def table(self) -> str:
        what = f"{self.rows} held-out rows" if self.held_out else f"{self.rows} rows it was trained on"
        width = max(len(what), *(len(line.name) for line in self.lines))
        head = f"{what:<{width}}  {'base':^26}  {'result':^26}  {'change':^26}"
        body = [
            f"{line.name:<{width}}  " + "  ".join(map(_cell, (line.before, line.after, line.change)))
            for line in self.lines
        ]
        same = self.lines[0].gain == 0
        above = "better than" if self.lines[0].gain > 0 else "below"
        verdict = "worse than" if self.worse else "as good as" if same else above
        chance = "no more than chance would make it" if self.lines[0].enough else "so few rows cannot tell"
        doubt = "" if same or self.worse or self.lines[0].sure else f", but {chance}"
        doubt += f"; {' and '.join(self.lost)} got worse: play before you trust it" if self.lost else ""
        return "\n".join([head, *body, f"by {self.lines[0].name} the result is {verdict} its base{doubt}"])


def _cell(number: tuple[float, float, float]) -> str:
    return f"{number[0]:>8.3f} ({number[1]:.3f} to {number[2]:.3f})".ljust(26)


@torch.no_grad()
def read(model: Any, said: Sequence[Said], *, pad: int) -> Scores:
    """Both sums and counts for every completion, in the order given."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    found = np.zeros((3, len(said)))
    try:
        for places in _batches(said):
            some = [said[place] for place in places]
            logp, hits, own = _one_batch(model, some, pad, device)
            found[:, places] = np.stack([logp, own, hits])
    finally:
        model.train(was_training)
    return Scores(found[0], found[1], found[2])


def _batches(said: Sequence[Said]) -> list[list[int]]:
    """Places by length, as many at once as fit the tokens read in one go."""
    batches: list[list[int]] = []
    for place in sorted(range(len(said)), key=lambda place: len(said[place])):
        if batches and (len(batches[-1]) + 1) * len(said[place]) <= TOKENS_AT_ONCE:
            batches[-1].append(place)
        else:
            batches.append([place])
    return batches


def _one_batch(model: Any, some: Sequence[Said], pad: int, device: Any) -> tuple[Floats, Floats, Floats]:
    longest = max(map(len, some))
    ids = torch.full((len(some), longest), pad)
    mask, own = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for row, one in enumerate(some):
        ids[row, : len(one)] = torch.tensor(one.prompt + one.completion)
        mask[row, : len(one)] = 1
        own[row, len(one.prompt) : len(one)] = torch.tensor(one.own)
    ids, mask, own = ids.to(device), mask.to(device), own.to(device)[:, 1:]
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1][own].float()
    targets = ids[:, 1:][own]
    logp = torch.zeros(own.shape, dtype=torch.float32, device=device)
    hits = torch.zeros_like(logp)
    logp[own] = -F.cross_entropy(logits, targets, reduction="none")
    hits[own] = (logits.argmax(-1) == targets).float()
    return tuple(x.sum(1).double().cpu().numpy() for x in (logp, hits, own.float()))  # type: ignore[return-value]


def both(model: Any, said: Sequence[Said], *, pad: int, world: World | None = None) -> tuple[Scores, Scores]:
    """(the base's scores, the result's) of a model with one adapter, the reading shared by all processes."""
    rank, size = (world.rank, world.size) if world is not None else (0, 1)
    mine = said[rank::size]
    with model.disable_adapter():
        before = read(model, mine, pad=pad)
    after = read(model, mine, pad=pad)
    if world is None or size == 1:
        return before, after
    part = np.stack([before.logp, before.tokens, before.hits, after.logp, after.tokens, after.hits])
    whole = world.gather(torch.from_numpy(part), dim=1).numpy()
    places = np.concatenate([np.arange(len(said))[one::size] for one in range(size)])
    found = np.empty_like(whole)
    found[:, places] = whole
    return Scores(*found[:3]), Scores(*found[3:])


def compare(
    measures: Mapping[str, Callable[[Scores, Drawn], float]],
    before: Scores,
    after: Scores,
    kinds: Sequence[Sequence[int]],
    *,
    lower: Sequence[str] = (),
    held_out: bool = True,
) -> Comparison:
    """Each measure of both, and of the change, with intervals; rows are drawn anew within each kind."""
    chance = np.random.default_rng(0)
    places = [np.asarray(kind, np.int64) for kind in kinds]
    draws = [tuple(chance.choice(kind, len(kind)) for kind in places) for _ in range(ROUNDS // 4)]
    lines = []
    for name, measure in measures.items():
        one, two = (
            np.array([measure(scores, drawn) for drawn in (tuple(places), *draws)])
            for scores in (before, after)
        )
        numbers = (_interval(one), _interval(two), _interval(two - one))
        lines.append(Line(name, *numbers, name not in lower, min(map(len, places)) >= FEWEST))
    return Comparison(tuple(lines), sum(map(len, kinds)), held_out)


def _interval(values: Floats) -> tuple[float, float, float]:
    """The value itself, which comes first, and what 95 of 100 draws lie between."""
    if not np.isfinite(values).all():
        return math.nan, math.nan, math.nan
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return float(values[0]), float(low), float(high)


# ── what is measured ────────────────────────────────────────────────────────────────────────────


def margin(scores: Scores, drawn: Drawn) -> float:
    """Nats a token by which the good ones are likelier than the bad ones."""
    good, bad = drawn
    return float(scores.mean[good].mean() - scores.mean[bad].mean())


def accuracy(scores: Scores, drawn: Drawn) -> float:
    """How often a good one is likelier than a bad one, over all pairs of the two."""
    good, bad = (scores.mean[places] for places in drawn)
    below = np.searchsorted(np.sort(bad), good, side="left")
    up_to = np.searchsorted(np.sort(bad), good, side="right")
    return float((below + up_to).sum() / 2 / (len(good) * len(bad)))


def loss(scores: Scores, drawn: Drawn) -> float:
    """-log p of a token of the first kind's completions, nats."""
    places = drawn[0]
    return float(-scores.logp[places].sum() / max(1.0, scores.tokens[places].sum()))


def token_accuracy(scores: Scores, drawn: Drawn) -> float:
    """Tokens that were the likeliest ones."""
    places = drawn[0]
    return float(scores.hits[places].sum() / max(1.0, scores.tokens[places].sum()))
