"""Which type a file and each tensor gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rusty_r2.export.gguf import FILE_TYPES, GGUFExporter
from rusty_r2.export.quantize import CODES
from rusty_r2.export.types import (
    BLOCKS,
    MOSTLY,
    NAMES,
    Depth,
    GGUFQuantization,
    default_type,
    stored_bytes,
    tensor_type,
)


def test_tables_say_what_the_gguf_library_says():
    gguf = pytest.importorskip("gguf")
    for name, block in BLOCKS.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == block
    for name, code in CODES.items():
        assert gguf.GGMLQuantizationType[name] == code
    for name, number in FILE_TYPES.items():
        prefix = "ALL" if name == "F32" else "MOSTLY"
        assert gguf.LlamaFileType[f"{prefix}_{name}"] == number


def test_the_documents_table():
    kinds = GGUFQuantization.available()
    wanted = {"Q2_K": 2.5, "Q3_K_M": 3.5, "Q4_K_M": 4.5, "Q5_K_M": 5.5, "Q6_K": 6.5, "Q8_0": 8.0, "F16": 16.0}
    assert wanted.items() <= {name: kind.bits for name, kind in kinds.items()}.items()
    assert all(
        kind.name == name and kind.description and kind.recommended_for for name, kind in kinds.items()
    )
    assert set(kinds) == set(FILE_TYPES) == set(NAMES)


@pytest.mark.parametrize(
    ("ram", "name"),
    [
        (64, "Q8_0"),
        (32, "Q8_0"),
        (31, "Q6_K"),
        (16, "Q6_K"),
        (8, "Q4_K_M"),
        (4, "Q3_K_M"),
        (3.9, "Q2_K"),
        (0, "Q2_K"),
    ],
)
def test_the_documents_table_of_memory(ram, name):
    assert GGUFExporter("nowhere").get_recommended_quantization(ram) == name


def test_the_documents_default_memory():
    assert GGUFExporter("nowhere").get_recommended_quantization() == "Q4_K_M"


@pytest.mark.parametrize(
    ("weights", "ram", "name"),
    [
        (135e6, 8, "Q8_0"),
        (0.5e9, 4, "Q8_0"),
        (0.6e9, 8, "Q6_K"),
        (1.5e9, 16, "Q6_K"),
        (1.6e9, 64, "Q4_K_M"),
        (7e9, 16, "Q4_K_M"),
        (7e9, 7, "Q3_K_M"),  # four gigabytes of file do not belong into seven of memory
        (7e9, 3, "Q2_K"),
    ],
)
def test_the_default_follows_size_and_then_memory(weights, ram, name):
    assert default_type(weights, ram) == name


def test_the_mixture_of_q4_k_m_is_llama_cpps():
    depth = Depth(layers=32, queries_per_key=4, tied=False)
    kinds = [tensor_type(f"blk.{n}.ffn_down.weight", (4096, 11008), "Q4_K_M", depth).type for n in range(32)]
    more = [n for n, kind in enumerate(kinds) if kind == "Q6_K"]
    assert more == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    for name, kind in (
        ("output.weight", "Q6_K"),
        ("token_embd.weight", "Q4_K"),
        ("blk.5.attn_q.weight", "Q4_K"),
        ("blk.6.attn_v.weight", "Q6_K"),
        ("blk.5.attn_v.weight", "Q4_K"),
    ):
        assert tensor_type(name, (4096, 4096), "Q4_K_M", depth).type == kind
    assert tensor_type("blk.0.attn_norm.weight", (4096,), "Q4_K_M", depth).type == "F32"
    assert tensor_type("blk.0.attn_v.weight", (64, 4096), "Q2_K", depth).type == "Q4_K"
    alone = Depth(layers=32, queries_per_key=1, tied=True)
    assert tensor_type("blk.0.attn_v.weight", (64, 4096), "Q2_K", alone).type == "Q3_K"
    assert tensor_type("token_embd.weight", (64, 4096), "Q2_K", alone).type == "Q6_K"


def test_smollm2_weighs_what_llama_cpps_own_quantiser_makes_of_it():
    """llama_model_quantize makes files of 144.8 and 105.5 MB; 1.8 MB of each are the tokenizer."""
    depth = Depth(layers=30, queries_per_key=3, tied=True)
    shapes = {
        "attn_q": (576, 576), "attn_k": (192, 576), "attn_v": (192, 576), "attn_output": (576, 576),
        "ffn_gate": (1536, 576), "ffn_up": (1536, 576), "ffn_down": (576, 1536),
        "attn_norm": (576,), "ffn_norm": (576,),
    }  # fmt: skip
    named = {f"blk.{n}.{part}.weight": shape for n in range(30) for part, shape in shapes.items()}
    named |= {"token_embd.weight": (49152, 576), "output_norm.weight": (576,)}
    for quantization, megabytes in (("Q8_0", 143.0), ("Q4_K_M", 103.7)):
        chosen = {name: tensor_type(name, shape, quantization, depth) for name, shape in named.items()}
        size = sum(stored_bytes(named[name], choice.type) for name, choice in chosen.items())
        assert size / 1e6 == pytest.approx(megabytes, abs=0.1)
    assert sum(choice.fallback for choice in chosen.values()) == 181


@given(
    st.sampled_from(NAMES),
    st.sampled_from(
        ["token_embd", "output", "blk.0.attn_v", "blk.3.ffn_down", "blk.1.attn_output", "blk.2.attn_q"]
    ),
    st.integers(1, 2048),
    st.booleans(),
)
def test_a_row_always_divides_into_whole_blocks_and_a_fallback_is_told(quantization, part, row, tied):
    choice = tensor_type(f"{part}.weight", (8, row), quantization, Depth(4, 2, tied))
    assert row % BLOCKS[choice.type][0] == 0
    if quantization in MOSTLY:
        assert choice.fallback == (row % 256 != 0)
        assert choice.type.endswith("_K") != choice.fallback
    if quantization in ("F32", "F16", "BF16"):
        assert choice.type == quantization
        assert not choice.fallback
