# SPDX-License-Identifier: AGPL-3.0-or-later
"""Small pictures for the report, as SVG text: curves over steps, bars with intervals, a histogram.

Colours come from the page's style (classes), so that they follow a light or dark screen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 320, 150
LEFT, RIGHT, TOP, BOTTOM = 50, 10, 10, 24
Point = tuple[float, float]


def curve(title: str, points: Sequence[Point]) -> str:
    """Values over steps."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = _span(ys)
    first, last = min(xs), max(xs)
    across = lambda x: LEFT + (x - first) / ((last - first) or 1) * (WIDTH - LEFT - RIGHT)  # noqa: E731
    up = lambda y: HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)  # noqa: E731
    line = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
    marks = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(y):.1f}" y2="{up(y):.1f}"/>'
        f'<text class="tick" x="{LEFT - 4}" y="{up(y) + 3.5:.1f}" text-anchor="end">{number(y)}</text>'
        for y in (low, (low + high) / 2, high)
    )
    end = f'<circle class="dot" cx="{across(xs[-1]):.1f}" cy="{up(ys[-1]):.1f}" r="2.5"/>'
    feet = (
        f'<text class="tick" x="{LEFT}" y="{HEIGHT - 8}">{number(first)}</text>'
        f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">'
        f"step {number(last)}</text>"
    )
    body = f'{marks}{feet}<polyline class="line" points="{line}"/>{end}'
    return _figure(title, body, f"{title}: from {number(ys[0])} to {number(ys[-1])}")


def histogram(title: str, values: Sequence[float], bins: int = 10) -> str:
    """How often each value from 0 to 1 came."""
    counts = [0] * bins
    for value in values:
        counts[max(0, min(int(value * bins), bins - 1))] += 1
    most = max(counts) or 1
    room, tall = (WIDTH - LEFT - RIGHT) / bins, HEIGHT - TOP - BOTTOM
    bars = "".join(
        f'<rect class="bar" x="{LEFT + at * room + 1:.1f}" width="{room - 2:.1f}" '
        f'y="{HEIGHT - BOTTOM - count / most * tall:.1f}" height="{count / most * tall:.1f}">'
        f"<title>{at / bins:.1f} to {(at + 1) / bins:.1f}: {count}</title></rect>"
        for at, count in enumerate(counts)
    )
    feet = "".join(
        f'<text class="tick" x="{LEFT + share * (WIDTH - LEFT - RIGHT):.1f}" y="{HEIGHT - 8}" '
        f'text-anchor="middle">{share:g}</text>'
        for share in (0, 0.5, 1)
    )
    scale = f'<text class="tick" x="{LEFT - 4}" y="{TOP + 8}" text-anchor="end">{most}</text>'
    return _figure(title, bars + feet + scale, f"{title}: {len(values)} values")


def interval(rate: dict[str, Any], kind: str) -> str:
    """A share as a bar with its interval, for a cell of a table."""
    share = rate["passed"] / rate["total"] if rate["total"] else 0.0
    low, high = 100 * rate["low"], 100 * rate["high"]
    return (
        f'<svg class="rate" viewBox="0 0 100 12" preserveAspectRatio="none" role="img" '
        f'aria-label="{100 * share:.0f}%">'
        f'<rect class="track" width="100" height="12" rx="2"/>'
        f'<rect class="{kind}" width="{100 * share:.1f}" height="12" rx="2"/>'
        f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="6" y2="6"/></svg>'
    )


def number(value: float) -> str:
    """As short as it stays readable."""
    if not math.isfinite(value):
        return "–"
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.1f} M"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high - low <= 1e-9 * abs(high):
        room = abs(high) / 2 or 0.5
        return low - room, high + room
    return low, high


def _figure(title: str, body: str, spoken: str) -> str:
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(spoken)}">{body}</svg>'
        f"<figcaption>{escape(title)}</figcaption></figure>"
    )
