# SPDX-License-Identifier: AGPL-3.0-or-later
"""Batches for TRL in which only the model's own words are learned.

TRL's preference trainers learn everything after the prompt. Rows of several turns hold tool answers there;
each row carries its `own` masks (encoded.py), and these collators lay them over TRL's completion masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from trl.trainer.dpo_trainer import DataCollatorForPreference
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

from rusty_r2.errors import DataError

Rows = list[dict[str, Any]]


class OwnWords(DataCollatorForUnpairedPreference):  # type: ignore[misc]
    """KTO's batch: a row's own mask, and for the pairs that measure z the neighbour's."""

    def torch_call(self, examples: Rows) -> dict[str, Any]:
        out: dict[str, Any] = super().torch_call(examples)
        own = [example["own"][0] for example in examples]
        _lay_over(out["completion_mask"], examples, "completion_ids", own)
        if "KL_completion_mask" in out:  # TRL gives each row the completion of the one before it
            _lay_over(out["KL_completion_mask"], examples, "KL_completion_ids", own[-1:] + own[:-1])
        return out


class OwnPairs(DataCollatorForPreference):  # type: ignore[misc]
    """DPO's batch: all better answers, then all worse ones."""

    def torch_call(self, examples: Rows) -> dict[str, Any]:
        out: dict[str, Any] = super().torch_call(examples)
        half = len(examples)
        for side, name in enumerate(("chosen_ids", "rejected_ids")):
            mask = out["completion_mask"][side * half : (side + 1) * half]
            _lay_over(mask, examples, name, [example["own"][side] for example in examples])
        return out


def unpaired(tokenizer: Any, max_length: int) -> OwnWords:
    return OwnWords(pad_token_id=tokenizer.pad_token_id, max_length=max_length)


def paired(tokenizer: Any, max_length: int) -> OwnPairs:
    return OwnPairs(pad_token_id=tokenizer.pad_token_id, max_length=max_length)


def _lay_over(mask: Tensor, examples: Rows, name: str, own: Sequence[Sequence[bool]]) -> None:
    """Switch off, in place, what is not the model's own."""
    for row, (example, words) in enumerate(zip(examples, own, strict=True)):
        start, count = len(example["prompt_ids"]), len(example[name])
        if count != len(words):
            raise DataError(
                f"a row has {count} tokens for the trainer and {len(words)} for us: a template that differs"
            )
        room = mask.shape[1] - start
        mask[row, start : start + count] *= torch.tensor(words[:room], dtype=mask.dtype)[: max(0, room)]
