# SPDX-License-Identifier: AGPL-3.0-or-later
"""How sure a number is: shares with Wilson's interval, pass@k without bias, bootstrap for everything else.

    Rate(18, 312)                      5.8% (3.7 to 8.9)
    better(Rate(60, 100), Rate(40, 100))   True: the difference cannot be chance
    paired(old, new).worse             the same tasks by both: only those that one of them solves tell
    pass_at_k(n=8, c=2, k=4)           the chance that 4 of these 8 tries hold a success

Wilson 1927 (honest at 0 and at 100%), Newcombe 1998 for the difference of two shares, the exact sign test
(McNemar 1947) for pairs, Chen et al. 2021 for pass@k, Efron's percentile bootstrap for means. All intervals
hold the true value in 95 of 100 cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Z = 1.96
"""standard errors on each side that make 95%"""
ROUNDS = 2000
"""resamples of a bootstrap"""
LEVEL = 0.05
"""what chance alone does at most so often is not put down to chance"""


@dataclass(frozen=True)
class Rate:
    """So many of so many."""

    passed: int
    total: int

    @property
    def share(self) -> float:
        return self.passed / self.total if self.total else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.passed, self.total)

    @property
    def low(self) -> float:
        return self.interval[0]

    @property
    def high(self) -> float:
        return self.interval[1]

    def __str__(self) -> str:
        return f"{100 * self.share:.1f}% ({100 * self.low:.1f} to {100 * self.high:.1f})"


def wilson(passed: int, total: int, z: float = Z) -> tuple[float, float]:
    """The interval that holds the true rate in 95 of 100 cases."""
    if total == 0:
        return 0.0, 1.0
    share, room = passed / total, z * z / total
    middle = (share + room / 2) / (1 + room)
    half = z / (1 + room) * math.sqrt(share * (1 - share) / total + room / (4 * total))
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def difference(a: Rate, b: Rate) -> tuple[float, float]:
    """The interval of a's true rate minus b's (Newcombe's hybrid of two Wilson intervals)."""
    gap = a.share - b.share
    below = math.hypot(a.share - a.low, b.high - b.share)
    above = math.hypot(a.high - a.share, b.share - b.low)
    return max(-1.0, gap - below), min(1.0, gap + above)


def better(a: Rate, b: Rate) -> bool:
    """Whether `a` is really above `b`: the difference is not what chance makes of equals."""
    return difference(a, b)[0] > 0


@dataclass(frozen=True)
class Paired:
    """Two who were asked the same things."""

    old: Rate
    new: Rate
    lost: int
    """only the old one solves them"""
    gained: int
    """only the new one solves them"""

    def worse(self, level: float = LEVEL) -> bool:
        """Whether an equally good one would lose so many, and gain so few, at most so often."""
        return sign_test(self.lost, self.gained) <= level

    def better(self, level: float = LEVEL) -> bool:
        return sign_test(self.gained, self.lost) <= level

    def __str__(self) -> str:
        return f"{self.lost} lost and {self.gained} gained of {self.new.total}"


def paired(old: Mapping[str, bool], new: Mapping[str, bool]) -> Paired:
    """What two solved of the same things; what only one of them was asked is left aside."""
    shared = [(old[name], new[name]) for name in new if name in old]
    return Paired(
        Rate(sum(a for a, _ in shared), len(shared)),
        Rate(sum(b for _, b in shared), len(shared)),
        lost=sum(a and not b for a, b in shared),
        gained=sum(b and not a for a, b in shared),
    )


def sign_test(lost: int, gained: int) -> float:
    """How often a fair coin loses at least so many of lost + gained."""
    thrown = lost + gained
    ways = sum(math.comb(thrown, many) for many in range(lost, thrown + 1))
    return ways / float(2**thrown)


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that k of n tries, c of them right, hold a right one: 1 - C(n-c, k) / C(n, k)."""
    if not 0 < k <= n or not 0 <= c <= n:
        raise ValueError(f"pass@{k} of {n} tries with {c} right makes no sense")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def bootstrap(values: Sequence[float], weights: Sequence[float] | None = None) -> tuple[float, float]:
    """The interval of the mean of `values` (weighted where given), by drawing them anew."""
    if not len(values):
        return math.nan, math.nan
    import numpy as np

    found = np.asarray(values, np.float64)
    heavy = np.ones_like(found) if weights is None else np.asarray(weights, np.float64)
    rng = np.random.default_rng(0)
    means = []
    for _ in range(ROUNDS):
        drawn = rng.integers(0, len(found), len(found))
        means.append(float((found[drawn] * heavy[drawn]).sum() / max(heavy[drawn].sum(), 1e-300)))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
