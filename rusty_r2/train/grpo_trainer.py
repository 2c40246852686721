# SPDX-License-Identifier: AGPL-3.0-or-later
"""TRL's GRPO trainer with three things put right: what is left out, what was recorded, what teaches nothing.

* A completion whose reward is None (the sandbox broke) is left out of the loss and of its normalisation,
  not only of the group's mean.
* Log-probabilities that came with a rollout are the denominator of the importance ratio, so that words of an
  older or another policy count for what they are. Where they are unknown (NaN) the ratio begins at 1.
* Groups whose completions were all paid the same teach nothing; `Watch` counts them and stops a run that only
  has such groups, or whose model never speaks the protocol, with a sentence.

The loss itself (Shao et al. 2024, arXiv:2402.03300; token-level normalisation of DAPO, arXiv:2503.14476) is
TRL's. Private methods of TRL are overridden, which is why its version is pinned; tests/train/test_replay.py
holds a step's loss against a computation by hand.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from rusty_r2 import files
from rusty_r2.train.lora import TARGETS

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
from trl import GRPOTrainer

FLAT = 1e-6
"""rewards closer together than this are the same"""
SMALL = 1 << 26
"""numbers of logits that may be held at once; more are worked out in tiles, TRL's way"""
WATCHED = "watch.json"
SEEN = ("groups", "flat", "left_out", "_flat_in_a_row", "_said", "_valid")
"""what a watch must not forget over a stop"""
SPEAKS_AFTER = 32
"""completions without a single action after which a model is told that it does not speak the protocol"""


@dataclass
class Watch:
    """Whether there is anything to learn from, and why not."""

    patience: int = 10
    """generations in a row whose groups are all flat, after which training stops; 0: never"""
    top: float = 1.0
    """the most a completion can be paid, where known"""
    advice: str = "raise --num-generations or --temperature, or take other prompts"
    reason: str = ""
    """why training was stopped, in a sentence"""
    groups: int = 0
    flat: int = 0
    """groups seen, and those that taught nothing"""
    left_out: int = 0
    """completions without a reward"""
    _flat_in_a_row: int = 0
    _said: int = 0
    _valid: int = 0
    _paid: list[float] = field(default_factory=list)

    def saw(self, rewards: Tensor) -> float:
        """Rewards of one generation, groups x completions, NaN where unknown; the share of flat groups."""
        known = [group[~group.isnan()] for group in rewards]
        flat = [len(group) < 2 or bool(group.max() - group.min() < FLAT) for group in known]
        self.groups += len(flat)
        self.flat += sum(flat)
        self.left_out += int(rewards.isnan().sum())
        self._flat_in_a_row = self._flat_in_a_row + 1 if all(flat) else 0
        self._paid = [float(group.mean()) for group in known if len(group)]
        if self.patience and self._flat_in_a_row >= self.patience:
            self.reason = self.reason or self._nothing_to_compare()
        return sum(flat) / max(1, len(flat))

    def heard(self, valid: Sequence[bool]) -> None:
        """Which completions were actions, where that is asked for."""
        self._said += len(valid)
        self._valid += sum(valid)
        if self.patience and not self._valid and self._said >= SPEAKS_AFTER:
            self.reason = self.reason or (
                f"none of the first {self._said} completions was an action: the model does not speak the "
                "protocol, and nothing can be compared. Teach it first: rusty data sft, then rusty train sft"
            )

    def _nothing_to_compare(self) -> str:
        paid = sum(self._paid) / len(self._paid) if self._paid else math.nan
        solved = paid >= self.top - FLAT
        what = "everything is solved: take harder tasks (--max-difficulty)" if solved else self.advice
        return (
            f"in the last {self.patience} generations all completions of each group were paid the same "
            f"({paid:.2f} in the last), so there was nothing to compare; {what}"
        )

    def keep(self, checkpoint: Path) -> None:
        """Write what was seen into a checkpoint, so that a resumed run stops where an unbroken one would."""
        files.write(checkpoint / WATCHED, json.dumps({name: getattr(self, name) for name in SEEN}) + "\n")

    def go_on(self, checkpoint: Path | None) -> None:
        """Be where a checkpoint was."""
        if checkpoint is not None and (checkpoint / WATCHED).is_file():
            vars(self).update(json.loads((checkpoint / WATCHED).read_text()))

    def told(self) -> str:
        """A line for the end of a run."""
        out = f", {self.left_out} completions left out because the sandbox failed" if self.left_out else ""
        return f"{self.flat} of {self.groups} groups were flat and taught nothing{out}"


class StopWhenFlat(TrainerCallback):  # type: ignore[misc]
    """Ends training where the watch has found a reason."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.watch.reason:
            control.should_training_stop = True
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self.watch.keep(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class _NotLoud(logging.Filter):
    """TRL describes a completion without a reward at length each time; `Watch` counts them instead."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "All reward functions returned None" not in record.getMessage()


class GroupTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer that leaves out what is unknown and counts what is flat."""

    def __init__(self, *args: Any, watch: Watch | None = None, **options: Any) -> None:
        self.watch = watch or Watch(patience=0)
        self._unknown: Tensor | None = None
        logging.getLogger("trl.trainer.grpo_trainer").addFilter(_NotLoud())
        super().__init__(*args, **options)
        self.add_callback(StopWhenFlat(self.watch))

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        unknown = rewards.isnan().all(1)
        first = self.accelerator.process_index * len(prompts)
        self._unknown = unknown[first : first + len(prompts)]
        if self.model.training:
            totals = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
            totals[unknown] = torch.nan
            self.watch.saw(totals.view(-1, self.num_generations).cpu())
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        out: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self._unknown is not None and bool(self._unknown.any()):
            own = out.get("tool_mask", torch.ones_like(out["completion_mask"]))
            out["tool_mask"] = own * (~self._unknown).unsqueeze(1).to(own.dtype)
            left = (out["completion_mask"] * out["tool_mask"]).sum()
            out["num_items_in_batch"] = self.accelerator.gather(left).sum()
        if "sampling_per_token_logps" in out:
            out["old_per_token_logps"] = self._behaviour(out)
        return out

    def _behaviour(self, out: dict[str, Any]) -> Tensor:
        """Log-probabilities under the policy that spoke; this policy's own where they are not known."""
        recorded: Tensor = out["sampling_per_token_logps"]
        spoken = (
            out["completion_mask"] * out.get("tool_mask", torch.ones_like(out["completion_mask"]))
        ).bool()
        if not bool(recorded[spoken].isnan().any()):
            return recorded
        ids = torch.cat([out["prompt_ids"], out["completion_ids"]], 1)
        mask = torch.cat([out["prompt_mask"], out["completion_mask"]], 1)
        with torch.no_grad():
            now, _, _ = self._get_per_token_logps_and_entropies(
                self.model,
                ids,
                mask,
                recorded.shape[1],
                batch_size=self.args.per_device_train_batch_size,
            )
        return torch.where(recorded.isnan(), now.to(recorded.dtype), recorded)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **more: Any,
    ) -> Any:
        """TRL's way reads the head at every token of the prompt, and knows no model without attention."""
        size = batch_size or len(input_ids)
        small = size * (logits_to_keep + 1) * self.model.config.vocab_size <= SMALL
        if self.model.config.model_type not in TARGETS and (input_ids.is_cuda or not small):
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **more
            )
        logps, entropies = [], []
        for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True):
            likely = (self._read(model, ids, mask, logits_to_keep) / self.temperature).log_softmax(-1)
            logps.append(likely.gather(2, ids[:, -logits_to_keep:, None])[..., 0])
            with torch.no_grad():
                entropies.append(-(likely.exp() * likely).sum(-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None

    def _read(self, model: Any, ids: Tensor, mask: Tensor, keep: int) -> Tensor:
        """Logits of the last `keep` words; a prompt that several completions follow is read once."""
        asked = torch.stack([ids, mask], 2)[:, :-keep]
        different, place = torch.unique(asked, dim=0, return_inverse=True)
        recurrent = self.model.config.model_type in TARGETS
        if recurrent or self.args.gradient_checkpointing or keep < 2 or len(different) == len(ids):
            out = model(input_ids=ids, attention_mask=mask, logits_to_keep=keep + 1, use_cache=False)
            return out.logits[:, :-1].float()  # type: ignore[no-any-return]
        before = model(
            input_ids=different[..., 0], attention_mask=different[..., 1], logits_to_keep=1, use_cache=True
        )
        before.past_key_values.batch_select_indices(place)
        after = model(
            input_ids=ids[:, -keep:-1],
            attention_mask=mask[:, :-1],
            past_key_values=before.past_key_values,
            use_cache=True,
        )
        return torch.cat([before.logits[place], after.logits], 1).float()
