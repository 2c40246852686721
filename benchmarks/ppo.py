# SPDX-License-Identifier: AGPL-3.0-or-later
"""How fast a round of PPO is, against the same round done plainly, and where its time goes.

    OMP_NUM_THREADS=1 python benchmarks/ppo.py [--rounds 2] [--episodes 24] [--preset nano]

Both loops have the same model, tasks, advantages and loss, and take turns. Ours is train/ppo.py as it is:
episodes step together, a state remembers what was read, sandboxes run beside the model. The plain one is what
a first version would be: one episode after the other in PyTorch, its conversation read again for every
reply, the sandbox waited for, one episode at a time through the update with logits for all its tokens. (TRL
is not the rival: 1.16 ships no PPO trainer.)
The model is new; a few steps teach it to say one of a few commands, so that the sandboxes have work.
Prints medians over the rounds: rates by the clock and by CPU seconds of this process, and its parts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rusty_r2.agent.players import STOPS, Episode
from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.gym import catalog
from rusty_r2.gym.env import CodingEnv, EnvConfig, opening
from rusty_r2.lm import checkpoint
from rusty_r2.lm.chat import encode_turn, encode_turns, open_chat, open_reply
from rusty_r2.lm.rwkv import PRESETS, TinyRWKVLM
from rusty_r2.lm.tokenizer import END, VOCAB, Tokenizer
from rusty_r2.protocol import Cmd, Msg, render
from rusty_r2.task import Task
from rusty_r2.train.buffer import Batch, Choices, RolloutBuffer
from rusty_r2.train.ppo import PPOConfig, judge, ppo_loss, update
from rusty_r2.train.ppo_run import Training

SAYS = [Cmd("ls -la"), Cmd("cat *"), Cmd("python3 --version"), Msg("Done.")]
LESSONS = 40
PARTS = ("model", "sandbox", "scoring", "update", "rest")


class Clock:
    """Seconds by what they were spent on, and CPU seconds of this process meanwhile."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        began, cpu = time.perf_counter(), time.process_time()
        yield
        self.spent[part] += time.perf_counter() - began
        self.cpu[part] += time.process_time() - cpu


# ------------------------------------------------------------------ the plain way


@torch.no_grad()
def play_plainly(training: Training, tasks: Sequence[Task], first: int, clock: Clock) -> list[Episode]:
    """One episode after the other."""
    episodes = []
    for number, task in enumerate(tasks, first):
        env = CodingEnv((), training.env)
        wanted, _ = env.reset(options={"task": task})
        episode = Episode(number, task, seen=[wanted])
        episode.read([*open_chat(), *encode_turn(training.tokenizer, "system", SYSTEM)])
        episode.read(encode_turn(training.tokenizer, "user", wanted))
        over = False
        while not over:
            with clock.on("model"):
                reply = write_plainly(training, episode)
            with clock.on("sandbox"):
                seen, reward, ended, cut, info = env.step(reply)
            episode.earn(reward)
            episode.replies.append(reply)
            episode.valid += bool(info["valid"])
            episode.passed, episode.masked = bool(info["passed"]), bool(info["masked"])
            over = ended or cut
            if not over:
                episode.read(encode_turn(training.tokenizer, "observation", seen))
        env.close()
        episodes.append(episode)
    return episodes


def write_plainly(training: Training, episode: Episode) -> str:
    """Read all that was said, then choose token after token."""
    model, config = training.model, training.config
    episode.read(open_reply())
    hidden, state = model.trunk(torch.tensor([episode.ids]))
    words: list[int] = []
    while len(words) < config.max_new_tokens:
        at = hidden[:, -1]
        logp = torch.log_softmax(model.head(at)[0].float() / config.temperature, -1)
        token = int(torch.multinomial(logp.exp(), 1))
        episode.chose(token, float(logp[token]), float(model.value(at)), None)
        if token in STOPS:
            break
        words.append(token)
        hidden, state = model.trunk(torch.tensor([[token]]), state)
    else:
        episode.read([END])
    return training.tokenizer.decode(words)


def choices_plainly(batch: Batch, model: TinyRWKVLM, temperature: float) -> Choices:
    """Logits of every token of an episode, then those that were chosen."""
    logits, values, _ = model(batch.ids[:, :-1])
    logp = torch.log_softmax(logits.float() / temperature, -1)
    entropy = -(logp.exp() * logp).sum(-1)
    own = batch.acted[:, 1:]
    words = logp.gather(-1, batch.ids[:, 1:, None])[..., 0]
    return Choices(words[own], entropy[own], values[own].float())


def update_plainly(training: Training, buffer: RolloutBuffer, number: int) -> None:
    config = training.config
    chance = torch.Generator().manual_seed(number)
    for _ in range(config.ppo_epochs):
        order = torch.randperm(len(buffer), generator=chance).tolist()
        for part in np.array_split(np.array(order), min(config.num_minibatches, len(order))):
            whole = sum(sum(buffer.episodes[row].acted) for row in part)
            for row in part[:-1]:
                loss = loss_plainly(training, buffer, row, whole)
                training.descent.backward(loss)
            training.learn(loss_plainly(training, buffer, part[-1], whole))
            training.descend(number)


def loss_plainly(training: Training, buffer: RolloutBuffer, row: int, whole: int) -> Any:
    batch = buffer.batch([int(row)])
    choices = choices_plainly(batch, training.model, training.config.temperature)
    loss, _ = ppo_loss(choices, batch, training.config)
    return loss * (len(batch.logp) / whole)


def round_plainly(training: Training, tasks: Sequence[Task], number: int, clock: Clock) -> RolloutBuffer:
    buffer = RolloutBuffer(play_plainly(training, tasks, number * len(tasks), clock))
    with clock.on("scoring"), torch.no_grad():
        heat = training.config.temperature
        scored = [
            choices_plainly(buffer.batch([row]), training.start, heat).logp for row in range(len(buffer))
        ]
        buffer.start_logp = torch.cat(scored).numpy()
    judge(buffer, training.config)
    with clock.on("update"):
        update_plainly(training, buffer, number)
    return buffer


# ------------------------------------------------------------------ our way


def round_of_ours(training: Training, tasks: Sequence[Task], number: int, clock: Clock) -> RolloutBuffer:
    before = dict(training.players.seconds)
    score = type(training)._score

    def scored(buffer: RolloutBuffer) -> None:
        with clock.on("scoring"):
            score(training, buffer)

    training._tasks = lambda: list(tasks)  # type: ignore[method-assign]
    training._score = scored  # type: ignore[method-assign]
    buffer, _ = training.play(number)
    judge(buffer, training.config)
    with clock.on("update"):
        update(training, buffer, number)
    for part, seconds in training.players.seconds.items():
        clock.spent[part] += seconds - before[part]
    return buffer


# ------------------------------------------------------------------ both


def taught(folder: Path, preset: str, tasks: Sequence[Task], training_steps: int = LESSONS) -> Path:
    """A new model that says one of SAYS after anything."""
    torch.manual_seed(0)
    chance, tokenizer = random.Random(0), Tokenizer.load()
    model = TinyRWKVLM.of(PRESETS[preset])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    for step in range(training_steps):
        total, count = torch.zeros(()), 0
        for task in tasks[2 * step : 2 * step + 2]:
            turns = [
                ("system", SYSTEM),
                ("user", opening(task, EnvConfig())),
                ("assistant", render(chance.choice(SAYS))),
            ]
            ids, own = encode_turns(tokenizer, turns)
            mask = torch.tensor(own[1:])[None]
            given = torch.tensor(ids)[None]
            nll, many, _ = model.loss(given[:, :-1], given[:, 1:], mask=mask)
            total, count = total + nll, count + int(many)
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / training_steps)
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
    print(f"taught: the last step's loss was {total.item() / count:.2f} a token", flush=True)
    return checkpoint.save(folder, model, tokenizer=VOCAB)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("--rounds", type=int, default=2)
    words.add_argument("--episodes", type=int, default=24)
    words.add_argument("--turns", type=int, default=2)
    words.add_argument("--preset", choices=list(PRESETS), default="nano")
    args = words.parse_args()
    drawn = list(
        catalog.tasks("train", seed=1, count=2 * LESSONS + args.episodes * args.rounds, difficulty=[1])
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        start = taught(folder / "start", args.preset, drawn[: 2 * LESSONS])
        config: dict[str, Any] = {
            "init_checkpoint": start, "num_steps": args.turns * args.episodes, "max_turns": args.turns,
            "total_timesteps": 1000 * args.turns * args.episodes, "max_new_tokens": 32, "target_kl": 0.0,
            "slots": args.episodes, "eval_tasks": 1, "device": "cpu", "lr": 1e-5,
        }  # fmt: skip
        rivals: dict[str, tuple[Training, Callable[..., RolloutBuffer]]] = {}
        for name, way in (("ours", round_of_ours), ("plain", round_plainly)):
            opened = Training(PPOConfig(checkpoints_dir=folder / name, **config))
            rivals[name] = (stack.enter_context(opened), way)
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in rivals}
        for number in range(1, args.rounds + 1):
            tasks = drawn[2 * LESSONS + (number - 1) * args.episodes :][: args.episodes]
            for name, (training, way) in rivals.items():
                rows[name].append(timed_round(training, way, tasks, number))
                print(name, {key: round(value, 2) for key, value in rows[name][-1].items()}, flush=True)
        report(rows)


def timed_round(
    training: Training, way: Callable[..., RolloutBuffer], tasks: Sequence[Task], number: int
) -> dict[str, float]:
    clock, began, cpu = Clock(), time.perf_counter(), time.process_time()
    buffer = way(training, tasks, number, clock)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    spent = {part: clock.spent[part] for part in PARTS[:-1]}
    spent["rest"] = wall - sum(spent.values())
    tokens = sum(sum(episode.acted) for episode in buffer.episodes)
    replies = sum(len(episode.replies) for episode in buffer.episodes)
    valid = sum(episode.valid for episode in buffer.episodes) / max(1, replies)
    playing = wall - spent["update"] - spent["scoring"]
    return spent | {
        "wall": wall, "cpu": cpu, "tokens": tokens, "replies": replies, "valid": valid,
        "tokens/s": tokens / playing,
        "tokens/CPU s": tokens / (cpu - clock.cpu["update"] - clock.cpu["scoring"]),
        "rounds/min": 60 / wall, "rounds/CPU min": 60 / cpu,
    }  # fmt: skip


def report(rows: dict[str, list[dict[str, float]]]) -> None:
    """Medians, the ratio, and the spread of the ratio over the rounds."""
    names = list(rows)
    middle = {
        name: {key: statistics.median(row[key] for row in found) for key in found[0]}
        for name, found in rows.items()
    }
    print(f"\n| | {' | '.join(names)} | ratio |\n|---|--:|--:|--:|")
    for key in ("tokens/s", "tokens/CPU s", "rounds/min", "rounds/CPU min"):
        ratios = [a[key] / b[key] for a, b in zip(rows["ours"], rows["plain"], strict=True)]
        cells = [f"{middle[name][key]:.2f}" for name in names]
        print(
            f"| {key} | {' | '.join(cells)} | {statistics.median(ratios):.1f} "
            f"({min(ratios):.1f} to {max(ratios):.1f}) |"
        )
    for part in PARTS:
        cells = [f"{middle[n][part]:.2f} s, {100 * middle[n][part] / middle[n]['wall']:.0f}%" for n in names]
        print(f"| {part} | {' | '.join(cells)} | |")
    for key in ("tokens", "replies", "valid"):
        print(f"| {key} | {' | '.join(f'{middle[name][key]:.4g}' for name in names)} | |")


if __name__ == "__main__":
    main()
