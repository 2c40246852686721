# SPDX-License-Identifier: AGPL-3.0-or-later
"""Episodes in the gym, played by a Hugging Face model and kept token by token.

    stage = Stage(model, Chat(tokenizer), EnvConfig(max_turns=3), Drawing(max_new_tokens=64))
    episodes = stage.play(tasks, seeds)

All episodes write their next reply together (chatting.py), the gym's threads carry the replies out
(gym/vector.py), and what came of each is read before the next. `own` says which tokens the model wrote: only
those are trained. Our own model plays faster in agent/players.py, where its state makes that possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rusty_r2.eval.rates import bootstrap, wilson
from rusty_r2.gym.env import EnvConfig, opening
from rusty_r2.gym.vector import Step, VectorEnv
from rusty_r2.task import Task
from rusty_r2.train.before_after import FEWEST, Comparison, Line
from rusty_r2.train.chatting import Chat, Drawing, Written, write
from rusty_r2.train.grpo_rewards import Outcome

STRIDE = 1_000_003
"""between the seeds of two turns"""


@dataclass
class Played:
    """One task played to its end."""

    task: Task
    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    """everything after the prompt: replies, and what came of them"""
    own: list[int] = field(default_factory=list)
    """1 where the model wrote the token"""
    logprobs: list[float] = field(default_factory=list)
    """of the model's own tokens when it wrote them; 0 elsewhere"""
    replies: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """the task first, then what came of each reply"""
    reward: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    valid: int = 0
    """replies that were actions"""
    passed: bool = False
    masked: bool = False
    """the sandbox failed: this episode teaches nothing"""

    def say(self, reply: Written, text: str) -> None:
        self.ids += reply.ids
        self.own += [1] * len(reply.ids)
        self.logprobs += reply.logprobs
        self.replies.append(text)

    def hear(self, step: Step) -> None:
        self.seen.append(step.observation)
        self.reward += step.reward
        for name, value in step.info["rewards"].items():
            self.parts[name] = self.parts.get(name, 0.0) + value
        self.valid += bool(step.info["valid"])
        self.passed, self.masked = bool(step.info["passed"]), bool(step.info["masked"])

    def came_to(self, outcome: Outcome) -> None:
        """The end of an episode of one reply, judged elsewhere."""
        self.reward, self.parts = outcome.reward or 0.0, dict(outcome.parts)
        self.valid, self.passed, self.masked = int(outcome.valid), outcome.passed, outcome.reward is None

    def read(self, ids: Sequence[int]) -> None:
        self.ids += ids
        self.own += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)


class Stage:
    """Where a model plays."""

    def __init__(
        self, model: Any, chat: Chat, env: EnvConfig, drawing: Drawing, *, max_length: int = 1024
    ) -> None:
        self.model, self.chat, self.env, self.drawing, self.room = model, chat, env, drawing, max_length

    def play(self, tasks: Sequence[Task], seeds: Sequence[int]) -> list[Played]:
        """Play every task once, side by side."""
        with VectorEnv(len(tasks), (), self.env) as envs:
            episodes = [self._begin(envs.reset(slot, task)[0], task) for slot, task in enumerate(tasks)]
            alive, turn = list(range(len(episodes))), 0
            while alive:
                some = [episodes[slot] for slot in alive]
                replies = write(
                    self.model,
                    [one.prompt + one.ids for one in some],
                    self.chat,
                    self.drawing,
                    [seeds[slot] + turn * STRIDE for slot in alive],
                )
                for slot, reply in zip(alive, replies, strict=True):
                    text = self.chat.text(reply.ids)
                    episodes[slot].say(reply, text)
                    envs.submit(slot, text)
                alive, turn = self._hear(envs, episodes), turn + 1
        return episodes

    def open(self, tasks: Sequence[Task]) -> list[Played]:
        """Episodes in which nothing was said yet."""
        return [self._begin(opening(task, self.env), task) for task in tasks]

    def _begin(self, wanted: str, task: Task) -> Played:
        return Played(task, self.chat.opening(self.chat.messages(wanted)), seen=[wanted])

    def _hear(self, envs: VectorEnv, episodes: list[Played]) -> list[int]:
        """Wait for the gym; the slots that have another turn, and room for it."""
        going: list[int] = []
        while envs.busy:
            for step in envs.poll():
                one = episodes[step.slot]
                one.hear(step)
                if step.done:
                    continue
                glue = self.chat.between(one.ids, step.observation)
                if len(one.prompt) + len(one.ids) + len(glue) + self.drawing.max_new_tokens <= self.room:
                    one.read(glue)
                    going.append(step.slot)
        return sorted(going)


# ── before and after ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Outcomes:
    """How a model did on a fixed set of tasks, one place each; None where the sandbox failed."""

    reward: tuple[float | None, ...]
    passed: tuple[bool, ...]
    valid: tuple[float, ...]
    """share of the replies that were actions"""

    def facts(self) -> dict[str, float]:
        known = [place for place, reward in enumerate(self.reward) if reward is not None]
        return {
            "eval/reward": _mean([self.reward[place] or 0.0 for place in known]),
            "eval/pass_rate": _mean([self.passed[place] for place in known]),
            "eval/valid_rate": _mean([self.valid[place] for place in known]),
        }


def outcomes(episodes: Sequence[Played]) -> Outcomes:
    """What some episodes came to."""
    return Outcomes(
        tuple(None if one.masked else one.reward for one in episodes),
        tuple(one.passed for one in episodes),
        tuple(one.valid / max(1, len(one.replies)) for one in episodes),
    )


def compared(
    before: Outcomes, after: Outcomes, *, valid: str = "valid actions", held_out: bool = True
) -> Comparison:
    """Base and result on the tasks that both could play; the mean reward decides."""
    both = zip(before.reward, after.reward, strict=True)
    known = [place for place, pair in enumerate(both) if None not in pair]
    lines = tuple(
        _line(name, [float(was[place] or 0) for place in known], [float(now[place] or 0) for place in known])
        for name, was, now in (
            ("reward", before.reward, after.reward),
            ("passed", before.passed, after.passed),
            (valid, before.valid, after.valid),
        )
    )
    return Comparison(lines, len(known), held_out)


def _line(name: str, was: list[float], now: list[float]) -> Line:
    """Intervals of both, and of the change task by task; shares of yes and no have Wilson's."""
    change = [b - a for a, b in zip(was, now, strict=True)]
    one, two = ((_mean(values), *_between(values)) for values in (was, now))
    return Line(name, one, two, (_mean(change), *bootstrap(change)), enough=len(change) >= FEWEST)


def _between(values: list[float]) -> tuple[float, float]:
    if set(values) <= {0.0, 1.0}:
        return wilson(int(sum(values)), len(values))
    return bootstrap(values)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
