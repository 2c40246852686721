# SPDX-License-Identifier: AGPL-3.0-or-later
"""The auto-labeler: people label some traces, a classifier labels the rest it is sure of.

    rusty rewards learn                 learn from people's labels, show how good it is, keep it
    rusty rewards learn --label         and label the unlabelled traces it is sure of

Its labels carry its name and its confidence, never cover a person's, and are never learned from.
`by_doubt` puts the traces first where a person's word would teach it most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rusty_r2.errors import DataError
from rusty_r2.trace import ExecutionTrace

if TYPE_CHECKING:
    from rusty_r2.rewards.learned import LearnedReward
    from rusty_r2.store import TraceStore

WHO = "learned"
"""the name beside its labels"""


@dataclass(frozen=True)
class LearnConfig:
    store: str = ""
    """path or URL of the trace store; the one in the data home where not given"""
    agent: str = ""
    """only traces of this agent"""
    output: Path | None = None
    """where to keep what was learned; models/learned_reward.npz in the data home where not given"""
    min_examples: int = 10
    """fewer labels than this teach nothing"""
    label: bool = False
    """label the unlabelled traces it is sure of"""


def learn(config: LearnConfig) -> str:
    """Learn from the labels in the store, and label what is left where asked to."""
    from rusty_r2.rewards.learned import LearnedReward
    from rusty_r2.store import TraceStore

    with TraceStore(config.store or None) as store:
        reward = LearnedReward(config.output)
        labelled = store.each(agent=config.agent or None, labeled=True, limit=None)
        report = reward.learn_from_traces(labelled, config.min_examples)
        if not report.learned:
            raise DataError(f"{store.where}: {report}")
        path = reward.save()
        told = label_unlabelled(store, reward, agent=config.agent) if config.label else None
    lines = [str(report)]
    if told is not None:
        lines.append(f"labelled {told.good} good and {told.bad} bad; left {told.abstained} to people")
    after = "rusty data kto" if config.label else "rusty rewards learn --label"
    return "\n".join([*lines, str(path), f"next: {after}"])


@dataclass(frozen=True)
class Labelled:
    good: int
    bad: int
    abstained: int


def label_unlabelled(store: TraceStore, reward: LearnedReward, *, agent: str = "") -> Labelled:
    """Give every unlabelled trace a label, unless the reward abstains."""
    waiting = store.find(agent=agent or None, labeled=False, limit=None, newest_first=False)
    good = bad = 0
    for trace in waiting:
        result = reward(trace)
        if result.score is None:
            continue
        verdict = result.score >= 0.5
        note = f"confidence {result.details['confidence']:.2f}"
        store.label(trace.trace_id, verdict, note=note, who=WHO, manual=False)
        good, bad = good + verdict, bad + (not verdict)
    return Labelled(good, bad, len(waiting) - good - bad)


def by_doubt(traces: Iterable[ExecutionTrace], reward: LearnedReward) -> list[ExecutionTrace]:
    """The traces a person should look at first come first."""
    return sorted(traces, key=lambda trace: (-reward.doubt(trace), trace.trace_id))
