# SPDX-License-Identifier: AGPL-3.0-or-later
"""One truth in many forms: C++ with the machine's instructions, portable C++, NumPy and torch answer alike;
batches equal singles; any cut of a text gives the same answer."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from rusty_r2.errors import CheckpointError, ConfigError, RustyError
from rusty_r2.lm import engine_native
from rusty_r2.lm.engine import Engine
from rusty_r2.lm.engine_native import FLAGS, NativeModel
from rusty_r2.lm.engine_numpy import NumpyModel
from rusty_r2.lm.quantize import FORMATS
from rusty_r2.lm.sampling import Sampling, bits
from rusty_r2.lm.shape import Shape, random_source

ODD = Shape(words=523, embed=48, hidden=100, inner=390, layers=2)
"""no multiple of anything, so that all padding is used"""
WIDE = Shape(words=600, embed=64, hidden=192, inner=1056, layers=2)
"""more than two stretches of 512 inputs"""
ROWS = [[1, 2, 3, 4, 5], [7], list(range(9, 100))]

native = pytest.mark.skipif(engine_native.library() is None, reason="no C++ compiler here")


def cpp(source, weights: str, *, threads: int = 1, portable: bool = False) -> Engine:
    found = engine_native.library(flags=(*FLAGS, "-DRUSTY_PORTABLE")) if portable else None
    return Engine(NativeModel(source, weights, threads=threads, compiled=found), backend="C++")


def numpy(source, weights: str) -> Engine:
    return Engine(NumpyModel(source, weights), backend="NumPy")


def answers(engine: Engine) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    state = engine.new_state(len(ROWS))
    output = engine.prefill(ROWS, state)
    return output.logits, output.values, state


@native
@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("shape", [ODD, WIDE], ids=["odd", "wide"])
def test_cpp_portable_and_numpy_answer_alike(weights, shape):
    source = random_source(shape)
    fast, portable, plain = (
        answers(engine)
        for engine in (cpp(source, weights), cpp(source, weights, portable=True), numpy(source, weights))
    )
    for ours, other in ((fast, portable), (fast, plain)):
        assert np.abs(ours[0] - other[0]).max() < 2e-2 * np.abs(plain[0]).max()  # one rounding may differ
        assert np.median(np.abs(ours[0] - other[0])) < 1e-4
        assert np.abs(ours[1] - other[1]).max() < 2e-2


@native
@pytest.mark.parametrize("weights", FORMATS)
def test_batches_equal_singles_bit_for_bit(weights):
    engine = cpp(random_source(ODD), weights)
    together, values, state = answers(engine)
    for number, row in enumerate(ROWS):
        alone = engine.new_state(1)
        output = engine.prefill([row], alone)
        assert np.array_equal(output.logits[0], together[number])
        assert output.values[0] == values[number]
        assert np.array_equal(alone[:, :, 0], state[:, :, number])


@pytest.mark.parametrize("backend", [pytest.param(cpp, marks=native), numpy])
@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_any_cut_of_a_text_gives_the_same_answer(backend, weights):
    engine = backend(random_source(ODD), weights)
    whole, pieces, steps = (engine.new_state(1) for _ in range(3))
    ids = ROWS[2]
    expected = engine.prefill([ids], whole)
    engine.prefill([ids[:70]], pieces)
    cut = engine.prefill([ids[70:]], pieces)
    for token in ids:
        last = engine.step([token], steps)
    for other, state in ((cut, pieces), (last, steps)):
        assert np.abs(other.logits - expected.logits).max() < 1e-2 * np.abs(expected.logits).max()
        assert np.abs(other.logits - expected.logits).mean() < 1e-3
        assert np.allclose(state, whole, rtol=1e-2, atol=2e-2)


@native
def test_threads_change_nothing():
    source = random_source(WIDE)
    for one, two in zip(answers(cpp(source, "int8")), answers(cpp(source, "int8", threads=2)), strict=True):
        assert np.array_equal(one, two)


@pytest.mark.parametrize("backend", [pytest.param(cpp, marks=native), numpy])
def test_the_torch_model_is_the_reference(backend):
    torch = pytest.importorskip("torch")
    from rusty_r2.lm.rwkv import TinyRWKVLM

    model = TinyRWKVLM(vocab_size=523, d_embed=48, d_hidden=100, n_layers=2, d_ffn=390).eval()
    source = random_source(ODD)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in source.arrays.items()})
    ids = torch.tensor([ROWS[2]])
    with torch.no_grad():
        logits, values, state = model(ids, model.initial_state(1))
    engine = backend(source, "fp32")
    mine = engine.new_state(1)
    output = engine.prefill([ROWS[2]], mine)
    assert np.abs(output.logits[0] - logits[0, -1].numpy()).max() < 1e-4
    assert abs(output.values[0] - values[0, -1].item()) < 1e-4
    assert np.allclose(mine, state.numpy(), rtol=1e-3, atol=1e-3)
    twin = Engine.from_model(model, weights="fp32", threads=1)
    assert np.abs(twin.prefill([ROWS[2]], twin.new_state()).logits - output.logits).max() < 1e-4


def test_the_torch_engine_answers_like_the_others():
    torch = pytest.importorskip("torch")
    from rusty_r2.lm.engine_torch import TorchModel
    from rusty_r2.lm.rwkv import TinyRWKVLM

    model = TinyRWKVLM(vocab_size=523, d_embed=48, d_hidden=100, n_layers=2, d_ffn=390)
    source = random_source(ODD)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in source.arrays.items()})
    ours, theirs = (
        numpy(source, "fp32"),
        Engine(TorchModel(model, weights="fp32", device="cpu"), backend="torch"),
    )
    sampling = Sampling(temperature=0.9, top_k=40, top_p=0.9, repetition_penalty=1.2, seed=3)
    expected = ours.generate_batch(ROWS, sampling=sampling, max_new_tokens=12)
    found = theirs.generate_batch(ROWS, sampling=sampling, max_new_tokens=12)
    assert [c.tokens for c in found] == [c.tokens for c in expected]
    for one, other in zip(found, expected, strict=True):
        assert np.allclose(one.logp, other.logp, atol=1e-4) and np.allclose(
            one.values, other.values, atol=1e-4
        )


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_small_weights_say_nearly_the_same(weights):
    source = random_source(Shape(500, 64, 128, 512, 2))
    exact, small = numpy(source, "fp32"), numpy(source, weights)
    ours, theirs = (engine.prefill(ROWS, engine.new_state(3)).logits for engine in (exact, small))
    assert np.abs(ours - theirs).mean() < {"int8": 0.05, "int4": 0.4}[weights] * np.abs(ours).mean()
    assert not np.array_equal(ours, theirs)


@native
def test_a_state_forks():
    engine = cpp(random_source(ODD), "int8")
    state = engine.new_state(1)
    engine.prefill([ROWS[0]], state)
    three = engine.select(state, [0, 0, 0])
    output = engine.step([5, 6, 5], three)
    assert np.array_equal(output.logits[0], output.logits[2])
    assert not np.array_equal(output.logits[0], output.logits[1])
    assert np.array_equal(engine.step([5], state).logits[0], output.logits[0])


@native
def test_sample_is_step_then_pick_and_masks_hold():
    engine = cpp(random_source(ODD), "int8")
    tokens, sampling = [3, 1, 4, 1, 5], Sampling(temperature=1.0, seed=9)
    keep = np.zeros((5, ODD.words), bool)
    keep[:, [17, 300, 522]] = True
    mask = bits(keep)
    one, two = engine.new_state(5), engine.new_state(5)
    sampled = engine.sample(tokens, one, sampling, mask=mask, keep=True)
    picked = engine.pick(engine.step(tokens, two), sampling, mask=mask)
    assert np.array_equal(sampled.tokens, picked.tokens) and np.array_equal(sampled.logp, picked.logp)
    assert np.array_equal(one, two) and np.array_equal(sampled.kept, mask)
    assert set(sampled.tokens.tolist()) <= {17, 300, 522}
    with pytest.raises(RustyError, match="no word can be chosen"):
        engine.sample(tokens, one, sampling, mask=np.zeros_like(mask))


@native
def test_score_is_the_likelihood_of_a_text():
    engine = cpp(random_source(ODD), "fp32")
    ids = list(range(40, 400))
    logp, best = engine.score(ids)
    state, expected = engine.new_state(1), []
    for here, following in itertools.pairwise(ids):
        z = engine.step([here], state).logits[0].astype(np.float64)
        expected.append((z[following] - z.max() - np.log(np.exp(z - z.max()).sum()), z.argmax()))
    assert np.allclose(logp, [value for value, _ in expected], atol=1e-4)
    assert best.tolist() == [int(word) for _, word in expected]


def test_bad_input_is_named(tmp_path):
    engine = numpy(random_source(ODD), "fp32")
    with pytest.raises(ConfigError, match="523 words"):
        engine.step([523], engine.new_state(1))
    with pytest.raises(ConfigError, match="523 words"):
        engine.step([-1], engine.new_state(1))
    with pytest.raises(ConfigError, match="token -1 is not among"):
        engine.prefill([[5, -1]], engine.new_state())
    with pytest.raises(ConfigError, match="one token at least"):
        engine.prefill([[1], []], engine.new_state(2))
    with pytest.raises(ConfigError, match="not one of"):
        Engine.build(random_source(ODD), weights="int3")
    with pytest.raises(CheckpointError, match="not a folder"):
        Engine.load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        Engine.load(tmp_path)
    broken = random_source(ODD)
    broken.arrays["lm_head.weight"] = broken.arrays["lm_head.weight"][:, :50]
    with pytest.raises(CheckpointError, match=r"lm_head\.weight should be"):
        Engine.build(broken, weights="int8")
    broken = random_source(ODD)
    del broken.arrays["ln_out.bias"]
    with pytest.raises(CheckpointError, match=r"ln_out\.bias should be"):
        Engine.build(broken, weights="int8")


@native
def test_without_a_compiler_the_words_are_the_same():
    """RUSTY_NATIVE=0 is a machine with no compiler."""
    program = (
        "import sys, json\n"
        "from rusty_r2.lm.engine import Engine\n"
        "from rusty_r2.lm.sampling import Sampling\n"
        "from rusty_r2.lm.shape import Shape, random_source\n"
        "engine = Engine.build(random_source(Shape(500, 64, 128, 512, 2)), weights='int8', threads=1)\n"
        "sampling = Sampling(0.8, 50, 0.95, seed=4)\n"
        "said = list(engine.generate([1, 5, 9], sampling=sampling, max_new_tokens=20))\n"
        "print(json.dumps([engine.backend, said, 'torch' in sys.modules]))\n"
    )
    environment = {**os.environ, "RUSTY_NATIVE": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    backend, said, torch_was_loaded = json.loads(done.stdout)
    engine = cpp(random_source(Shape(500, 64, 128, 512, 2)), "int8")
    sampling = Sampling(0.8, 50, 0.95, seed=4)
    assert backend == "NumPy"
    assert said == list(engine.generate([1, 5, 9], sampling=sampling, max_new_tokens=20)) and len(said) > 0
    assert not torch_was_loaded, "a chat must not wait for torch"
