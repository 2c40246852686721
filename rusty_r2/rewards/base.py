# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a reward is: a named, weighted question put to a finished trace.

    class Brief(BaseReward):
        name = "brief"
        weight = 0.5

        def compute(self, trace) -> RewardResult:
            return RewardResult(score=1.0 if len(trace.final_response) < 400 else 0.0, is_binary=True)

A score lies between 0 and 1, or is None where the question does not apply to this trace; the engine
then leaves it out of the mean. A reward that raises, or answers with something that is no number, is
broken: that is a RewardError with its name and the trace's id, never a zero. A SandboxError passes
through as it is, because broken infrastructure says nothing about an answer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

from rusty_r2.errors import RustyError, SandboxError
from rusty_r2.trace import ExecutionTrace


class RewardError(RustyError):
    """A reward is broken, or the engine in use can be cheated."""


@dataclass
class RewardResult:
    """One answer to one question."""

    score: float | None
    """0 to 1, or None where the question does not apply"""
    is_binary: bool = True
    details: dict[str, Any] = field(default_factory=dict)
    """what the score rests on, for a person to argue with"""
    error: str | None = None
    """what went wrong in the agent's work, in words"""

    def to_binary(self, threshold: float = 0.5) -> int:
        """1 where the score reaches the threshold; what does not apply is no success."""
        return int(self.score is not None and self.score >= threshold)


class BaseReward(ABC):
    """A question. Subclasses set `name` and `weight` and write `compute`; callers call the object."""

    name: str = ""
    weight: float = 1.0
    is_binary: bool = True

    @abstractmethod
    def compute(self, trace: ExecutionTrace) -> RewardResult:
        """Look at what the agent did and answer."""

    def __call__(self, trace: ExecutionTrace) -> RewardResult:
        """`compute`, checked: finite, between 0 and 1, or a RewardError that says who failed on what."""
        try:
            result = self.compute(trace)
        except (SandboxError, RewardError):
            raise
        except Exception as error:
            raise self._broken(trace, f"raised {type(error).__name__}: {error}") from error
        if not isinstance(result, RewardResult):
            raise self._broken(trace, f"returned a {type(result).__name__}, not a RewardResult")
        if result.score is None:
            return result
        try:
            score = float(result.score)
        except (TypeError, ValueError) as error:
            raise self._broken(trace, f"scored {result.score!r:.60}, which is no number") from error
        if not math.isfinite(score):
            raise self._broken(trace, f"scored {score}")
        return replace(result, score=min(1.0, max(0.0, score)))

    def known(self, trace: ExecutionTrace) -> RewardResult | None:
        """The answer where it can be had without running anything of the trace; else None."""
        return self(trace)

    def _broken(self, trace: ExecutionTrace, what: str) -> RewardError:
        name = self.name or type(self).__name__
        return RewardError(f"the reward {name} {what} (trace {trace.trace_id}). Mend it, or leave it out")


def nothing(**details: Any) -> RewardResult:
    """The question does not apply."""
    return RewardResult(None, details=details)
