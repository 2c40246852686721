# SPDX-License-Identifier: AGPL-3.0-or-later
"""`rusty eval ADDRESS …`: one command, one table for any mind; several are measured in one run, side by side.

    rusty eval rusty hf:smollm2 --measures gym commands --limit 50
    rusty eval runs/ppo-7 --bench bench --trained-on episodes.jsonl

A measure is a module with `measure(job) -> figures`; measures that need data which is not here say so. In
the folder `--out`: results.json, table.md, picture.png, families.png, and samples/ with every reply and its
verdict. The same command goes on where it was stopped.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from rusty_r2 import __version__, files
from rusty_r2.config import plain
from rusty_r2.errors import MissingExtra, RustyError
from rusty_r2.eval import picture, table
from rusty_r2.eval.figures import Figure, absent
from rusty_r2.eval.job import EvalConfig, Job, take
from rusty_r2.eval.mind import open_mind
from rusty_r2.executor import WorkerError, follow

if TYPE_CHECKING:
    from rusty_r2.eval import contamination

LONG = ("gym", "commands", "code", "actions", "text", "safety")
"""measures that may run beside others, the longest first; speed is measured alone"""


def evaluate(config: EvalConfig) -> str:
    """Measure every address and write the table."""
    columns: dict[str, list[Figure]] = {}
    ahead = side_by_side(config) if config.jobs > 1 else {}
    seconds: dict[str, dict[str, float]] = {}
    for address in dict.fromkeys(config.addresses):
        job = Job(open_mind(address, device=config.device, batch=config.side_by_side), config)
        columns[address] = []
        seconds[address] = {}
        for name in config.measures:
            began = time.perf_counter()
            columns[address] += _measured(job, name)
            took = ahead.get((address, name), 0.0) + time.perf_counter() - began
            seconds[address][name] = round(took, 2)
            _say(f"{address}: {name} took {took:.1f} s")
    if config.trained_on:
        seen = seen_in_training(config)
        for found in columns.values():
            found += seen
    return _written(config, columns, seconds)


def side_by_side(config: EvalConfig) -> dict[tuple[str, str], float]:
    """Let processes ask and keep the samples, then only read here. Returns the seconds they took."""
    todo = [
        (address, name)
        for name in LONG
        if name in config.measures
        for address in dict.fromkeys(config.addresses)
    ]
    workers = min(config.jobs, len(todo))
    if not workers:
        return {}
    with ProcessPoolExecutor(workers, get_context("spawn"), _share_cores, (workers,)) as pool:
        took = [pool.submit(_alone, config, address, name) for address, name in todo]
        try:
            return {each: future.result() for each, future in zip(todo, took, strict=True)}
        except BrokenProcessPool as error:
            raise WorkerError.died("--jobs 1") from error


def _share_cores(workers: int) -> None:
    follow()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))


def _alone(config: EvalConfig, address: str, name: str) -> float:
    """One measure of one mind in this process; what fails here fails again where it is read, and is told."""
    began = time.perf_counter()
    with contextlib.suppress(RustyError):
        _measured(Job(open_mind(address, device=config.device, batch=config.side_by_side), config), name)
    return time.perf_counter() - began


def _measured(job: Job, name: str) -> list[Figure]:
    try:
        found: list[Figure] = importlib.import_module(f"rusty_r2.eval.{name}").measure(job)
    except MissingExtra as error:  # measure what can be measured
        return [absent(name, str(error))]
    return found


def seen_in_training(config: EvalConfig) -> Sequence[Figure]:
    """How much of what is measured stands in the training data, set by set; which items, in samples/."""
    from rusty_r2.eval import contamination

    path = config.out / "samples" / "contamination.jsonl"
    held = held_out(config)
    seen = contamination.overlap(held, config.trained_on)
    lines = [
        json.dumps({"set": name, "parts": item}, ensure_ascii=False)
        for name, items in held.items()
        for item, met in zip(items, seen[name], strict=True)
        if met
    ]
    files.write(path, "".join(line + "\n" for line in lines))
    return contamination.figures(held, seen)


def held_out(config: EvalConfig) -> dict[str, list[contamination.Item]]:
    """The items of every set that is measured and has words of its own."""
    from rusty_r2.eval import code, commands, safety

    found: dict[str, list[contamination.Item]] = {}
    if "commands" in config.measures:
        for name in commands.SETS:
            if pairs := commands.pairs_of(config, name):
                found[name] = [(pair.request, pair.command) for pair in take(pairs, config)]
    if "code" in config.measures:
        for name in code.SETS:
            if tasks := code.tasks_of(config, name):
                found[name] = [
                    (task.prompt, *(text or "" for text in task.solution.values()))
                    for task in take(tasks, config)
                ]
    if "safety" in config.measures:
        for kind in ("dangerous", "harmless"):
            found[f"{kind} requests"] = [(asked,) for asked in take(safety.requests()[kind], config)]
    return found


def _written(
    config: EvalConfig, columns: dict[str, list[Figure]], seconds: dict[str, dict[str, float]]
) -> str:
    about: dict[str, Any] = {
        "version": __version__,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "options": plain(config),
        "seconds": seconds,
    }
    told = json.dumps(table.results(columns, about), indent=1, ensure_ascii=False)
    files.write(config.out / "results.json", told + "\n")
    files.write(config.out / "table.md", table.markdown(columns))
    try:
        drawn = str(picture.draw(columns, config.out / "picture.png"))
        families = picture.draw_families(columns, config.out / "families.png")
        drawn += f"\n{families}" if families else ""
    except MissingExtra as error:
        drawn = f"no picture: {error}"
    if config.json:
        return told
    return f"{table.plain(columns)}\n\n{drawn}\n{config.out}\nnext: less {config.out / 'table.md'}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
