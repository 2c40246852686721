"""ggml's kernels: what comes out is what goes in, within the type's error."""

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest

from rusty_r2.errors import ConfigError, DataError, MissingExtra
from rusty_r2.export import quantize
from rusty_r2.export.contents import ROW_ERROR
from rusty_r2.export.types import BLOCKS
from rusty_r2.lm.tensors import narrow, widen

gguf = pytest.importorskip("gguf", reason="pip install 'rusty-r2[export]'")
pytest.importorskip("xllamacpp", reason="pip install 'rusty-r2[export]'")


def weights(rows=12, columns=512, seed=0):
    return np.random.default_rng(seed).normal(0, 0.05, (rows, columns)).astype(np.float32)


def unpacked(packed, kind, shape):
    return gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[kind]).reshape(shape)


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_type_gives_the_rows_back_within_its_bound(kind):
    x = weights()
    back = unpacked(quantize.pack(x, kind), kind, x.shape)
    error = np.linalg.norm(x - back, axis=1) / np.linalg.norm(x, axis=1)
    assert error.max() <= ROW_ERROR[kind]
    if kind != "F32":
        assert error.min() > 0


def test_more_bits_are_nearer():
    x = weights()
    order = ["F32", "F16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K"]
    errors = [float(np.linalg.norm(x - unpacked(quantize.pack(x, kind), kind, x.shape))) for kind in order]
    assert errors == sorted(errors)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "F16"])
def test_pieces_and_threads_change_nothing(kind, monkeypatch):
    x = weights(rows=33)
    whole = quantize.pack(x, kind)
    monkeypatch.setattr(quantize, "PIECE", 4 * 512)
    told = []
    assert np.array_equal(quantize.pack(x, kind, threads=3, done=told.append), whole)
    assert sum(told) == x.size
    assert len(told) > 3


def test_bf16_and_half_sources_are_read_as_what_they_are():
    x = weights()
    bits = narrow(x)
    assert np.array_equal(quantize.pack(bits, "Q8_0"), quantize.pack(widen(bits), "Q8_0"))
    half = x.astype(np.float16)
    assert np.array_equal(quantize.pack(half, "F16").view(np.float16), half)
    assert np.array_equal(quantize.pack(bits, "BF16").view(np.uint16), bits)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["Q4_K", "F16", "F32"])
def test_numbers_that_are_none_are_refused(bad, kind):
    x = weights()
    x[3, 7] = bad
    with pytest.raises(DataError, match="blk.0 holds numbers that are not finite"):
        quantize.pack(x, kind, name="blk.0")


def test_numbers_beyond_half_precision_are_refused():
    x = weights()
    x[0, 0] = 1e6
    with pytest.raises(DataError, match="--quantization BF16"):
        quantize.pack(x, "F16")
    assert np.isfinite(quantize.floats(quantize.pack(x, "BF16").view(np.uint16))).all()


def test_a_library_without_the_kernels_is_named_in_one_line(tmp_path):
    numpy_folder = Path(np.__file__).parent
    other = next(numpy_folder.rglob("_multiarray_umath*.so"))
    shutil.copy(other, tmp_path / "libggml-base.so")
    with pytest.raises(MissingExtra, match="has no ggml_quantize_init.*pip install"):
        quantize.kernels(tmp_path)


def test_a_llama_cpp_build_of_the_users_own_is_used(tmp_path):
    (folder,) = importlib.util.find_spec("xllamacpp").submodule_search_locations
    built = tmp_path / "build" / "bin" / "libggml-base.so"
    built.parent.mkdir(parents=True)
    shutil.copy(next(Path(folder).glob("*.so")), built)
    library = quantize.kernels(tmp_path)
    assert library._name == str(built)
    x = weights()
    assert np.array_equal(quantize.pack(x, "Q4_K", library=library), quantize.pack(x, "Q4_K"))
    with pytest.raises(ConfigError, match="holds no libggml-base"):
        quantize.kernels(tmp_path / "build" / "nothing")
