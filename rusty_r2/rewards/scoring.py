# SPDX-License-Identifier: AGPL-3.0-or-later
"""Keep the rewards beside the traces, so that lists can be sorted by them and the page can show their parts.

    rusty rewards score                    every trace of the store that has no reward yet
    rusty rewards score --again            all of them, after the rewards have changed

A trace on which the sandbox broke, or to which no reward applies, is left without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rusty_r2.errors import DataError
from rusty_r2.rewards.audit import load_rewards
from rusty_r2.rewards.engine import RewardEngine, default_rewards

if TYPE_CHECKING:
    from rusty_r2.store import TraceStore


@dataclass(frozen=True)
class ScoreConfig:
    store: str = ""
    """path or URL of the trace store; the one in the data home where not given"""
    agent: str = ""
    """only traces of this agent"""
    reward: tuple[str, ...] = ()
    """rewards of your own beside the shipped ones: module:Class or FILE.py:Class"""
    again: bool = False
    """also those that have a reward"""


def score(config: ScoreConfig) -> str:
    """Judge the traces of the store, and keep each reward with its parts."""
    from rusty_r2.store import TraceStore

    own = [reward for name in config.reward for reward in load_rewards(name)]
    engine = RewardEngine([*default_rewards(), *own])
    with TraceStore(config.store or None) as store:
        kept, left = score_store(store, engine, agent=config.agent, again=config.again)
        if not kept and not left:
            raise DataError(f"{store.where} holds no trace to judge. Type: rusty trace list")
        return f"{kept:,} traces judged, {left:,} without a reward\n{store.where}\nnext: rusty trace list"


def score_store(
    store: TraceStore, engine: RewardEngine, *, agent: str = "", again: bool = False
) -> tuple[int, int]:
    """Judge and keep; returns how many have a reward now, and how many got none."""
    found = store.each(agent=agent or None, limit=None, newest_first=False)
    traces = [trace for trace in found if again or trace.reward_score is None]
    kept = 0
    for trace, result in zip(traces, engine.score_all(traces), strict=True):
        if result.total is not None:
            store.score(trace.trace_id, result.total, result.parts)
            kept += 1
    return kept, len(traces) - kept
