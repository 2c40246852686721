"""A patch leads from one 8-bit version to the next, bit for bit, or says in one line why it cannot."""

from __future__ import annotations

import json
import shutil
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rusty_r2.errors import CheckpointError, ConfigError
from rusty_r2.lm import patch, quantize, tensors
from rusty_r2.lm.engine import Engine
from rusty_r2.lm.engine_numpy import NumpyModel
from rusty_r2.lm.quantize import Folder
from rusty_r2.lm.shape import Shape, random_source

SHAPE = Shape(words=300, embed=32, hidden=64, inner=256, layers=1)


def version(folder, moved=0.0, shape=SHAPE):
    """An 8-bit folder of one model; `moved` by that share of every weight's size."""
    random = np.random.default_rng(1)
    arrays = random_source(shape).arrays
    arrays = {
        n: (a + moved * a.std() * random.standard_normal(a.shape)).astype("f4") for n, a in arrays.items()
    }
    plain = folder / "plain"
    plain.mkdir(parents=True)
    tensors.write(plain / "model.safetensors", arrays, {})
    (plain / "config.json").write_text(json.dumps({"model_type": "rusty_rwkv", "vocab_size": 300}))
    return quantize.save(plain, folder / "small")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The old folder, the new one, and the patch between them."""
    folder = tmp_path_factory.mktemp("versions")
    old, new = version(folder / "old"), version(folder / "new", moved=0.003)
    return old, new, patch.make(old, new, folder / patch.PATCH)


@pytest.fixture
def patched(made, tmp_path):
    """The old folder with the patch in it."""
    old, _, file = made
    folder = tmp_path / "patched"
    shutil.copytree(old, folder)
    shutil.copyfile(file, folder / patch.PATCH)
    return folder


def test_a_patched_folder_is_the_new_one(made, patched, tmp_path):
    old, new, file = made
    wanted = (new / patch.WEIGHTS).read_bytes()
    assert patch.apply(old / patch.WEIGHTS, file).tobytes() == wanted != (old / patch.WEIGHTS).read_bytes()
    assert len(file.read_bytes()) < 0.3 * len(wanted)
    ours, theirs = quantize.arrays(patched), quantize.arrays(new)
    assert ours.keys() == theirs.keys() and all(np.array_equal(ours[n], theirs[n]) for n in ours)
    said = []
    for folder in (patched, new, old):
        engine = Engine(NumpyModel(Folder(folder), "int8"), backend="NumPy")
        said.append(engine.prefill([[1, 2, 3]], engine.new_state(1)).logits)
    assert np.array_equal(said[0], said[1]) and not np.array_equal(said[0], said[2])
    again = quantize.save(patched, tmp_path / "again")
    assert all(np.allclose(a, theirs[n], rtol=1e-6) for n, a in quantize.arrays(again).items())


def test_training_goes_on_from_the_patched_weights(tmp_path):
    torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")
    from rusty_r2.lm import checkpoint
    from rusty_r2.lm.rwkv import ModelConfig, TinyRWKVLM

    model = TinyRWKVLM.of(ModelConfig(vocab_size=300, d_embed=32, d_hidden=64, n_layers=1))
    old = quantize.save(checkpoint.save(tmp_path / "old", model), tmp_path / "old8")
    with torch.no_grad():
        model.lm_head.weight += 0.001
    new = quantize.save(checkpoint.save(tmp_path / "new", model), tmp_path / "new8")
    patch.make(old, new, old / patch.PATCH)
    ours, theirs = (checkpoint.load(folder).state_dict() for folder in (old, new))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_new_weights_in_a_folder_take_its_patch_away(made, patched):
    quantize.save(patched, patched, weights="int4")
    assert (patched / patch.PATCH).exists(), "it belongs to the 8-bit weights"
    quantize.save(patched, patched)
    assert not (patched / patch.PATCH).exists()
    ours, theirs = quantize.arrays(patched), quantize.arrays(made[1])
    assert all(np.allclose(ours[name], theirs[name], rtol=1e-6) for name in ours)


@settings(max_examples=25)
@given(
    st.lists(st.integers(-128, 127), min_size=1, max_size=40),
    st.lists(st.sampled_from([-1, 0, 0, 0, 1]), min_size=1, max_size=40),
    st.sampled_from([1, 3, 4]),
)
def test_every_difference_comes_back(wild, tame, unit):
    change = np.array([*wild, *tame] if unit == 1 else [unit * n for n in tame], np.int8)
    packed = [patch._packed(change.astype(np.int16) // unit, unit, way) for way in range(len(patch.WAYS))]
    for stream in (patch._steps(change), *packed):
        values = np.arange(len(change), dtype=np.int8)
        expected = values + change
        patch._step(values, zlib.decompress(stream))
        assert np.array_equal(values, expected)


def test_in_steps_it_is_smaller_and_as_near_as_steps_allow(made, tmp_path):
    old, new = made[0], version(tmp_path / "new", moved=0.05)
    exact = patch.make(old, new, tmp_path / "exact")
    coarse = patch.make(old, new, tmp_path / patch.PATCH, step=4)
    assert coarse.stat().st_size < 0.7 * exact.stat().st_size
    content = patch.apply(old / patch.WEIGHTS, coarse)
    was, now = (tensors.TensorFile(old / patch.WEIGHTS, held) for held in (None, content))
    wanted = tensors.TensorFile(new / patch.WEIGHTS)
    moved = 0
    for name in was.names:
        if was.read(name).dtype != np.int8:
            meant = was if name.endswith(".scale") else wanted
            assert np.array_equal(now.read(name), meant.read(name))
            continue
        before, after = was.read(name).astype(int), now.read(name).astype(int)
        goal = wanted.read(name) * (wanted.read(f"{name}.scale") / was.read(f"{name}.scale"))[:, None]
        inside = np.abs(goal) < 123
        assert not ((after - before) % 4).any() and np.abs(after).max() <= 127
        assert np.abs(after - goal)[inside].max() <= 2.001
        moved += (after != before).sum()
    assert moved > 1000


@settings(max_examples=25)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20))
def test_every_float_comes_back(bits):
    change = np.array(bits, np.int32)
    assert np.array_equal(patch._from_bytes(patch._by_byte(change)), change)


@pytest.mark.parametrize("step", [-1, 33])
def test_a_step_that_leads_nowhere_is_refused(made, tmp_path, step):
    with pytest.raises(ConfigError, match=f"not {step}"):
        patch.make(made[0], made[1], tmp_path / "none", step=step)
    assert not (tmp_path / "none").exists()


def test_other_weights_and_other_shapes_are_refused(made, patched, tmp_path):
    other = version(tmp_path / "other", moved=0.5)
    shutil.copyfile(other / patch.WEIGHTS, patched / patch.WEIGHTS)
    with pytest.raises(CheckpointError, match="made for other weights") as said:
        Folder(patched)
    assert "\n" not in str(said.value)
    wide = version(tmp_path / "wide", shape=Shape(words=300, embed=32, hidden=64, inner=512, layers=1))
    with pytest.raises(CheckpointError, match="different shapes"):
        patch.make(made[0], wide, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_no_damage_goes_unseen(patched):
    """A byte changed anywhere, in the header or in a stream, and every cut: one line, never other weights."""
    file = patched / patch.PATCH
    whole = file.read_bytes()
    header = int.from_bytes(whole[:8], "little") + 8
    random = np.random.default_rng(0)
    places = [*range(0, header, 97), whole.index(b'"new"') + 9, *random.integers(header, len(whole), 30)]
    broken = [whole[:at] + bytes([whole[at] ^ 1 << at % 7]) + whole[at + 1 :] for at in places]
    for content in [
        *broken,
        *(whole[:end] for end in (0, 5, header - 1, header, len(whole) // 2, len(whole) - 1)),
    ]:
        file.write_bytes(content)
        try:
            found = Folder(patched)
        except CheckpointError as error:
            assert str(file) in str(error) and "\n" not in str(error)
        else:  # the word that names the format, or a space
            assert patch._digest(found.file.content()) in whole.decode("latin-1")
