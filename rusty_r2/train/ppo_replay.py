# SPDX-License-Identifier: AGPL-3.0-or-later
"""Supervised rows beside those of the gym, so that PPO does not forget what it does not ask for.

    rusty data drills --gym 0 --output-dir kept
    rusty train ppo --init-checkpoint start --replay kept

Every step of the optimizer adds the loss of some of these rows to PPO's own (Ouyang et al. 2022,
arXiv:2203.02155, section 3.5). Which rows a step sees follows from its number alone, as everywhere; what a
hundredth of them, never learned from, loses is the sign of forgetting. What the rows may be is sources.py.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from rusty_r2.data.drills import is_drills, open_drills
from rusty_r2.errors import ConfigError
from rusty_r2.lm.rwkv import TinyRWKVLM
from rusty_r2.lm.tokenizer import Tokenizer
from rusty_r2.train.batches import Source, on_device, to_batch
from rusty_r2.train.distributed import World
from rusty_r2.train.ppo import PPOConfig
from rusty_r2.train.sources import Ask, open_data

LENGTH = 1024
"""tokens of a row, where the data does not say"""
HELD_OUT = 50_000
"""tokens that an evaluation reads, at most"""


class Replay:
    """Rows that a policy learned from before it played."""

    def __init__(self, config: PPOConfig, words: Path, device: str) -> None:
        path = config.replay
        if path is None or not path.exists():
            raise ConfigError(f"--replay {path} does not exist. Type: rusty data drills --output-dir {path}")
        self.device, self.rows = torch.device(device), range(config.replay_rows)
        length = open_drills(path, Tokenizer.load(words)).ids.shape[1] - 1 if is_drills(path) else LENGTH
        ask = Ask(length, config.replay_rows, config.seed, carry=False, eval_tokens=HELD_OUT)
        self.data, _ = open_data(path, words, World(self.device), ask)

    def loss(self, model: TinyRWKVLM, step: int) -> Tensor:
        """The mean loss of the rows of step 0, 1, …: nats a token that counts."""
        nll, count = self._nll(model, self.data.train, step, self.rows)
        return nll / max(1, count)

    @torch.no_grad()
    def held_out(self, model: TinyRWKVLM) -> dict[str, float]:
        """The same of rows that are never learned from, where there are any."""
        kept = self.data.held_out
        if kept is None:
            return {}
        found = [self._nll(model, kept.source, step, range(kept.rows)) for step in range(kept.steps)]
        return {"eval/replay": sum(float(nll) for nll, _ in found) / max(1, sum(count for _, count in found))}

    def _nll(self, model: TinyRWKVLM, source: Source, step: int, which: range) -> tuple[Tensor, int]:
        """Summed loss and how many targets count; as in supervised training, bf16 products on a GPU."""
        batch = to_batch(step, source.rows(step, which), pin=self.device.type == "cuda")
        batch = on_device(batch, self.device)
        mask = None if batch.whole else torch.from_numpy(batch.chosen).to(self.device)
        half = self.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half):
            nll, count, _ = model.loss(batch.ids, batch.targets, mask, reset=batch.reset)
        return nll, count
