# SPDX-License-Identifier: AGPL-3.0-or-later
"""Do KTO, online GRPO and offline GRPO teach a real small model tasks it never saw? SmolLM2-135M in the gym.

    OMP_NUM_THREADS=1 python benchmarks/lora_learns.py --method kto --seed 1        (or online, offline)

The task is the action protocol and the easiest families of the gym: one JSON object with one shell command,
which the sandbox carries out. SmolLM2 never says such a thing by itself, so all methods and seeds begin with
one warm start (a few steps of SFT on gold commands, made once and kept in --folder), after which it solves
some tasks and not others: the base of every comparison. `online` plays groups and learns from them; the
other two learn from what the warm model was recorded saying to tasks of the seed's own: `offline` from groups
with their rewards and probabilities, three replies of the model's and one of a perfect player's (or, with
--no-expert, the model's alone); `kto` from labelled traces: liked, the command that does what was asked,
disliked, the model's own wrong one. Held-out tasks have names, numbers and files that training never
draws; before and after play the same tasks with the same seeds. Each result is a line in results.jsonl, and
lora_picture.py draws them.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from rusty_r2 import files
from rusty_r2.data import rows
from rusty_r2.data.kto import KTODatasetBuilder
from rusty_r2.eval.gym import tasks as heldout_tasks
from rusty_r2.gym import catalog
from rusty_r2.gym.env import EnvConfig, opening
from rusty_r2.gym.proof import gold
from rusty_r2.protocol import render
from rusty_r2.run import metrics
from rusty_r2.task import Task
from rusty_r2.trace import ExecutionTrace
from rusty_r2.train import grpo, kto, replay, sft
from rusty_r2.train.chatting import Chat, Drawing
from rusty_r2.train.lora import LoraOptions, open_model
from rusty_r2.train.playing import Outcomes, Played, Stage, compared, outcomes
from rusty_r2.train.session import choose_device

ONE = EnvConfig(max_turns=1)
WARM_SEED = 1000
"""of the tasks of the warm start; apart from those of every --seed"""


@dataclass(frozen=True)
class Options:
    method: Literal["warm", "kto", "online", "offline"] = "kto"
    """what to learn with; warm: only the warm start"""
    seed: int = 1
    """of tasks, samples and weights"""
    folder: Path = Path("runs/lora-learns")
    """where everything goes, and where the warm start is found again"""
    families: tuple[str, ...] = ("rename", "move")
    """of the gym, at their first level: what is learned and compared"""
    warm_families: tuple[str, ...] = ("remove", "rename", "move", "create")
    """what the warm start is taught"""
    system: str = "shell"
    """the system prompt; Rusty's own is eighty times as long, and every token costs"""
    warm_steps: int = 12
    """steps of SFT before; 8 rows each"""
    warm_tasks: int = 256
    """gold commands to draw those rows from"""
    warm_rate: float = 5e-4
    """learning rate of the warm start"""
    steps: int = 0
    """steps of the method; 0: its own default"""
    rate: float = 0.0
    """its learning rate; 0: its own default"""
    tasks: int = 60
    """tasks that are recorded for kto and offline"""
    replies: int = 4
    """recorded replies to each of them"""
    expert: bool = True
    """offline: the right answer stands in every group instead of the last reply, as another mind's would"""
    good_for_bad: int = 3
    """kto: good rows for each bad one. As many of both, and weighed alike, the margin rises and the model
    forgets how to speak: a wrong command shares most of its words with the right one"""
    bad_weight: float = 0.5
    """kto: of bad rows, against 1 of good ones"""
    generations: int = 4
    """replies to each task online"""
    batch: int = 0
    """rows of a step; 0: the method's own default"""
    temperature: float = 1.0
    """of playing, recording, training and comparing"""
    greedy: bool = False
    """compare by the likeliest words, too"""
    tokens: int = 32
    """of a reply"""
    heldout: int = 104
    """tasks to compare on"""
    rank: int = 16
    """of the adapters"""
    minutes: float = 0.0
    """training ends after this long; 0: after its steps"""
    workers: int = 1
    """processes that judge replies online"""
    device: str = "auto"
    """auto, cpu, cuda"""


STEPS = {"kto": 11, "online": 16, "offline": 12}
ROWS = {"kto": 8, "online": 16, "offline": 16}
RATES = {"kto": 4e-4, "online": 3e-4, "offline": 4e-4}


def main(options: Options) -> None:
    if options.method == "warm":
        warm = warm_start(options)
        for heat in heats(options).values():
            print(before(options, warm, heat).facts())
    else:
        learn(options)


def learn(options: Options) -> None:
    """One method from the warm start, measured before and after."""
    began = time.process_time()
    warm = warm_start(options)
    warmed = time.process_time()
    run = {"kto": learn_kto, "online": learn_online, "offline": learn_offline}[options.method](options, warm)
    spent = time.process_time() - warmed
    facts = {
        "method": options.method,
        "seed": options.seed,
        "steps": len([line for line in metrics(run) if "loss/train" in line]),
        "warm_cpu_s": round(warmed - began),
        "cpu_s": round(spent),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "rows": json.loads((run / "run.json").read_text()).get("before_after"),
        **{name: measured(options, warm, run, heat) for name, heat in heats(options).items()},
    }
    with open(options.folder / "results.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")
    report(facts)


def heats(options: Options) -> dict[str, float]:
    return {"sampled": options.temperature} | ({"greedy": 0.0} if options.greedy else {})


# ── the warm start, and what it says ────────────────────────────────────────────────────────────


def warm_start(options: Options) -> Path:
    """SFT on gold commands of training tasks, once for all methods and seeds."""
    folder = options.folder / "warm"
    if (folder / f"step_{options.warm_steps:06d}").is_dir():
        return folder
    learned = [
        {"prompt": asked(options, task), "completion": said(render(gold(task)[0]))}
        for task in train_tasks(options.warm_families, options.warm_tasks, WARM_SEED)
    ]
    data = options.folder / "warm.jsonl"
    rows.save(learned, data)
    rows.save(learned[:1], rows.eval_path(data))  # nothing is compared here: one row held out is enough
    sft.train(
        sft.SFTConfig(
            data=data,
            **common(options, "smollm2", folder, options.warm_steps, options.warm_rate),
            batch_size=8,
            eval_rows=0,
        )
    )
    return folder


def recorded(options: Options, warm: Path) -> list[list[Played]]:
    """What the warm model says to the seed's tasks, several times each."""
    wanted = train_tasks(options.families, options.tasks, options.seed)
    tasks = [task for task in wanted for _ in range(options.replies)]
    seeds = [options.seed * 100_003 + place for place in range(len(tasks))]
    episodes = stage(options, warm, options.temperature).play(tasks, seeds)
    return [episodes[at : at + options.replies] for at in range(0, len(episodes), options.replies)]


def group(options: Options, episodes: list[Played]) -> dict[str, Any]:
    """A recorded group: words, rewards, tokens and their probabilities."""
    known = [one for one in episodes if not one.masked]
    return {
        "prompt": asked(options, episodes[0].task),
        "completions": [said(one.replies[0]) for one in known],
        "rewards": [one.reward for one in known],
        "token_ids": [[one.ids] for one in known],
        "logprobs": [[one.logprobs] for one in known],
        "task": episodes[0].task.name,
        "passed": [one.passed for one in known],
    }


def groups(options: Options, warm: Path) -> Path:
    """The file of recorded groups, made once for kto and offline of a seed."""
    path = options.folder / f"groups-seed{options.seed}.jsonl"
    if not path.is_file():
        rows.save([group(options, episodes) for episodes in recorded(options, warm)], path)
    return path


# ── the methods ─────────────────────────────────────────────────────────────────────────────────


def learn_kto(options: Options, warm: Path) -> Path:
    traces = [
        trace for row in rows.load(groups(options, warm)) for trace in labelled(row, catalog.get(row["task"]))
    ]
    data = options.folder / f"kto-seed{options.seed}.jsonl"
    examples = KTODatasetBuilder(eval_share=0.2, system_prompt=options.system).build_dataset(traces)
    train = [one for one in examples if one.split == "train"]
    bad = [one for one in train if not one.label][:: options.good_for_bad]
    rows.save([one.to_dict() for one in train if one.label] + [one.to_dict() for one in bad], data)
    rows.save([one.to_dict() for one in examples if one.split == "eval"], rows.eval_path(data))
    weights = {"desirable_weight": 1.0, "undesirable_weight": options.bad_weight}
    return fitted(options, warm, kto.train, kto.KTOConfig, data=data, **weights)


def labelled(row: dict[str, Any], task: Task) -> list[ExecutionTrace]:
    """What a person would have said: the right command is liked, the model's first wrong one is not."""
    texts = [one[0]["content"] for one in row["completions"]]
    wrong = [text for text, passed in zip(texts, row["passed"], strict=True) if not passed]
    told = [(render(gold(task)[0]), True), *((text, False) for text in wrong[:1])]
    return [
        ExecutionTrace(
            trace_id=f"{task.name}-{label}",
            user_query=opening(task, ONE),
            final_response=text,
            system_prompt=row["prompt"][0]["content"],
            label=label,
            manual_review=True,
            task_name=task.name,
        )
        for text, label in told
    ]


def learn_online(options: Options, warm: Path) -> Path:
    return fitted(
        options,
        warm,
        grpo.train,
        grpo.GRPOConfig,
        families=options.families,
        num_generations=options.generations,
        max_new_tokens=options.tokens,
        eval_rows=0,
        workers=options.workers,
        **playing(options),
    )


def learn_offline(options: Options, warm: Path) -> Path:
    data = groups(options, warm)
    if options.expert:
        taught = [with_expert(row, catalog.get(row["task"])) for row in rows.load(data)]
        data = data.with_name(f"taught-seed{options.seed}.jsonl")
        rows.save(taught, data)
    return fitted(options, warm, replay.train, replay.ReplayConfig, data=data, **playing(options))


def with_expert(row: dict[str, Any], task: Task) -> dict[str, Any]:
    """The group with a perfect player in it, whose words are known and whose probabilities are not."""
    new = {"completions": said(render(gold(task)[0])), "rewards": 1.0, "token_ids": [[]], "logprobs": [[]]}
    return row | {name: [*row[name][:-1], value] for name, value in new.items()}


def fitted(
    options: Options, warm: Path, train: Callable[[Any], Any], config: Callable[..., Any], **more: Any
) -> Path:
    """One run of a method from the warm start."""
    folder = options.folder / f"{options.method}-seed{options.seed}"
    steps = options.steps or STEPS[options.method]
    if (folder / f"step_{steps:06d}").is_dir():
        return folder
    given = common(options, str(warm), folder, steps, options.rate or RATES[options.method])
    train(config(**given, **more, batch_size=options.batch or ROWS[options.method]))
    return folder


def playing(options: Options) -> dict[str, Any]:
    return {"temperature": options.temperature, "system_prompt": options.system, "patience": 0}


def common(options: Options, base: str, folder: Path, steps: int, rate: float) -> dict[str, Any]:
    return {
        "base_model": base,
        "output_dir": folder,
        "max_steps": steps,
        "max_minutes": 0.0 if base == "smollm2" else options.minutes,
        "accumulate": 1,
        "learning_rate": rate,
        "schedule": "constant_with_warmup",
        "warmup": 0.0,
        "lora_r": options.rank,
        "keep": 1,
        "seed": 0 if base == "smollm2" else options.seed,
        "device": options.device,
    }


# ── before and after ────────────────────────────────────────────────────────────────────────────


def measured(options: Options, warm: Path, run: Path, heat: float) -> dict[str, Any]:
    """Base and result on the same held-out tasks."""
    return compared(before(options, warm, heat), play(options, run, heat)).facts()


def before(options: Options, warm: Path, heat: float) -> Outcomes:
    """What the warm start does, played once for all methods and seeds."""
    kept = options.folder / f"before-{options.heldout}-{heat:g}.json"
    if not kept.is_file():
        files.write(kept, json.dumps(asdict(play(options, warm, heat))))
    return Outcomes(**{name: tuple(values) for name, values in json.loads(kept.read_text()).items()})


def play(options: Options, model: Path, heat: float) -> Outcomes:
    wanted = heldout_tasks(options.heldout, families=options.families, max_difficulty=1)
    return outcomes(stage(options, model, heat).play(wanted, list(range(len(wanted)))))


def stage(options: Options, model: Path, heat: float) -> Stage:
    weights, tokenizer = open_model(LoraOptions(base_model=str(model), device=options.device))
    weights.to(choose_device(options.device))
    size = 64 if choose_device(options.device) == "cpu" else 256
    return Stage(weights, Chat(tokenizer, system=options.system), ONE, Drawing(options.tokens, heat, size))


def report(facts: dict[str, Any]) -> None:
    print(f"\n{facts['method']}, seed {facts['seed']}: {facts['steps']} steps, {facts['cpu_s']} CPU-s")
    for name in ("rows", "sampled", "greedy"):
        table = facts.get(name) or {}
        lines = {key: value for key, value in table.items() if isinstance(value, dict)}
        if not lines:
            continue
        print(f"\n| {name}: {table['rows']} held out | warm start | after | change |\n|---|--:|--:|--:|")
        for key, line in lines.items():
            cells = (f"{x:.3f} ({a:.3f} to {b:.3f})" for x, a, b in (line[k] for k in line))
            print(f"| {key} | " + " | ".join(cells) + " |")
        first = next(iter(lines.values()))
        print(f"\nintervals apart: {'yes' if first['after'][1] > first['before'][2] else 'no'}")


# ── small things ────────────────────────────────────────────────────────────────────────────────


def train_tasks(families: tuple[str, ...], count: int, seed: int) -> list[Task]:
    return list(catalog.tasks("train", seed=seed, count=count, families=families, difficulty=1))


def asked(options: Options, task: Task) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": options.system},
        {"role": "user", "content": opening(task, ONE)},
    ]


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


if __name__ == "__main__":
    main(tyro.cli(Options))
