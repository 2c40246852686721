# SPDX-License-Identifier: AGPL-3.0-or-later
"""DPO: learn from pairs, the better and the worse answer to one prompt.

    rusty data dpo --output dpo.jsonl
    rusty train dpo --data dpo.jsonl --base-model smollm2

Rafailov et al., "Direct Preference Optimization", 2023. With r = log p(y|x) - log p_base(y|x) of each
answer, a pair loses -log sigmoid(beta (r_chosen - r_rejected)). The base is the model with its adapter off.
This page is what is special about DPO; tuning.py does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rusty_r2.data import rows as room
from rusty_r2.errors import DataError
from rusty_r2.train.encoded import Row, Said, turns
from rusty_r2.train.tuning import TuningOptions, tune

if TYPE_CHECKING:
    from rusty_r2.train.before_after import Comparison, Drawn, Scores


@dataclass(frozen=True, kw_only=True)
class DPOConfig(TuningOptions):
    """Train on pairs of a better and a worse answer."""

    beta: float = 0.1
    """how closely the result keeps to the base: higher is closer"""
    loss: Literal["sigmoid", "ipo", "hinge", "robust", "apo_zero"] = "sigmoid"
    """what a pair loses"""


class DPO:
    """What is special about DPO."""

    name = "dpo"
    least = 1
    passes = 3.0

    def __init__(self, config: DPOConfig) -> None:
        self.config = config

    def check(self, rows: Sequence[Row], path: Path) -> None:
        if not rows:
            raise DataError(f"{path}: no pair is left to learn from. Type: rusty data dpo --margin 0.05")
        if "prompt" not in rows[0]:
            raise DataError(f"{path}: the pairs have no prompt. Type: rusty data validate {path} --kind dpo")

    def texts(self, row: Row) -> list[tuple[room.Text, room.Text]]:
        return [(row["prompt"], row["chosen"]), (row["prompt"], row["rejected"])]

    def columns(self, row: Row, said: Sequence[Said]) -> Row:
        words = {name: turns(row[name]) for name in ("prompt", "chosen", "rejected")}
        return {**words, "own": [one.own for one in said]}

    def trainer(self, **parts: Any) -> Any:
        import trl

        from rusty_r2.train.collators import paired

        arguments = trl.DPOConfig(
            **parts["arguments"],
            beta=self.config.beta,
            loss_type=[self.config.loss],
            remove_unused_columns=False,
        )
        return trl.DPOTrainer(
            model=parts["model"],
            args=arguments,
            train_dataset=parts["dataset"],
            processing_class=parts["tokenizer"],
            peft_config=parts["lora"],
            data_collator=paired(parts["tokenizer"], self.config.max_length),
        )

    def compare(self, rows: Sequence[Row], before: Scores, after: Scores, held_out: bool) -> Comparison:
        from rusty_r2.train import before_after as seen

        measures = {"margin": margin, "accuracy": accuracy, "loss of chosen": seen.loss}
        pairs = [list(range(len(rows)))]
        return seen.compare(measures, before, after, pairs, lower=["loss of chosen"], held_out=held_out)


def margin(scores: Scores, drawn: Drawn) -> float:
    """Nats a token by which the better answers are likelier than the worse ones."""
    return float(_ahead(scores, drawn).mean())


def accuracy(scores: Scores, drawn: Drawn) -> float:
    """Pairs in which the better answer is the likelier one."""
    ahead = _ahead(scores, drawn)
    return float(((ahead > 0) + 0.5 * (ahead == 0)).mean())


def _ahead(scores: Scores, drawn: Drawn) -> Any:
    half = len(scores.logp) // 2
    return scores.mean[drawn[0]] - scores.mean[drawn[0] + half]


def train(config: DPOConfig) -> Path | str:
    """Train on pairs, and return the run's folder."""
    return tune(config, DPO(config))
