# SPDX-License-Identifier: AGPL-3.0-or-later
"""Plain text as rows of its own among the drills: who learns to act should not unlearn to read.

    text = Prose.read(["corpus"], tokenizer)                 a corpus folder, text files, JSONL, `machine`
    for ids in text.rows(5000, length=1024, seed=0): …       as many rows as wanted, some at a time

Every document is <bos> text <eos>, in an order that a seed decides; rows are windows of the documents end to
end, and no word is predicted twice before all were. Documents that `rusty data corpus` holds out are left
out here, too: by their place in a corpus folder, by the same hash of their text elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rusty_r2.data.corpus import CorpusConfig
from rusty_r2.data.dedup import Seen, rank_of
from rusty_r2.data.shards import Shards
from rusty_r2.data.sources import documents_of
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.lm.documents import parcels
from rusty_r2.lm.tokenizer import BOS, EOS, Tokenizer

Ids = NDArray[np.uint16]
Part = tuple[Ids, NDArray[np.int64]]
"""documents end to end, and the size of each"""
Spread = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""`map`, or that of a pool of processes"""
PART = 500_000
"""characters tokenised together"""
BLOCK = 4096
"""rows handed out together"""


@dataclass(frozen=True)
class Prose:
    """Documents end to end, and how many tokens each has."""

    tokens: Ids
    sizes: NDArray[np.int64]

    @classmethod
    def read(cls, sources: Sequence[str], tokenizer: Tokenizer, plain: Iterable[Part] | None = None) -> Prose:
        """All training text of some sources; `plain` is what `tokenised` gives for them."""
        pieces = [_shards(Path(source), tokenizer) for source in sources if _is_corpus(source)]
        pieces += tokenised(sources, None, map) if plain is None else plain
        if not pieces:
            raise DataError(f"no text in {', '.join(sources)}. --text takes a corpus, text files or JSONL")
        tokens, sizes = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
        return cls(tokens, sizes)

    def rows(self, count: int, *, length: int, seed: int) -> Iterator[Ids]:
        """`count` rows of length + 1 tokens; text comes again, cut elsewhere, only after all of it came."""
        if len(self.tokens) <= length:
            raise DataError(f"the text has {len(self.tokens):,} tokens, a row {length}. Give --text more")
        epoch = 0
        while count > 0:
            stream = self._shuffled(seed, epoch)
            windows = np.lib.stride_tricks.sliding_window_view(stream, length + 1)[::length][:count]
            count, epoch = count - len(windows), epoch + 1
            for start in range(0, len(windows), BLOCK):
                yield np.array(windows[start : start + BLOCK])

    def passes(self, rows: int, length: int) -> float:
        """How often the text comes in so many rows."""
        return rows / self._per_epoch(length)

    def _per_epoch(self, length: int) -> int:
        return (len(self.tokens) - 1) // length

    def _shuffled(self, seed: int, epoch: int) -> Ids:
        ends = np.cumsum(self.sizes)
        order = np.random.default_rng([seed, epoch]).permutation(len(ends))
        return np.concatenate([self.tokens[ends[i] - self.sizes[i] : ends[i]] for i in order])


def tokenised(sources: Iterable[str], path: Path | None, spread: Spread) -> Iterable[Part]:
    """The documents of those sources that are no corpus yet; `path` is where workers find the tokenizer."""
    plain = [source for source in sources if not _is_corpus(source)]
    return spread(_tokenise, ((path, texts) for texts in parcels(_texts(plain), PART, len)))


def _is_corpus(source: str) -> bool:
    return (Path(source) / "manifest.json").is_file() and any(Path(source).glob("*.documents"))


def _shards(folder: Path, tokenizer: Tokenizer) -> Part:
    shards = Shards(folder, "train", length=1, batch=1)
    theirs = shards.manifest.get("tokenizer")
    if theirs != tokenizer.fingerprint:
        raise ConfigError(
            f"{folder} was made with tokenizer {theirs}, not {tokenizer.fingerprint}. "
            "Make it again: rusty data corpus"
        )
    return shards.everything()


def _texts(sources: Iterable[str]) -> Iterator[str]:
    """Documents that may be learned from, each once."""
    seen = Seen()
    for source in sources:
        for document in documents_of(source):
            text = document.text.encode("utf-8", "replace").decode()  # JSON can hold half characters
            known = len(text) < CorpusConfig.shortest or seen.exactly(text)
            if not known and rank_of(text) >= CorpusConfig.heldout:
                yield text


def _tokenise(job: tuple[Path | None, list[str]]) -> Part:
    """One worker's part."""
    path, texts = job
    found = [np.array([BOS, *ids, EOS], np.uint16) for ids in _words(path).encode_batch(texts)]
    return np.concatenate(found), np.array([len(ids) for ids in found], np.int64)


@cache
def _words(path: Path | None) -> Tokenizer:
    return Tokenizer.load(path)
