# SPDX-License-Identifier: AGPL-3.0-or-later
"""One run of GRPO, from the base model to the table of before and after.

`GroupRun` is what runs with made and with recorded groups share: the base model with its adapter, the
folder, the trainer, what is said at the end. `Online` makes its groups: in the gym, or by answering prompts.
The options are in grpo.py; recorded groups in replay.py and replay_run.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rusty_r2.config import resolved
from rusty_r2.data import rows
from rusty_r2.errors import DataError
from rusty_r2.eval.gym import tasks as heldout_tasks
from rusty_r2.executor import open_executor
from rusty_r2.gym.curriculum import Curriculum, CurriculumConfig
from rusty_r2.gym.env import EnvConfig
from rusty_r2.hardware import detect_hardware
from rusty_r2.rewards.audit import require_audit
from rusty_r2.run import Run
from rusty_r2.train import grpo
from rusty_r2.train.agent_grpo import Answers, Episodes, KeepCurriculum, Kept, Plan, forget, go_on, paid
from rusty_r2.train.before_after import Comparison
from rusty_r2.train.chatting import Chat, Drawing, write
from rusty_r2.train.distributed import World, join
from rusty_r2.train.encoded import order
from rusty_r2.train.estimate import estimate
from rusty_r2.train.fit import Fitted, begin, fit, say
from rusty_r2.train.grpo import GroupOptions, GRPOConfig
from rusty_r2.train.grpo_rewards import EngineReward
from rusty_r2.train.grpo_trainer import GroupTrainer, Watch
from rusty_r2.train.lora import (
    Shape,
    arguments,
    dtype_of,
    find_base,
    lora_config,
    open_config,
    open_model,
    open_tokenizer,
    shape_of,
)
from rusty_r2.train.merge import merge_into, write_card
from rusty_r2.train.playing import Outcomes, Stage, compared, outcomes
from rusty_r2.train.progress import stopped
from rusty_r2.train.session import choose_device
from rusty_r2.train.tuning import check_options

EASIER = "raise --num-generations or --temperature, take easier --families, or warm up: rusty train sft"
GOOD = 0.6
"""a score from which a trace is labelled good (rewards/engine.py)"""
PROMPT = 160
"""tokens of a task's request with the system prompt, for the estimate"""


class GroupRun:
    """A run of GRPO, whatever its groups are made of. Heavy things are loaded last."""

    method = "grpo"
    passes = 2.0
    """times a step reads its rows, the backward pass counted as one"""

    def __init__(self, config: GroupOptions, stack: ExitStack) -> None:
        check_options(config)
        self.config, self.stack = config, stack
        self.hardware = detect_hardware()
        self.base = find_base(config.base_model, self.hardware)
        self.world: World = stack.enter_context(join(choose_device(config.device)))
        self.sizes = open_config(self.base)
        self.tokenizer = open_tokenizer(self.base)
        system = {"system": config.system_prompt} if config.system_prompt else {}
        self.chat = Chat(self.tokenizer, **system)
        self.watch = Watch(patience=config.patience)
        self.run: Run | None = None
        self.folder = Path()
        self.resumed: Path | None = None

    @property
    def steps(self) -> int:
        return self.config.max_steps

    def shape(self, generations: int) -> Shape:
        known = shape_of(self.config, self.hardware, processes=self.world.size)
        shape = grpo.whole_groups(known, generations)
        if shape != known:
            groups = f"whole groups of {generations}"
            say(self.world, f"{shape.rows} completions a step instead of {known.rows}: {groups}")
        return shape

    def plan(self, shape: Shape, lengths: list[int], what: str) -> str:
        """What will be done, and what it will cost."""
        found = estimate(
            self.sizes,
            self.config,
            shape,
            self.hardware,
            lengths=lengths,
            steps=self.steps,
            passes=self.passes + (self.config.beta > 0),
            device=self.world.device.type,
            dtype=dtype_of(self.config, self.world.device.type),
        )
        return f"{self.method} on {self.base.name}: {what}; {shape.rows} completions a step\n{found}"

    def begin(self, facts: dict[str, Any], plan: str) -> None:
        known = {"base": self.base.reference, **facts}
        self.run, self.folder, self.resumed = begin(self.method, self.config, self.world, known)
        if self.run is not None:
            self.stack.enter_context(self.run)
        say(self.world, f"{plan}; {self.folder}")

    def trainer(
        self, shape: Shape, generations: int, longest: int, dataset: list[dict[str, Any]], **more: Any
    ) -> GroupTrainer:
        given = arguments(self.config, shape, folder=self.folder, steps=self.steps)
        model, _ = open_model(self.config, self.base)
        return GroupTrainer(
            model=model,
            args=grpo.trl_arguments(self.config, given, generations, longest),
            train_dataset=rows.to_hf(dataset),
            processing_class=self.tokenizer,
            peft_config=lora_config(self.config, model, self.hardware),
            watch=self.watch,
            **more,
        )

    def fit(self, trainer: GroupTrainer) -> Fitted:
        self.watch.go_on(self.resumed)
        fitted = fit(trainer, self.run, self.config, self.world, steps=self.steps, resume_from=self.resumed)
        if self.watch.groups:
            say(self.world, self.watch.told())
        if self.watch.reason:
            say(self.world, f"stopped after step {fitted.step}: {self.watch.reason}")
        if self.run is not None:
            self.run.note(flat_groups=self.watch.flat, groups=self.watch.groups, stopped=self.watch.reason)
        return fitted

    def interrupted(self, fitted: Fitted) -> bool:
        """Whether a person or the clock ended it: then it is to be resumed, not compared."""
        if not fitted.stopped or self.watch.reason:
            return False
        if self.run is not None:
            self.run.close("stopped")
        again = f"rusty train {self.method} --config {self.folder}/config.json"
        again += f" --output-dir {self.folder} --resume auto"
        say(self.world, stopped(f"at step {fitted.step:,}", again))
        return True

    def conclude(self, found: Comparison | None) -> Path:
        """Write down what came of it; the run's folder."""
        if self.run is not None:
            if found is not None:
                self.run.note(worse=found.worse, before_after=found.facts())
            say(self.world, found.table() if found else "base and result were not compared: no tasks or rows")
            write_card(self.folder)
            if self.config.merge:
                merge_into(self.folder, self.folder / "merged")
        self.world.tell(None)
        say(self.world, f"next: rusty train merge {self.folder}")
        return self.folder


class Online(GroupRun):
    """Groups are made while training: played in the gym, or answered."""

    config: GRPOConfig
    _valid = "valid actions"

    def __init__(self, config: GRPOConfig, stack: ExitStack) -> None:
        self.prompts, self.held = grpo.read_prompts(config)
        self.families = () if config.data else grpo.gym_families(config)
        self.curriculum = Curriculum(CurriculumConfig(config.seed, self.families, config.max_difficulty))
        super().__init__(config, stack)
        self.executor = stack.enter_context(open_executor(config.engine, workers=config.workers))
        self.generations = grpo.group_size(config, self.hardware)
        self.drawing = Drawing(config.max_new_tokens, config.temperature)
        self.groups = Plan(self.drawing, self.generations, config.max_length, config.seed)
        self.env = EnvConfig(max_turns=config.max_turns)
        self._leave_out_long()

    def _leave_out_long(self) -> None:
        """Only prompts that leave room for an answer stay; those that do not are counted."""
        config, ids = self.config, Answers(self.chat, self.groups).ids
        room, asked = config.max_length - config.max_new_tokens, len(self.prompts)
        sized = [(len(ids(row["prompt"])), row) for row in self.prompts]
        self.lengths = [size for size, _ in sized if size <= room]
        """tokens of each prompt that stays"""
        self.prompts = [row for size, row in sized if size <= room]
        self.held = [row for row in self.held if len(ids(row["prompt"])) <= room]
        if asked and not self.prompts:
            raise DataError(
                f"every prompt of {config.data} is over {room} tokens. "
                f"Type: --max-length {2 * config.max_length}"
            )
        if len(self.prompts) < asked:
            say(self.world, f"{asked - len(self.prompts)} prompts left out: over {room} tokens")

    def train(self) -> Path | str:
        config = self.config
        self.reward = self.pays() if config.data is not None else None
        shape = self.shape(self.generations)
        longest = config.max_turns * config.max_new_tokens
        lengths = [min(config.max_length, prompt + longest) for prompt in self.lengths or [PROMPT]]
        gym = f"tasks of the gym, at most {config.max_turns} replies long"
        where = f"prompts of {config.data}" if config.data else gym
        plan = self.plan(shape, lengths, f"{self.generations} answers each to {where}")
        if config.dry_run:
            return json.dumps(resolved(config), indent=2) + f"\n{plan}"
        facts = {"rows_a_step": shape.rows, "dataset": rows.digest(self.prompts) if config.data else "gym"}
        facts["lineage"] = {"rows": len(self.prompts), "data": str(config.data or "gym")}
        self.begin(facts, plan)
        return self._answer(shape) if config.data is not None else self._play(shape)

    def pays(self) -> Callable[..., Any]:
        """What answers to one's own requests are worth, after the red team has tried to cheat it."""
        reward = EngineReward(self.executor, rewards=self.config.reward)
        require_audit(reward.engine)
        return reward

    # ── in the gym ──────────────────────────────────────────────────────────────────────────────

    def _play(self, shape: Shape) -> Path:
        config = self.config
        go_on(self.curriculum, self.resumed)
        self.watch.advice = EASIER
        rollouts = Episodes(
            self.chat,
            self.env,
            self.groups,
            self.curriculum,
            watch=self.watch,
            executor=self.executor,
            log=self._log(),
        )
        needed = self.steps * shape.rows // self.generations
        dataset = [{"prompt": f"draw {number}"} for number in range(needed)]
        longest = config.max_new_tokens * config.max_turns
        trainer = self.trainer(
            shape, self.generations, longest, dataset, reward_funcs=paid, rollout_func=rollouts
        )
        trainer.add_callback(KeepCurriculum(self.curriculum))
        before = self.evaluate(trainer)
        fitted = self.fit(trainer)
        if self.interrupted(fitted):
            return self.folder
        return self._told(before, self.evaluate(trainer))

    def _log(self) -> Path:
        """Where every completion is written down; those that will be made again are forgotten."""
        log = self.folder / "completions.jsonl"
        if self.world.first:
            forget(log, self.resumed)
        return log

    def evaluate(self, trainer: GroupTrainer) -> Outcomes | None:
        """Play of the held-out tasks of the same families, the same seeds each time."""
        if not self.config.eval_rows:
            return None
        wanted = heldout_tasks(
            self.config.eval_rows, families=self.families, max_difficulty=self.config.max_difficulty
        )
        drawing = replace(self.drawing, temperature=self.config.eval_temperature)
        model = trainer.accelerator.unwrap_model(trainer.model)
        stage = Stage(model, self.chat, self.env, drawing, max_length=self.config.max_length)
        found = outcomes(stage.play(wanted, list(range(len(wanted)))))
        return self._noted(found, trainer)

    def _noted(self, found: Outcomes, trainer: GroupTrainer) -> Outcomes:
        """Into the metrics; a resumed run has the base's numbers there already."""
        step = int(trainer.state.global_step)
        if self.run is not None and (step or self.resumed is None):
            self.run.log(step, found.facts())
        return found

    def _told(self, before: Outcomes | None, after: Outcomes | None) -> Path:
        if before is None or after is None:
            return self.conclude(None)
        held_out = self.config.data is None or bool(self.held)
        found = compared(before, after, valid=self._valid, held_out=held_out)
        return self.conclude(found if found.rows else None)

    # ── requests of one's own ───────────────────────────────────────────────────────────────────

    def _answer(self, shape: Shape) -> Path:
        config = self.config
        self._valid = "came to an end"
        reward = self.reward
        assert reward is not None
        rollouts = Answers(self.chat, self.groups)
        names = [str(place) for place in range(len(self.lengths))]
        count = self.steps * shape.rows // self.generations
        places = order(self.lengths, names, count=count, seed=config.seed)
        trainer = self.trainer(
            shape,
            self.generations,
            config.max_new_tokens,
            [self.prompts[place] for place in places],
            reward_funcs=Kept(reward, self._log()),
            rollout_func=rollouts,
        )
        asked = (self.held or self.prompts)[: config.eval_rows]
        before = self._score(trainer, asked, reward)
        fitted = self.fit(trainer)
        if self.interrupted(fitted):
            return self.folder
        return self._told(before, self._score(trainer, asked, reward))

    def _score(
        self, trainer: GroupTrainer, held: list[dict[str, Any]], reward: Callable[..., Any]
    ) -> Outcomes | None:
        """Answers to the held-out prompts, the same seeds each time."""
        if not held:
            return None
        prompts = [row["prompt"] for row in held]
        rollout = Answers(self.chat, self.groups)
        asked = [rollout.ids(prompt) for prompt in prompts]
        model = trainer.accelerator.unwrap_model(trainer.model)
        drawing = replace(self.drawing, temperature=self.config.eval_temperature)
        said = write(model, asked, self.chat, drawing, list(range(len(asked))))
        scores = reward(prompts, [self.chat.text(one.ids) for one in said])
        found = Outcomes(
            tuple(scores),
            tuple(score is not None and score >= GOOD for score in scores),
            tuple(float(one.ids[-1] in self.chat.stops) for one in said),
        )
        return self._noted(found, trainer)
