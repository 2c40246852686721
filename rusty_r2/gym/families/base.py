# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a family of tasks is, and how one is drawn so that held-out things stay held out.

A family makes a task from a seed: the same seed, level and split give the same task on every machine
and every Python. Two lines keep training apart from evaluation:

    by family       a family with split "heldout" never appears in training at all
    by parameters   in the others one word in four (by its hash, so in every pool alike), every fifth number
                    and every fourth wording belong to the held-out split only; more wordings are for
                    training only (`Wordings.more`), so adding some leaves held-out tasks as they were

`Draw` is where the second line is drawn; families only ask it for words, numbers, wordings. A third line, in
training alone, can part what is demonstrated from what is only played: gym/shown.py.
The pools are in words.py, names are made of them in names.py, wordings are in wordings.toml and
practice.toml; the families are in write.py, fix.py, files.py, text.py and ask.py.
"""

from __future__ import annotations

import hashlib
import json
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
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


class Wordings(tuple[str, ...]):
    """Sentences that mean the same, every fourth held out, and `more` that are heard in training only."""

    more: tuple[str, ...]

    def __new__(cls, lines: Iterable[str], more: Iterable[str] = ()) -> Wordings:
        made = super().__new__(cls, lines)
        made.more = tuple(more)
        return made


@dataclass(frozen=True)
class How:
    """What practice changes about a draw; tasks that are played and named again leave it alone."""

    wider: tuple[str, ...] = ()
    """words that stand in for the long list"""
    shown: float = 1.0
    """the share of each list's training wordings that may be said"""
    judged: bool = True
    """False: nobody will run the hidden cases, so they need not be the sharpest"""


class Draw:
    """A seeded source of choices that keeps the held-out part of every pool out of training."""

    def __init__(self, key: str, split: str, level: int, how: How | None = None) -> None:
        # Only random() is used: its sequence is promised to stay the same from version to version.
        self._rng = random.Random(key)
        self.held = split == "heldout"
        self.level = level
        self.how = how or How()
        self.new_wording = False
        self.rank = 0.0  # the highest of the training wordings said, see `ranks`

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
        if self.how.wider and isinstance(pool, AnyWord):
            return _side(_up_to(self.how.wider, pool.longest), self.held)
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
        return self.any(_numbers(low, high, self.held))

    def say(self, wordings: Wordings) -> str:
        """One of this family's wordings; the fourth, eighth, ... are never seen in training."""
        fresh = self.held and len(wordings) > 3 and self.chance(0.5)
        self.new_wording |= fresh
        if self.held:
            return self.any(part(wordings, held=fresh))
        said, rank = self.any(_ranked(wordings, wordings.more, self.how.shown))
        self.rank = max(self.rank, rank)
        return said


def part(pool: Sequence[T], *, held: bool) -> list[T]:
    """Every fourth item, or all the others; a pool too small to divide stays whole."""
    return [item for i, item in enumerate(pool) if (i % 4 == 3) == held] if len(pool) > 3 else list(pool)


def ranks(wordings: Wordings) -> dict[str, float]:
    """The training wordings of a list, each with its place from 0 up to below 1: by hash, `more` behind.

    A share of them is always those below that number: the same ones on every machine, never none.
    """
    mine = part(wordings, held=False), wordings.more
    order = [line for some in mine for line in sorted(some, key=_by_hash)]
    places = {line: round(place / len(order), 3) for place, line in enumerate(order)}
    return {line: places[line] for some in mine for line in some}


def _by_hash(line: str) -> bytes:
    return hashlib.blake2b(line.encode(), digest_size=8).digest()


@lru_cache(4096)
def _ranked(wordings: Wordings, _more: tuple[str, ...], share: float) -> list[tuple[str, float]]:
    """Those below a share. `_more` is named because lists that differ in it alone are equal as tuples."""
    return [(line, rank) for line, rank in ranks(wordings).items() if rank < share]


@lru_cache(4096)
def _numbers(low: int, high: int, held: bool) -> tuple[int, ...]:
    whole = range(low, high + 1)
    return tuple(n for n in whole if (n % 5 == 3) == held) if high - low >= 9 else tuple(whole)


def is_held(word: str) -> bool:
    """Whether a word belongs to the held-out split, in whatever pool it stands."""
    return zlib.crc32(word.encode()) % 4 == 3


LONG = 100
_KEPT: dict[tuple[int, int], tuple[Sequence[str], tuple[str, ...]]] = {}
"""parts of pools, by the pool's identity: hashing thousands of words takes longer than drawing one"""


def _part(pool: Sequence[str], kind: int, keep: Callable[[str], bool]) -> tuple[str, ...]:
    found = _KEPT.get((id(pool), kind))
    if found is None or found[0] is not pool:
        found = _KEPT[id(pool), kind] = (pool, tuple(word for word in pool if keep(word)))
    return found[1]


def _side(pool: Sequence[str], held: bool) -> tuple[str, ...]:
    if len(pool) < LONG:  # perhaps made for one draw: kept by its words
        return _short_side(tuple(pool), held)
    return _part(pool, int(held), lambda word: is_held(word) == held)


@lru_cache(1024)
def _short_side(pool: tuple[str, ...], held: bool) -> tuple[str, ...]:
    return tuple(word for word in pool if is_held(word) == held)


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

    def make(self, seed: int, difficulty: int = 1, split: str = "train", how: How | None = None) -> Task:
        """The task of this seed; its name makes it again, unless `how` is given."""
        if difficulty not in self.levels:
            raise TaskError(f"{self.name} has levels {list(self.levels)}, not {difficulty}")
        if split not in self.splits:
            raise TaskError(f"{self.name} makes tasks of {' and '.join(self.splits)} only, not {split!a}")
        draw = Draw(f"{self.name}/{difficulty}/{split}/{seed}", split, difficulty, how)
        task = self.draw(draw)
        return replace(
            task,
            name=f"{self.name}-{difficulty}-{split}-{seed}",
            family=self.name,
            difficulty=difficulty,
            split=split,
            tags=(self.kind, *(["new_wording"] if draw.new_wording else []), *_rank_tag(draw)),
        )


RANK = "wording:"
"""begins the tag that says how high the wordings of a training task rank"""


def _rank_tag(draw: Draw) -> list[str]:
    return [] if draw.held else [f"{RANK}{draw.rank}"]


def fingerprint(task: Task) -> str:
    """What makes two tasks the same: words, files and check, whatever they are called."""
    same = {key: value for key, value in task.to_dict().items() if key in ("prompt", "files", "check")}
    return hashlib.blake2b(json.dumps(same, sort_keys=True).encode(), digest_size=12).hexdigest()
