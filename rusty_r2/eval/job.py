# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a measure is given: the mind, the options, where the held-out data lies and where samples are kept.

`--bench FOLDER` holds tldr.jsonl, nl2bash.jsonl, humaneval.jsonl and mbpp.jsonl, as many as there are; the
environment variable RUSTY_SHARED names a folder with bench/ and corpus/ in it instead. What is absent is
said in the table, never guessed. Rows name their split: train rows become examples, dev rows are measured,
test rows only where `--split test` asks for them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import tyro

from rusty_r2.errors import ConfigError
from rusty_r2.eval.kept import Kept
from rusty_r2.eval.mind import Mind, Speech
from rusty_r2.eval.progress import Bar
from rusty_r2.lm.documents import records

T = TypeVar("T")
Measure = Literal["text", "actions", "gym", "commands", "code", "safety", "speed"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
MOST_TRIES = 1000
"""at one gym task; each has a number of its own below this"""


@dataclass(frozen=True)
class EvalConfig:
    addresses: Annotated[tuple[str, ...], tyro.conf.Positional] = ("rusty",)
    """whom to measure: rusty, runs/NAME, hf:NAME, gguf:PATH, ollama:NAME, http://…"""
    measures: tuple[Measure, ...] = MEASURES
    """what to measure"""
    limit: int = 0
    """items of each set at most; 0 takes all (312 of the gym's tasks, 120 documents of text)"""
    seed: int = 0
    """which items are taken first (the gym and texts have their own order), and which examples are shown"""
    out: Path = Path("runs/eval")
    """samples, table and picture go here; what is there already is not measured again"""
    bench: Path | None = None
    """folder with tldr.jsonl, nl2bash.jsonl, humaneval.jsonl, mbpp.jsonl"""
    text: tuple[Path, ...] = ()
    """held-out text: corpus folders, or documents of which the 1% that `data corpus` holds out is taken"""
    fresh_text: bool = False
    """also measure without documents that training documents hold much of (reads all of --text twice)"""
    trained_on: tuple[Path, ...] = ()
    """training data: held-out items that stand in it are counted and named"""
    split: Literal["dev", "test"] = "dev"
    """which part to measure on; test is for the end"""
    shots: int = 8
    """examples shown to minds that were not trained on the protocol"""
    samples: int = 8
    """tries at each gym task for pass@k; 1 leaves pass@k out"""
    temperature: float = 0.8
    """of those tries; everything else is greedy"""
    constrain: bool = True
    """only actions can be said; --no-constrain measures what a mind says by itself"""
    max_turns: int = 4
    """replies in a gym episode"""
    batch: int = 0
    """questions answered side by side; 0: 64 on a CPU, 512 on a GPU"""
    device: str = "cpu"
    """cpu, or cuda"""
    jobs: int = 1
    """measures taken side by side, each in a process of its own with a copy of the mind"""
    json: bool = False
    """print for scripts"""

    def __post_init__(self) -> None:
        if min(self.limit, self.shots, self.batch) < 0 or min(self.samples, self.max_turns, self.jobs) < 1:
            raise ConfigError(
                "--limit, --shots, --batch: 0 or more; --samples, --max-turns, --jobs: 1 or more"
            )
        if self.samples > MOST_TRIES:
            raise ConfigError(f"--samples is {self.samples}; at most {MOST_TRIES} tries are made at a task")
        if not self.addresses or not self.measures:
            raise ConfigError("give an address and a measure. Type: rusty eval rusty --measures gym")

    @property
    def side_by_side(self) -> int:
        return self.batch or (64 if self.device == "cpu" else 512)

    @property
    def bench_folder(self) -> Path | None:
        shared = os.environ.get("RUSTY_SHARED")
        return self.bench or (Path(shared) / "bench" if shared else None)

    @property
    def text_sources(self) -> tuple[Path, ...]:
        shared = os.environ.get("RUSTY_SHARED")
        found = sorted((Path(shared) / "corpus").glob("*.jsonl.xz")) if shared else []
        return self.text or tuple(path for path in found if "episodes" not in path.name)


@dataclass(frozen=True)
class Job:
    mind: Mind
    config: EvalConfig

    def kept(self, measure: str, **asked: Any) -> Kept:
        """The file of this measure's samples."""
        who = {"address": self.mind.address, "digest": self.mind.digest, "seed": self.config.seed}
        who |= {} if self.config.constrain else {"constrain": False}
        return Kept(self.config.out / "samples", measure, who | asked)

    def speech(self, longest: int, **more: Any) -> Speech:
        """How this mind is to speak."""
        return Speech(**({"grammar": self.config.constrain, "max_new_tokens": longest} | more))

    @property
    def how(self) -> str:
        """How answers were had, for notes."""
        return f"{self.shots} examples, greedy, {'constrained' if self.config.constrain else 'free'}"

    def bar(self, measure: str, total: int) -> Bar:
        return Bar(f"{measure}, {self.mind.address}", total)

    def take(self, items: Sequence[T], most: int = 0) -> list[T]:
        """The items to measure: the same ones first, whatever the limit."""
        return take(items, self.config, most)

    @property
    def shots(self) -> int:
        """Examples this mind is shown."""
        return 0 if self.mind.ours else self.config.shots


def take(items: Sequence[T], config: EvalConfig, most: int = 0) -> list[T]:
    order = list(items)
    random.Random(config.seed).shuffle(order)
    return order[: config.limit or most or len(order)]


def bench_rows(config: EvalConfig, name: str, split: str = "") -> list[dict[str, Any]] | None:
    """Rows of a benchmark file in one split; None where the file is absent.

    Rows that name no split are measured and never shown as examples.
    """
    folder = config.bench_folder
    if folder is None or not (folder / f"{name}.jsonl").is_file():
        return None
    rows = _rows(folder / f"{name}.jsonl")
    unnamed = "" if split == "train" else split
    return [row for row in rows if not split or row.get("split", unnamed) == split]


def heldout_rows(config: EvalConfig, name: str) -> list[dict[str, Any]] | None:
    """The part to report on: test where asked for and there, else dev."""
    return bench_rows(config, name, "dev" if instead(config, name) else config.split)


def instead(config: EvalConfig, name: str) -> str:
    """Where test rows were asked for and dev rows are all there is: the sentence that says so."""
    if config.split == "dev" or bench_rows(config, name, config.split) or not bench_rows(config, name, "dev"):
        return ""
    return f"{name}.jsonl has no {config.split} rows: measured on its dev rows"


@lru_cache(maxsize=4)
def _rows(path: Path) -> list[dict[str, Any]]:
    return list(records(path))
