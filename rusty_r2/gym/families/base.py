# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a family of tasks is, and how one is drawn so that held-out things stay held out.

A family makes a task from a seed: the same seed, level and split give the same task on every machine
and every Python. Two lines keep training apart from evaluation:

    by family       a family with split "heldout" never appears in training at all
    by parameters   in the others one word in four (by its hash, so in every pool alike), every fifth number
                    and every fourth wording belong to the held-out split only

`Draw` is where the second line is drawn; families only ask it for words, numbers and wordings.
The pools are in words.py, names are made of them in names.py, wordings are in wordings.toml; the families are
in write.py, fix.py, files.py, text.py and ask.py.
"""

from __future__ import annotations

import hashlib
import json
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from rusty_r2.errors import TaskError
from rusty_r2.task import Task

T = TypeVar("T")
SPLITS = ("train", "heldout")


class AnyWord(tuple[str, ...]):
    """A pool in which one word is as good as another: practice may put a wider one in its place."""

    @cached_property
    def longest(self) -> int:
        return max(map(len, self))


class Draw:
    """A seeded source of choices that keeps the held-out part of every pool out of training."""

    def __init__(self, key: str, split: str, level: int, wider: tuple[str, ...] = ()) -> None:
        # Only random() is used: its sequence is promised to stay the same from version to version.
        self._rng = random.Random(key)
        self.held = split == "heldout"
        self.level = level
        self.new_wording = False
        self._wider = wider

    def below(self, n: int) -> int:
        return int(self._rng.random() * n)

    def chance(self, p: float) -> bool:
        return self._rng.random() < p

    def any(self, options: Sequence[T]) -> T:
        """One of `options`, the same in both splits."""
        return options[self.below(len(options))]

    def integer(self, low: int, high: int) -> int:
        """A whole number in [low, high], the same in both splits: for data, not for parameters."""
        return low + self.below(high - low + 1)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(len(left))]

    def word(self, pool: Sequence[str]) -> str:
        """One word of this split's part of `pool`."""
        return self.any(self._mine(pool))

    def _mine(self, pool: Sequence[str]) -> tuple[str, ...]:
        """This split's part of a pool, or of the wider one that stands in for it."""
        if self._wider and isinstance(pool, AnyWord):
            return _side(_up_to(self._wider, pool.longest), self.held)
        return _side(pool, self.held)

    def words(self, pool: Sequence[str], count: int) -> list[str]:
        """`count` different words of this split's part of `pool`."""
        mine = self._mine(pool)
        if len(mine) < 4 * count:
            return self.shuffled(mine)[:count]
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.any(mine)] = None
        return list(found)

    def number(self, low: int, high: int) -> int:
        """A parameter in [low, high] of this split's numbers."""
        numbers = [n for n in range(low, high + 1) if (n % 5 == 3) == self.held]
        return self.any(numbers if high - low >= 9 else range(low, high + 1))

    def say(self, *wordings: str) -> str:
        """One of this family's wordings; the fourth, eighth, ... are never seen in training."""
        fresh = self.held and len(wordings) > 3 and self.chance(0.5)
        self.new_wording |= fresh
        return self.any(part(wordings, held=fresh))


def part(pool: Sequence[T], *, held: bool) -> list[T]:
    """Every fourth item, or all the others; a pool too small to divide stays whole."""
    return [item for i, item in enumerate(pool) if (i % 4 == 3) == held] if len(pool) > 3 else list(pool)


def is_held(word: str) -> bool:
    """Whether a word belongs to the held-out split, in whatever pool it stands."""
    return zlib.crc32(word.encode()) % 4 == 3


LONG = 100
_KEPT: dict[tuple[int, int], tuple[Sequence[str], tuple[str, ...]]] = {}
"""parts of pools, by the pool's identity: hashing thousands of words takes longer than drawing one"""


def _part(pool: Sequence[str], kind: int, keep: Callable[[str], bool]) -> tuple[str, ...]:
    if len(pool) < LONG:  # perhaps made for one draw: not worth keeping
        return tuple(word for word in pool if keep(word))
    found = _KEPT.get((id(pool), kind))
    if found is None or found[0] is not pool:
        found = _KEPT[id(pool), kind] = (pool, tuple(word for word in pool if keep(word)))
    return found[1]


def _side(pool: Sequence[str], held: bool) -> tuple[str, ...]:
    return _part(pool, int(held), lambda word: is_held(word) == held)


def _up_to(pool: tuple[str, ...], longest: int) -> tuple[str, ...]:
    return _part(pool, 2 + longest, lambda word: len(word) <= longest)


@dataclass(frozen=True)
class Family:
    """A source of tasks of one sort."""

    name: str
    about: str
    kind: str
    """write, fix or shell"""
    draw: Callable[[Draw], Task]
    levels: tuple[int, ...] = (1, 2, 3)
    """difficulties it can make; 1 is the easiest"""
    split: str = "train"
    """train: both splits, by parameters; heldout: the whole family is kept for evaluation"""

    @property
    def splits(self) -> tuple[str, ...]:
        return SPLITS if self.split == "train" else ("heldout",)

    def make(
        self, seed: int, difficulty: int = 1, split: str = "train", *, wider: tuple[str, ...] = ()
    ) -> Task:
        """The task of this seed; `wider` stands in for the long list of words."""
        if difficulty not in self.levels:
            raise TaskError(f"{self.name} has levels {list(self.levels)}, not {difficulty}")
        if split not in self.splits:
            raise TaskError(f"{self.name} makes tasks of {' and '.join(self.splits)} only, not {split!a}")
        draw = Draw(f"{self.name}/{difficulty}/{split}/{seed}", split, difficulty, wider)
        task = self.draw(draw)
        return replace(
            task,
            name=f"{self.name}-{difficulty}-{split}-{seed}",
            family=self.name,
            difficulty=difficulty,
            split=split,
            tags=(self.kind, *(["new_wording"] if draw.new_wording else [])),
        )


def fingerprint(task: Task) -> str:
    """What makes two tasks the same: words, files and check, whatever they are called."""
    same = {key: value for key, value in task.to_dict().items() if key in ("prompt", "files", "check")}
    return hashlib.blake2b(json.dumps(same, sort_keys=True).encode(), digest_size=12).hexdigest()
