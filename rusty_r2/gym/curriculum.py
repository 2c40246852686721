# SPDX-License-Identifier: AGPL-3.0-or-later
"""Which task comes next: easy ones first, then wherever success is neither rare nor certain.

    curriculum = Curriculum(CurriculumConfig(seed=0))
    task = curriculum.next()
    curriculum.report(task, passed=True)

A lesson is one family at one level. Its success rate is a running mean; a lesson between `low` and `high`
is where a policy gradient has something to compare, so it is drawn most. A family's next level opens when
this one's rate reaches `opens`. The state is plain JSON, and with it the future is the same to the last
task: draw number k depends on the seed, k and the rates alone.
Self-paced sampling of this kind: Narvekar et al. 2020 (a survey of curricula for reinforcement learning).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rusty_r2.errors import ConfigError
from rusty_r2.gym.families import FAMILIES, Family
from rusty_r2.task import Task


@dataclass(frozen=True)
class CurriculumConfig:
    seed: int = 0
    """draws with the same seed and the same reports are the same"""
    families: tuple[str, ...] = ()
    """names of families; empty means all that are for training"""
    max_difficulty: int = 3
    """no level above this one is drawn"""
    low: float = 0.1
    """below this success rate a lesson is drawn seldom: nothing to learn from yet"""
    high: float = 0.9
    """above it, too: little left to learn"""
    seldom: float = 0.15
    """how often such a lesson is drawn, against 1 for one in between"""
    opens: float = 0.6
    """a family's next level opens at this rate"""
    after: int = 16
    """reports a lesson needs before its rate opens or closes anything"""
    memory: float = 0.95
    """how much of the old rate a report keeps"""


@dataclass
class Lesson:
    """One family at one level, and how it goes."""

    family: str
    level: int
    seen: int = 0
    rate: float = 0.0

    def report(self, passed: bool, memory: float) -> None:
        # a plain mean at first, so that the starting value is soon forgotten
        keep = min(memory, self.seen / (self.seen + 1))
        self.seen += 1
        self.rate = keep * self.rate + (1 - keep) * float(passed)


class Curriculum:
    def __init__(self, config: CurriculumConfig | None = None) -> None:
        self.config = config or CurriculumConfig()
        self.drawn = 0
        self.lessons = {
            (family.name, level): Lesson(family.name, level)
            for family in _chosen(self.config.families)
            for level in family.levels
            if level <= self.config.max_difficulty
        }
        if not self.lessons:
            raise ConfigError(f"no family has a level up to {self.config.max_difficulty}; say 1 or more")

    def next(self) -> Task:
        """The next task to play."""
        family, seed, level, split = self.draw()
        return FAMILIES[family].make(seed, level, split)

    def draw(self) -> tuple[str, int, int, str]:
        """What `next` makes its task of: family, seed, level and split."""
        rng = random.Random(f"{self.config.seed}/{self.drawn}")
        self.drawn += 1
        lessons = self.open()
        place = rng.random() * sum(self.weight(lesson) for lesson in lessons)
        for lesson in lessons:
            place -= self.weight(lesson)
            if place <= 0:
                break
        return lesson.family, int(rng.random() * 2**31), lesson.level, "train"

    def report(self, task: Task, passed: bool) -> None:
        """Say how a task went. A masked episode is not reported at all."""
        lesson = self.lessons.get((task.family, task.difficulty))
        if lesson is not None:
            lesson.report(passed, self.config.memory)

    def open(self) -> list[Lesson]:
        """The lessons that may be drawn now: each family's first, and those that were opened."""
        ready: list[Lesson] = []
        for family in dict.fromkeys(name for name, _ in self.lessons):
            for lesson in (lesson for (name, _), lesson in self.lessons.items() if name == family):
                ready.append(lesson)
                if lesson.seen < self.config.after or lesson.rate < self.config.opens:
                    break
        return ready

    def weight(self, lesson: Lesson) -> float:
        """How often a lesson is drawn, against others."""
        settled = lesson.seen >= self.config.after
        between = self.config.low <= lesson.rate <= self.config.high
        return 1.0 if between or not settled else self.config.seldom

    def rates(self) -> dict[str, float]:
        """The success rate of every lesson that was tried, by `family/level`: for logs."""
        tried = (lesson for lesson in self.lessons.values() if lesson.seen)
        return {f"{lesson.family}/{lesson.level}": lesson.rate for lesson in tried}

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the future, as plain JSON data."""
        return {"drawn": self.drawn, "lessons": [asdict(lesson) for lesson in self.lessons.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`. Lessons that exist no more are left out; new ones start afresh."""
        self.drawn = state["drawn"]
        for saved in state["lessons"]:
            if (saved["family"], saved["level"]) in self.lessons:
                self.lessons[saved["family"], saved["level"]] = Lesson(**saved)


def _chosen(names: Sequence[str]) -> list[Family]:
    for name in names:
        if name not in FAMILIES:
            raise ConfigError(f"there is no family {name!a}. Type: rusty gym list")
        if FAMILIES[name].split != "train":
            raise ConfigError(f"the family {name} is held out for evaluation; training on it is refused")
    return [FAMILIES[name] for name in names or FAMILIES if FAMILIES[name].split == "train"]
