# SPDX-License-Identifier: AGPL-3.0-or-later
"""GRPO on whole episodes: a Hugging Face model plays tasks of the gym, and each is compared with itself.

`Episodes` is what TRL calls a rollout function. Each task is played `num_generations` times; an episode is
one completion: the model's replies, and between them what the gym answered, read but never trained. Ids,
masks and log-probabilities are those of the play itself; nothing is encoded again. `Answers` is the same for
prompts without a gym: one reply each. Which task comes next is the curriculum's choice (gym/curriculum.py),
the same in every process of a run. `rusty train grpo` (grpo.py) starts it; `--max-turns` is its length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rusty_r2 import files
from rusty_r2.executor import Executor
from rusty_r2.gym import catalog
from rusty_r2.gym.curriculum import Curriculum
from rusty_r2.gym.env import EnvConfig
from rusty_r2.run import step_of
from rusty_r2.task import Task
from rusty_r2.train.chatting import Chat, Drawing, Written, write
from rusty_r2.train.grpo_rewards import Attempt, Outcome, attempt, shares, text_of
from rusty_r2.train.grpo_trainer import Watch
from rusty_r2.train.playing import Played, Stage

STATE = "curriculum.json"


@dataclass(frozen=True)
class Plan:
    """How a group is made."""

    drawing: Drawing
    generations: int
    max_length: int
    seed: int


class Answers:
    """Rollouts without a gym: one reply to each prompt; reward functions say what it is worth."""

    def __init__(self, chat: Chat, plan: Plan) -> None:
        self.chat, self.plan = chat, plan

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        asked = [self.ids(prompt) for prompt in prompts]
        model = trainer.accelerator.unwrap_model(trainer.model)
        said = write(model, asked, self.chat, self.plan.drawing, seeds_of(self.plan, trainer, len(asked)))
        return rolled_out(asked, [one.ids for one in said], [one.logprobs for one in said])

    def ids(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            return [int(word) for word in self.chat.tokenizer(prompt)["input_ids"]]
        return self.chat.opening(prompt)


class Episodes:
    """Rollouts in the gym."""

    def __init__(
        self,
        chat: Chat,
        env: EnvConfig,
        plan: Plan,
        curriculum: Curriculum,
        *,
        watch: Watch,
        executor: Executor | None = None,
        log: Path | None = None,
    ) -> None:
        self.chat, self.env, self.plan, self.curriculum, self.watch = chat, env, plan, curriculum, watch
        self.executor, self.log = executor, log
        """where the sandbox work of one-reply episodes runs; where every episode is written down"""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        names = self._next(len(prompts), trainer)
        tasks = [catalog.get(name) for name in names]
        model = trainer.accelerator.unwrap_model(trainer.model)
        episodes = self._play(model, tasks, seeds_of(self.plan, trainer, len(tasks)))
        self._report(episodes, trainer)
        paid = [None if one.masked else one.reward for one in episodes]
        rolled = rolled_out(
            [one.prompt for one in episodes],
            [one.ids for one in episodes],
            [one.logprobs for one in episodes],
        )
        return rolled | {"env_mask": [one.own for one in episodes], "paid": paid}

    def _next(self, rows: int, trainer: Any) -> list[str]:
        """The tasks of this process's rows; every process draws all, and takes its part."""
        processes, first = trainer.accelerator.num_processes, trainer.accelerator.process_index * rows
        groups = [self.curriculum.next().name for _ in range(rows * processes // self.plan.generations)]
        everything = [name for name in groups for _ in range(self.plan.generations)]
        return everything[first : first + rows]

    def _play(self, model: Any, tasks: Sequence[Task], seeds: Sequence[int]) -> list[Played]:
        stage = Stage(model, self.chat, self.env, self.plan.drawing, max_length=self.plan.max_length)
        if self.executor is None or self.env.max_turns > 1:
            return stage.play(tasks, seeds)
        episodes = stage.open(tasks)
        prompts = [one.prompt for one in episodes]
        replies = write(model, prompts, self.chat, self.plan.drawing, seeds)
        tries = [_said(one, reply, self.chat, self.env) for one, reply in zip(episodes, replies, strict=True)]
        for one, outcome in zip(episodes, self.executor.map(attempt, tries), strict=True):
            one.came_to(outcome)
        return episodes

    def _report(self, episodes: Sequence[Played], trainer: Any) -> None:
        """Tell the curriculum, the watch, the metrics and the log; the same in every process."""
        from accelerate.utils import gather_object

        mine = [_row(one, trainer.state.global_step) for one in episodes]
        everything = gather_object(mine) if trainer.accelerator.num_processes > 1 else mine
        known = [row for row in everything if row["reward"] is not None]
        for row in known:
            self.curriculum.report(catalog.get(row["task"]), row["passed"])
        self.watch.heard([row["valid"] > 0 for row in known])
        facts = shares([_outcome(row) for row in everything])
        facts |= {f"lesson/{name}": rate for name, rate in self.curriculum.rates().items()}
        for name, value in facts.items():
            trainer._metrics["train"][name].append(value)
        if self.log is not None and trainer.accelerator.is_main_process:
            _append(self.log, everything)


def paid(completions: Sequence[Any], paid: Sequence[float | None], **_: Any) -> list[float | None]:
    """The reward function of `Episodes`: what the gym paid; None where its sandbox broke."""
    return list(paid)


def seeds_of(plan: Plan, trainer: Any, rows: int) -> list[int]:
    """One seed a row, by the step and the row's place among all processes: resuming repeats them."""
    first = trainer.accelerator.process_index * rows
    return [
        (plan.seed * 7919 + trainer.state.global_step) * 100_003 + row for row in range(first, first + rows)
    ]


def rolled_out(prompts: list[list[int]], ids: list[list[int]], logprobs: list[list[float]]) -> dict[str, Any]:
    """What TRL wants of a rollout function."""
    return {"prompt_ids": prompts, "completion_ids": ids, "logprobs": logprobs}


def _said(one: Played, reply: Written, chat: Chat, env: EnvConfig) -> Attempt:
    text = chat.text(reply.ids)
    one.say(reply, text)
    return Attempt(one.task.name, text, env)


def _row(one: Played, step: int) -> dict[str, Any]:
    return {
        "step": step,
        "task": one.task.name,
        "replies": one.replies,
        "seen": one.seen[1:],
        "reward": None if one.masked else one.reward,
        "parts": one.parts,
        "valid": one.valid,
        "passed": one.passed,
    }


def _outcome(row: Mapping[str, Any]) -> Outcome:
    return Outcome(row["reward"], row["valid"] > 0, row["passed"], row["parts"])


class KeepCurriculum(TrainerCallback):  # type: ignore[misc]
    """The curriculum's state goes into every checkpoint, so that a resumed run draws the same tasks."""

    def __init__(self, curriculum: Curriculum) -> None:
        self.curriculum = curriculum

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            files.write(folder / STATE, json.dumps(self.curriculum.state_dict()) + "\n")


def go_on(curriculum: Curriculum, checkpoint: Path | None) -> None:
    """Put the curriculum where a checkpoint left it."""
    if checkpoint is not None and (checkpoint / STATE).is_file():
        curriculum.load_state_dict(json.loads((checkpoint / STATE).read_text()))


class Kept:
    """A reward function whose completions are written down with what they were paid."""

    def __init__(self, reward: Callable[..., list[float | None]], log: Path) -> None:
        self.reward, self.log = reward, log
        self.__name__ = str(getattr(reward, "__name__", "reward"))

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], trainer_state: Any, **more: Any
    ) -> list[float | None]:
        from accelerate.utils import gather_object

        paid = self.reward(prompts, completions, **more)
        said = [
            {"step": trainer_state.global_step, "prompt": asked, "replies": [text_of(one)], "reward": worth}
            for asked, one, worth in zip(prompts, completions, paid, strict=True)
        ]
        everything = gather_object(said)
        if trainer_state.is_world_process_zero:
            _append(self.log, everything)
        return paid


def _append(log: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with open(log, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def forget(log: Path, checkpoint: Path | None) -> None:
    """Cut what came after a checkpoint, and half a line: those completions will be made again."""
    if log.exists():
        done = step_of(checkpoint) if checkpoint is not None else 0
        whole = log.read_text(encoding="utf-8").split("\n")[:-1]
        kept = [line for line in whole if json.loads(line)["step"] < done]
        files.write(log, "".join(line + "\n" for line in kept))
