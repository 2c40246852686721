# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a checkpoint of PPO keeps besides the model: all that a resumed run needs to be the same run.

    step_000010/
      …                       model, config and tokenizer (lm/checkpoint.py): all that using it needs
      optimizer.safetensors   the optimizer's moments by parameter name, and its counters
      ppo.json                the round, the curriculum, the best score, which rows are replayed

With the seed in the options that is everything, bit for bit on a CPU. Sampling has no hidden state: a
token's chance follows from the seed, the episode's number and the token's place. Supervised training has
resume.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rusty_r2.errors import CheckpointError, ConfigError, need

if TYPE_CHECKING:
    from rusty_r2.train.ppo_run import Training

STATE = "ppo.json"
MOMENTS = "optimizer.safetensors"


def save(training: Training, folder: Path) -> None:
    """Write the run's part of a checkpoint."""
    moments = {name: tensor.cpu() for name, tensor in training.descent.tensors(training.model).items()}
    need("safetensors.torch", extra="train").save_file(moments, folder / MOMENTS)
    state = {
        "done": training.done,
        "best": training.best,
        "first": training.first_score,
        "examined": training.examined,
        "replay": _replayed(training),
        "curriculum": training.curriculum.state_dict(),
    }
    (folder / STATE).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")


def restore(training: Training, folder: Path) -> None:
    """Put a run that has just begun where the one that wrote `folder` was."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder} is not a PPO checkpoint. Start from it: --init-checkpoint"
        ) from error
    if (known := state.get("replay", "")) != (now := _replayed(training)):
        raise ConfigError(
            f"{folder} cannot be resumed: its replay was {known!a} and is {now!a} now. "
            "Name the same --replay, or start in another folder"
        )
    training.done, training.best, training.first_score = state["done"], state["best"], state["first"]
    training.examined = state.get("examined", 0.0)
    training.curriculum.load_state_dict(state["curriculum"])
    moments = need("safetensors.torch", extra="train").load_file(folder / MOMENTS)
    training.descent.restore(training.model, moments)


def _replayed(training: Training) -> str:
    return "" if training.replay is None else training.replay.data.fingerprint
