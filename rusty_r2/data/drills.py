# SPDX-License-Identifier: AGPL-3.0-or-later
"""Practice without end: rows for the trainer, made from nothing, none of them ever seen twice.

    rusty data drills --output-dir drills          copying lessons, and gym tasks with any words for names
    rusty train supervised --data-dir drills

A model that meets the same episode twice begins to know it by heart; here there is always another one.
Gym tasks are those of the training split (held-out words stay out, by their hash) with their gold
solution, not played: only tasks of a single action. Each worker makes, tokenises and packs; the rows lie in
two arrays that are mapped, not read. Played episodes with their observations are data/episodes.py.
"""

from __future__ import annotations

import json
import keyword
import multiprocessing
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rusty_r2 import files
from rusty_r2.data.episode import Episode, read
from rusty_r2.data.lessons import lessons, vocabulary
from rusty_r2.data.meter import Meter
from rusty_r2.data.packed import Encoded, encode, pack
from rusty_r2.data.played import asked
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.gym.families import FAMILIES
from rusty_r2.gym.families.words import WORDS
from rusty_r2.gym.proof import gold
from rusty_r2.lm.tokenizer import Tokenizer

PART = 1000
"""episodes a worker makes at a time"""
FIRST_SEED = 1 << 40
"""of gym tasks made here: far from those that are played"""
MANIFEST = "drills.json"


@dataclass(frozen=True)
class DrillsConfig:
    output_dir: Path
    """the folder to write"""
    lessons: int = 20_000
    """copying lessons"""
    gym: int = 20_000
    """gym tasks"""
    episodes: Path | None = None
    """an episodes file that goes into the same rows (rusty data episodes)"""
    times: int = 1
    """how often each of those episodes comes"""
    seq_len: int = 1024
    """tokens of a row"""
    tokenizer_path: Path | None = None
    """tokenizer folder or tokenizer.json; default: the one that ships"""
    seed: int = 0
    """the same seed, the same rows"""
    workers: int = 0
    """processes; 0 takes one for each core"""

    def __post_init__(self) -> None:
        if min(self.lessons, self.gym, self.workers) < 0 or self.lessons + self.gym < 1 or self.seq_len < 256:
            raise ConfigError("--lessons and --gym are counts, not both 0; --seq-len is at least 256")
        if self.episodes is not None and (self.times < 1 or not self.episodes.is_file()):
            raise ConfigError(f"{self.episodes} must be a file, --times 1 or more. Type: rusty data episodes")


def build(config: DrillsConfig) -> str:
    """Make a folder of rows."""
    if not files.may_replace(config.output_dir):
        raise ConfigError(
            f"{config.output_dir} holds other files, which would be lost. Type: --output-dir NEW_FOLDER"
        )
    words = Tokenizer.load(config.tokenizer_path)
    jobs = [*_jobs("lesson", config.lessons, config), *_jobs("gym", config.gym, config)]
    random.Random(config.seed).shuffle(jobs)
    with files.whole_folder(config.output_dir) as folder, Meter() as meter:
        rows, made, tokens = _write(folder, jobs, config, meter)
        facts = {
            "rows": rows,
            "seq_len": config.seq_len,
            "episodes": made,
            "tokens": tokens,
            "tokenizer": words.fingerprint,
            "lessons": config.lessons,
            "gym": config.gym,
            "file": files.digest(config.episodes) if config.episodes else "",
            "seed": config.seed,
        }
        files.write(folder / MANIFEST, json.dumps(facts, indent=1) + "\n")
    told = f"{made:,} drills, {tokens:,} tokens in {rows:,} rows"
    return f"{told}\n{config.output_dir}\nnext: rusty train supervised --data-dir {config.output_dir}"


def is_drills(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def open_drills(
    folder: Path, tokenizer: Tokenizer, length: int
) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """The rows of a folder that was made with this tokenizer for this length, mapped."""
    facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for name, ours in (("tokenizer", tokenizer.fingerprint), ("seq_len", length)):
        if facts.get(name) != ours:
            seen = f"{folder} was made with {name} {facts.get(name)}, not {ours}"
            raise ConfigError(f"{seen}. Make it again: rusty data drills")
    shape = (int(facts["rows"]), length + 1)
    try:
        ids = np.memmap(folder / "ids.u16", np.uint16, "r", shape=shape)
        own = np.memmap(folder / "own.u8", np.bool_, "r", shape=shape)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} is damaged: {error}. Make it again: rusty data drills") from error
    return ids, own


@dataclass(frozen=True)
class _Job:
    kind: str
    first: int
    count: int
    seed: int
    tokenizer: Path | None
    length: int


def _jobs(kind: str, count: int, config: DrillsConfig) -> Iterator[_Job]:
    for first in range(0, count, PART):
        size = min(PART, count - first)
        yield _Job(kind, first, size, config.seed, config.tokenizer_path, config.seq_len)


def _write(folder: Path, jobs: list[_Job], config: DrillsConfig, meter: Meter) -> tuple[int, int, int]:
    workers = min(config.workers or os.cpu_count() or 1, len(jobs))
    rows = made = tokens = 0
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers are parallel already
    # spawned, not forked: the tokenizer's threads must not be copied
    with (
        multiprocessing.get_context("spawn").Pool(workers) as pool,
        open(folder / "ids.u16", "wb") as ids_file,
        open(folder / "own.u8", "wb") as own_file,
    ):
        for ids, own, episodes, size in pool.imap(_make, jobs):
            ids_file.write(ids.tobytes())
            own_file.write(own.tobytes())
            rows, made, tokens = rows + len(ids), made + episodes, tokens + size
            meter.show(f"{made:,} drills, {tokens:,} tokens")
        for ids, own, episodes, size in _from_file(config):
            ids_file.write(ids.tobytes())
            own_file.write(own.tobytes())
            rows, made, tokens = rows + len(ids), made + episodes, tokens + size
    return rows, made, tokens


Part = tuple[NDArray[np.uint16], NDArray[np.bool_], int, int]
"""rows, which of their tokens are learned, how many episodes and tokens they hold"""


def _from_file(config: DrillsConfig) -> Iterator[Part]:
    """The episodes of the file, packed anew each time."""
    if config.episodes is None:
        return
    words = Tokenizer.load(config.tokenizer_path)
    fitting = [one for one in encode(words, read(config.episodes)) if len(one[0]) <= config.seq_len]
    for time in range(config.times):
        random.Random(f"{config.seed}/{time}/file").shuffle(fitting)
        yield (*pack(fitting, config.seq_len), len(fitting), sum(len(one[0]) for one in fitting))


def _make(job: _Job) -> Part:
    """One worker's part."""
    words, names = _words(job.tokenizer)
    if job.kind == "lesson":
        made = list(lessons(names, job.count, seed=job.seed * 1_000_003 + job.first))
    else:
        made = list(_tasks(_usable(job.tokenizer), job))
    fitting: list[Encoded] = [one for one in encode(words, made) if len(one[0]) <= job.length]
    random.Random(f"{job.seed}/{job.first}").shuffle(fitting)
    ids, own = pack(fitting, job.length)
    return ids, own, len(fitting), sum(len(one[0]) for one in fitting)


def _tasks(names: tuple[str, ...], job: _Job) -> Iterator[Episode]:
    """`count` single-action tasks, families and levels in turn."""
    able = [(family, level) for family in FAMILIES.values() for level in family.levels]
    places = [(family, level) for family, level in able if "train" in family.splits]
    number, made = FIRST_SEED + job.seed * 1_000_000_007 + 4 * job.first, 0
    while made < job.count:
        family, level = places[number % len(places)]
        task = family.make(number, level, "train", wider=names)
        number += 1
        if len(gold(task)) == 1:
            made += 1
            yield asked(task, "gym", "AGPL-3.0-or-later")


@cache
def _words(path: Path | None) -> tuple[Tokenizer, list[str]]:
    words = Tokenizer.load(path)
    return words, vocabulary(words)


@cache
def _usable(path: Path | None) -> tuple[str, ...]:
    """Words that can be a name in a task: the gym's own, and the tokenizer's of three letters or more."""
    more = (word.lower() for word in _words(path)[1] if len(word) > 2)
    return tuple(dict.fromkeys([*WORDS, *(word for word in more if not keyword.iskeyword(word))]))
