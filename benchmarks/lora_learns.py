# SPDX-License-Identifier: AGPL-3.0-or-later
"""Does LoRA on SmolLM2 learn from labelled traces? Margin on held-out rows, and tasks solved in the gym.

    OMP_NUM_THREADS=1 python benchmarks/lora_learns.py --method kto --seed 1

Traces of easy terminal tasks (remove, rename, move, create): a person liked those that speak the JSON action
protocol and do what was asked, and disliked those that chat, or act on the wrong file. They go through the
same doors as anybody's: trace → rows → `rusty train` → comparison on held-out rows. Then base and result
each get one reply a held-out task, greedy, in the sandboxed gym: is it an action, and does it pass?
Held-out tasks have names that training never draws. `--method sft` and `dpo` learn from the same traces.
"""

from __future__ import annotations

import json
import random
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from rusty_r2.data import rows
from rusty_r2.data.kto import KTODatasetBuilder
from rusty_r2.eval.rates import Rate, difference
from rusty_r2.gym import catalog
from rusty_r2.gym.env import CodingEnv, EnvConfig
from rusty_r2.protocol import Cmd, render
from rusty_r2.task import Task
from rusty_r2.trace import ExecutionTrace

SYSTEM = (
    "You work in a terminal. Answer with one JSON object and nothing else: "
    '{"action": "CMD", "command": "..."}'
)
FAMILIES = ["remove", "rename", "move", "create", "layout"]
CHATTY = (
    "Sure! To do that, you can use the command `{command}` in your terminal.",
    "Of course. Here is how: first open a terminal, then type {command} and press Enter.",
    "I'm sorry, but as an AI language model I can't change files on your computer.",
    "Great question! You could do it by hand, or run:\n```\n{command}\n```",
)


@dataclass(frozen=True)
class Options:
    method: Literal["kto", "sft", "dpo"] = "kto"
    base_model: str = "smollm2"
    """or the run of another method, to go on from"""
    seed: int = 1
    tasks: int = 60
    """tasks whose traces are learned from; each gives a good and a bad one"""
    heldout: int = 40
    """held-out tasks that are played"""
    max_steps: int = 24
    learning_rate: float = 5e-4
    output_dir: Path | None = None


def traces(tasks: list[Task], seed: int) -> list[ExecutionTrace]:
    """For every task one trace that a person liked, and one that they did not."""
    chance = random.Random(seed)
    made = []
    for number, task in enumerate(tasks):
        gold = " && ".join(task.commands)
        other = " && ".join(tasks[(number + 1) % len(tasks)].commands)
        wrong = render(Cmd(other)) if chance.random() < 0.3 else chance.choice(CHATTY).format(command=gold)
        for said, label in ((render(Cmd(gold)), True), (wrong, False)):
            made.append(
                ExecutionTrace(
                    trace_id=f"{task.name}-{label}",
                    user_query=task.prompt,
                    final_response=said,
                    system_prompt=SYSTEM,
                    label=label,
                    manual_review=True,
                    task_name=task.name,
                )
            )
    return made


def write_rows(method: str, kept: list[ExecutionTrace], path: Path, eval_share: float) -> None:
    """The rows of the traces, some tasks of them held out beside."""
    examples = KTODatasetBuilder(eval_share=eval_share).build_dataset(kept)
    for split, where in (("train", path), ("eval", rows.eval_path(path))):
        some = [example.to_dict() for example in examples if example.split == split]
        if method == "sft":
            some = [row for row in some if row["label"]]
        elif method == "dpo":
            some = _pairs(some)
        rows.save(some, where)


def _pairs(some: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_prompt: dict[str, dict[bool, Any]] = {}
    for row in some:
        by_prompt.setdefault(json.dumps(row["prompt"]), {})[row["label"]] = row["completion"]
    return [
        {"prompt": json.loads(prompt), "chosen": said[True], "rejected": said[False]}
        for prompt, said in by_prompt.items()
        if len(said) == 2
    ]


def replies(model: Any, tokenizer: Any, tasks: list[Task]) -> list[str]:
    """One greedy answer to each task."""
    import torch

    asked = [
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.prompt}] for task in tasks
    ]
    made: list[str] = []
    for start in range(0, len(asked), 8):
        batch = tokenizer.apply_chat_template(
            asked[start : start + 8],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        batch = batch.to(model.device)
        with torch.no_grad():
            ids = model.generate(
                **batch, max_new_tokens=40, do_sample=False, pad_token_id=tokenizer.pad_token_id
            )
        made += tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return made


def played(tasks: list[Task], said: list[str]) -> tuple[Rate, Rate]:
    """(replies that are actions, tasks that pass after one reply)."""
    valid = passed = 0
    with CodingEnv(config=EnvConfig(max_turns=1)) as env:
        for task, reply in zip(tasks, said, strict=True):
            env.reset(options={"task": task})
            _, _, done, _, info = env.step(reply)
            valid += bool(info["valid"])
            passed += done
    return Rate(valid, len(tasks)), Rate(passed, len(tasks))


def main(options: Options) -> None:
    from rusty_r2.train import dpo, kto, lora, sft
    from rusty_r2.train.session import choose_device

    began = time.process_time()
    learned = list(
        catalog.tasks("train", seed=options.seed, count=options.tasks, families=FAMILIES, difficulty=[1])
    )
    unseen = list(catalog.tasks("heldout", seed=7, count=options.heldout, families=FAMILIES, difficulty=[1]))
    folder = options.output_dir or Path(tempfile.mkdtemp(prefix="lora-learns-"))
    data = folder / f"{options.method}.jsonl"
    write_rows(options.method, traces(learned, options.seed), data, 0.2)
    config, train = {
        "kto": (kto.KTOConfig, kto.train),
        "sft": (sft.SFTConfig, sft.train),
        "dpo": (dpo.DPOConfig, dpo.train),
    }[options.method]
    run = train(
        config(
            base_model=options.base_model,
            data=data,
            output_dir=folder / "run",
            max_steps=options.max_steps,
            batch_size=4,
            accumulate=1 if options.method == "kto" else 2,
            learning_rate=options.learning_rate,
            lora_r=16,
            seed=options.seed,
        )
    )
    trained = time.process_time() - began
    table = {}
    for name, base in (("base", options.base_model), ("result", str(run))):
        model, tokenizer = lora.open_model(lora.LoraOptions(base_model=base))
        said = replies(model.to(choose_device("auto")).eval(), tokenizer, unseen)
        table[name] = played(unseen, said)
        print(f"{name}: {said[:3]}")
    print(f"{options.method}, seed {options.seed}: {trained:.0f} CPU-s to train, {folder}")
    print(f"{'':<10}{'actions':<26}{'tasks that pass':<26}")
    for name, (valid, passed) in table.items():
        print(f"{name:<10}{valid!s:<26}{passed!s:<26}")
    low, high = difference(table["result"][1], table["base"][1])
    print(f"change of tasks that pass: {100 * low:.1f} to {100 * high:.1f} points")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main(tyro.cli(Options))
