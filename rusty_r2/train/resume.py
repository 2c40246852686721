# SPDX-License-Identifier: AGPL-3.0-or-later
"""Stopping and going on as if never stopped: what a checkpoint keeps besides the model.

    step_000200/
      …                     model, config and tokenizer (lm/checkpoint.py): all that using it needs
      trainer.safetensors   the optimizer's moments by parameter name, counters, random state, carried memory
      trainer.json          the step, the tokens seen, and what must not change between the two tries

Tensors and JSON only: loading runs nothing, and a run begun on a CPU goes on on a GPU, or on another
number of processes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rusty_r2.errors import CheckpointError, ConfigError, need
from rusty_r2.train.loop import Trainer

TENSORS = "trainer.safetensors"
FACTS = "trainer.json"
ROWS = 2
"""the dimension of a carried state that counts rows"""


def save(trainer: Trainer, folder: Path, *, carried: Tensor | None, facts: dict[str, Any]) -> None:
    """Write the trainer's part of a checkpoint. `carried` is what all processes' rows remember."""
    tensors = trainer.descent.tensors(trainer.model)
    tensors |= {"trainer/window": trainer.window.clone(), "trainer/random": torch.get_rng_state()}
    if carried is not None:
        tensors["trainer/carried"] = carried
    on_cpu = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    need("safetensors.torch", extra="train").save_file(on_cpu, folder / TENSORS)
    known = {"step": trainer.step, "tokens": trainer.tokens, "rows": trainer.rows, **facts}
    (folder / FACTS).write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


def restore(trainer: Trainer, folder: Path, *, facts: dict[str, Any]) -> None:
    """Put a fresh trainer where the one that wrote `folder` was; what must agree is compared first."""
    known = read(folder)
    for key, now in {"rows": trainer.rows, **facts}.items():
        if known.get(key) != now:
            raise ConfigError(
                f"{folder} cannot be resumed: its {key} was {known.get(key)!a} and is {now!a} now. "
                "Repeat it, or start in another folder"
            )
    tensors = need("safetensors.torch", extra="train").load_file(folder / TENSORS)
    own = {name: tensors.pop(f"trainer/{name}", None) for name in ("window", "random", "carried")}
    trainer.descent.restore(trainer.model, tensors)
    trainer.window.copy_(own["window"])
    torch.set_rng_state(own["random"])
    if trainer.carried is not None and own["carried"] is not None:
        mine = trainer.world.share(trainer.rows)
        trainer.carried.copy_(own["carried"].narrow(ROWS, mine.start, len(mine)))
    trainer.begin_at(known["step"], known["tokens"])


def read(folder: Path) -> dict[str, Any]:
    """The facts of a checkpoint that can be resumed."""
    try:
        facts: dict[str, Any] = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder} holds no training to resume ({error}). Start from its weights: --init {folder}"
        ) from error
    return facts
