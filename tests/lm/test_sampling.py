# SPDX-License-Identifier: AGPL-3.0-or-later
"""One distribution, three samplers: torch's definition, the C++ and NumPy agree in every mode."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rusty_r2.errors import ConfigError
from rusty_r2.lm import engine_native
from rusty_r2.lm.engine import Engine
from rusty_r2.lm.engine_native import NativeModel
from rusty_r2.lm.sampling import Sampling, allowed, bits, choose, uniform
from rusty_r2.lm.shape import Shape, random_source

torch = pytest.importorskip("torch")

from rusty_r2.lm.sampling import log_probs  # noqa: E402

SHAPE = Shape(words=1000, embed=32, hidden=64, inner=128, layers=1)
MODES = [
    Sampling(temperature=t, top_k=k, top_p=p, repetition_penalty=r)
    for t, k, p, r in itertools.product((0.0, 0.6, 1.0, 1.7), (0, 1, 7, 50, 600), (1.0, 0.9, 0.3), (1.0, 1.3))
]
native = pytest.mark.skipif(engine_native.library() is None, reason="no C++ compiler here")


def reference(logits, sampling, mask=None, history=None) -> np.ndarray:
    legal = None if mask is None else torch.from_numpy(allowed(mask, logits.shape[1]))
    return log_probs(torch.from_numpy(logits), sampling, legal, history).double().numpy()


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(NativeModel(random_source(SHAPE), "fp32", threads=1), backend="C++")


@native
@pytest.mark.parametrize("masked", [False, True])
def test_cpp_draws_from_the_reference_in_every_mode(engine, masked):
    rng = np.random.default_rng(1)
    rows = 9
    output = engine.prefill(rng.integers(0, 1000, (rows, 4)).tolist(), engine.new_state(rows))
    mask = bits(rng.random((rows, 1000)) < rng.choice([0.004, 0.3, 0.9], (rows, 1))) if masked else None
    if mask is not None:
        mask[:, 3] |= 1
    history = [rng.integers(0, 1000, n).tolist() for n in range(rows)]
    for sampling in MODES:
        logp = reference(output.logits, sampling, mask, history)
        for trial in range(3):
            chance = {"seeds": range(rows), "counts": [trial] * rows}
            sampled = engine.pick(output, sampling, mask=mask, history=history, keep=True, **chance)
            kept = allowed(sampled.kept, 1000)
            assert np.array_equal(kept, logp > -np.inf), sampling
            taken = np.take_along_axis(logp, sampled.tokens[:, None].astype(int), 1)[:, 0]
            assert np.abs(sampled.logp - taken).max() < 1e-5, sampling
            expected = choose(output.logits, sampling, uniform(range(rows), [trial] * rows), mask, history)
            assert np.array_equal(sampled.tokens, expected[0]), sampling
            assert np.abs(expected[1] - taken).max() < 1e-5 and np.array_equal(expected[2], kept)


@native
@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, top_k=20), Sampling(1.3, top_p=0.8)])
def test_chance_is_fair(engine, sampling):
    """20,000 draws from one state against the probabilities."""
    output = engine.prefill([[5, 6]], engine.new_state(1))
    expected = np.exp(reference(output.logits, sampling)[0])
    draws = 20_000
    hidden = np.repeat(output.hidden, 500, 0)
    counts = np.zeros(1000)
    for part in range(draws // 500):
        tokens, _, _ = engine.model.pick(hidden, sampling, uniform(range(500), [part] * 500))
        counts += np.bincount(tokens, minlength=1000)
    assert counts[expected == 0].sum() == 0
    spread = np.sqrt(np.maximum(draws * expected * (1 - expected), 1))
    assert np.abs((counts - draws * expected) / spread).max() < 5.5


@native
def test_given_words_are_scored_not_drawn(engine):
    output = engine.prefill([[5, 6], [7, 8]], engine.new_state(2))
    sampling = Sampling(0.8, top_k=10)
    logp = reference(output.logits, sampling)
    best, worst = logp.argmax(1), output.logits.argmin(1)
    assert np.allclose(engine.pick(output, sampling, given=best).logp, logp.max(1), atol=1e-5)
    assert np.isneginf(engine.pick(output, sampling, given=worst).logp).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([-3.0, 0.0, 0.5, 0.5000001, 2.0, 9.0]), min_size=2, max_size=40),
    st.integers(0, 6),
    st.sampled_from([1.0, 0.95, 0.5, 0.05]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.floats(0, 1, exclude_max=True),
)
def test_ties_are_kept_or_cut_together(values, top_k, top_p, temperature, chance):
    logits = np.array([values], np.float32)
    sampling = Sampling(temperature, top_k, top_p)
    logp = reference(logits, sampling)[0]
    tokens, taken, kept = choose(logits, sampling, np.array([chance]))
    assert abs(np.exp(logp).sum() - 1) < 1e-5
    assert np.array_equal(kept[0], logp > -np.inf)
    assert logp[tokens[0]] > -np.inf and abs(taken[0] - logp[tokens[0]]) < 1e-5
    if temperature > 0:
        assert kept[0][logits[0] >= logits[0][kept[0]].min()].all()


def test_gradients_flow_through_the_reference():
    logits = torch.randn(3, 50, requires_grad=True)
    logp = log_probs(logits, Sampling(0.7, top_k=5, top_p=0.9))
    logp.max(-1).values.sum().backward()
    assert torch.isfinite(logits.grad).all() and logits.grad.abs().sum() > 0


def test_seeds_do_not_meet_and_repeat():
    draws = uniform(np.repeat(np.arange(100), 100).tolist(), np.tile(np.arange(100), 100).tolist())
    assert np.array_equal(draws[:100], uniform([0] * 100, list(range(100))))
    assert len(set(draws.tolist())) == 10_000
    assert draws.min() >= 0 and draws.max() < 1 and abs(draws.mean() - 0.5) < 0.02
    assert uniform([-1], [0])[0] != uniform([1], [0])[0]


def test_bits_round_trip():
    keep = np.random.default_rng(0).random((3, 77)) < 0.5
    assert np.array_equal(allowed(bits(keep), 77), keep)


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}, {"repetition_penalty": 0.0}],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Sampling(**wrong)
