# SPDX-License-Identifier: AGPL-3.0-or-later
"""The types of a GGUF file: what each costs, which suits a model and a machine, and which tensor gets what.

    GGUFQuantization.available()["Q4_K_M"].bits      # 4.5
    default_type(135e6, ram_gb=8)                    # "Q8_0"

A name like Q4_K_M is a mixture: most matrices are Q4_K, those that hurt most get Q6_K. `tensor_type` gives
each tensor what llama.cpp's own quantiser would. K types pack rows of 256: a matrix with another row length
falls back to a larger type, and `Choice.fallback` says so. Nothing here needs a library.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q5_1": (32, 24),
    "Q5_0": (32, 22),
    "Q4_0": (32, 18),
    "Q6_K": (256, 210),
    "Q5_K": (256, 176),
    "Q4_K": (256, 144),
    "Q3_K": (256, 110),
    "Q2_K": (256, 84),
}
"""type of a tensor → weights in a block, bytes of a block"""
MOSTLY = {"Q2_K": "Q2_K", "Q3_K_M": "Q3_K", "Q4_K_M": "Q4_K", "Q5_K_M": "Q5_K", "Q6_K": "Q6_K"}
"""the K mixtures and the type that most of their matrices get"""
FALLBACK = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""what llama.cpp takes where a row is not a multiple of 256"""
BY_RAM = ((32.0, "Q8_0"), (16.0, "Q6_K"), (8.0, "Q4_K_M"), (4.0, "Q3_K_M"), (0.0, "Q2_K"))
"""gigabytes of memory, and the type that suits a large model there"""
BY_SIZE = ((0.5e9, "Q8_0"), (1.5e9, "Q6_K"), (float("inf"), "Q4_K_M"))
"""up to so many weights, this type: a small model has little to spare and gains little by being smaller"""


@dataclass(frozen=True)
class GGUFQuantization:
    """A type that a model can be exported as."""

    name: str
    description: str
    bits: float
    """bits a weight, nominally; `Written.bits_per_weight` is what a file really has"""
    recommended_for: str

    @staticmethod
    def available() -> dict[str, GGUFQuantization]:
        """By name, smallest first."""
        return {found.name: found for found in _AVAILABLE}


_AVAILABLE = (
    GGUFQuantization("Q2_K", "2-bit, much is lost", 2.5, "very limited RAM"),
    GGUFQuantization("Q3_K_M", "3-bit mixture", 3.5, "4 GB of RAM"),
    GGUFQuantization("Q4_K_M", "4-bit mixture", 4.5, "general use, models above 1.5B"),
    GGUFQuantization("Q5_K_M", "5-bit mixture", 5.5, "a little better than Q4_K_M"),
    GGUFQuantization("Q6_K", "6-bit, close to the original", 6.5, "models of 0.5B to 1.5B"),
    GGUFQuantization(
        "Q8_0", "8-bit, hardly to be told from the original", 8.0, "small models, maximum quality"
    ),
    GGUFQuantization("F16", "half precision", 16.0, "a source for other tools"),
    GGUFQuantization("BF16", "half precision with the range of float32", 16.0, "models trained in bf16"),
    GGUFQuantization("F32", "as trained", 32.0, "checks"),
)
NAMES = tuple(GGUFQuantization.available())


@dataclass(frozen=True)
class Choice:
    """The type of one tensor."""

    type: str
    fallback: bool = False
    """the row length forbids the type that was meant"""


@dataclass(frozen=True)
class Depth:
    """What the mixture asks about a model."""

    layers: int
    queries_per_key: int
    """query heads that share one key head"""
    tied: bool
    """the embedding is the output matrix too"""


def by_ram(available_ram_gb: float) -> str:
    """The document's table."""
    return next(name for at_least, name in BY_RAM if available_ram_gb >= at_least)


def default_type(parameters: float, ram_gb: float) -> str:
    """By size; smaller where such a file would take more than half of the memory."""
    wanted = next(name for up_to, name in BY_SIZE if parameters <= up_to)
    kinds = GGUFQuantization.available()
    if parameters * kinds[wanted].bits / 8 <= ram_gb * 1e9 / 2:
        return wanted
    return min(wanted, by_ram(ram_gb), key=lambda name: kinds[name].bits)


def stored_bytes(shape: tuple[int, ...], kind: str) -> int:
    """What a tensor takes in a file."""
    weights, size = BLOCKS[kind]
    count = 1
    for length in shape:
        count *= length
    return count // weights * size


def tensor_type(name: str, shape: tuple[int, ...], quantization: str, depth: Depth) -> Choice:
    """The type of tensor `name` (in GGUF's words) in a file of `quantization`."""
    if len(shape) < 2:
        return Choice("F32")
    if quantization in ("F32", "F16", "BF16"):
        return Choice(quantization)
    meant = "Q8_0" if quantization == "Q8_0" else _mixed(name, quantization, depth)
    row = shape[-1]
    if row % BLOCKS[meant][0] == 0:
        return Choice(meant)
    # llama.cpp is generous to the output matrix, and keeps F16 where not even 32 divides the row
    smaller = "Q8_0" if _is_output(name, depth) else FALLBACK.get(meant, meant)
    return Choice(smaller if row % BLOCKS[smaller][0] == 0 else "F16", fallback=True)


def _is_output(name: str, depth: Depth) -> bool:
    return name == "output.weight" or (depth.tied and name == "token_embd.weight")


def _mixed(name: str, quantization: str, depth: Depth) -> str:
    """llama.cpp's mixture of K types for dense models."""
    if _is_output(name, depth):
        return "Q6_K"
    base = MOSTLY[quantization]
    layer, part = _place(name)
    if part == "attn_v":
        return _attn_v(quantization, layer, depth)
    if part == "ffn_down":
        return _ffn_down(quantization, layer, depth.layers)
    if part == "attn_output":
        return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K"}.get(quantization, base)
    return base


def _place(name: str) -> tuple[int, str]:
    words = name.split(".")
    return (int(words[1]), words[2]) if words[0] == "blk" else (-1, words[0])


def _attn_v(quantization: str, layer: int, depth: Depth) -> str:
    if quantization == "Q2_K":
        return "Q4_K" if depth.queries_per_key >= 4 else "Q3_K"
    if quantization == "Q3_K_M":
        return "Q5_K" if layer < 2 else "Q4_K"
    return "Q6_K" if _deserves_more(layer, depth.layers) else MOSTLY[quantization]


def _ffn_down(quantization: str, layer: int, layers: int) -> str:
    if quantization == "Q2_K":
        return "Q3_K"
    if quantization == "Q3_K_M":
        return "Q5_K" if layer < layers // 16 else "Q4_K"
    return "Q6_K" if _deserves_more(layer, layers) else MOSTLY[quantization]


def _deserves_more(layer: int, layers: int) -> bool:
    """The first and the last eighth of the layers, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
