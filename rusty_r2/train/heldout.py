# SPDX-License-Identifier: AGPL-3.0-or-later
"""Before and after: how many held-out tasks a policy solves, with an interval that says how sure that is.

The tasks are those of `rusty eval` (eval/gym.py): families, names and numbers that training never draws,
the same every time, so two checkpoints are compared on equal terms. Intervals are Wilson's (1927), which
stay honest at 0 and at 100%. Which weights are kept must not be decided by them: that is what `validation`
is for, tasks of the training families that a run leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rusty_r2.agent.players import Episode, Players
from rusty_r2.eval.gym import tasks
from rusty_r2.eval.rates import wilson
from rusty_r2.gym import catalog
from rusty_r2.lm.engine import Engine
from rusty_r2.task import Task

__all__ = ["Score", "evaluate", "tasks", "validation"]

SEED = 20_262
"""of the validation tasks"""


def validation(count: int, *, families: Sequence[str] = (), max_difficulty: int = 3) -> list[Task]:
    """Tasks made like those of training, the same every time."""
    levels = list(range(1, max_difficulty + 1))
    return list(
        catalog.tasks("train", seed=SEED, count=count, families=list(families) or None, difficulty=levels)
    )


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

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> Score:
        """Of episodes that were played; those in which the sandbox failed do not count."""
        counted = [episode for episode in episodes if not episode.masked]
        by_family: dict[str, tuple[int, int]] = {}
        for episode in counted:
            passed, played = by_family.get(episode.task.family, (0, 0))
            by_family[episode.task.family] = (passed + episode.passed, played + 1)
        replies = sum(len(episode.replies) for episode in counted)
        valid = sum(episode.valid for episode in counted) / max(1, replies)
        return cls(sum(episode.passed for episode in counted), len(counted), valid, by_family)


def evaluate(players: Players, engine: Engine, *sets: Sequence[Task]) -> list[Score]:
    """Play every task of every set once, all together; a score for each set."""
    wanted = enumerate(task for some in sets for task in some)
    episodes = sorted(players.play(engine, wanted), key=lambda episode: episode.number)
    scores = []
    for some in sets:
        scores.append(Score.of(episodes[: len(some)]))
        episodes = episodes[len(some) :]
    return scores
