# SPDX-License-Identifier: AGPL-3.0-or-later
"""How far judges agree: people with each other, with the computed reward, with the learned labeler.

Cohen's kappa (1960, doi:10.1177/001316446002000104) is the agreement beyond what two judges with these habits
would reach by chance: 1 is full agreement, 0 is chance. A judge's last word on a trace counts; a label taken
back is none. The reward says good from THRESHOLD on, as the rows for training do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import sqlalchemy as sa

from rusty_r2.rewards.labeler import WHO as LEARNED
from rusty_r2.store import TraceStore
from rusty_r2.tables import LABELS, TRACES
from rusty_r2.web.search import read

THRESHOLD = 0.6
REWARD = "computed reward"
PEOPLE = "people together"
MOST_PEOPLE = 8
SHOWN = 20
"""disagreements that are named"""

Said = Mapping[str, bool]
"""what one judge said of which trace"""


@dataclass(frozen=True)
class Pair:
    """Two judges on the traces that both judged."""

    first: str
    second: str
    both_good: int
    both_bad: int
    only_first: int
    """good says the first, bad the second"""
    only_second: int
    apart: tuple[str, ...] = ()
    """traces on which they differ"""

    @property
    def count(self) -> int:
        return self.both_good + self.both_bad + self.only_first + self.only_second

    @property
    def share(self) -> float:
        return (self.both_good + self.both_bad) / self.count if self.count else 0.0

    @property
    def kappa(self) -> float | None:
        """None where chance alone would make them agree always: there is nothing to measure."""
        if not self.count:
            return None
        first = (self.both_good + self.only_first) / self.count
        second = (self.both_good + self.only_second) / self.count
        chance = first * second + (1 - first) * (1 - second)
        return None if chance == 1 else (self.share - chance) / (1 - chance)

    @property
    def words(self) -> str:
        """Landis and Koch's words (1977) for a kappa."""
        kappa = self.kappa
        if kappa is None:
            return "too alike to tell"
        steps = (
            (0.8, "almost perfect"),
            (0.6, "substantial"),
            (0.4, "moderate"),
            (0.2, "fair"),
            (0.0, "slight"),
        )
        return next((word for least, word in steps if kappa > least), "none")


def compare(first: str, one: Said, second: str, other: Said) -> Pair:
    shared = sorted(one.keys() & other.keys())
    cells = [(one[key], other[key]) for key in shared]
    apart = tuple(key for key in reversed(shared) if one[key] != other[key])[:SHOWN]
    good, bad = cells.count((True, True)), cells.count((False, False))
    return Pair(first, second, good, bad, cells.count((True, False)), cells.count((False, True)), apart)


@dataclass(frozen=True)
class Agreement:
    judges: dict[str, int]
    """how many traces each judged"""
    pairs: list[Pair]


def agreement(store: TraceStore) -> Agreement:
    """Every pair of judges that has traces in common."""
    said, rewards = _read(store)
    learned = said.pop(LEARNED, {})
    people = dict(sorted(said.items(), key=lambda pair: -len(pair[1]))[:MOST_PEOPLE])
    together: dict[str, bool] = {}
    for labels in said.values():
        together |= labels
    machine = {key: reward >= THRESHOLD for key, reward in rewards.items()}
    pairs = [compare(a, people[a], b, people[b]) for a, b in combinations(people, 2)]
    each = people if len(people) > 1 else {}
    for name, judged in ((REWARD, machine), (LEARNED, learned)):
        pairs.append(compare(PEOPLE, together, name, judged))
        pairs += [compare(who, labels, name, judged) for who, labels in each.items()]
    pairs.append(compare(REWARD, machine, LEARNED, learned))
    counts = {who: len(labels) for who, labels in people.items()}
    counts |= {REWARD: len(machine), LEARNED: len(learned)}
    return Agreement(counts, [pair for pair in pairs if pair.count])


def _read(store: TraceStore) -> tuple[dict[str, dict[str, bool]], dict[str, float]]:
    """Each judge's last word on each trace, and the rewards of the traces."""
    said: dict[str, dict[str, bool]] = {}
    t = TRACES.c
    brought = ~sa.select(LABELS.c.number).where(LABELS.c.trace_id == t.trace_id).exists()
    # a label that came in with its trace has no history: the trace itself says whose it is
    came = sa.select(t.trace_id, t.label, t.labeled_by).where(t.label.is_not(None), brought)
    told = sa.select(LABELS.c.trace_id, LABELS.c.label, LABELS.c.who).order_by(LABELS.c.number)
    scored = sa.select(t.trace_id, t.reward).where(t.reward.is_not(None))
    for key, label, who in read(store, came):
        said.setdefault(who or "person", {})[key] = label
    for key, label, who in read(store, told):
        mine = said.setdefault(who, {})
        if label is None:
            mine.pop(key, None)
        else:
            mine[key] = label
    rewards = {key: float(reward) for key, reward in read(store, scored)}
    return {who: labels for who, labels in said.items() if labels}, rewards
