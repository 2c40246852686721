# SPDX-License-Identifier: AGPL-3.0-or-later
"""Was it in the training data? Runs of 13 words of held-out items, looked up in everything trained on.

    found = overlap({"tldr": [("List all files", "ls")]}, [Path("episodes.jsonl")])

Words are letters and digits, in small letters: spacing, signs and capitals hide nothing, and brackets alone
make no match. An item has parts (the request, the gold answer). It counts as seen where any run of 13 words
of a part stands in the training data; where all its parts are shorter, where each stands there whole, signs
included. Parts of fewer than 4 words and signs say nothing. Training data are files or folders: text, JSONL
of documents or of episodes (.xz and .gz too), or token shards.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rusty_r2.data.shards import Shards
from rusty_r2.errors import DataError, ProtocolError
from rusty_r2.eval.figures import Figure, share
from rusty_r2.lm.documents import files_below, is_jsonl, read_text
from rusty_r2.lm.tokenizer import Tokenizer
from rusty_r2.protocol import parse

GRAM = 13
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
_WORD = re.compile(r"\w+|\x1f")
_SIGN = re.compile(r"\w+|[^\w\s]|\x1f")


def overlap(held_out: Mapping[str, Sequence[Item]], trained_on: Iterable[Path]) -> dict[str, list[bool]]:
    """For every item of every set: whether it was seen."""
    words = _Words()
    runs = {name: [[words.runs(part) for part in item] for item in items] for name, items in held_out.items()}
    every: dict[tuple[bool, int], set[int]] = {}
    for *kind, run in (one for items in runs.values() for item in items for part in item for one in part):
        every.setdefault((bool(kind[0]), int(kind[1])), set()).add(run)
    sought = {kind: np.array(sorted(some), np.uint64) for kind, some in every.items()}
    met: set[Run] = set()
    for text in _blocks(trained_on):
        streams = {signs: words.of(text, signs=signs) for signs, _ in sought}
        met |= _met(streams, sought)
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


def _blocks(trained_on: Iterable[Path]) -> Iterator[str]:
    """Many texts at a time: small texts one by one would take ages."""
    waiting: list[str] = []
    size = 0
    for text in texts(trained_on):
        waiting.append(text)
        size += len(text)
        if size >= BLOCK:
            yield BETWEEN.join(waiting)
            waiting, size = [], 0
    if waiting:
        yield BETWEEN.join(waiting)


def _met(streams: Mapping[bool, Hashes], sought: Mapping[tuple[bool, int], Hashes]) -> set[Run]:
    """The runs that stand in a block."""
    found: set[Run] = set()
    for (signs, length), wanted in sought.items():
        here = _rolled(streams[signs], length)
        if len(here):
            at = np.minimum(np.searchsorted(wanted, here), len(wanted) - 1)
            found |= {(signs, length, int(run)) for run in np.unique(here[wanted[at] == here])}
    return found


def _rolled(ids: Hashes, length: int) -> Hashes:
    """A number for every run of `length` words."""
    count = len(ids) - length + 1
    if count < 1:
        return np.zeros(0, np.uint64)
    made = np.zeros(count, np.uint64)
    for shift in range(length):
        made = made * np.uint64(0x9E3779B97F4A7C15) + ids[shift : shift + count]
    mixed: Hashes = made ^ (made >> np.uint64(29))
    return mixed


class _Words:
    """Texts as numbers, one a word."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, text: str, *, signs: bool) -> Hashes:
        found = (_SIGN if signs else _WORD).findall(text.lower())
        return np.array([self._number(word) for word in found], np.uint64)

    def runs(self, text: str) -> list[Run]:
        """The runs of a part: all of 13 words, or the whole with its signs where it is shorter."""
        ids = self.of(text, signs=False)
        if len(ids) >= GRAM:
            return [(False, GRAM, int(run)) for run in _rolled(ids, GRAM)]
        ids = self.of(text, signs=True)
        if len(ids) < SHORTEST:
            return []
        length = min(len(ids), GRAM)
        return [(True, length, int(run)) for run in _rolled(ids, length)]

    def _number(self, word: str) -> int:
        number = self._known.get(word)
        if number is None:
            number = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")
            self._known[word] = number
        return number


# ── what was trained on ─────────────────────────────────────────────────────────────────────────


def texts(sources: Iterable[Path]) -> Iterator[str]:
    """Everything that was trained on, some text at a time."""
    for source in sources:
        if not source.exists():
            raise DataError(f"{source} does not exist. --trained-on takes files or folders of training data")
        if (source / "manifest.json").is_file() and any(source.glob("*.documents")):
            yield from _shards(source)
            continue
        for path in files_below(source):
            if is_jsonl(path):
                yield from _lines(path)
            elif path.is_file():
                yield from filter(None, [read_text(path)])


def _shards(folder: Path) -> Iterator[str]:
    shards = Shards(folder, "train", length=1, batch=1)
    tokenizer = Tokenizer.load()
    for number in range(shards.documents):
        yield tokenizer.decode([int(token) for token in shards.document(number)[1:-1]])


def _lines(path: Path) -> Iterator[str]:
    opened = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf-8") as file:  # type: ignore[operator]
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}, line {number} is not JSON: {error}") from error
            if not isinstance(row, dict) or row.get("split", "train") == "train":
                yield from _strings(row)


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
