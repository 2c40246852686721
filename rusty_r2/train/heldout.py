# SPDX-License-Identifier: AGPL-3.0-or-later
"""Before and after: how many held-out tasks a policy solves, with an interval that says how sure that is.

The tasks are those of `rusty eval` (eval/gym.py): families, names and numbers that training never draws,
the same every time, so two checkpoints are compared on equal terms. Intervals are Wilson's (1927), which
stay honest at 0 and at 100%.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rusty_r2.agent.players import Episode, Players
from rusty_r2.eval.gym import tasks
from rusty_r2.eval.rates import wilson
from rusty_r2.lm.engine import Engine
from rusty_r2.task import Task

__all__ = ["Score", "evaluate", "tasks"]


@dataclass(frozen=True)
class Score:
    """How a policy did on a fixed set of tasks."""

    passed: int
    played: int
    valid_rate: float
    families: dict[str, tuple[int, int]]
    """passed and played, by family"""

    @property
    def rate(self) -> float:
        return self.passed / self.played if self.played else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.passed, self.played)

    def __str__(self) -> str:
        low, high = self.interval
        share = f"{100 * self.rate:.1f}% ({100 * low:.1f} to {100 * high:.1f})"
        valid = f"{100 * self.valid_rate:.1f}% valid actions"
        return f"{self.passed} of {self.played} held-out tasks, {share}; {valid}"


def evaluate(players: Players, engine: Engine, wanted: Sequence[Task]) -> tuple[Score, list[Episode]]:
    """Play every task once."""
    episodes = sorted(players.play(engine, enumerate(wanted)), key=lambda episode: episode.number)
    counted = [episode for episode in episodes if not episode.masked]
    by_family: dict[str, tuple[int, int]] = {}
    for episode in counted:
        passed, played = by_family.get(episode.task.family, (0, 0))
        by_family[episode.task.family] = (passed + episode.passed, played + 1)
    replies = sum(len(episode.replies) for episode in counted)
    valid = sum(episode.valid for episode in counted) / max(1, replies)
    return Score(sum(e.passed for e in counted), len(counted), valid, by_family), episodes
