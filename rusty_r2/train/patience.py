# SPDX-License-Identifier: AGPL-3.0-or-later
"""Reading held-out rows between steps, and ending when they have not gained for a while.

The number watched is the gain over the base that the table of before and after ends with (`eval/gain`). What
was read before a stop is read back from metrics.jsonl, so a resumed run ends where an unbroken one would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transformers import TrainerCallback


class Patience(TrainerCallback):  # type: ignore[misc]
    """Every so many steps: read, log, and stop after `patience` readings without a new best."""

    def __init__(
        self,
        gain: Callable[[], float],
        *,
        every: int,
        patience: int,
        log: Callable[[int, dict[str, float]], None],
        seen: Sequence[float] = (),
    ) -> None:
        self.gain, self.every, self.patience, self.log = gain, every, patience, log
        self.best, self.without = float("-inf"), 0
        self.ended = False
        for value in seen:
            self._weigh(value)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.every:
            return
        value = self.gain()
        self.log(state.global_step, {"eval/gain": value})
        self._weigh(value)
        if self.patience and self.without >= self.patience and state.global_step < state.max_steps:
            self.ended = True
            control.should_training_stop = control.should_save = True

    def _weigh(self, value: float) -> None:
        self.without = 0 if value > self.best else self.without + 1
        self.best = max(self.best, value)
