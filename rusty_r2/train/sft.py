# SPDX-License-Identifier: AGPL-3.0-or-later
"""SFT: imitate good completions, as a warm start for a borrowed mind.

    rusty data sft --output sft.jsonl
    rusty train sft --data sft.jsonl --base-model smollm2

The loss is -log p of every token the assistant itself said; the prompt and what tools answered are only
read. (`rusty train supervised` is the same for our own RWKV, from nothing.) This page is what is special
about SFT; tuning.py does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rusty_r2.data import rows as room
from rusty_r2.errors import DataError
from rusty_r2.train.encoded import Row, Said
from rusty_r2.train.tuning import TuningOptions, tune

if TYPE_CHECKING:
    from rusty_r2.train.before_after import Comparison, Scores


@dataclass(frozen=True, kw_only=True)
class SFTConfig(TuningOptions):
    """Train on completions to imitate."""

    learning_rate: float = 1e-4
    """the highest learning rate"""


class SFT:
    """What is special about SFT."""

    name = "sft"
    least = 1
    passes = 2.0

    def check(self, rows: Sequence[Row], path: Path) -> None:
        if not rows:
            raise DataError(f"{path}: no row is left to learn from. Type: rusty data sft --threshold 0.6")

    def texts(self, row: Row) -> list[tuple[room.Text, room.Text]]:
        if "messages" not in row:
            return [(row["prompt"], row["completion"])]
        said = row["messages"]
        first = next(at for at, turn in enumerate(said) if turn["role"] == "assistant")
        return [(said[:first], said[first:])]

    def columns(self, row: Row, said: Sequence[Said]) -> Row:
        (one,) = said
        learned = [word if own else -100 for word, own in zip(one.completion, one.own, strict=True)]
        return {"input_ids": one.prompt + one.completion, "labels": [-100] * len(one.prompt) + learned}

    def trainer(self, **parts: Any) -> Any:
        import trl

        return trl.SFTTrainer(
            model=parts["model"],
            args=trl.SFTConfig(**parts["arguments"]),
            train_dataset=parts["dataset"],
            processing_class=parts["tokenizer"],
            peft_config=parts["lora"],
        )

    def compare(self, rows: Sequence[Row], before: Scores, after: Scores, held_out: bool) -> Comparison:
        from rusty_r2.train import before_after as seen

        measures = {"loss": seen.loss, "token accuracy": seen.token_accuracy}
        return seen.compare(
            measures, before, after, [list(range(len(rows)))], lower=["loss"], held_out=held_out
        )


def train(config: SFTConfig) -> Path | str:
    """Train on completions to imitate, and return the run's folder."""
    return tune(config, SFT())
