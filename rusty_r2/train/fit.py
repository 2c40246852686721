# SPDX-License-Identifier: AGPL-3.0-or-later
"""A trainer of TRL's in a run folder of ours: numbers, progress, checkpoints, stopping and going on.

`begin` starts the run, or finds where it stopped; `fit` gives the trainer one callback and lets it train.
The callback writes every logged step to metrics.jsonl and TensorBoard under our names, tells how far it
is and how long it will take, makes each of the trainer's checkpoints a whole `step_N` of the run, and
ends after the step in which Ctrl-C was heard. Running out of memory ends with the options to type.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback

from rusty_r2.errors import ConfigError, TrainingError
from rusty_r2.run import Run, checkpoints, newest
from rusty_r2.train.distributed import World
from rusty_r2.train.loop import Stop
from rusty_r2.train.lora import MAY_CHANGE, LoraOptions
from rusty_r2.train.progress import Progress, fitting

NAMES = {
    "loss": "loss/train",
    "grad_norm": "optim/grad_norm",
    "learning_rate": "optim/lr",
    "kl": "policy/kl",
    "entropy": "policy/entropy",
    "num_tokens": "data/tokens",
    "mean_token_accuracy": "train/token_accuracy",
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "frac_reward_zero_std": "play/flat_groups",
    "step_time": "time/step_s",
}
"""the trainer's names for what we call otherwise; every other number keeps its own"""
LEFT_OUT = {"epoch", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"}
SHOWN = ("loss", "reward", "rewards/margins", "mean_token_accuracy")
"""numbers on the progress line, where there are any"""
NOT_FINITE = 5
"""logged steps in a row after which a run that has lost its way ends"""
NO_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory|bad_alloc", re.I)


@dataclass(frozen=True)
class Fitted:
    """How training ended."""

    step: int
    stopped: bool
    """by a person or the clock, before the last step"""
    seconds: float


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """Between the trainer's steps."""

    def __init__(self, run: Run | None, options: LoraOptions, world: World, steps: int) -> None:
        self.run, self.options, self.world = run, options, world
        self.deadline = time.monotonic() + (options.max_minutes * 60 or float("inf"))
        self.progress = Progress(steps, until=self.deadline, quiet=not world.first)
        self.stop = Stop()
        self.bad = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.progress.begin_at(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.world.any(bool(self.stop.asked) or time.monotonic() > self.deadline):
            control.should_training_stop = control.should_save = True
        if state.global_step in (1, state.max_steps):  # however long the interval, a run has two lines
            control.should_log = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "loss" not in logs:  # the summary after the last step
            return
        numbers = {name: float(value) for name, value in logs.items() if isinstance(value, (int, float))}
        facts = {NAMES.get(name, name): value for name, value in numbers.items() if name not in LEFT_OUT}
        shown = {name.rpartition("/")[2]: numbers[name] for name in SHOWN if name in numbers}
        facts["time/tokens_per_s"] = self.progress.report(
            state.global_step, int(numbers.get("num_tokens", 0)), shown
        )
        if self.run is not None:
            self.run.log(state.global_step, facts)
        self.bad = 0 if math.isfinite(numbers["loss"]) else self.bad + 1
        if self.bad >= NOT_FINITE:
            raise TrainingError(
                f"the loss was not finite for {self.bad} logged steps. "
                f"Type: --learning-rate {self.options.learning_rate / 10:g}"
            )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """What the trainer has saved becomes a checkpoint of the run, whole and checksummed."""
        began = time.monotonic()
        self.world.tell(None)  # every process has written its part
        if self.run is not None:
            saved = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            with self.run.checkpoint(state.global_step, keep=self.options.keep) as folder:
                for path in saved.iterdir():
                    shutil.move(str(path), folder / path.name)
            shutil.rmtree(saved, ignore_errors=True)
        self.world.tell(None)  # nobody goes on before it is whole
        self.progress.pause(time.monotonic() - began)


def begin(
    name: str, options: LoraOptions, world: World, facts: Mapping[str, Any]
) -> tuple[Run | None, Path, Path | None]:
    """Start or resume the run's folder: (the first process's Run, the folder, the checkpoint to go on from).

    `facts` are what must be the same when it is resumed: the data, the rows of a step.
    """
    run = None
    if world.first:
        folder = _where(name, options)
        _same_facts(folder, options, facts)
        run = Run.start(name, options, folder=folder, resume=options.resume, may_change=MAY_CHANGE)
        run.note(**facts)
    folder, resumed_from = world.tell((run.folder, run.resumed_from) if run else (Path(), None))
    return run, folder, resumed_from


def _where(name: str, options: LoraOptions) -> Path | None:
    """The run's folder; None: a new one."""
    if options.output_dir is not None or not options.resume:
        return options.output_dir
    if options.resume == "auto":
        numbers = (path.name.removeprefix(f"{name}-") for path in Path("runs").glob(f"{name}-*"))
        last = max((int(number) for number in numbers if number.isdecimal()), default=0)
        return Path("runs") / f"{name}-{last}" if last else None
    given = Path(options.resume)
    return given if checkpoints(given) else given.parent


def _same_facts(folder: Path | None, options: LoraOptions, facts: Mapping[str, Any]) -> None:
    if folder is None or not options.resume or newest(folder) is None:
        return
    try:
        known = json.loads((folder / "run.json").read_text())
    except (OSError, ValueError):
        return
    for key, now in facts.items():
        if key in known and _but_place(known[key]) != _but_place(now):
            raise ConfigError(
                f"{folder} cannot be resumed: its {key} was {known[key]!a:.60} and is {now!a:.60} now. "
                "Name another --output-dir"
            )


def _but_place(fact: Any) -> Any:
    """A fact without the path of the rows: the same rows may lie elsewhere by now."""
    return {key: value for key, value in fact.items() if key != "data"} if isinstance(fact, dict) else fact


def say(world: World, text: str) -> None:
    """A line to a person, from the first process only."""
    if world.first and (said := fitting(text)):
        with contextlib.suppress(OSError):  # nobody reads any more
            print(said, file=sys.stderr, flush=True)


def fit(
    trainer: Any,
    run: Run | None,
    options: LoraOptions,
    world: World,
    *,
    steps: int,
    resume_from: Path | None = None,
) -> Fitted:
    """Train until the last step, or until told to stop; what was reached is saved either way."""
    callback = RunCallback(run, options, world, steps)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(callback)
    began = time.monotonic()
    try:
        with callback.stop, warnings.catch_warnings():
            # an adapter on an adapter: the one below has no config.json of a model, nor needs one
            warnings.filterwarnings("ignore", "Could not find a config file")
            trainer.train(resume_from_checkpoint=str(resume_from) if resume_from else None)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
            raise TrainingError(advice(options, trainer.args.per_device_train_batch_size)) from error
        raise
    finally:
        callback.progress.close()
        if world.first:
            shutil.rmtree(trainer.args.output_dir, ignore_errors=True)
    step = int(trainer.state.global_step)
    return Fitted(step, step < steps, time.monotonic() - began)


def advice(options: LoraOptions, batch: int) -> str:
    """What to type after memory ran out: the cheapest remedy that is left."""
    where = "the GPU" if torch.cuda.is_available() and options.device != "cpu" else "this machine"
    said = f"{where} ran out of memory with {batch} rows of up to {options.max_length} tokens at once. Type: "
    if not options.gradient_checkpointing:
        return said + "--gradient-checkpointing"
    if batch > 2:
        return said + f"--batch-size {batch // 2} --gradient-checkpointing"
    return said + f"--max-length {options.max_length // 2}, or a smaller --base-model"
