# SPDX-License-Identifier: AGPL-3.0-or-later
"""A real `Trainer` on random rows, for benchmarks/gpu.py: a run without data and folder."""

from __future__ import annotations

import numpy as np
import torch

from rusty_r2.data.shards import Rows
from rusty_r2.lm.rwkv import PRESETS, TinyRWKVLM
from rusty_r2.train.distributed import World
from rusty_r2.train.loop import Trainer
from rusty_r2.train.optim import Descent, groups, optimizer
from rusty_r2.train.progress import Progress


class Noise:
    """Random rows, every token supervised, a few documents in each."""

    def __init__(self, words: int, length: int) -> None:
        self._words, self._length = words, length

    def rows(self, step: int, which: range) -> Rows:
        chance = np.random.default_rng(step)
        ids = chance.integers(0, self._words, (len(which), self._length + 1)).astype(np.int32)
        reset = chance.random((len(which), self._length)) < 0.004
        return Rows(ids[:, :-1], ids[:, 1:], np.ones_like(reset), reset)


def trainer_of(preset: str, rows: int, length: int, *, device: str, record: bool) -> Trainer:
    torch.manual_seed(0)
    model = TinyRWKVLM.of(PRESETS[preset]).to(device).train()
    model.value_head.requires_grad_(False)
    return Trainer(
        model=model,
        trunk=model.trunk,
        source=Noise(model.config.vocab_size, length),
        descent=Descent(optimizer("adamw", groups(model, weight_decay=0.1))),
        world=World(torch.device(device)),
        progress=Progress(1000, quiet=True),
        rows=rows,
        micro=rows,
        max_steps=100_000,
        rate=lambda step: 1e-4,
        autocast=torch.bfloat16 if device == "cuda" else None,
        record=record,
    )
