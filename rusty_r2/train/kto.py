# SPDX-License-Identifier: AGPL-3.0-or-later
"""KTO: learn from completions that were good or bad, one at a time, no pairs needed.

    rusty data kto --output kto.jsonl
    rusty train kto --data kto.jsonl --base-model smollm2

Ethayarajh et al., "KTO: Model Alignment as Prospect Theoretic Optimization", 2024. With r = log p(y|x) -
log p_base(y|x) and z the mean r of completions put after a neighbour's prompt (not below 0), a good row
loses 1 - sigmoid(beta (r - z)), a bad one 1 - sigmoid(beta (z - r)). The base is the model with its
adapter off. Weights make good and bad rows pull alike where there are more of one.
This page is what is special about KTO; tuning.py does the rest.
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
    from rusty_r2.train.before_after import Comparison, Scores


@dataclass(frozen=True, kw_only=True)
class KTOConfig(TuningOptions):
    """Train on good and bad completions."""

    beta: float = 0.1
    """how closely the result keeps to the base: higher is closer"""
    desirable_weight: float = 0.0
    """of good rows; 0: 1, or more where there are fewer of them"""
    undesirable_weight: float = 0.0
    """of bad rows; 0: 1, or more where there are fewer of them"""
    loss: Literal["kto", "apo_zero_unpaired"] = "kto"
    """apo_zero_unpaired has no z: two thirds of the time, and exact on several processes"""


class KTO:
    """What is special about KTO."""

    name = "kto"
    least = 2  # one row has no neighbour to be paired with

    def __init__(self, config: KTOConfig) -> None:
        self.config = config
        self.passes = 5.0 if config.loss == "kto" else 3.0

    def check(self, rows: Sequence[Row], path: Path) -> None:
        good = sum(row["label"] for row in rows)
        if not 0 < good < len(rows):
            word = "no row is left to learn from" if not rows else f"every row is {'good' if good else 'bad'}"
            raise DataError(
                f"{path}: {word}, and KTO needs both kinds. Type: rusty trace label, or rusty train sft"
            )
        self.good = good

    def texts(self, row: Row) -> list[tuple[room.Text, room.Text]]:
        return [(row["prompt"], row["completion"])]

    def columns(self, row: Row, said: Sequence[Said]) -> Row:
        words = {"prompt": turns(row["prompt"]), "completion": turns(row["completion"])}
        return {**words, "label": row["label"], "own": [said[0].own]}

    def weights(self, labels: Sequence[bool]) -> tuple[float, float]:
        """Of good and bad rows: those given, else such that both kinds pull alike."""
        good, bad = labels.count(True), labels.count(False)
        less = min(good, bad) or 1
        given = self.config.desirable_weight, self.config.undesirable_weight
        if any(given):
            return given[0] or 1.0, given[1] or 1.0
        return bad / less if good == less else 1.0, good / less if bad == less else 1.0

    def trainer(self, **parts: Any) -> Any:
        import trl

        from rusty_r2.train.collators import unpaired

        good, bad = self.weights(list(parts["dataset"]["label"]))
        arguments = trl.KTOConfig(
            **parts["arguments"],
            beta=self.config.beta,
            desirable_weight=good,
            undesirable_weight=bad,
            loss_type=self.config.loss,
            remove_unused_columns=False,
        )
        return trl.KTOTrainer(
            model=parts["model"],
            args=arguments,
            train_dataset=parts["dataset"],
            processing_class=parts["tokenizer"],
            peft_config=parts["lora"],
            data_collator=unpaired(parts["tokenizer"], self.config.max_length),
        )

    def compare(self, rows: Sequence[Row], before: Scores, after: Scores, held_out: bool) -> Comparison:
        from rusty_r2.train import before_after as seen

        kinds = [[at for at, row in enumerate(rows) if row["label"] is label] for label in (True, False)]
        if not all(kinds):  # held-out rows of one kind: how likely they are is all there is to say
            sign = "good" if kinds[0] else "bad"
            lower = [f"loss of {sign} rows"] if kinds[0] else []
            only = [kinds[0] or kinds[1]]
            return seen.compare(
                {f"loss of {sign} rows": seen.loss}, before, after, only, lower=lower, held_out=held_out
            )
        measures = {"margin": seen.margin, "accuracy": seen.accuracy, "loss of good rows": seen.loss}
        return seen.compare(measures, before, after, kinds, lower=["loss of good rows"], held_out=held_out)


def train(config: KTOConfig) -> Path | str:
    """Train on good and bad completions, and return the run's folder."""
    return tune(config, KTO(config))
