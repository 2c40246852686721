# SPDX-License-Identifier: AGPL-3.0-or-later
"""Online GRPO on prompts, paid by functions of the caller's: `RLTrainer.train_grpo(dataset, reward_funcs)`.

A function is called as TRL calls it, `f(prompts=…, completions=…)`, and gives one number a completion, None
where it has nothing to say; a completion is a list of messages where the prompt is one, else a text.
Several functions are added up. Everything else is grpo_run.py's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from rusty_r2.rewards.base import RewardError
from rusty_r2.train.grpo import GRPOConfig
from rusty_r2.train.grpo_run import Online


class Functions:
    """Several reward functions as one."""

    __name__ = "functions"

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        self.functions = list(functions)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float | None]:
        said = [_as_asked(prompt, one) for prompt, one in zip(prompts, completions, strict=True)]
        paid = [self._ask(function, list(prompts), said) for function in self.functions]
        return [_sum(parts) for parts in zip(*paid, strict=True)]

    def _ask(self, function: Callable[..., Any], prompts: list[Any], said: list[Any]) -> list[float | None]:
        name = getattr(function, "__name__", type(function).__name__)
        paid = list(function(prompts=prompts, completions=said))
        if len(paid) != len(said):
            raise RewardError(f"{name} gave {len(paid)} rewards for {len(said)} completions")
        for one in paid:
            if one is not None and not (isinstance(one, (int, float)) and math.isfinite(one)):
                raise RewardError(f"{name} gave {one!a:.60}, which is no finite number")
        return paid


def _as_asked(prompt: Any, said: Any) -> Any:
    """A completion in the form of its prompt."""
    talk = isinstance(prompt, list) and isinstance(said, str)
    return [{"role": "assistant", "content": said}] if talk else said


def _sum(parts: Sequence[float | None]) -> float | None:
    known = [float(part) for part in parts if part is not None]
    return sum(known) if known else None


class PaidByFunctions(Online):
    """A run whose answers the caller's functions pay."""

    def __init__(self, config: GRPOConfig, stack: ExitStack, functions: Sequence[Callable[..., Any]]) -> None:
        self.functions = Functions(functions)
        super().__init__(config, stack)

    def pays(self) -> Callable[..., Any]:
        return self.functions
