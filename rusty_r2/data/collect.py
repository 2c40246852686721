# SPDX-License-Identifier: AGPL-3.0-or-later
"""Several minds play the same tasks, and what each of them did becomes traces and groups.

    rusty trace collect --models rusty hf:smollm2 --tasks 50 --times 4 --output groups.jsonl
    rusty train replay --data groups.jsonl

Every mind plays every task `times` times through the main loop (agent/rollout.py). The traces go to the
store, each with the address and the digest of who played; `--output` also writes one row a task: all minds'
answers in one group, compared with each other, with the gym's rewards, the tokens and log-probabilities where
the mind tells them, and who said what. Episodes are played in parcels wherever the executor runs them; a
parcel opens its own mind with its own seed, so the number of workers and the engine change nothing. An
episode whose sandbox broke is counted and left out.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rusty_r2.agent.address import MindOptions, open_policy
from rusty_r2.agent.policy import Policy
from rusty_r2.agent.rollout import begin, rollout
from rusty_r2.closing import shut
from rusty_r2.data import rows
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.executor import Engine, open_executor
from rusty_r2.trace import ExecutionTrace

if TYPE_CHECKING:
    from rusty_r2.gym.env import CodingEnv

STRIDE = 10_007
"""between the seeds of two parcels: more than one parcel can say"""


@dataclass(frozen=True)
class CollectConfig:
    """Let several minds play the same tasks of the gym."""

    models: tuple[str, ...] = ("rusty",)
    """addresses of the minds: rusty, runs/NAME, hf:NAME, gguf:PATH, ollama:NAME, http://HOST, script:FILE"""
    tasks: int = 20
    """different tasks"""
    times: int = 4
    """plays of each task by each mind"""
    families: tuple[str, ...] = ()
    """families to take tasks from; empty: all that are for training"""
    max_difficulty: int = 1
    """the hardest level of a family"""
    max_turns: int = 3
    """replies of an episode"""
    max_new_tokens: int = 128
    """tokens of a reply"""
    temperature: float = 1.0
    """of sampling; what is learned from it later needs the same --temperature"""
    grammar: bool = False
    """only valid actions can be said; the recorded probabilities are then not the mind's own"""
    store: str = ""
    """path or URL of the trace store; the one in the data home where not given"""
    output: Path | None = None
    """also write groups for rusty train replay"""
    parcel: int = 16
    """episodes a mind is opened for"""
    engine: Engine = "local"
    """where they are played: processes of this machine, or a Ray cluster"""
    workers: int = 1
    """processes that play; 1: this one, 0: one a core"""
    seed: int = 0
    """of the tasks and the samples"""

    def __post_init__(self) -> None:
        if not self.models or len(set(self.models)) < len(self.models):
            raise ConfigError("--models needs at least one address, each once")
        for name in ("tasks", "times", "max_turns", "max_new_tokens", "parcel"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class Parcel:
    """Some episodes of one mind."""

    model: str
    options: MindOptions
    tasks: tuple[str, ...]
    max_turns: int


def play(parcel: Parcel) -> list[ExecutionTrace]:
    """Play every task of a parcel."""
    from rusty_r2.gym.env import CodingEnv, EnvConfig

    policy = open_policy(parcel.model, parcel.options)
    try:
        with CodingEnv((), EnvConfig(max_turns=parcel.max_turns)) as env:
            return [_episode(policy, env, parcel, name) for name in parcel.tasks]
    finally:
        shut(policy)


def _episode(policy: Policy, env: CodingEnv, parcel: Parcel, name: str) -> ExecutionTrace:
    from rusty_r2.gym import catalog

    trace = begin(policy, env, task=catalog.get(name))
    played = rollout(policy, env, trace, max_turns=parcel.max_turns)
    return replace(played, agent_name=parcel.model)


def parcels(config: CollectConfig) -> list[Parcel]:
    """All episodes, mind after mind; which go together does not depend on who will play them."""
    from rusty_r2.gym import catalog

    levels = list(range(1, config.max_difficulty + 1))
    names = [
        task.name
        for task in catalog.tasks(
            "train",
            seed=config.seed,
            count=config.tasks,
            families=config.families or None,
            difficulty=levels,
        )
    ]
    wanted = [name for name in names for _ in range(config.times)]
    found: list[Parcel] = []
    for model in config.models:
        for at in range(0, len(wanted), config.parcel):
            options = MindOptions(
                grammar=config.grammar,
                temperature=config.temperature,
                top_k=0,
                max_new_tokens=config.max_new_tokens,
                seed=(config.seed * 1009 + len(found)) * STRIDE,
            )
            found.append(Parcel(model, options, tuple(wanted[at : at + config.parcel]), config.max_turns))
    return found


def collect(config: CollectConfig) -> Path | str:
    """Let every mind play every task, keep the traces, and write the groups."""
    from rusty_r2.store import TraceStore

    wanted = parcels(config)
    for model in config.models:  # an address that leads nowhere is said before anybody plays
        shut(open_policy(model, wanted[0].options))
    with TraceStore(config.store or None) as store:
        with open_executor(config.engine, workers=config.workers) as executor:
            played = [trace for some in executor.map(play, wanted) for trace in some]
        known = [trace for trace in played if trace.ended != "masked"]
        if not known:
            raise DataError(f"all {len(played)} episodes were cut short by the sandbox. Type: rusty doctor")
        store.append_many(known)
    print(_told(config, known, len(played) - len(known)), file=sys.stderr)
    if config.output is None:
        return f"{store.where}\nnext: rusty data grpo --agent {config.models[0]}"
    made = rows.save(groups(known), config.output)
    print(f"{len(known)} traces in {store.where}\nnext: rusty train replay --data {made}", file=sys.stderr)
    return made


def groups(traces: Iterable[ExecutionTrace]) -> list[dict[str, Any]]:
    """One row a task: every mind's answers to it."""
    by_task: dict[str, list[ExecutionTrace]] = defaultdict(list)
    for trace in traces:
        by_task[trace.task_name].append(trace)
    return [_group(name, some) for name, some in by_task.items() if len(some) > 1]


def _group(name: str, traces: Sequence[ExecutionTrace]) -> dict[str, Any]:
    from rusty_r2.rewards.engine import normalised

    raw = [float(trace.reward_score or 0.0) for trace in traces]
    return {
        "prompt": rows.prompt_of(traces[0]),
        "completions": [rows.completion_of(trace) for trace in traces],
        "rewards": [round(value, 6) for value in normalised(raw)],
        "raw_rewards": [round(value, 6) for value in raw],
        "models": [trace.agent_name for trace in traces],
        "trace_ids": [trace.trace_id for trace in traces],
        "token_ids": [_recorded(trace, "token_ids") for trace in traces],
        "logprobs": [_recorded(trace, "logprobs") for trace in traces],
        "task": name,
    }


def _recorded(trace: ExecutionTrace, what: str) -> list[list[Any]]:
    """One list a turn, where every turn was recorded; none where one was not."""
    found = [list(getattr(step, what)) for step in trace.steps]
    return found if all(found) else []


def _told(config: CollectConfig, traces: Sequence[ExecutionTrace], masked: int) -> str:
    lines = [f"{'mind':<32} {'episodes':>8} {'reward':>8} {'valid':>8}"]
    count = Counter(trace.agent_name for trace in traces)
    for model in config.models:
        theirs = [trace for trace in traces if trace.agent_name == model]
        replies = [step for trace in theirs for step in trace.steps]
        mean = sum(trace.reward_score or 0.0 for trace in theirs) / max(1, len(theirs))
        valid = sum(step.action is not None for step in replies) / max(1, len(replies))
        lines.append(f"{model:<32.32} {count[model]:>8} {mean:>8.3f} {valid:>7.0%}")
    return "\n".join([*lines, *([f"{masked} episodes left out: the sandbox failed"] if masked else [])])
