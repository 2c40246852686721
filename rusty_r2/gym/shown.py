# SPDX-License-Identifier: AGPL-3.0-or-later
"""Which training tasks are demonstrated, and which are only played.

    some = Shown(families=0.7, wordings=0.5)
    some.has("rename")              whether this family comes with demonstrations at all
    shown(task, some)               whether this very task may be one
    FAMILIES["rename"].make(7, 1, "train", How(shown=some.wordings))       one that may

A model that has seen the gold of every training task passes them all, and then playing teaches it nothing. So
supervised data can be made of a part of the families (of each kind alike) and of a part of each list of
wordings, chosen by a hash: the same part on every machine. Reinforcement learning plays the whole training
split. Held-out families, words and wordings are another matter (families/base.py) and in neither.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache

from rusty_r2.errors import ConfigError
from rusty_r2.gym.families import FAMILIES
from rusty_r2.gym.families.base import RANK
from rusty_r2.task import Task


@dataclass(frozen=True)
class Shown:
    """Shares of the training split; the default is all of it."""

    families: float = 1.0
    wordings: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.families <= 1 and 0 < self.wordings <= 1):
            raise ConfigError("--shown-families and --shown-wordings are shares above 0, at most 1")

    def has(self, family: str) -> bool:
        return family_rank(family) < self.families

    @property
    def names(self) -> list[str]:
        """The training families that are demonstrated."""
        return [
            family.name for family in FAMILIES.values() if family.split == "train" and self.has(family.name)
        ]


def shown(task: Task, some: Shown) -> bool:
    """Whether a training task may be demonstrated; tasks of no family may."""
    return task.family not in FAMILIES or (some.has(task.family) and wording_rank(task) < some.wordings)


def wording_rank(task: Task) -> float:
    """From 0 to below 1: a task is shown where this is below the share of shown wordings."""
    return next((float(tag.removeprefix(RANK)) for tag in task.tags if tag.startswith(RANK)), 0.0)


@cache
def family_rank(name: str) -> float:
    """The same for families, within their kind."""
    kind = FAMILIES[name].kind
    same = [one.name for one in FAMILIES.values() if one.split == "train" and one.kind == kind]
    order = sorted({*same, name}, key=lambda one: hashlib.blake2b(one.encode(), digest_size=8).digest())
    return order.index(name) / len(order)
