# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a completion is worth, as functions that TRL's trainer calls: by the gym, or by the RewardEngine.

`GymReward` lets the sandbox carry out each completion as the one reply to a task; `EngineReward` makes a
trace of prompt and completion and asks the engine. Both hand the work to an executor (executor.py), both
answer None where the sandbox itself broke (trainers leave that completion out; it is never a score), and
both log the parts of what was paid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from rusty_r2.errors import ProtocolError, SandboxError
from rusty_r2.executor import Executor
from rusty_r2.gym import catalog
from rusty_r2.gym.curriculum import Curriculum
from rusty_r2.gym.env import CodingEnv, EnvConfig
from rusty_r2.protocol import Msg, parse
from rusty_r2.rewards.audit import load_rewards
from rusty_r2.rewards.engine import RewardEngine, Score, default_rewards, group_totals
from rusty_r2.rewards.veto import canned
from rusty_r2.trace import ExecutionTrace

ONE_REPLY = EnvConfig(max_turns=1)
"""a completion is a whole episode"""


@dataclass(frozen=True)
class Attempt:
    """One reply to one task."""

    task: str
    """its name in the catalog"""
    reply: str
    env: EnvConfig = ONE_REPLY


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    reward: float | None
    """None: the sandbox broke, and nothing is known"""
    valid: bool = False
    """the reply was an action"""
    passed: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)


def attempt(one: Attempt) -> Outcome:
    """Carry out one reply in the sandbox."""
    with CodingEnv((), one.env) as env:
        env.reset(options={"task": catalog.get(one.task)})
        _, reward, _, _, info = env.step(one.reply)
    if info["masked"]:
        return Outcome(None)
    return Outcome(reward, bool(info["valid"]), bool(info["passed"]), dict(info["rewards"]))


class GymReward:
    """The gym as a reward function: dataset rows have a column `task` with a name."""

    __name__ = "gym"

    def __init__(
        self,
        executor: Executor,
        env: EnvConfig = ONE_REPLY,
        *,
        curriculum: Curriculum | None = None,
    ) -> None:
        self.executor, self.env, self.curriculum = executor, env, curriculum
        self.last: list[Outcome] = []
        """what came of the newest completions"""

    def __call__(
        self,
        completions: Sequence[Any],
        task: Sequence[str],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        tries = [Attempt(name, text_of(said), self.env) for name, said in zip(task, completions, strict=True)]
        self.last = self.executor.map(attempt, tries)
        if self.curriculum is not None:
            for one, outcome in zip(tries, self.last, strict=True):
                if outcome.reward is not None:
                    self.curriculum.report(catalog.get(one.task), outcome.passed)
        if log_metric is not None:
            for name, value in shares(self.last).items():
                log_metric(name, value)
        return [outcome.reward for outcome in self.last]


def shares(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """What some replies were like, in numbers."""
    known = [outcome for outcome in outcomes if outcome.reward is not None]
    told = {"play/masked": float(len(outcomes) - len(known))}
    if known:
        told["play/valid_rate"] = sum(outcome.valid for outcome in known) / len(known)
        told["play/pass_rate"] = sum(outcome.passed for outcome in known) / len(known)
        for name in sorted({name for outcome in known for name in outcome.parts}):
            paid = sum(outcome.parts.get(name, 0.0) for outcome in known)
            told[f"reward_part/{name}"] = paid / len(known)
    return told


class EngineReward:
    """The RewardEngine as a reward function: any prompt, any completion."""

    __name__ = "engine"

    def __init__(
        self,
        executor: Executor | None = None,
        *,
        rewards: Sequence[str] = (),
        engine: RewardEngine | None = None,
    ) -> None:
        """`rewards` are names of your own beside the shipped ones; an `engine` of your own is asked here."""
        self.executor, self.rewards = executor, tuple(rewards)
        self.engine = engine or engine_of(self.rewards)
        self._own = engine is not None

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        traces = [trace_of(asked, said) for asked, said in zip(prompts, completions, strict=True)]
        scores = self.score(traces)
        if log_metric is not None:
            parts = [score.parts for score in scores]
            for name in sorted({name for one in parts for name in one}):
                known = [one[name] for one in parts if name in one]
                log_metric(f"reward_part/{name}", sum(known) / len(known))
        groups: dict[str, list[int]] = {}
        for at, trace in enumerate(traces):
            groups.setdefault(repr((trace.system_prompt, trace.history, trace.user_query)), []).append(at)
        totals: list[float | None] = [None] * len(traces)
        for places in groups.values():
            for at, total in zip(places, group_totals([scores[at] for at in places]), strict=True):
                totals[at] = total
        return totals

    def score(self, traces: Sequence[ExecutionTrace]) -> list[Score]:
        """Every trace's score, wherever it is worked out."""
        if self.executor is None or self._own:
            return self.engine.score_all(traces)
        again = canned(traces)  # shows only in all of them together
        alone = self.executor.map(partial(score_one, self.rewards), traces)
        return [
            Score(score.results, score.weights, "the same answer to different requests")
            if trace.trace_id in again and not score.veto and not score.masked
            else score
            for trace, score in zip(traces, alone, strict=True)
        ]


def score_one(rewards: tuple[str, ...], trace: ExecutionTrace) -> Score:
    """One trace's score by an engine that every process makes once."""
    try:
        return engine_of(rewards).score(trace)
    except SandboxError as error:
        return Score(masked=str(error))


@cache
def engine_of(rewards: tuple[str, ...]) -> RewardEngine:
    own = [reward for name in rewards for reward in load_rewards(name)]
    return RewardEngine([*default_rewards(), *own])


def trace_of(prompt: Any, completion: Any) -> ExecutionTrace:
    """A prompt and what was answered, as the trace it would have left."""
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    system = "".join(str(turn["content"]) for turn in turns if turn["role"] == "system")
    said = [turn for turn in turns if turn["role"] != "system"]
    return ExecutionTrace(
        user_query=str(said[-1]["content"]) if said else "",
        history=[dict(turn) for turn in said[:-1]],
        system_prompt=system,
        final_response=_answer(text_of(completion)),
    )


def _answer(text: str) -> str:
    """What a reply says; a command nobody ran stays the text it is, and is never taken for a deed."""
    try:
        action = parse(text)
    except ProtocolError:
        return text
    return action.message if isinstance(action, Msg) else text


def text_of(completion: Any) -> str:
    """The words of a completion in either of TRL's forms; of several turns the assistant's last."""
    if isinstance(completion, str):
        return completion
    said = [turn["content"] for turn in completion if turn.get("role") == "assistant"]
    return str(said[-1]) if said else ""
