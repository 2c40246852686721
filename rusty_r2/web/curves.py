# SPDX-License-Identifier: AGPL-3.0-or-later
"""Curves as SVG, drawn here: numbers become points, ticks and bands; curve.jinja writes them down.

A long series keeps the highest and the lowest number of every stretch, so no spike is lost. Where a number
was not finite the line breaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

WIDTH, HEIGHT = 460, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 26
MOST = 400
"""stretches a series is cut into"""

Point = tuple[float, float | None]


@dataclass(frozen=True)
class Series:
    """One line of a chart: its name and its points, oldest first."""

    name: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    """x, low, high: how sure the line is"""

    @property
    def last(self) -> float | None:
        return next((y for _, y in reversed(self.points) if y is not None), None)


@dataclass(frozen=True)
class Drawn:
    """A series in the picture's own coordinates."""

    name: str
    lines: list[str]
    dots: list[tuple[float, float]]
    band: str
    last: float | None


@dataclass(frozen=True)
class Chart:
    title: str
    series: list[Drawn]
    x_ticks: list[tuple[float, str]] = field(default_factory=list)
    y_ticks: list[tuple[float, str]] = field(default_factory=list)


def chart(title: str, given: Iterable[Series]) -> Chart:
    """All series in the same axes."""
    series = [one for one in given if one.points]
    xs = [x for one in series for x, y in one.points if y is not None]
    ys = [y for one in series for _, y in one.points if y is not None]
    ys += [edge for one in series for _, low, high in one.band for edge in (low, high)]
    if not xs:
        return Chart(title, [])
    x_low, x_high = _room(min(xs), max(xs), 0.0)
    y_low, y_high = _room(min(ys), max(ys), 0.06)

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        down = TOP + (y_high - y) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        return round(across, 1), round(down, 1)

    drawn = []
    for one in series:
        stretches = [[place(x, y) for x, y in part] for part in _unbroken(_thin(one.points))]
        edge = [place(x, high) for x, _, high in one.band] + [
            place(x, low) for x, low, _ in reversed(one.band)
        ]
        lines = [_path(part) for part in stretches if len(part) > 1]
        dots = [part[0] for part in stretches if len(part) == 1]
        drawn.append(Drawn(one.name, lines, dots, _path(edge), one.last))
    x_ticks = [(place(tick, y_low)[0], number(tick)) for tick in _ticks(x_low, x_high, 5)]
    y_ticks = [(place(x_low, tick)[1], number(tick)) for tick in _ticks(y_low, y_high, 4)]
    return Chart(title, drawn, x_ticks, y_ticks)


def finite(value: Any) -> float | None:
    """`value` where it is a number that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        made = float(value)
    except OverflowError:
        return None
    return made if math.isfinite(made) and abs(made) < 1e300 else None


def number(value: float | None) -> str:
    """Short, and exact enough for a tick or a table."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:.2e}" if abs(value) >= 1e6 or abs(value) < 1e-3 else f"{value:.4g}"


def _room(low: float, high: float, share: float) -> tuple[float, float]:
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        more = abs(low) * 0.1 or 1.0
        return low - more, high + more
    more = (high - low) * share
    return low - more, high + more


def _ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round numbers between low and high, about as many as wanted."""
    rough = (high - low) / wanted
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * many for many in (1, 2, 5, 10) if size * many >= rough)
    return [float(f"{n * step:.12g}") for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _thin(points: Sequence[Point]) -> list[Point]:
    if len(points) <= 2 * MOST:
        return list(points)
    size = math.ceil(len(points) / MOST)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        part = [(x, y) for x, y in points[start : start + size] if y is not None]
        ends = (
            {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
            if part
            else {(points[start][0], None)}
        )
        kept += sorted(ends, key=lambda p: p[0])
    return kept


def _unbroken(points: Iterable[Point]) -> list[list[tuple[float, float]]]:
    stretches: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is not None:
            stretches[-1].append((x, y))
        elif stretches[-1]:
            stretches.append([])
    return [part for part in stretches if part]


def _path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
