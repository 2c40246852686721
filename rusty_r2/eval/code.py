# SPDX-License-Identifier: AGPL-3.0-or-later
"""Writing functions: HumanEval and MBPP, pass@1, where `--bench` has their files.

The gym's own way: the task's file and what is wanted are shown, the reply is one EDIT of solution.py, the
hidden tests run where the reply cannot reach them. Greedy, constrained, one reply. HumanEval is held out as
a whole; of MBPP the validation part is taken, with `--split test` the test part. Minds that need examples
get MBPP's train rows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from rusty_r2.eval.figures import Figure, absent, share
from rusty_r2.eval.job import EvalConfig, Job
from rusty_r2.eval.mind import Shot
from rusty_r2.gym import benchmarks
from rusty_r2.gym.env import EnvConfig, opening
from rusty_r2.protocol import Edit, render
from rusty_r2.task import Task

SETS = ("humaneval", "mbpp")
LONGEST = 384
"""tokens of a file"""
SHOTS = 3
"""whole files are long: more examples than this do not fit small contexts"""
LIMITS = {"wall_s": 20.0, "cpu_s": 20}


def tasks_of(config: EvalConfig, name: str, split: str = "") -> list[Task] | None:
    """The tasks of a set; None where its file is absent."""
    folder = config.bench_folder
    if folder is None or not (folder / f"{name}.jsonl").is_file():
        return None
    path = folder / f"{name}.jsonl"
    if name == "humaneval":
        return list(benchmarks.humaneval(path))
    return list(benchmarks.mbpp(path, split=split or _part(config)))


def _part(config: EvalConfig) -> str:
    """MBPP's own word for what is measured."""
    return "test" if config.split == "test" else "validation"


def shots(config: EvalConfig, count: int) -> list[Shot]:
    """Short solved tasks of MBPP's training part."""
    rows = tasks_of(config, "mbpp", "train") or [] if count else []
    named = [task for task in rows if task.split == "train"]  # rows without a split are measured
    short = [task for task in named if len(str(task.solution[benchmarks.FILE])) < 240]
    random.Random(config.seed).shuffle(short)
    return [
        (opening(task, EnvConfig()), render(Edit(path, str(text))))
        for task in islice(short, min(count, SHOTS))
        for path, text in task.solution.items()
    ]


def measure(job: Job) -> list[Figure]:
    figures = []
    for name in SETS:
        found = tasks_of(job.config, name)
        if found is None:
            figures.append(absent(f"{name} pass@1", f"no {name}.jsonl; give its folder with --bench"))
        elif not found:
            figures.append(absent(f"{name} pass@1", f"{name}.jsonl has no {_part(job.config)} rows"))
        else:
            figures.append(_measure(job, name, job.take(found)))
    return figures


def _measure(job: Job, name: str, wanted: Sequence[Task]) -> Figure:
    given = shots(job.config, job.shots)
    env = EnvConfig(max_turns=1)
    with job.kept(f"code_{name}", shots=given, longest=LONGEST) as kept:
        todo = [replace(task, limits=LIMITS) for task in wanted if not kept.counts(task.name)]
        with job.bar(name, len(todo)) as bar:
            for one in job.mind.play(enumerate(todo), job.speech(LONGEST), env, given):
                row = {"passed": one.passed, "masked": one.masked, "valid": one.valid}
                kept.add(
                    one.task.name, row | {"asked": opening(one.task, env), "reply": "".join(one.replies)}
                )
                bar.advance()
        rows = [row for task in wanted if not (row := kept.rows[task.name])["masked"]]
    part = "" if name == "humaneval" else f", {_part(job.config)}"
    note = f"{len(given)} examples, greedy{'' if job.config.constrain else ', free'}{part}"
    return share(f"{name} pass@1", sum(row["passed"] for row in rows), len(rows), note=note)
