# SPDX-License-Identifier: AGPL-3.0-or-later
"""One call of `rusty train kto`, `sft` or `dpo`: rows in, an adapter and a table of before and after out.

A `Method` says what its rows are, which trainer of TRL's learns from them and what is compared; everything
else is here, in the order in which it can fail cheaply: rows, base model's name, tokenizer, lengths,
estimate, run folder, weights, training, comparison, model card. The options are `TuningOptions`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rusty_r2 import files
from rusty_r2.config import resolved
from rusty_r2.data import rows as room
from rusty_r2.errors import ConfigError, DataError, need
from rusty_r2.hardware import HardwareConfig, detect_hardware
from rusty_r2.run import Run, metrics
from rusty_r2.train import lora
from rusty_r2.train.encoded import Row, Said, encode, heard, load_rows, order, split
from rusty_r2.train.lora import Base, LoraOptions
from rusty_r2.train.progress import stopped

if TYPE_CHECKING:
    from rusty_r2.train.before_after import Comparison, Scores
    from rusty_r2.train.distributed import World
    from rusty_r2.train.fit import Fitted
    from rusty_r2.train.patience import Patience

NOT_NEGATIVE = (
    *("batch_size", "accumulate", "max_steps", "max_minutes", "lora_r", "lora_alpha", "eval_rows", "keep"),
    *("weight_decay", "clip", "eval_interval", "patience", "beta", "desirable_weight", "undesirable_weight"),
    *("clip_eps", "clip_eps_high"),
)
"""options, also of single methods, of which less than nothing makes no sense"""
NEEDED_MB = 500
"""free disk for a run's folder"""


@dataclass(frozen=True, kw_only=True)
class TuningOptions(LoraOptions):
    """Options of the methods that learn from a file of rows."""

    data: Path
    """a .jsonl file of rows; FILE.eval.jsonl beside it is held out, else one prompt in ten"""
    eval_data: Path | None = None
    """held-out rows, from another file"""
    eval_interval: int = 0
    """steps between two readings of the held-out rows; 0: only at the end"""
    patience: int = 0
    """readings without a gain after which training ends; 0: never"""


class Method(Protocol):
    """What is special about one way to learn from rows."""

    name: str
    least: int
    """rows at once that the method needs"""
    passes: float
    """times a step reads its rows, the backward pass counted as one"""

    def check(self, rows: Sequence[Row], path: Path) -> None:
        """Refuse rows that nothing can be learned from."""

    def texts(self, row: Row) -> list[tuple[room.Text, room.Text]]:
        """The prompts and completions of a row."""

    def columns(self, row: Row, said: Sequence[Said]) -> Row:
        """The row as the trainer is given it."""

    def trainer(self, **parts: Any) -> Any:
        """TRL's trainer on model, tokenizer, dataset, arguments, lora and options."""

    def compare(self, rows: Sequence[Row], before: Scores, after: Scores, held_out: bool) -> Comparison:
        """The table of base and result."""


@dataclass(frozen=True)
class Lesson:
    """Rows made ready for one base model."""

    rows: list[Row]
    said: list[list[Said]]
    held_rows: list[Row]
    held_said: list[list[Said]]
    too_long: int

    @property
    def lengths(self) -> list[int]:
        return [max(map(len, some)) for some in self.said]


def tune(options: TuningOptions, method: Method) -> Path | str:
    """Train, compare, write the card; the run's folder (or, for a dry run, the plan)."""
    check_options(options)
    if options.patience and not options.eval_interval:
        raise ConfigError("--patience counts readings of held-out rows: add --eval-interval 20")
    rows = load_rows(options.data, method.name)
    learned, held = split(options.data, rows, options.eval_data, method.name, options.seed)
    method.check(learned, options.data)
    for module in ("torch", "transformers", "trl", "peft", "datasets"):
        need(module, extra="lora")
    from rusty_r2.train.distributed import join
    from rusty_r2.train.session import choose_device

    hardware = detect_hardware()
    base = lora.find_base(options.base_model, hardware)
    with join(choose_device(options.device)) as world:
        return _Tuning(options, method, base, hardware, world).go(learned, held)


def check_options(options: LoraOptions) -> None:
    """What can be known to be wrong before anything is loaded."""
    for name in NOT_NEGATIVE:
        if not getattr(options, name, 0) >= 0:
            raise ConfigError(f"--{name} cannot be negative")
    for name in ("epochs", "learning_rate", "max_length", "log_interval", "ckpt_interval"):
        if not getattr(options, name) > 0:
            raise ConfigError(f"--{name} must be more than 0, not {getattr(options, name)}")
    for name in ("warmup", "lora_dropout"):
        if not 0 <= getattr(options, name) < 1:
            raise ConfigError(f"--{name} is a part of a whole: 0 up to 1, not {getattr(options, name)}")
    there = options.output_dir or Path("runs")
    near = next(p for p in (there.absolute(), *there.absolute().parents) if p.exists())
    free = shutil.disk_usage(near).free >> 20
    if free < NEEDED_MB and not options.dry_run:
        raise ConfigError(f"{near} has {free} MB free, a run needs {NEEDED_MB}. Type: --output-dir FOLDER")


class _Tuning:
    """The parts of one call."""

    def __init__(
        self, options: TuningOptions, method: Method, base: Base, hardware: HardwareConfig, world: World
    ) -> None:
        self.options, self.method, self.base = options, method, base
        self.hardware, self.world = hardware, world
        self.shape = lora.shape_of(options, hardware, least=method.least, processes=world.size)

    def go(self, learned: list[Row], held: list[Row]) -> Path | str:
        from rusty_r2.train.fit import begin, fit, say

        model_config = lora.open_config(self.base)
        tokenizer = lora.open_tokenizer(self.base)
        lesson = self._lesson(tokenizer, learned, held)
        steps = self._steps(len(lesson.rows))
        plan = self._plan(model_config, lesson, steps)
        if self.options.dry_run:
            return json.dumps(resolved(self.options), indent=2) + f"\n{self._introduction(lesson)}\n{plan}"
        run, folder, resumed = begin(self.method.name, self.options, self.world, self._facts(lesson))
        with contextlib.nullcontext() if run is None else run:
            say(self.world, f"{self._introduction(lesson)}\n{plan}; {folder}")
            trainer = self._trainer(tokenizer, lesson, steps, folder)
            waiting = self._patience(trainer, tokenizer, lesson, run, folder)
            done = fit(trainer, run, self.options, self.world, steps=steps, resume_from=resumed)
            if waiting is not None and waiting.ended:
                done = replace(done, stopped=False)
                say(self.world, f"ended at step {done.step}: no gain for {self.options.patience} readings")
            if done.stopped and run is not None:
                run.close("stopped")
            elif not done.stopped:
                self._conclude(
                    trainer.accelerator.unwrap_model(trainer.model), tokenizer, lesson, run, folder, done
                )
        say(self.world, self._farewell(folder, done))
        return folder

    def _lesson(self, tokenizer: Any, learned: list[Row], held: list[Row]) -> Lesson:
        kept, said, long = self._fitting(tokenizer, learned)
        if not kept:
            raise DataError(
                f"every row of {self.options.data} is over {self.options.max_length} tokens: they have "
                f"{min(long)} to {max(long)}. Type: --max-length {max(long)}"
            )
        held = sorted(held, key=lambda row: room.rank(self.options.seed, room.digest(row)))
        held_rows, held_said, _ = self._fitting(tokenizer, held[: self.options.eval_rows])
        return Lesson(kept, said, held_rows, held_said, len(long))

    def _fitting(self, tokenizer: Any, given: list[Row]) -> tuple[list[Row], list[list[Said]], list[int]]:
        """The rows that are short enough, as the model hears them, and the lengths of those that are not."""
        rows = [heard(tokenizer, row) for row in given]
        all_said = [
            [encode(tokenizer, prompt, completion) for prompt, completion in self.method.texts(row)]
            for row in rows
        ]
        lengths = [max(map(len, said)) for said in all_said]
        fits = [length <= self.options.max_length for length in lengths]
        kept = [row for row, fit in zip(rows, fits, strict=True) if fit]
        said = [said for said, fit in zip(all_said, fits, strict=True) if fit]
        return kept, said, [length for length, fit in zip(lengths, fits, strict=True) if not fit]

    def _steps(self, rows: int) -> int:
        return self.options.max_steps or max(1, -int(-self.options.epochs * rows // self.shape.rows))

    def _plan(self, model_config: Any, lesson: Lesson, steps: int) -> str:
        from rusty_r2.train.estimate import estimate
        from rusty_r2.train.fit import advice

        device = self.world.device.type
        found = estimate(
            model_config,
            self.options,
            self.shape,
            self.hardware,
            lengths=lesson.lengths,
            steps=steps,
            passes=self.method.passes * len(lesson.said[0]),
            device=device,
            dtype=lora.dtype_of(self.options, device),
        )
        if found.memory_gb <= found.free_gb:
            return str(found)
        return f"{found}\nit may not fit: if {advice(self.options, self.shape.batch)}"

    def _introduction(self, lesson: Lesson) -> str:
        shape, long = self.shape, lesson.too_long
        over = f", {long} left out (over {self.options.max_length} tokens)" if long else ""
        many = f" on {shape.processes} processes" if shape.processes > 1 else ""
        kind = str(lora.dtype_of(self.options, self.world.device.type)).removeprefix("torch.")
        return (
            f"{self.method.name} on {self.base.name}: {len(lesson.rows):,} rows{over}, "
            f"{len(lesson.held_rows):,} held out; {shape.batch} rows x {shape.accumulate} a step{many}, "
            f"{self.world.device.type} in {kind}"
        )

    def _facts(self, lesson: Lesson) -> dict[str, Any]:
        """Where the rows came from: what a resumed run must agree with, and the card tells."""
        traces = sorted({one for row in lesson.rows for one in _trace_ids(row)})
        return {
            "dataset": files.digest(self.options.data),
            "rows_a_step": self.shape.rows,
            "base": self.base.reference,
            "lineage": {
                "traces": len(traces),
                "traces_digest": room.digest(traces)[:16] if traces else "",
                "rows": len(lesson.rows),
                "data": str(self.options.data),
            },
        }

    def _trainer(self, tokenizer: Any, lesson: Lesson, steps: int, folder: Path) -> Any:
        prompts = [room.digest(self.method.texts(row)[0][0]) for row in lesson.rows]
        places = order(lesson.lengths, prompts, count=steps * self.shape.rows, seed=self.options.seed)
        dataset = room.to_hf(self.method.columns(lesson.rows[at], lesson.said[at]) for at in places)
        model, _ = lora.open_model(self.options, self.base)
        common = lora.arguments(self.options, self.shape, folder=folder, steps=steps)
        return self.method.trainer(
            model=model,
            tokenizer=tokenizer,
            dataset=dataset,
            arguments={
                **common,
                "train_sampling_strategy": "sequential",
                "max_length": self.options.max_length,
            },
            lora=lora.lora_config(self.options, model, self.hardware),
            options=self.options,
        )

    def _patience(
        self, trainer: Any, tokenizer: Any, lesson: Lesson, run: Run | None, folder: Path
    ) -> Patience | None:
        """The callback that reads held-out rows between steps, where that was asked for."""
        if not self.options.eval_interval or not lesson.held_rows:
            return None
        from rusty_r2.train.patience import Patience

        def gain() -> float:
            found = self._compare(trainer.accelerator.unwrap_model(trainer.model), tokenizer, lesson)
            return found.lines[0].gain if found is not None else 0.0

        seen = [line["eval/gain"] for line in metrics(folder) if line.get("eval/gain") is not None]
        waiting = Patience(
            gain,
            every=self.options.eval_interval,
            patience=self.options.patience,
            log=run.log if run is not None else lambda *_: None,
            seen=seen,
        )
        trainer.add_callback(waiting)
        return waiting

    def _conclude(
        self, model: Any, tokenizer: Any, lesson: Lesson, run: Run | None, folder: Path, done: Fitted
    ) -> None:
        """Compare base and result, merge where asked, and write the card."""
        from rusty_r2.train.fit import say
        from rusty_r2.train.merge import merge_into, write_card

        compared = self._compare(model, tokenizer, lesson)
        if run is not None:
            if compared is not None:
                run.note(worse=compared.worse, before_after=compared.facts())
                run.log(
                    done.step,
                    {f"eval/{line.name.replace(' ', '_')}": line.after[0] for line in compared.lines},
                )
                say(self.world, compared.table())
            write_card(folder)
            if self.options.merge:
                merge_into(folder, folder / "merged")
        self.world.tell(None)

    def _compare(self, model: Any, tokenizer: Any, lesson: Lesson) -> Comparison | None:
        from rusty_r2.train.before_after import both

        if not self.options.eval_rows:
            return None
        held_out = bool(lesson.held_rows)
        rows = lesson.held_rows or lesson.rows[: self.options.eval_rows]
        said = lesson.held_said or lesson.said[: self.options.eval_rows]
        width = len(said[0])
        flat = [one[side] for side in range(width) for one in said]  # all first sides, then all second ones
        before, after = both(model, flat, pad=tokenizer.pad_token_id, world=self.world)
        return self.method.compare(rows, before, after, held_out)

    def _farewell(self, folder: Path, done: Fitted) -> str:
        if done.stopped:
            again = f"rusty train {self.method.name} --config {folder}/config.json"
            again += f" --output-dir {folder} --resume auto"
            return stopped(f"at step {done.step:,}", again)
        return f"next: rusty {'export gguf' if self.options.merge else 'train merge'} {folder}"


def _trace_ids(row: Row) -> list[str]:
    return [row["trace_id"]] if row.get("trace_id") else list(row.get("trace_ids") or ())
