# SPDX-License-Identifier: AGPL-3.0-or-later
"""Before and after: how many held-out tasks a policy solves, with an interval that says how sure that is.

The tasks come from families, names and numbers that training never draws; the same seed gives the same
tasks, so two checkpoints are compared on equal terms. Intervals are Wilson's (1927), which stay honest
at 0 and at 100%.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rusty_r2.agent.players import Episode, Players
from rusty_r2.errors import TaskError
from rusty_r2.eval.rates import wilson
from rusty_r2.gym import catalog
from rusty_r2.lm.engine import Engine
from rusty_r2.task import Task

SEED = 20_261
"""of the held-out tasks; never a seed of training"""


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


def tasks(count: int, *, families: Sequence[str] = (), max_difficulty: int = 3) -> list[Task]:
    """The fixed held-out tasks, every family and level in turn."""
    levels = list(range(1, max_difficulty + 1))
    found = list(
        catalog.tasks("heldout", seed=SEED, count=count, families=list(families) or None, difficulty=levels)
    )
    if not found:
        raise TaskError("there are no held-out tasks to evaluate on. Type: rusty gym list")
    return found


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
