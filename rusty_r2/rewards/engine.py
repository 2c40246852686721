# SPDX-License-Identifier: AGPL-3.0-or-later
"""Several questions put to a trace, added up, with every answer kept.

    engine = RewardEngine()                       # the six documented rewards; learned.py adds a seventh
    engine.compute_combined(trace)                # weighted mean of the rewards that apply
    engine.compute_for_group(traces)              # for GRPO: mean 0, deviation 1, within the group
    engine.get_binary_label(trace)                # for KTO
    print(engine.summary(trace))                  # 0.92 = code_execution 1.00  efficiency 0.55 …

A reward that does not apply is left out of the mean. In a group, who stays silent where another tried
gets the lowest score of those who tried: silence never outscores a failed try. What veto.py objects
to is worth 0. `score_all` works on many traces in threads; `summary` runs nothing.
"""

from __future__ import annotations

import os
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from rusty_r2.errors import ConfigError, SandboxError
from rusty_r2.rewards.base import BaseReward, RewardResult
from rusty_r2.rewards.code import CodeExecutionReward, SyntaxValidationReward
from rusty_r2.rewards.conduct import (
    EfficiencyReward,
    FormatComplianceReward,
    TaskCompletionReward,
    ToolSuccessReward,
)
from rusty_r2.rewards.veto import canned, misconduct
from rusty_r2.trace import ExecutionTrace

HISTORY = 1000
"""scores remembered in `reward_history`"""


@dataclass(frozen=True)
class Score:
    """One engine's answers to one trace."""

    results: dict[str, RewardResult] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    veto: str = ""
    """why the trace is worth 0 whatever the rewards say"""
    masked: str = ""
    """the sandbox broke: the trace has no score at all"""

    @property
    def parts(self) -> dict[str, float]:
        """The scores of the rewards that applied."""
        return {name: result.score for name, result in self.results.items() if result.score is not None}

    @property
    def total(self) -> float | None:
        """Weighted mean of the parts; None where no reward applied or nothing could be judged."""
        if self.masked:
            return None
        return 0.0 if self.veto else mean(self.parts, self.weights)

    def __str__(self) -> str:
        if self.masked:
            return f"no score: {self.masked}"
        told = "  ".join(f"{name} {score:.2f}" for name, score in self.parts.items())
        why = f"veto: {self.veto}; " if self.veto else ""
        return "no reward applies" if self.total is None else f"{self.total:.2f} = {why}{told}".rstrip("; ")


def mean(parts: dict[str, float], weights: dict[str, float]) -> float | None:
    weight = sum(weights[name] for name in parts)
    return sum(weights[name] * score for name, score in parts.items()) / weight if weight else None


def default_rewards() -> list[BaseReward]:
    return [
        CodeExecutionReward(),
        SyntaxValidationReward(),
        ToolSuccessReward(),
        TaskCompletionReward(),
        EfficiencyReward(),
        FormatComplianceReward(),
    ]


class RewardEngine:
    """Asks every reward, and adds the answers up."""

    def __init__(
        self, rewards: Sequence[BaseReward] | None = None, *, veto: bool = True, workers: int = 0
    ) -> None:
        self.rewards = list(default_rewards() if rewards is None else rewards)
        self.veto = veto
        self.workers = workers or min(8, 2 * (os.cpu_count() or 1))
        self.reward_history: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self._weights = _checked_weights(self.rewards)

    def score(self, trace: ExecutionTrace) -> Score:
        """Every reward's answer. Raises RewardError where one is broken, SandboxError where no sandbox is."""
        score = Score(self.compute_all(trace), self._weights, misconduct(trace) if self.veto else "")
        self._remember(trace, score)
        return score

    def score_all(
        self, traces: Sequence[ExecutionTrace], progress: Callable[[], object] | None = None
    ) -> list[Score]:
        """The same for many, in threads. Where the sandbox broke, the score is masked."""
        again = canned(traces) if self.veto else set()

        def one(trace: ExecutionTrace) -> Score:
            try:
                score = self.score(trace)
            except SandboxError as error:
                score = Score(masked=str(error))
            if trace.trace_id in again and not score.veto:
                score = replace(score, veto="the same answer to different requests")
            if progress is not None:
                progress()
            return score

        with ThreadPoolExecutor(self.workers, "rewards") as pool:
            return list(pool.map(one, traces))

    def compute_all(self, trace: ExecutionTrace) -> dict[str, RewardResult]:
        """Every reward's answer by name, those that do not apply included."""
        return {reward.name: reward(trace) for reward in self.rewards}

    def compute_combined(self, trace: ExecutionTrace) -> float:
        """The weighted mean of the rewards that apply; 0 where none does."""
        return self.score(trace).total or 0.0

    def compute_for_group(self, traces: Sequence[ExecutionTrace]) -> list[float]:
        """Rewards of one group as GRPO wants them: minus the mean, by the population's deviation."""
        return normalised(group_totals(self.score_all(traces)))

    def get_binary_label(self, trace: ExecutionTrace, threshold: float = 0.6) -> bool:
        return self.compute_combined(trace) >= threshold

    def summary(self, trace: ExecutionTrace) -> str:
        """The score in its parts. Nothing of the trace is run: what never ran is said to be missing."""
        known = {reward.name: reward.known(trace) for reward in self.rewards}
        results = {name: result for name, result in known.items() if result is not None}
        score = Score(results, self._weights, misconduct(trace) if self.veto else "")
        lines = [f"trace {trace.trace_id}: {score}"]
        for name, result in known.items():
            lines.append(f"  {name} (weight {self._weights[name]:g}): {_told(result)}")
        return "\n".join(lines)

    def _remember(self, trace: ExecutionTrace, score: Score) -> None:
        said = {"trace_id": trace.trace_id, "combined": score.total, "parts": score.parts, "veto": score.veto}
        self.reward_history.append(said)


def group_totals(scores: Sequence[Score]) -> list[float | None]:
    """Totals that can be compared: a part that only some have is filled with the lowest one found."""
    lowest: dict[str, float] = {}
    for score in scores:
        for name, value in score.parts.items():
            lowest[name] = min(value, lowest.get(name, value))
    return [
        score.total if score.total is None or score.veto else mean(lowest | score.parts, score.weights)
        for score in scores
    ]


def normalised(totals: Sequence[float | None]) -> list[float]:
    """Each total minus the mean, by the population's deviation; zeros for a flat group."""
    known = [total for total in totals if total is not None]
    if len(known) < 2:
        return [0.0] * len(totals)
    middle, spread = statistics.fmean(known), statistics.pstdev(known)
    if spread < 1e-9:
        return [0.0] * len(totals)
    return [0.0 if total is None else (total - middle) / spread for total in totals]


def _told(result: RewardResult | None) -> str:
    if result is None:
        return "not run yet; compute_combined(trace) runs it"
    if result.score is None:
        return "does not apply"
    return f"{result.score:.2f}" + (f"  {result.error}" if result.error else "")


def _checked_weights(rewards: Sequence[BaseReward]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for reward in rewards:
        if not reward.name:
            reward.name = type(reward).__name__
        if reward.name in weights:
            raise ConfigError(f"two rewards are called {reward.name}. Give one of them another name")
        if not 0 < reward.weight < float("inf"):
            raise ConfigError(f"the reward {reward.name} has weight {reward.weight}; it must be above 0")
        weights[reward.name] = float(reward.weight)
    if not weights:
        raise ConfigError("an engine needs at least one reward")
    return weights
