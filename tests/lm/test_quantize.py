# SPDX-License-Identifier: AGPL-3.0-or-later
"""Small weights are near, small on disk and in memory, and the files are plain safetensors."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rusty_r2.errors import CheckpointError, ConfigError
from rusty_r2.lm import quantize, tensors
from rusty_r2.lm.engine import Engine
from rusty_r2.lm.engine_numpy import NumpyModel
from rusty_r2.lm.quantize import FORMATS, Folder, pack
from rusty_r2.lm.shape import Shape, random_source

SHAPE = Shape(words=300, embed=32, hidden=64, inner=256, layers=2)


@pytest.fixture
def folder(tmp_path):
    """A plain checkpoint folder, written with NumPy alone."""
    tensors.write(tmp_path / "model.safetensors", random_source(SHAPE).arrays, {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "rusty_rwkv", "vocab_size": 300}))
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 20), st.integers(1, 90), st.sampled_from(FORMATS), st.integers(0, 9), st.floats(1e-6, 1e3)
)
def test_every_weight_is_near(rows, columns, weights, seed, spread):
    w = (np.random.default_rng(seed).standard_t(4, (rows, columns)) * spread).astype(np.float32)
    near = pack(w, weights).dense()
    largest = np.abs(w).max(axis=1, keepdims=True)
    step = {"fp32": 0, "bf16": 2**-8, "fp16": 2**-10, "int8": 0.51 / 127, "int4": 0.51 / 7}[weights]
    tiny = 1e-7 if weights == "fp16" else 0.0
    error = np.abs(near - w)
    if weights == "int4":  # one weight may be clipped where that serves the other 31
        error = np.sqrt(np.square(error).mean(axis=1, keepdims=True))
    assert (error <= step * largest + tiny).all()


def test_a_weight_too_large_for_fp16_is_refused():
    with pytest.raises(ConfigError, match="fp16"):
        pack(np.full((1, 4), 1e5, np.float32), "fp16")


def test_int4_is_better_than_one_scale_for_32():
    """The search over multipliers beats rounding to the group's largest, and 4.25 bits a weight are 4.25."""
    w = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    matrix = pack(w, "int4")
    groups = w.reshape(64, -1, 32)
    scale = np.abs(groups).max(-1, keepdims=True) / 7
    plain = np.square(groups - np.rint(groups / scale) * scale).mean()
    assert np.square(matrix.dense() - w).mean() < 0.9 * plain
    assert np.abs(matrix.whole()).max() <= 120 and np.abs(matrix.times).max() <= 15
    assert matrix.data.min() >= -8 and matrix.data.max() <= 7


def test_zeros_and_lonely_giants_survive():
    w = np.zeros((9, 64), np.float32)
    w[1, 5], w[2, 63] = 1e6, -1e-6
    for weights in ("int8", "int4"):
        near = pack(w, weights).dense()
        assert np.isfinite(near).all() and np.allclose(near, w, rtol=1e-2)


@pytest.mark.parametrize(("weights", "share"), [("int8", 0.31), ("int4", 0.25)])
def test_a_quantised_folder_says_the_same_as_quantising_at_load(folder, tmp_path, weights, share):
    made = quantize.save(folder, tmp_path / "small", weights=weights)
    stored = made / f"model.{weights}.safetensors"
    assert stored.stat().st_size < share * (folder / "model.safetensors").stat().st_size
    assert (made / "tokenizer.json").read_text() == "{}" and Folder(made).stored == weights
    rows = [[1, 2, 3], [4]]
    plain = Engine(NumpyModel(Folder(folder), weights), backend="NumPy")
    small = Engine(NumpyModel(Folder(made), weights), backend="NumPy")
    ours, theirs = (engine.prefill(rows, engine.new_state(2)).logits for engine in (plain, small))
    assert np.array_equal(ours, theirs)
    assert Engine.load(made, threads=1).weights == weights
    assert Engine.load(folder, threads=1).weights == "int8"


def test_a_small_model_can_be_trained_further(folder, tmp_path):
    made = quantize.save(folder, tmp_path / "small")
    exact, near = quantize.arrays(folder), quantize.arrays(made)
    assert exact.keys() == near.keys()
    for name, array in exact.items():
        assert near[name].shape == array.shape and np.allclose(
            near[name], array, atol=np.abs(array).max() / 100
        )


def test_the_safetensors_library_reads_ours_and_we_read_its(folder, tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    source = random_source(SHAPE).arrays
    theirs = library.load_file(folder / "model.safetensors")
    assert theirs.keys() == source.keys() and all(np.array_equal(theirs[n], source[n]) for n in source)
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    numbers = {"a": torch.randn(3, 5).bfloat16(), "b": torch.arange(4, dtype=torch.int8)}
    save_file(numbers, tmp_path / "t.safetensors")
    file = tensors.TensorFile(tmp_path / "t.safetensors")
    assert np.array_equal(file.floats("a"), numbers["a"].float().numpy())
    assert np.array_equal(file.read("b"), [0, 1, 2, 3])


def test_bf16_rounds_like_torch():
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(tensors.widen(tensors.narrow(values)), expected)


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "header"])
def test_damaged_files_are_named(folder, damage):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    broken = {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "noise": b"\xff" * 64,
        "header": whole[:8] + b"[]" + whole[10:],
    }[damage]
    path.write_bytes(broken)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        Engine.load(folder)


def test_only_small_formats_are_folders(folder, tmp_path):
    with pytest.raises(ConfigError, match="int8 or int4"):
        quantize.save(folder, tmp_path / "small", weights="bf16")
