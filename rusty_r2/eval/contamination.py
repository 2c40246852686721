# SPDX-License-Identifier: AGPL-3.0-or-later
"""Was it in the training data? Runs of 13 words of held-out items, looked up in everything trained on.

    found = overlap({"tldr": [("List all files", "ls")]}, [Path("episodes.jsonl")])

Words are letters and digits, in small letters: spacing, signs and capitals hide nothing, and brackets alone
make no match. An item has parts (the request, the gold answer). It counts as seen where any run of 13 words
of a part stands in the training data; where all its parts are shorter, where each stands there whole, signs
included. Parts of fewer than 4 words and signs say nothing, nor do runs that hold 8 words in which a tenth of
a set is put ("Write it in solution.py. Your code should pass these tests"). Training data are files or
folders: text, JSONL of documents or of episodes (.xz and .gz too), token shards, or the very rows of drills,
turned back into text. All of it is read, none sampled.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rusty_r2.data.drills import Drills, is_drills, open_drills
from rusty_r2.data.shards import Shards
from rusty_r2.errors import DataError, ProtocolError
from rusty_r2.eval.figures import Figure, share
from rusty_r2.executor import Processes
from rusty_r2.lm.documents import files_below, is_jsonl, json_lines, parcels, read_text
from rusty_r2.lm.tokenizer import Tokenizer
from rusty_r2.protocol import parse

GRAM = 13
FORM = 8
COMMON = 5
"""items at least that must share a run of words before it counts as their form"""
SHORTEST = 4
"""words below which a text is met anywhere by chance"""
BLOCK = 1 << 20
"""characters looked at together"""
BETWEEN = " \x1f "
"""a word of its own between two texts: no run goes across"""
Item = tuple[str, ...]
Run = tuple[bool, int, int]
"""whether signs count as words, how many there are, and their number"""
Hashes = NDArray[np.uint64]
FEW = 8
"""pieces of training data below which other processes are not worth their start"""
LAST = np.uint64((1 << 20) - 1)
ROWS = 500
"""rows of drills, or documents, looked at together"""
_WORD = re.compile(r"\w+|\x1f")
_SIGN = re.compile(r"\w+|[^\w\s]|\x1f")


def overlap(
    held_out: Mapping[str, Sequence[Item]], trained_on: Iterable[Path], workers: int = 0
) -> dict[str, list[bool]]:
    """For every item of every set: whether it was seen. `workers` processes look; 0: one for each core."""
    words = Words.of(part for items in held_out.values() for item in items for part in item)
    runs: dict[str, list[list[list[Run]]]] = {}
    for name, items in held_out.items():
        form = words.form(items)
        runs[name] = [[words.runs(part, form) for part in item] for item in items]
    every: dict[tuple[bool, int], set[int]] = {}
    for *kind, run in (one for items in runs.values() for item in items for part in item for one in part):
        every.setdefault((bool(kind[0]), int(kind[1])), set()).add(run)
    sought = {kind: np.array(sorted(some), np.uint64) for kind, some in every.items()}
    met: set[Run] = set()
    for found in _everywhere(Search(words, sought), _jobs(trained_on), workers or os.cpu_count() or 1):
        met |= found
    return {name: [_seen(item, met) for item in items] for name, items in runs.items()}


def figures(held_out: Mapping[str, Sequence[Item]], seen: Mapping[str, Sequence[bool]]) -> list[Figure]:
    note = f"items that share {GRAM} words in a row with the training data given"
    return [
        share(f"{name} in the training data", sum(seen[name]), len(items), lower_is_better=True, note=note)
        for name, items in held_out.items()
    ]


def _seen(parts: Sequence[list[Run]], met: set[Run]) -> bool:
    if any(run in met for part in parts for run in part if not run[0]):
        return True
    whole = [run for part in parts for run in part if run[0]]
    return bool(whole) and len(whole) == sum(map(len, parts)) and all(run in met for run in whole)


@dataclass(frozen=True)
class Search:
    """What is looked for; called with a piece of the training data it says which of it stands there."""

    words: Words
    runs: Mapping[tuple[bool, int], Hashes]
    """sorted"""

    def __call__(self, job: Job) -> set[Run]:
        text = job if isinstance(job, str) else BETWEEN.join(job.texts())
        found: set[Run] = set()
        for signs in {signs for signs, _ in self.runs}:
            longest = max(length for kind, length in self.runs if kind == signs)
            numbers = self.words.numbers(text, signs=signs)
            for length, here in enumerate(_rolling(numbers, longest), 1):
                if (signs, length) in self.runs:
                    met = self._met((signs, length), here)
                    found |= {(signs, length, int(run)) for run in met}
        return found

    def _met(self, kind: tuple[bool, int], here: Hashes) -> Hashes:
        """Those of `here` that are sought; a table of their last bits rules nearly all others out first."""
        wanted = self.runs[kind]
        likely = np.unique(here[self._table[kind][here & LAST]])
        at = np.minimum(np.searchsorted(wanted, likely), len(wanted) - 1)
        met: Hashes = likely[wanted[at] == likely]
        return met

    @cached_property
    def _table(self) -> dict[tuple[bool, int], NDArray[np.bool_]]:
        tables = {kind: np.zeros(int(LAST) + 1, np.bool_) for kind in self.runs}
        for kind, table in tables.items():
            table[self.runs[kind] & LAST] = True
        return tables


def _everywhere(search: Search, jobs: Iterator[Job], workers: int) -> Iterator[set[Run]]:
    """The search over all jobs; in processes where there is much to read."""
    few = list(islice(jobs, FEW))
    if workers == 1 or len(few) < FEW:
        yield from map(search, chain(few, jobs))
        return
    with Processes(workers, _begin, search, fewer="one --trained-on at a time") as pool:
        yield from pool.stream(_look, chain(few, jobs))


_SEARCH: list[Search] = []
"""in a worker: what it looks for"""


def _begin(search: Search) -> None:
    _SEARCH[:] = [search]


def _look(job: Job) -> set[Run]:
    return _SEARCH[0](job)


def _rolled(ids: Hashes, length: int) -> Hashes:
    """A number for every run of `length` words."""
    *_, last = _rolling(ids, length)
    return last


def _rolling(ids: Hashes, longest: int) -> Iterator[Hashes]:
    """Those of all runs of one word, of two, and so on."""
    made = np.zeros(len(ids), np.uint64)
    for length in range(1, longest + 1):
        made = made[: max(0, len(ids) - length + 1)] * np.uint64(0x9E3779B97F4A7C15) + ids[length - 1 :]
        mixed: Hashes = made ^ (made >> np.uint64(29))
        yield mixed


@dataclass(frozen=True)
class Words:
    """The words of held-out items as numbers; all other words are 0, which no run of theirs holds."""

    known: Mapping[str, int]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Words:
        found = dict.fromkeys(word for text in texts for word in _SIGN.findall(text.lower()))
        digests = {
            word: hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            for word in found
        }
        return cls({word: int.from_bytes(digest, "big") for word, digest in digests.items()})

    def numbers(self, text: str, *, signs: bool) -> Hashes:
        known = self.known.get
        found = (_SIGN if signs else _WORD).findall(text.lower())
        return np.array([known(word, 0) for word in found], np.uint64)

    def form(self, items: Sequence[Item]) -> Hashes:
        """Runs of 8 words that a tenth of a set's items have in common: how they ask, not what."""
        own = [np.unique(_rolled(self.numbers(BETWEEN.join(item), signs=False), FORM)) for item in items]
        found, counts = np.unique(np.concatenate([*own, np.empty(0, np.uint64)]), return_counts=True)
        return found[counts >= max(COMMON, len(items) / 10)]

    def runs(self, text: str, form: Hashes) -> list[Run]:
        """The runs of a part: all of 13 words, or the whole with its signs where it is shorter."""
        ids = self.numbers(text, signs=False)
        if len(ids) >= GRAM:
            formal = np.isin(_rolled(ids, FORM), form)
            inside = np.lib.stride_tricks.sliding_window_view(formal, GRAM - FORM + 1).any(axis=1)
            return [(False, GRAM, int(run)) for run in _rolled(ids, GRAM)[~inside]]
        ids = self.numbers(text, signs=True)
        if len(ids) < SHORTEST:
            return []
        length = min(len(ids), GRAM)
        return [(True, length, int(run)) for run in _rolled(ids, length)]


# ── what was trained on ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Rows:
    """Some rows of drills, or documents of token shards: read where they are looked at."""

    folder: Path
    which: range

    def texts(self) -> Iterator[str]:
        tokenizer, opened = _open(self.folder)
        if isinstance(opened, Drills):
            for text in opened.said(tokenizer, self.which):
                yield from _plain(text)
            return
        for number in self.which:
            yield tokenizer.decode(opened.document(number)[1:-1].tolist())


Job = str | Rows


@lru_cache(4)
def _open(folder: Path) -> tuple[Tokenizer, Drills | Shards]:
    tokenizer = Tokenizer.load()
    if is_drills(folder):
        return tokenizer, open_drills(folder, tokenizer)
    shards = Shards(folder, "train", length=1, batch=1)
    if shards.manifest.get("tokenizer") != tokenizer.fingerprint:
        raise DataError(f"{folder} was made with another tokenizer than the one that ships: give its text")
    return tokenizer, shards


def _jobs(sources: Iterable[Path]) -> Iterator[Job]:
    """Everything that was trained on, about a million characters at a time."""
    for source in sources:
        if not source.exists():
            raise DataError(f"{source} does not exist. --trained-on takes files or folders of training data")
        if is_drills(source) or ((source / "manifest.json").is_file() and any(source.glob("*.documents"))):
            _, opened = _open(source)
            count = len(opened.ids) if isinstance(opened, Drills) else opened.documents
            yield from (Rows(source, range(at, min(at + ROWS, count))) for at in range(0, count, ROWS))
        else:
            # many texts at a time: small texts one by one would take ages
            yield from map(BETWEEN.join, parcels(_texts(source), BLOCK, len))


def _texts(source: Path) -> Iterator[str]:
    for path in files_below(source):
        if is_jsonl(path):
            yield from _lines(path)
        elif path.is_file():
            yield from filter(None, [read_text(path)])


def _lines(path: Path) -> Iterator[str]:
    for _, row in json_lines(path):
        if isinstance(row, dict) and isinstance(row.get("turns"), list):
            row["turns"] = _turns(row["turns"])
        if not isinstance(row, dict) or row.get("split", "train") == "train":
            yield from _strings(row)


def _turns(turns: list[Any]) -> list[Any]:
    """Without what the system says, which is the same in every episode."""
    return [turn for turn in turns if not (isinstance(turn, list) and turn[:1] == ["system"])]


def _strings(value: Any) -> Iterator[str]:
    """Every text in a record; an action's fields as they are, without JSON's escapes."""
    if isinstance(value, str):
        yield from _plain(value)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _plain(text: str) -> Iterator[str]:
    if not text.startswith('{"action"'):
        yield text
        return
    try:
        action = parse(text)
    except ProtocolError:
        yield text
        return
    yield from (value for name, value in vars(action).items() if name != "path")
