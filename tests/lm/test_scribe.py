# SPDX-License-Identifier: AGPL-3.0-or-later
"""Rows read end to end, words drawn in two looks, steps played from a recording: always the plain answer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")

from rusty_r2.errors import RustyError  # noqa: E402
from rusty_r2.lm import ragged  # noqa: E402
from rusty_r2.lm.engine import Engine  # noqa: E402
from rusty_r2.lm.engine_torch import TorchModel  # noqa: E402
from rusty_r2.lm.ragged import Rows  # noqa: E402
from rusty_r2.lm.rwkv import TinyRWKVLM  # noqa: E402
from rusty_r2.lm.sampling import Sampling, choose, draw, log_probs, uniform, uniforms  # noqa: E402
from rusty_r2.lm.scribe import Scribe  # noqa: E402

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=gpu)]
LENGTHS = np.array([3, 1, 17, 3, 8])


def lively(words=523, device="cpu", seed=0, hidden=96):
    torch.manual_seed(seed)
    model = TinyRWKVLM(words, d_embed=24, d_hidden=hidden, n_layers=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model.to(device)


@given(st.integers(0, 2**63), st.integers(0, 10_000))
def test_many_chances_are_the_single_ones(seed, count):
    many = uniforms([seed, seed + 5], [count, 3], 4)
    for step in range(4):
        assert many[step].tolist() == uniform([seed, seed + 5], [count + step, 3 + step]).tolist()


@settings(deadline=None)
@given(st.integers(0, 1000), st.sampled_from([5, 160, 523, 960]), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_two_looks_find_the_word_that_one_would(seed, words, temperature):
    chance = np.random.default_rng(seed)
    logits = chance.normal(0, 4, (6, words)).astype(np.float32)
    drawn = chance.random(6)
    drawn[:2] = 0.0, 1 - 1e-9
    how = Sampling(temperature=temperature, top_k=3 if seed % 2 else 0)
    expected, taken, _ = choose(logits, how, drawn)
    logp = log_probs(torch.from_numpy(logits), how)
    found = draw(logp, torch.from_numpy(drawn))
    assert found.tolist() == expected.tolist()
    assert np.allclose(logp.gather(-1, found[:, None])[:, 0].numpy(), taken, atol=1e-5)


def test_a_word_that_cannot_be_is_never_drawn_even_at_the_very_end():
    logp = torch.full((2, 400), float("-inf"))
    logp[:, 200] = 0.0
    assert draw(logp, torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist() == [200, 200]


@pytest.mark.parametrize("device", DEVICES)
def test_rows_end_to_end_are_rows_alone(device):
    model = lively(device=device)
    ids = torch.randint(0, 523, (int(LENGTHS.sum()),), device=device)
    rows = Rows.of(LENGTHS, torch.device(device))
    start = model.trunk(torch.randint(0, 523, (5, 4), device=device))[1]
    places = torch.tensor([0, *rows.last.tolist()], device=device)
    with torch.no_grad():
        hidden, state = ragged.trunk(model, ids, rows, start, places)
        for row in range(5):
            part = ids[None, rows.first[row] : rows.last[row] + 1]
            alone, after = model.trunk(part, start[:, :, row : row + 1])
            assert torch.allclose(hidden[row + 1], alone[0, -1], atol=1e-4)
            assert torch.allclose(state[:, :, row], after[:, :, 0], rtol=1e-4, atol=1e-4)
        first, _ = model.trunk(ids[None, :1], start[:, :, :1])
        assert torch.allclose(hidden[0], first[0, 0], atol=1e-4)


def test_the_ragged_kernel_is_wkv_by_length():
    kernel = pytest.importorskip("rusty_r2.lm.kernels.triton_ragged", reason="needs Triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    channels = 70
    rows = Rows.of(LENGTHS, torch.device(device))
    k, v = torch.randn(2, int(LENGTHS.sum()), channels, device=device) * 3
    w, u = -torch.rand(channels, device=device).exp(), torch.randn(channels, device=device)
    start = torch.randn(3, len(LENGTHS), channels, device=device)
    start[1] = start[1].abs() + 0.1
    start[:, 0] = torch.tensor([0.0, 0.0, -1e38], device=device)[:, None]
    y, end = kernel.wkv(w, u, k, v, rows.first, rows.last, start)
    expected, after = ragged.by_length(w, u, k, v, rows, start)
    assert torch.allclose(y, expected, atol=1e-5) and torch.allclose(end, after, rtol=1e-5, atol=1e-5)


PROMPTS = {0: [1, 5, 9], 2: [1, 7], 3: [1, 300, 200, 100, 4, 8], 5: [1]}
HOW = {"sampled": Sampling(1.0, seed=3), "cooler": Sampling(0.7, top_k=30, seed=3), "greedy": Sampling(0.0)}


def one_by_one(engine, how, limit, stops):
    """What `Engine` says to each prompt alone, and to a second one that follows."""
    said = {}
    for row, prompt in PROMPTS.items():
        state, found = engine.new_state(1), []
        for part in ([*prompt], [11, 12]):
            words, pending = [], [*found[-1][-1:], *part] if found else part
            while len(words) < limit and not (words and words[-1] in stops):
                output = engine.prefill([pending], state)
                chosen = engine.pick(output, how, seeds=[row + 50], counts=[len(words) + 7])
                words.append(int(chosen.tokens[0]))
                pending = words[-1:]
                said.setdefault(row, []).append((float(chosen.logp[0]), float(chosen.values[0])))
            found.append(words)
        said[row] = (found, said[row])
    return said


def by_scribe(model, how, limit, stops, **options):
    scribe = Scribe(model, rows=7, sampling=how, limit=limit, stops=stops, **options)
    said = {row: ([], []) for row in PROMPTS}
    for extra in ([], [11, 12]):
        rows = list(PROMPTS)
        tokens = [[said[row][0][-1][-1], *extra] if extra else PROMPTS[row] for row in rows]
        scribe.read(rows, tokens, seeds=[row + 50 for row in rows], counts=[7] * len(rows))
        for row in rows:
            said[row][0].append([])
        while found := scribe.write():
            for row, words in found.items():
                said[row][0][-1].extend(words.tokens)
                said[row][1].extend(zip(words.logp, words.values, strict=True))
    return said


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", HOW)
def test_a_scribe_says_what_the_engine_says_word_by_word(mode, device):
    model, how = TorchModel(lively(), weights="fp32", device=device), HOW[mode]
    stops = range(0, 523, 9)
    expected = one_by_one(Engine(model, backend="torch"), how, 12, stops)
    found = by_scribe(model, how, 12, stops, steps=5)
    lengths = [len(words) for said, _ in expected.values() for words in said]
    assert max(lengths) == 12 > min(lengths), "some end by themselves, some are cut"
    for row in PROMPTS:
        assert found[row][0] == expected[row][0]
        assert np.allclose(found[row][1], expected[row][1], atol=1e-4)


@gpu
@pytest.mark.parametrize("weights", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", HOW)
def test_a_recorded_step_is_the_step(mode, weights):
    model = TorchModel(lively(words=2400, hidden=128), weights=weights, device="cuda")
    plain = by_scribe(model, HOW[mode], 40, [0], record=False)
    assert by_scribe(model, HOW[mode], 40, [0]) == plain


@gpu
def test_a_recording_speaks_with_weights_that_were_taken_later():
    old, new = lively(), lively(seed=1)
    model = TorchModel(old, weights="fp32", device="cuda")
    scribe = Scribe(model, rows=2, sampling=HOW["sampled"], limit=12, stops=[0])
    told = []
    for weights in (old, new, old):
        model.take(weights)
        scribe.state.copy_(model.new_state(2))
        scribe.read([0, 1], [[1, 2], [1, 3]], seeds=[1, 2], counts=[0, 0])
        told.append(scribe.write())
        while scribe.write():
            pass
    assert told[0] == told[2] != told[1]


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_that_are_not_finite_are_named(device):
    model = lively()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    scribe = Scribe(
        TorchModel(model, weights="fp32", device=device),
        rows=2,
        sampling=Sampling(1.0),
        limit=4,
        stops=[0],
    )
    scribe.read([1], [[1, 2]], seeds=[0], counts=[0])
    with pytest.raises(RustyError, match="not finite"):
        scribe.write()
