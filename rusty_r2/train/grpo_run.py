# SPDX-License-Identifier: AGPL-3.0-or-later
"""One run of GRPO, from the base model to the table of before and after.

`GroupRun` is what runs with made and with recorded groups share: the base model with its adapter, the
folder, the trainer, what is said at the end. `Online` makes its groups: in the gym, or by answering prompts.
The options are in grpo.py; recorded groups in replay.py and replay_run.py.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rusty_r2.data import rows
from rusty_r2.errors import TrainingError
from rusty_r2.eval.gym import tasks as heldout_tasks
from rusty_r2.executor import open_executor
from rusty_r2.gym.curriculum import Curriculum, CurriculumConfig
from rusty_r2.gym.env import EnvConfig
from rusty_r2.hardware import detect_hardware
from rusty_r2.rewards.audit import require_audit
from rusty_r2.run import Run
from rusty_r2.train import grpo
from rusty_r2.train.agent_grpo import Answers, Episodes, KeepCurriculum, Plan, go_on, paid
from rusty_r2.train.before_after import Comparison
from rusty_r2.train.chatting import Chat, Drawing, write
from rusty_r2.train.distributed import World, join
from rusty_r2.train.fit import Fitted, begin, fit, say
from rusty_r2.train.grpo import GroupOptions, GRPOConfig
from rusty_r2.train.grpo_rewards import EngineReward
from rusty_r2.train.grpo_trainer import GroupTrainer, Watch
from rusty_r2.train.lora import Shape, arguments, find_base, lora_config, open_model, shape_of
from rusty_r2.train.playing import Outcomes, Stage, compared, outcomes
from rusty_r2.train.session import choose_device

EASIER = "raise --num-generations or --temperature, take easier --families, or warm up: rusty train sft"
GOOD = 0.6
"""a score from which a trace is labelled good (rewards/engine.py)"""
SPARE = 8
"""rows a replay or a prompt file is repeated to at least, so that TRL's sampler has whole batches"""


class GroupRun:
    """A run of GRPO, whatever its groups are made of."""

    method = "grpo"

    def __init__(self, config: GroupOptions, stack: ExitStack) -> None:
        self.config, self.stack = config, stack
        self.hardware = detect_hardware()
        self.base = find_base(config.base_model, self.hardware)
        self.world: World = stack.enter_context(join(choose_device(config.device)))
        self.model, self.tokenizer = open_model(config, self.base)
        system = {"system": config.system_prompt} if config.system_prompt else {}
        self.chat = Chat(self.tokenizer, **system)
        self.watch = Watch(patience=config.patience)
        self.run: Run | None = None
        self.folder = Path()
        self.resumed: Path | None = None

    def begin(self, facts: dict[str, Any]) -> None:
        self.run, self.folder, self.resumed = begin(self.method, self.config, self.world, facts)
        if self.run is not None:
            self.stack.enter_context(self.run)

    def trainer(
        self,
        shape: Shape,
        generations: int,
        longest: int,
        dataset: list[dict[str, Any]],
        **more: Any,
    ) -> GroupTrainer:
        given = arguments(self.config, shape, folder=self.folder, steps=self.steps)
        return GroupTrainer(
            model=self.model,
            args=grpo.trl_arguments(self.config, given, generations, longest),
            train_dataset=rows.to_hf(dataset),
            processing_class=self.tokenizer,
            peft_config=lora_config(self.config, self.model, self.hardware),
            watch=self.watch,
            **more,
        )

    @property
    def steps(self) -> int:
        return self.config.max_steps

    def shape(self, generations: int) -> Shape:
        known = shape_of(self.config, self.hardware, processes=self.world.size)
        shape = grpo.whole_groups(known, generations)
        if shape != known:
            say(
                self.world,
                f"{shape.rows} completions a step instead of {known.rows}: whole groups of {generations}",
            )
        return shape

    def fit(self, trainer: GroupTrainer) -> Fitted:
        fitted = fit(trainer, self.run, self.config, self.world, steps=self.steps, resume_from=self.resumed)
        if self.watch.reason:
            say(self.world, f"stopped after step {fitted.step}: {self.watch.reason}")
            if self.run is not None:
                self.run.note(stopped=self.watch.reason)
            if not fitted.step:
                raise TrainingError(self.watch.reason)
        if self.watch.groups:
            say(self.world, self.watch.told())
        return fitted

    def conclude(self, trainer: GroupTrainer, fitted: Fitted, found: Comparison | None) -> str:
        """Write what came of it; the words a command ends with."""
        if self.run is not None:
            facts = {"worse": found.worse, "compared": found.facts()} if found else {}
            self.run.note(flat_groups=self.watch.flat, groups=self.watch.groups, **facts)
            if self.config.merge:
                self._merge(trainer)
        last = self.folder / f"step_{fitted.step:06d}"
        told = found.table() if found else "nothing was held out, so base and result are not compared"
        warning = "do not promote it: the result is worse than its base\n" if found and found.worse else ""
        return f"{told}\n{warning}{last}\nnext: rusty chat --model hf:{last}"

    def _merge(self, trainer: GroupTrainer) -> None:
        merged = trainer.accelerator.unwrap_model(trainer.model).merge_and_unload(safe_merge=True)
        merged.save_pretrained(self.folder / "merged")
        self.tokenizer.save_pretrained(self.folder / "merged")


class Online(GroupRun):
    """Groups are made while training: played in the gym, or answered."""

    config: GRPOConfig
    _valid = "valid actions"

    def __init__(self, config: GRPOConfig, stack: ExitStack) -> None:
        self.prompts = grpo.read_prompts(config.data) if config.data else []
        super().__init__(config, stack)
        self.executor = stack.enter_context(open_executor(config.engine, workers=config.workers))
        self.generations = grpo.group_size(config, self.hardware)
        self.drawing = Drawing(config.max_new_tokens, config.temperature)
        self.plan = Plan(self.drawing, self.generations, config.max_length, config.seed)
        self.env = EnvConfig(max_turns=config.max_turns)

    def train(self) -> str:
        config = self.config
        shape = self.shape(self.generations)
        facts = {"rows_a_step": shape.rows, "data": str(config.data or "gym")}
        if config.data is not None:
            require_audit(EngineReward(rewards=config.reward).engine)
            facts["data_digest"] = rows.digest(self.prompts)
        self.begin(facts)
        if config.data is not None:
            return self._answer(shape)
        return self._play(shape)

    # ── in the gym ──────────────────────────────────────────────────────────────────────────────

    def _play(self, shape: Shape) -> str:
        config = self.config
        families = grpo.gym_families(config)
        lessons = CurriculumConfig(config.seed, families, config.max_difficulty)
        curriculum = Curriculum(lessons)
        go_on(curriculum, self.resumed)
        self.watch.advice = EASIER
        log = self.folder / "completions.jsonl"
        rollouts = Episodes(
            self.chat, self.env, self.plan, curriculum, watch=self.watch, executor=self.executor, log=log
        )
        needed = self.steps * shape.rows // self.generations + 1
        dataset = [{"prompt": f"draw {number}"} for number in range(needed)]
        longest = config.max_new_tokens * config.max_turns
        trainer = self.trainer(
            shape, self.generations, longest, dataset, reward_funcs=paid, rollout_func=rollouts
        )
        trainer.add_callback(KeepCurriculum(curriculum))
        before = self.evaluate(trainer, families)
        fitted = self.fit(trainer)
        after = self.evaluate(trainer, families)
        return self._told(trainer, fitted, before, after)

    def evaluate(self, trainer: GroupTrainer, families: tuple[str, ...]) -> Outcomes | None:
        """Greedy play of the held-out tasks of the same families."""
        if not self.config.eval_rows:
            return None
        wanted = heldout_tasks(
            self.config.eval_rows, families=families, max_difficulty=self.config.max_difficulty
        )
        greedy = Drawing(self.config.max_new_tokens, 0.0)
        model = trainer.accelerator.unwrap_model(trainer.model)
        stage = Stage(model, self.chat, self.env, greedy, max_length=self.config.max_length)
        found = outcomes(stage.play(wanted, [0] * len(wanted)))
        if self.run is not None:
            self.run.log(int(trainer.state.global_step), found.facts())
        return found

    def _told(
        self, trainer: GroupTrainer, fitted: Fitted, before: Outcomes | None, after: Outcomes | None
    ) -> str:
        found = None if before is None or after is None else compared(before, after, valid=self._valid)
        return self.conclude(trainer, fitted, found)

    # ── requests of one's own ───────────────────────────────────────────────────────────────────

    def _answer(self, shape: Shape) -> str:
        config = self.config
        self._valid = "came to an end"
        reward = EngineReward(self.executor, rewards=config.reward)
        many = -(-SPARE * shape.rows // (self.generations * len(self.prompts)))
        trainer = self.trainer(
            shape,
            self.generations,
            config.max_new_tokens,
            self.prompts * max(1, many),
            reward_funcs=reward,
            rollout_func=Answers(self.chat, self.plan, self.watch),
        )
        held = self._held_out()
        before = self._score(trainer, held, reward)
        fitted = self.fit(trainer)
        return self._told(trainer, fitted, before, self._score(trainer, held, reward))

    def _held_out(self) -> list[dict[str, Any]]:
        assert self.config.data is not None
        beside = self.config.eval_data or rows.eval_path(self.config.data)
        return grpo.read_prompts(beside)[: self.config.eval_rows] if beside.is_file() else []

    def _score(
        self, trainer: GroupTrainer, held: list[dict[str, Any]], reward: EngineReward
    ) -> Outcomes | None:
        """Greedy answers to the held-out prompts."""
        if not held:
            return None
        prompts = [row["prompt"] for row in held]
        rollout = Answers(self.chat, self.plan)
        asked = [rollout.ids(prompt) for prompt in prompts]
        model = trainer.accelerator.unwrap_model(trainer.model)
        greedy = Drawing(self.config.max_new_tokens, 0.0)
        said = write(model, asked, self.chat, greedy, [0] * len(asked))
        scores = reward(prompts, [self.chat.text(one.ids) for one in said])
        found = Outcomes(
            tuple(scores),
            tuple(score is not None and score >= GOOD for score in scores),
            tuple(float(one.ids[-1] in self.chat.stops) for one in said),
        )
        if self.run is not None:
            self.run.log(int(trainer.state.global_step), found.facts())
        return found
