# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a measure hands back: figures, each a number with its interval, or the reason why there is none.

A `Figure` knows its unit and which way is good; table.py prints it, picture.py draws it, results.json keeps
it. Rates are made by `share`, means over items (pass@k, bits per byte) by `mean`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rusty_r2.eval.rates import Rate, bootstrap

DECIMALS = {"%": 1, "bits/byte": 3, "tokens/s": 0, "MB": 0}


@dataclass(frozen=True)
class Figure:
    name: str
    """a row of the table: "gym pass@1", or below it "gym pass@1: rename" """
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    count: int = 0
    """items that were measured"""
    unit: str = "%"
    lower_is_better: bool = False
    note: str = ""
    """how it was measured, or why it was not"""
    caveat: str = ""
    """what a reader of the number must know; said below the table"""
    detail: bool = False
    """kept in results.json and the long table, not in the short one"""

    @property
    def measured(self) -> bool:
        return not math.isnan(self.value)

    def __str__(self) -> str:
        if not self.measured:
            return "–"
        places = DECIMALS.get(self.unit, 2)
        said = f"{self.value:,.{places}f}"
        if math.isnan(self.low):
            return said
        return f"{said} ({self.low:,.{places}f} to {self.high:,.{places}f})"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; a number that is not there becomes null."""
        told = asdict(self)
        return {key: None if isinstance(v, float) and math.isnan(v) else v for key, v in told.items()}


def share(name: str, passed: int, total: int, **more: Any) -> Figure:
    """So many of so many, in per cent, with Wilson's interval."""
    if not total:
        return absent(name, more.pop("note", "") or "nothing to measure on", **more)
    rate = Rate(passed, total)
    return Figure(name, 100 * rate.share, 100 * rate.low, 100 * rate.high, total, **more)


def mean(
    name: str,
    values: Sequence[float],
    *,
    weights: Sequence[float] | None = None,
    scale: float = 1.0,
    **more: Any,
) -> Figure:
    """The (weighted) mean of one number an item, with a bootstrap interval over items."""
    if not len(values):
        return absent(name, "nothing to measure on", **more)
    heavy = [1.0] * len(values) if weights is None else list(weights)
    middle = sum(v * w for v, w in zip(values, heavy, strict=True)) / max(sum(heavy), 1e-300)
    low, high = bootstrap(values, heavy)
    return Figure(name, scale * middle, scale * low, scale * high, len(values), **more)


def absent(name: str, why: str, **more: Any) -> Figure:
    """A figure that could not be had, and why."""
    return Figure(name, note=why, **{key: value for key, value in more.items() if key != "note"})
