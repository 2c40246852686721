# SPDX-License-Identifier: AGPL-3.0-or-later
"""Random weights that behave like trained ones: every matrix alive, decays of all strengths."""

from __future__ import annotations

import numpy as np

from rusty_r2.lm.quantize import Arrays
from rusty_r2.lm.shape import Shape

SMALL = Shape(words=523, embed=48, hidden=96, inner=384, layers=2)
"""no power of two anywhere, so that padding is tested too"""


def random_source(shape: Shape = SMALL, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    arrays = {name: _random(name, size, rng) for name, size in shape.sizes().items()}
    return Arrays(arrays, {"vocab_size": shape.words})


def _random(name: str, size: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if name.endswith("time_decay"):
        return np.linspace(-5, 3, size[0], dtype=np.float32)
    if "time_mix" in name:
        return rng.uniform(0, 1, size).astype(np.float32)
    if ".ln" in name or name.startswith("ln_"):
        return (rng.normal(1, 0.1, size) if name.endswith("weight") else rng.normal(0, 0.1, size)).astype(
            np.float32
        )
    spread = 1.0 if name == "token_embedding.weight" else 1.5 / np.sqrt(size[-1])
    return (rng.normal(0, spread, size)).astype(np.float32)
