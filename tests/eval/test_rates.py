"""Intervals cover what they promise, and pass@k is the mean over all draws."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rusty_r2.eval.rates import (
    Rate,
    better,
    bootstrap,
    difference,
    paired,
    pass_at_k,
    sign_test,
    wilson,
)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_share_and_stays_between_0_and_1(pair):
    rate = Rate(*pair)
    assert 0 <= rate.low <= rate.share + 1e-12 and rate.share - 1e-12 <= rate.high <= 1
    assert rate.high - rate.low > 0, "no count makes us certain"


def test_the_interval_covers_the_truth_in_about_95_of_100_cases():
    rng = random.Random(0)
    covered = 0
    for _ in range(2000):
        low, high = wilson(sum(rng.random() < 0.06 for _ in range(100)), 100)
        covered += low <= 0.06 <= high
    assert 0.93 < covered / 2000 < 0.98


def test_nothing_played_says_nothing():
    assert Rate(0, 0).share == 0 and Rate(0, 0).interval == (0.0, 1.0)
    assert str(Rate(18, 312)) == "5.8% (3.7 to 8.9)"


def test_better_needs_more_than_luck():
    assert better(Rate(60, 100), Rate(40, 100))
    assert not better(Rate(52, 100), Rate(48, 100))
    assert not better(Rate(40, 100), Rate(60, 100))
    assert not better(Rate(1, 1), Rate(0, 1))
    low, high = difference(Rate(50, 100), Rate(50, 100))
    assert low == pytest.approx(-high)


@given(st.integers(0, 8), st.integers(0, 8))
def test_the_sign_test_counts_all_throws_of_a_coin(lost, gained):
    throws = list(itertools.product((0, 1), repeat=lost + gained))
    assert sign_test(lost, gained) == pytest.approx(sum(sum(t) >= lost for t in throws) / len(throws))


def test_pairs_are_of_what_both_were_asked():
    old = {"a": True, "b": True, "c": False, "d": True}
    found = paired(old, {"a": True, "b": False, "c": True, "e": True})
    assert (found.old, found.new, found.lost, found.gained) == (Rate(2, 3), Rate(2, 3), 1, 1)
    assert paired({}, old).new.total == 0 and not paired({}, old).worse()
    five = {str(at): True for at in range(5)}
    none = dict.fromkeys(five, False)
    assert paired(five, none).worse() and paired(none, five).better() and not paired(five, five).worse()


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_mean_over_all_draws(given):
    n, c, k = given
    draws = list(itertools.combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(max, draws)) / len(draws))


def test_pass_at_k_refuses_more_draws_than_tries():
    with pytest.raises(ValueError, match="pass@8"):
        pass_at_k(4, 1, 8)


def test_bootstrap_covers_the_mean_and_weights_count():
    rng = random.Random(1)
    values = [rng.random() for _ in range(200)]
    low, high = bootstrap(values)
    assert low < sum(values) / 200 < high and high - low < 0.15
    assert bootstrap([0.0, 1.0] * 50, [1.0, 0.0] * 50) == (0.0, 0.0)
