# SPDX-License-Identifier: AGPL-3.0-or-later
"""GRPO: answer each request several times, pay each answer, learn from the difference.

    rusty train grpo --base-model smollm2 --families remove rename     tasks of the gym, one reply each
    rusty train grpo --base-model smollm2 --max-turns 3                whole episodes in the gym
    rusty train grpo --base-model smollm2 --data prompts.jsonl         your requests, paid by the RewardEngine

Group-relative advantages of Shao et al. 2024 (arXiv:2402.03300) on TRL's trainer, LoRA on the base model
(lora.py), the run's folder as in every training (fit.py). In the gym the sandbox judges each reply, and the
curriculum chooses what comes next; your own requests are paid by the engine, after the red team has tried to
cheat it. Playing is agent_grpo.py, rewards are grpo_rewards.py, what TRL's trainer lacks is grpo_trainer.py,
the run itself grpo_run.py; recorded answers are replay.py.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rusty_r2.errors import ConfigError, DataError, need
from rusty_r2.executor import Engine
from rusty_r2.train.lora import LoraOptions, Shape

if TYPE_CHECKING:
    from rusty_r2.hardware import HardwareConfig

REPLY = 64
"""tokens of a reply in the gym, where not given"""


@dataclass(frozen=True, kw_only=True)
class GroupOptions(LoraOptions):
    """Options of GRPO, whether its groups are made or recorded."""

    learning_rate: float = 1e-4
    """the highest learning rate"""
    beta: float = 0.0
    """weight of the pull towards the base model; 0 needs no second pass"""
    clip_eps: float = 0.2
    """how far the new policy may move from the one that spoke, downwards"""
    clip_eps_high: float = 0.28
    """and upwards"""
    loss: Literal["dapo", "grpo", "dr_grpo", "bnpo"] = "dapo"
    """how tokens are weighed: dapo, each the same; grpo, each completion the same"""
    scale: Literal["group", "batch", "none"] = "group"
    """what advantages are divided by: the deviation of the group, of the batch, or nothing"""
    temperature: float = 1.0
    """of sampling, and of the distribution that is trained"""
    patience: int = 10
    """generations in a row in which no group differs, after which training stops and says so; 0: never"""
    system_prompt: str = ""
    """said before every task instead of Rusty's own"""

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ConfigError("--temperature must be above 0: a policy that cannot vary cannot learn")


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(GroupOptions):
    """Learn from several answers to each request, compared with each other."""

    data: Path | None = None
    """rows {"prompt": …}; default: tasks of the gym"""
    eval_data: Path | None = None
    """held-out rows; default: NAME.eval.jsonl beside --data, else one prompt in ten"""
    reward: tuple[str, ...] = ()
    """rewards of your own beside the shipped ones, for --data: module:Class or FILE.py:Class"""
    families: tuple[str, ...] = ()
    """task families to train on; empty: all for training that can be done in --max-turns"""
    max_difficulty: int = 1
    """the hardest level of a family"""
    max_turns: int = 1
    """replies of an episode"""
    num_generations: int = 0
    """answers to each request; 0: what suits this machine"""
    max_new_tokens: int = REPLY
    """tokens of a reply"""
    max_steps: int = 100
    """steps in all"""
    eval_temperature: float = 0.0
    """of the held-out replies that base and result are compared by; 0: the likeliest words"""
    engine: Engine = "local"
    """where replies are judged: processes of this machine, or a Ray cluster"""
    workers: int = 1
    """processes that judge; 1: this one, 0: one a core"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_generations == 1 or self.num_generations < 0:
            raise ConfigError("--num-generations must be at least 2: a group is compared with itself")
        if self.max_turns < 1 or self.max_new_tokens < 1:
            raise ConfigError("--max-turns and --max-new-tokens must be at least 1")
        if self.max_steps < 1 or self.epochs != 1:
            raise ConfigError("online, the length of a run is --max-steps, at least 1; --epochs says nothing")
        if self.reward and self.data is None:
            raise ConfigError("--reward is for requests of your own: add --data. The gym pays by its verdict")
        if self.data is not None and (self.max_turns > 1 or self.families):
            raise ConfigError("--max-turns and --families are for the gym: leave out --data")


def whole_groups(shape: Shape, generations: int) -> Shape:
    """The shape with as many batches a step as make whole groups: never fewer than asked for."""
    accumulate = shape.accumulate
    while shape.batch * accumulate * shape.processes % generations:
        accumulate += 1
    return replace(shape, accumulate=accumulate)


def group_size(config: GRPOConfig, hardware: HardwareConfig) -> int:
    return config.num_generations or max(2, hardware.num_generations)


def trl_arguments(config: GroupOptions, given: dict[str, Any], generations: int, longest: int) -> Any:
    """TRL's configuration of a run."""
    from trl import GRPOConfig as Arguments

    return Arguments(
        **given,
        num_generations=generations,
        max_completion_length=longest,
        temperature=config.temperature,
        beta=config.beta,
        epsilon=config.clip_eps,
        epsilon_high=config.clip_eps_high,
        loss_type=config.loss,
        scale_rewards=config.scale,
        shuffle_dataset=False,  # the rows come in the order they are to be read in
        log_completions=False,
    )


def read_prompts(config: GRPOConfig) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(prompts to learn from, prompts held out); a faulty line is named, recorded groups are replay.py's."""
    from rusty_r2.data import rows
    from rusty_r2.data.validate import check_file
    from rusty_r2.train.encoded import split

    path = config.data
    if path is None:
        return [], []
    found = check_file(path)
    if found.kind == "grpo":
        raise DataError(f"{path} holds recorded answers. Type: rusty train replay --data {path}")
    if found.faults:
        raise DataError(f"{found.faults[0]}. Type: rusty data validate {path}")
    if found.kind not in ("prompts", "kto", "sft"):
        raise DataError(f"{path} holds {found.kind} rows, not prompts. Type: rusty data validate {path}")
    learned, held = split(path, _once(rows.load(path)), config.eval_data, "prompts", config.seed)
    if not learned:
        raise DataError(f"{path} holds no prompts to learn from. Type: rusty data validate {path}")
    return learned, _once(held)


def _once(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each prompt once, and nothing else of its row."""
    seen = {repr(row["prompt"]): row["prompt"] for row in rows if row.get("prompt")}
    return [{"prompt": prompt} for prompt in seen.values()]


def gym_families(config: GRPOConfig) -> tuple[str, ...]:
    """Families to train on; those that ask are left out where one reply cannot look the answer up first."""
    from rusty_r2.gym import catalog
    from rusty_r2.gym.env import asks

    if config.families or config.max_turns > 1:
        return config.families
    return tuple(
        name
        for name, family in catalog.families().items()
        if family.split == "train"
        and min(family.levels) <= config.max_difficulty
        and not asks(family.make(0, min(family.levels), "train"))
    )


def train(config: GRPOConfig) -> Path | str:
    """Play or answer in groups, compare, learn; base and result meet the same held-out tasks."""
    need("trl", extra="lora")
    from rusty_r2.train.grpo_run import Online

    with ExitStack() as stack:
        return Online(config, stack).train()
