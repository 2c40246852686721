# SPDX-License-Identifier: AGPL-3.0-or-later
"""Which task comes next: easy ones first, then wherever success is neither rare nor certain.

    curriculum = Curriculum(CurriculumConfig(seed=0))
    task = curriculum.next()
    curriculum.report(task, passed=True)

A lesson is one family at one level, and its success rate is a running mean. A family's next level opens when
this one's rate reaches `opens`. What is worth drawing is `worth(rate)`: most where a third succeed, more at
one in twenty than at nineteen in twenty, next to nothing where all or none do, for there a policy gradient
has nothing to compare. Within a lesson the same holds for its wordings, kept in four parts by their rank
(gym/shown.py), so that wordings which were never demonstrated are found by their own success and come more
often than those that always pass. The state is plain JSON, and with it the future is the same to the last
task: draw number k depends on the seed, k and the rates alone.
Self-paced sampling of this kind: Narvekar et al. 2020 (a survey of curricula for reinforcement learning).
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

from rusty_r2.errors import ConfigError
from rusty_r2.gym.families import FAMILIES, Family
from rusty_r2.gym.families.base import How
from rusty_r2.gym.shown import wording_rank
from rusty_r2.task import Task

PARTS = 4
"""of a lesson, by the rank of its wordings"""
TRIES = 4
"""tasks drawn at most before one is taken, whatever its wording"""
TRUST = 8
"""reports after which a part's own rate weighs as much as its lesson's"""


@dataclass(frozen=True)
class CurriculumConfig:
    seed: int = 0
    """draws with the same seed and the same reports are the same"""
    families: tuple[str, ...] = ()
    """names of families; empty means all that are for training"""
    max_difficulty: int = 3
    """no level above this one is drawn"""
    seldom: float = 0.03
    """the least weight of a lesson, against 1 for the most: nothing is given up for good"""
    opens: float = 0.25
    """a family's next level opens at this rate"""
    after: int = 8
    """reports a lesson needs before its rate opens or closes anything"""
    memory: float = 0.97
    """how much of the old rate a report keeps"""


def worth(rate: float) -> float:
    """What there is to learn at a success rate: 1 at a third, 0.55 at 5%, 0.13 at 95%, 0 at the ends."""
    return float(rate**0.5 * (1 - rate) * 1.5 * 3**0.5)


@dataclass
class Pace:
    """How often something succeeds."""

    seen: int = 0
    rate: float = 0.0

    def report(self, passed: bool, memory: float) -> None:
        # a plain mean at first, so that the starting value is soon forgotten
        keep = min(memory, self.seen / (self.seen + 1))
        self.seen += 1
        self.rate = keep * self.rate + (1 - keep) * float(passed)

    def near(self, prior: float, weight: float) -> float:
        """The rate, drawn towards `prior` while little was seen."""
        return (self.seen * self.rate + weight * prior) / (self.seen + weight)


@dataclass
class Lesson(Pace):
    """One family at one level, and how it goes."""

    family: str = ""
    level: int = 1
    parts: list[Pace] = field(default_factory=lambda: [Pace() for _ in range(PARTS)])

    def part(self, task: Task) -> Pace:
        return self.parts[int(wording_rank(task) * PARTS)]

    def of_part(self, part: Pace) -> float:
        """What a part of this lesson is worth."""
        return worth(part.near(self.near(0.5, 0.5), TRUST))


class Curriculum:
    """`wider` are words that stand in for the gym's list in names; tasks are not made again by name then."""

    def __init__(self, config: CurriculumConfig | None = None, wider: tuple[str, ...] = ()) -> None:
        self.config = config or CurriculumConfig()
        self.drawn = 0
        self._wider = " ".join(wider)  # one text: it travels to other processes with every round
        self.lessons = {
            (family.name, level): Lesson(family=family.name, level=level)
            for family in _chosen(self.config.families)
            for level in family.levels
            if level <= self.config.max_difficulty
        }
        if not self.lessons:
            raise ConfigError(f"no family has a level up to {self.config.max_difficulty}; say 1 or more")

    def next(self) -> Task:
        """The next task to play."""
        rng = random.Random(f"{self.config.seed}/{self.drawn}")
        self.drawn += 1
        lesson, how = self._lesson(rng), How(wider=_words(self._wider))
        best = max(map(lesson.of_part, lesson.parts))
        for _ in range(TRIES):
            task = FAMILIES[lesson.family].make(int(rng.random() * 2**31), lesson.level, "train", how)
            if rng.random() * best <= lesson.of_part(lesson.part(task)):
                break
        return task

    def _lesson(self, rng: random.Random) -> Lesson:
        lessons = self.open()
        ends = list(accumulate(self.weight(lesson) for lesson in lessons))
        return lessons[min(bisect(ends, rng.random() * ends[-1]), len(lessons) - 1)]

    def report(self, task: Task, passed: bool) -> None:
        """Say how a task went. A masked episode is not reported at all."""
        lesson = self.lessons.get((task.family, task.difficulty))
        if lesson is not None:
            lesson.report(passed, self.config.memory)
            lesson.part(task).report(passed, self.config.memory)

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
        """How often a lesson is drawn, against others: by the best of its parts; 1 while little is known."""
        if lesson.seen < self.config.after:
            return 1.0
        return max(self.config.seldom, *map(lesson.of_part, lesson.parts))

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
                parts = [Pace(**part) for part in saved.get("parts", [{}] * PARTS)]
                self.lessons[saved["family"], saved["level"]] = Lesson(**saved | {"parts": parts})


@lru_cache(4)
def _words(text: str) -> tuple[str, ...]:
    """The same tuple for the same text: what is worked out about a pool is kept by its identity."""
    return tuple(text.split())


def _chosen(names: Sequence[str]) -> list[Family]:
    for name in names:
        if name not in FAMILIES:
            raise ConfigError(f"there is no family {name!a}. Type: rusty gym list")
        if FAMILIES[name].split != "train":
            raise ConfigError(f"the family {name} is held out for evaluation; training on it is refused")
    return [FAMILIES[name] for name in names or FAMILIES if FAMILIES[name].split == "train"]
