# SPDX-License-Identifier: AGPL-3.0-or-later
"""The sizes of a TinyRWKVLM, and the names of its weights, read from the weights themselves (no torch)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from rusty_r2.errors import CheckpointError
from rusty_r2.lm.quantize import EMBEDDING, Arrays, Source

TOP_MATRICES = ("embed_proj.weight", "lm_head.weight")
TOP_VECTORS = (
    *("ln_in.weight", "ln_in.bias", "ln_out.weight", "ln_out.bias"),
    *("value_head.weight", "value_head.bias"),
)
LAYER_MATRICES = (
    *("attn.key.weight", "attn.value.weight", "attn.receptance.weight", "attn.output.weight"),
    *("ffn.key.weight", "ffn.receptance.weight", "ffn.value.weight"),
)
LAYER_VECTORS = (
    *("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias"),
    *("attn.time_mix_k", "attn.time_mix_v", "attn.time_mix_r", "ffn.time_mix_k", "ffn.time_mix_r"),
    *("attn.time_decay", "attn.time_first"),
)


@dataclass(frozen=True)
class Shape:
    words: int
    embed: int
    hidden: int
    inner: int
    layers: int

    @classmethod
    def of(cls, source: Source) -> Shape:
        """Measured on the weights; one that is missing or does not fit is named."""
        layers = len({name.split(".")[1] for name in source.names if name.startswith("blocks.")})
        needed = (EMBEDDING, "ln_in.weight", "blocks.0.ffn.key.weight")
        missing = [name for name in needed if name not in source.names]
        if missing:
            raise CheckpointError(f"these are not the weights of a TinyRWKVLM: {missing[0]} is missing")
        words, embed = source.size(EMBEDDING)
        (hidden,), inner = source.size("ln_in.weight"), source.size("blocks.0.ffn.key.weight")[0]
        shape = cls(words, embed, hidden, inner, layers)
        for name, size in shape.sizes().items():
            if name not in source.names or prod(source.size(name)) != prod(size):
                seen = source.size(name) if name in source.names else "missing"
                raise CheckpointError(
                    f"{name} should be {size}, and is {seen}: not the weights of a TinyRWKVLM"
                )
        return shape

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Every weight's name and size."""
        c, f = self.hidden, self.inner
        found: dict[str, tuple[int, ...]] = {EMBEDDING: (self.words, self.embed)}
        found |= {"embed_proj.weight": (c, self.embed), "lm_head.weight": (self.words, c)}
        found |= dict.fromkeys(TOP_VECTORS, (c,)) | {"value_head.weight": (1, c), "value_head.bias": (1,)}
        for layer in range(self.layers):
            block = f"blocks.{layer}."
            found |= {block + name: (c,) for name in LAYER_VECTORS}
            found |= {block + name: (c, c) for name in LAYER_MATRICES}
            found |= {block + "ffn.key.weight": (f, c), block + "ffn.value.weight": (c, f)}
        return found


def random_source(shape: Shape, seed: int = 0) -> Arrays:
    """Random weights in which everything is alive, decays of all strengths: for tests and benchmarks."""
    rng = np.random.default_rng(seed)
    return Arrays({name: _random(name, size, rng) for name, size in shape.sizes().items()}, {})


def _random(name: str, size: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    if name.endswith("time_decay"):
        return np.linspace(-5, 3, size[0], dtype=np.float32)
    if "time_mix" in name:
        return rng.random(size, np.float32)
    if ".ln" in name or name.startswith("ln_"):
        centre = 1.0 if name.endswith("weight") else 0.0
        return np.asarray(centre + 0.1 * rng.standard_normal(size), np.float32)
    spread = 1.0 if name == EMBEDDING else 1.5 / float(size[-1]) ** 0.5
    return np.asarray(rng.standard_normal(size, np.float32) * np.float32(spread))
