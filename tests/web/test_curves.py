"""Curves: everything lies in the picture, no spike is lost, and gaps stay gaps."""

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rusty_r2.web.curves import HEIGHT, MOST, WIDTH, Series, _thin, chart, finite, number

values = st.one_of(st.none(), st.floats(-1e12, 1e12))
points = st.lists(st.tuples(st.integers(0, 10**6), values), min_size=1, max_size=40).map(
    lambda given: sorted(given, key=lambda one: one[0])
)


@settings(deadline=None)
@given(st.lists(points, min_size=1, max_size=3))
def test_every_point_lies_in_the_picture(many):
    made = chart("loss", [Series(str(place), one) for place, one in enumerate(many)])
    assert bool(made.series) == any(y is not None for one in many for _, y in one)
    for drawn, one in zip(made.series, many, strict=False):
        placed = [pair for line in drawn.lines for pair in line.split()] + [f"{x},{y}" for x, y in drawn.dots]
        assert len(placed) == sum(y is not None for _, y in one)
        for pair in placed:
            x, y = map(float, pair.split(","))
            assert 0 <= x <= WIDTH and 0 <= y <= HEIGHT
    for place, _ in made.x_ticks:
        assert 0 <= place <= WIDTH
    for place, _ in made.y_ticks:
        assert 0 <= place <= HEIGHT


@settings(deadline=None)
@given(st.integers(0, 7 * MOST), st.integers(), st.sampled_from((0.0, 0.1, 0.99, 1.0)))
def test_a_long_series_keeps_its_highest_and_lowest(more, seed, gaps):
    rng = random.Random(seed)
    ys = [None if rng.random() < gaps else rng.gauss(0, 1) for _ in range(2 * MOST + more)]
    kept = _thin(list(enumerate(ys)))
    known = [y for y in ys if y is not None]
    shown = [y for _, y in kept if y is not None]
    assert len(kept) <= 2 * MOST and [x for x, _ in kept] == sorted(x for x, _ in kept)
    assert not known or (max(shown), min(shown)) == (max(known), min(known))


def test_two_series_share_their_axes_and_a_gap_breaks_the_line():
    made = chart(
        "reward", [Series("a", [(0, 0.0), (1, None), (2, 1.0), (3, 1.0)]), Series("b", [(0, 2.0), (3, 3.0)])]
    )
    first, second = made.series
    assert len(first.lines) == 1 and len(first.dots) == 1 and len(second.lines) == 1
    assert first.last == 1.0 and second.last == 3.0
    assert float(second.lines[0].split()[0].split(",")[1]) < first.dots[0][1]


def test_a_band_lies_around_its_line():
    made = chart("eval", [Series("a", [(0, 0.5), (1, 0.6)], [(0, 0.4, 0.6), (1, 0.5, 0.7)])])
    assert len(made.series[0].band.split()) == 4
    assert not chart("none", [Series("a", [(0, None)])]).series


def test_numbers_are_short():
    assert [number(v) for v in (None, 0.0, 12.0, 0.123456, 1e-5, 2.5e9)] == [
        "–",
        "0",
        "12",
        "0.1235",
        "1.00e-05",
        "2.50e+09",
    ]
    assert all(math.isclose(float(number(v)), v, rel_tol=1e-2) for v in (0.5, 3.3e-7, 123.456))


def test_numbers_too_large_to_draw_are_none():
    assert finite(1e301) is None and finite(-1e301) is None and finite(10**400) is None and finite(2) == 2.0
