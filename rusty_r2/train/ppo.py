# SPDX-License-Identifier: AGPL-3.0-or-later
"""PPO: act in the gym, judge what happened, take a few careful steps, repeat.

    rusty train ppo --init-checkpoint runs/supervised-1/step_001000 --total-timesteps 20000

Read `train` at the bottom first: it is the whole loop. The functions above it are all the mathematics:
advantages from Schulman et al. 2015 (arXiv:1506.02438), the clipped objective from Schulman et al. 2017
(arXiv:1707.06347), group advantages from Shao et al. 2024 (GRPO, arXiv:2402.03300), the estimate of a
KL divergence from Schulman's note of 2020 ("k3": never negative, unbiased), supervised rows in every step
from Ouyang et al. 2022 (PPO-ptx, arXiv:2203.02155).
An action here is a token: every token the model chose is scored, no token of the gym or of the grammar
is. Playing is agent/players.py, tensors are buffer.py, supervised rows ppo_replay.py, the run's folder
ppo_run.py, its resumption ppo_state.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from rusty_r2.errors import ConfigError, need

if TYPE_CHECKING:
    from torch import Tensor

    from rusty_r2.train.buffer import Batch, Choices, RolloutBuffer
    from rusty_r2.train.ppo_run import Training

Array = NDArray[np.float32]


@dataclass(frozen=True)
class PPOConfig:
    """Fine-tune TinyRWKVLM in the gym by reinforcement learning."""

    init_checkpoint: Path
    """the checkpoint to start from: a model that speaks the protocol already"""
    tokenizer_path: Path | None = None
    """tokenizer folder or tokenizer.json; default: the checkpoint's own"""
    total_timesteps: int = 50_000
    """replies in all; a reply is one step of the gym"""
    num_steps: int = 256
    """replies a round of play may take: num_steps // max_turns episodes"""
    ppo_epochs: int = 4
    """passes over a round before it is thrown away"""
    num_minibatches: int = 4
    """parts a pass is cut into, one step of the optimizer each"""
    lr: float = 1e-4
    """the highest learning rate; it falls in a line to a tenth"""
    gamma: float = 1.0
    """how much a reward is worth one token earlier"""
    gae_lambda: float = 0.98
    """between trusting the value head (0) and what really happened (1)"""
    clip_eps: float = 0.2
    """how far the new policy may move from the one that acted, and the value head from what it said"""
    ent_coef: float = 0.0
    """weight of the entropy bonus; it lifts every word that is not said, right or wrong"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    kl_coef: float = 0.02
    """weight of the pull towards the policy that training started from"""
    target_kl: float = 0.05
    """stop the passes over a round when the policy has moved this far from the one that acted; 0: never"""
    max_grad_norm: float = 0.5
    """longest gradient; longer ones are scaled down to it"""
    advantage: Literal["gae", "group"] = "gae"
    """gae: from the value head; group: each task is played group_size times and compared with itself"""
    group_size: int = 8
    """episodes of the same task, for --advantage group"""
    temperature: float = 1.0
    """of sampling, and of the distribution that is trained"""
    top_k: int = 0
    """only the k likeliest words; 0: all"""
    constrain: bool = False
    """let the grammar of actions mask what is not one"""
    max_new_tokens: int = 128
    """tokens of a reply"""
    max_turns: int = 3
    """replies of an episode"""
    partial: float = 0.0
    """shaping: this much for each share of the tests passed for the first time"""
    turn: float = 0.0
    """added for every reply; a small negative number prefers to be right at once"""
    quiet: float = 0.0
    """share of the training tasks that go as in a chat: no verdict is shown, and a message ends and pays"""
    slots: int = 32
    """episodes played at once"""
    families: tuple[str, ...] = ()
    """task families to train on; empty: all that are for training"""
    max_difficulty: int = 3
    """the hardest level of a family"""
    wide_names: bool = False
    """names in training tasks are any words of the tokenizer, not only the gym's; held-out words stay out"""
    replay: Path | None = None
    """drills, episodes or shards that every step also learns from: what the gym does not ask for is kept"""
    replay_coef: float = 0.5
    """weight of their loss; at 1 a token of theirs pulls like one of the gym with an advantage of 1"""
    replay_rows: int = 4
    """rows of theirs in a step"""
    freeze_words: bool = False
    """leave the tables of words (embedding and head) as they are: what is learned holds for every word"""
    rollout_weights: Literal["fp32", "int8", "bf16"] = "fp32"
    """weights the playing model runs with; int8 is faster on a CPU, and corrected for in the update"""
    eval_interval: int = 10
    """updates between two evaluations on held-out tasks; the start and the end are always evaluated"""
    eval_tasks: int = 200
    """held-out tasks, the same each time"""
    valid_tasks: int = 100
    """training tasks that are left out of training; the weights that solve most of them are kept in best/"""
    max_minutes: float = 0.0
    """evaluate, save and end in time for this; the learning rate then falls with the clock. 0: no limit"""
    log_dir: Path | None = None
    """where TensorBoard looks; default: the run's folder"""
    checkpoints_dir: Path | None = None
    """the run's folder; default: the next free runs/ppo-N"""
    ckpt_interval: int = 10
    """updates between two checkpoints"""
    resume: str = ""
    """auto: go on from the newest whole checkpoint of --checkpoints-dir, or start there"""
    device: str = "auto"
    """auto, cpu, cuda"""
    seed: int = 42
    """of the tasks, the sampling and the minibatches"""

    def __post_init__(self) -> None:
        for name in ("total_timesteps", "num_steps", "ppo_epochs", "num_minibatches", "slots", "max_turns"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} must be at least 1, not {getattr(self, name)}")
        if self.replay_rows < 1 or not 0 <= self.replay_coef < float("inf"):
            raise ConfigError("--replay-rows is 1 or more, --replay-coef 0 (only measured) or more")
        if not 0 <= self.quiet <= 1:
            raise ConfigError(f"--quiet is a share from 0 to 1, not {self.quiet}")
        if self.max_minutes < 0:
            raise ConfigError(f"--max-minutes is 0 (no limit) or more, not {self.max_minutes}")
        if self.temperature <= 0:
            raise ConfigError("--temperature must be above 0: a policy that cannot vary cannot learn")
        if self.advantage == "group" and (self.group_size < 2 or self.episodes % self.group_size):
            raise ConfigError(
                f"a round has {self.episodes} episodes, not whole groups of {self.group_size} (at least 2). "
                f"Type: --num-steps {8 * self.max_turns * self.group_size}"
            )

    @property
    def episodes(self) -> int:
        """Episodes of one round of play."""
        return max(1, self.num_steps // self.max_turns)

    @property
    def updates(self) -> int:
        return max(1, self.total_timesteps // self.num_steps)


def gae(rewards: Array, values: Array, *, gamma: float, lam: float) -> Array:
    """How much better each choice of one episode went than the value head expected, read right to left.

    The episode ends after its last choice, so nothing is expected beyond it.
    """
    advantages = np.zeros_like(rewards)
    ahead = next_value = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        surprise = rewards[t] + gamma * next_value - values[t]
        ahead = surprise + gamma * lam * ahead
        next_value = values[t]
        advantages[t] = ahead
    return advantages


def group_advantages(totals: Array, tokens: Array, size: int) -> Array:
    """Each episode's total against the others of its task, in standard deviations; 0 where all are alike.

    They are compared with the mean of their tokens, not of the episodes (Hao et al. 2025, arXiv:2505.23585):
    failures are long, and with the other mean most tokens would be pushed down, and all other words up.
    """
    groups, lengths = totals.reshape(-1, size), tokens.reshape(-1, size)
    spread = groups.std(1, keepdims=True)
    mean = (groups * lengths).sum(1, keepdims=True) / lengths.sum(1, keepdims=True)
    score: Array = np.where(spread > 1e-6, (groups - mean) / (spread + 1e-6), 0.0)
    return score.reshape(-1).astype(np.float32)


def to_come(rewards: Sequence[Array]) -> float:
    """What was still to be earned at a choice, on average: what a value head should say at first."""
    return float(np.concatenate([np.cumsum(reward[::-1]) for reward in rewards]).mean())


def judge(buffer: RolloutBuffer, config: PPOConfig) -> dict[str, float]:
    """Work out the advantage and the target of every choice in the buffer."""
    rewards, spans = buffer.rewards(), buffer.spans()
    totals = np.array([reward.sum() for reward in rewards], np.float32)
    told: dict[str, float] = {}
    for span, reward in zip(spans, rewards, strict=True):
        values = buffer.value[span]
        gained = gae(reward, values, gamma=config.gamma, lam=config.gae_lambda)
        buffer.advantage[span], buffer.target[span] = gained, gained + values
    if config.advantage == "group":
        by_number = {episode.number: row for row, episode in enumerate(buffer.episodes)}
        told["play/flat_groups"] = _spread_groups(buffer, totals, by_number, config.group_size)
    else:
        mean, spread = buffer.advantage.mean(), buffer.advantage.std()
        buffer.advantage[:] = (buffer.advantage - mean) / (spread + 1e-8)
    variance = float(buffer.target.var())
    error = float((buffer.target - buffer.value).var())
    return told | {"value/explained_variance": 1 - error / variance if variance > 1e-12 else 0.0}


def _spread_groups(buffer: RolloutBuffer, totals: Array, by_number: dict[int, int], size: int) -> float:
    """Give every token of an episode its group's score; the share of groups that taught nothing."""
    flat, groups, spans = 0, 0, buffer.spans()
    buffer.advantage[:] = 0.0
    tokens = np.array([span.stop - span.start for span in spans], np.float32)
    first = min(by_number) // size * size
    for start in range(first, max(by_number) + 1, size):
        rows = [by_number[number] for number in range(start, start + size) if number in by_number]
        if len(rows) > 1:  # a masked episode leaves its group smaller, and one alone has no rival
            scores = group_advantages(totals[rows], tokens[rows], len(rows))
            groups, flat = groups + 1, flat + (not scores.any())
            for row, score in zip(rows, scores, strict=True):
                buffer.advantage[spans[row]] = score
    return flat / max(1, groups)


def ppo_loss(new: Choices, old: Batch, config: PPOConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped objective, and the facts about it worth plotting."""
    import torch

    moved = new.logp - old.logp
    ratio = moved.exp()
    held = ratio.clamp(1 - config.clip_eps, 1 + config.clip_eps)
    gain = old.weight * old.advantage
    policy = -torch.min(ratio * gain, held * gain).mean()
    near = old.value + (new.value - old.value).clamp(-config.clip_eps, config.clip_eps)
    value = 0.5 * torch.max((new.value - old.target) ** 2, (near - old.target) ** 2).mean()
    entropy = new.entropy.mean()
    from_start = k3(new.logp, old.start_logp).mean()
    total = policy + config.vf_coef * value - config.ent_coef * entropy + config.kl_coef * from_start
    with torch.no_grad():
        facts = {
            "loss/total": total.detach(),
            "loss/policy": policy.detach(),
            "loss/value": value.detach(),
            "policy/entropy": entropy.detach(),
            "policy/kl": k3(old.logp, new.logp).mean(),
            "policy/kl_to_start": from_start.detach(),
            "policy/clipped": (ratio != held).float().mean(),
            "policy/first_ratio_error": (ratio - 1).abs().max(),
        }
    return total, facts


def k3(acted: Tensor, other: Tensor) -> Tensor:
    """KL(acted ‖ other) token by token, from tokens that `acted` drew: e^d - d - 1 with d = other - acted."""
    d = other - acted
    return d.exp() - d - 1


def update(training: Training, buffer: RolloutBuffer, number: int) -> dict[str, float]:
    """A few careful passes over one round of play; with replay every step learns from both."""
    import torch

    config, steps = training.config, 0
    first = (number - 1) * config.ppo_epochs * config.num_minibatches
    told: dict[str, float] = {}
    chance = torch.Generator().manual_seed(config.seed * 1_000_003 + number)
    for _ in range(config.ppo_epochs):
        for batch in buffer.minibatches(config.num_minibatches, chance):
            loss, facts = ppo_loss(batch.choices(training.model, training.sampling), batch, config)
            numbers = dict(zip(facts, torch.stack(list(facts.values())).tolist(), strict=True))
            if config.target_kl and steps and numbers["policy/kl"] > config.target_kl:
                return _means(told, steps) | {"policy/stopped_early": 1.0}
            training.learn(loss)
            if training.replay is not None:
                known = training.replay.loss(training.model, first + steps)
                training.learn(config.replay_coef * known)
                numbers["loss/replay"] = float(known.detach())
            training.descend(number)
            if steps:
                numbers["policy/first_ratio_error"] = 0.0
            told = {name: told.get(name, 0.0) + value for name, value in numbers.items()}
            steps += 1
    return _means(told, steps) | {"policy/stopped_early": 0.0}


def _means(told: dict[str, float], steps: int) -> dict[str, float]:
    first = {"policy/first_ratio_error": told["policy/first_ratio_error"]}
    return {name: value / steps for name, value in told.items()} | first


def train(config: PPOConfig) -> Path:
    """Play, judge, learn, repeat; returns the run's folder."""
    need("torch", extra="train")
    from rusty_r2.train.ppo_run import Training

    with Training(config) as training:
        if not training.done:  # what a resumed run begins with was evaluated in the try before
            training.evaluate(0)
        for number in training.rounds():
            began = time.perf_counter()
            buffer, played = training.play(number)
            judged = judge(buffer, config)
            middle = time.perf_counter()
            learned = update(training, buffer, number)
            ended = time.perf_counter()
            spent = {"time/play_s": middle - began, "time/update_s": ended - middle}
            training.finish(number, {**played, **judged, **learned, **spent, "time/round_s": ended - began})
        return training.folder
