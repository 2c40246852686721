# SPDX-License-Identifier: AGPL-3.0-or-later
"""What `--data-dir` may be: token shards, text that becomes shards first, or episodes.

`open_data` looks and answers with a `Data`: rows to learn from, rows held out where there are any, and
a fingerprint that a resumed run compares. How shards and episodes are made is for data/.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rusty_r2 import files
from rusty_r2.config import home
from rusty_r2.data.dedup import rank_of
from rusty_r2.data.drills import is_drills, open_drills
from rusty_r2.data.episode import Episode, read
from rusty_r2.data.packed import EpisodeRows, PackedRows
from rusty_r2.data.shards import Shards, read_manifest
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.files import digest
from rusty_r2.lm.documents import is_jsonl, records
from rusty_r2.lm.tokenizer import Tokenizer
from rusty_r2.train.batches import Source
from rusty_r2.train.distributed import World

EVAL_ROWS = 16
"""rows of one step of evaluation: fixed, so that runs with other batches read the same held-out text"""

HELD_OUT = 0.01
"""share of the episodes that are never learned from"""


@dataclass(frozen=True)
class Ask:
    """What a run wants of its data."""

    length: int
    """tokens of a row"""
    rows: int
    """of a step"""
    seed: int
    carry: bool
    """row r of a step goes on where row r of the step before stopped"""
    eval_tokens: int


@dataclass(frozen=True)
class HeldOut:
    """Text that is never learned from."""

    source: Source
    steps: int
    rows: int
    bytes_per_token: float


@dataclass(frozen=True)
class Data:
    """Rows to learn from, and how to recognise them."""

    train: Source
    held_out: HeldOut | None
    tokens: int
    """in one pass over everything"""
    fingerprint: str
    """changes when the rows would"""
    note: str = ""
    """what a person should know about them"""


def open_data(path: Path, tokenizer: Path | None, world: World, ask: Ask) -> tuple[Data, Tokenizer]:
    """Whatever is at `path`, ready to be read, and the tokenizer that reads it."""
    words = Tokenizer.load(tokenizer)
    if not path.exists():
        raise ConfigError(f"{path} does not exist. Make a corpus: rusty data corpus --output-dir {path}")
    if is_episodes(path):
        return open_episodes(path, words, ask), words
    if is_drills(path):
        return open_rows(path, words, ask), words
    if not (path / "manifest.json").exists():
        path = world.tell(shards_of_text(path, tokenizer, words) if world.first else path)
    return open_shards(path, words, ask), words


def shards_of_text(path: Path, tokenizer: Path | None, words: Tokenizer) -> Path:
    """Raw text as shards, made once and kept in the data home until the text changes."""
    from rusty_r2.data.corpus import CorpusConfig, build

    kept = home() / "cache" / "corpus" / _text_key(path, words)
    if not (kept / "manifest.json").exists():
        build(CorpusConfig(source=(str(path),), output_dir=kept, tokenizer=tokenizer, heldout=0.05))
    return kept


def _text_key(path: Path, words: Tokenizer) -> str:
    seen = hashlib.sha256(words.fingerprint.encode())
    for file in sorted(file for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()):
        facts = file.stat()
        seen.update(f"{file.relative_to(path)}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
    return seen.hexdigest()[:12]


def open_shards(folder: Path, tokenizer: Tokenizer, ask: Ask) -> Data:
    """A corpus folder that was tokenised with this tokenizer."""
    manifest = read_manifest(folder)
    theirs = manifest.get("tokenizer")
    if theirs != tokenizer.fingerprint:
        raise ConfigError(
            f"{folder} was made with tokenizer {theirs}, not {tokenizer.fingerprint}. "
            "Give the same one with --tokenizer-path, or make the shards again: rusty data corpus"
        )
    train = Shards(folder, length=ask.length, batch=ask.rows, seed=ask.seed, carry=ask.carry)
    facts = json.dumps([manifest["splits"], ask.length], sort_keys=True)
    return Data(train, _held_out(folder, ask), train.tokens, hashlib.sha256(facts.encode()).hexdigest()[:12])


def _held_out(folder: Path, ask: Ask) -> HeldOut | None:
    """The held-out split in windows of the same length; None where it is smaller than one."""
    split = read_manifest(folder)["splits"].get("heldout", {})
    if split.get("tokens", 0) <= 2 * ask.length:
        return None
    shards = Shards(folder, "heldout", length=ask.length, batch=EVAL_ROWS)
    whole = shards.tokens // (EVAL_ROWS * ask.length)
    steps = max(1, min(whole, ask.eval_tokens // (EVAL_ROWS * ask.length)))
    return HeldOut(shards, steps, EVAL_ROWS, shards.text_bytes / (shards.tokens - shards.documents))


def is_episodes(path: Path) -> bool:
    """Whether a file's first record is a conversation."""
    return path.is_file() and is_jsonl(path) and "turns" in next(iter(records(path)), {})


def open_episodes(path: Path, words: Tokenizer, ask: Ask) -> Data:
    """Conversations, supervised where Rusty speaks; one in a hundred is held out, by a hash of its words."""
    if ask.carry:
        raise ConfigError(
            f"{path} holds episodes: nothing goes on from one to the next. Leave out --carry-state"
        )
    groups: tuple[list[Episode], list[Episode]] = ([], [])
    for episode in read(path):
        groups[rank_of(str(episode.turns)) < HELD_OUT].append(episode)
    train = EpisodeRows(words, groups[0], length=ask.length, batch=ask.rows, seed=ask.seed)
    note = f"{train.supervised / train.tokens:.0%} of the tokens are supervised"
    if train.dropped:
        note += f"; {train.dropped:,} of {train.episodes:,} episodes are longer than --seq-len and left out"
    fingerprint = f"{digest(path)[:12]}-{words.fingerprint}-{ask.length}"
    held_out = _held_out_episodes(words, groups[1], ask) if groups[1] else None
    return Data(train, held_out, train.count * ask.length, fingerprint, note)


def open_rows(folder: Path, words: Tokenizer, ask: Ask) -> Data:
    """Drills; the first hundredth of every kind of rows is held out."""
    if ask.carry:
        raise ConfigError(
            f"{folder} holds drills: nothing goes on from one to the next. Leave out --carry-state"
        )
    drills = open_drills(folder, words, ask.length)
    first, others = drills.parts(HELD_OUT)
    train = PackedRows(drills.ids, drills.own, batch=ask.rows, seed=ask.seed, kinds=others)
    kept = PackedRows(drills.ids, drills.own, batch=EVAL_ROWS, kinds=first)
    held_out = _measured(kept, words, ask) if kept.count else None
    note = f"{drills.learned:.0%} of the tokens are supervised"
    if text := len(drills.kinds["text"]):
        note += f"; {text / len(drills.ids):.0%} of the rows are plain text"
    fingerprint = f"{digest(folder / files.CHECKSUMS)[:12]}-{words.fingerprint}-{ask.length}"
    return Data(train, held_out, train.count * ask.length, fingerprint, note)


def _held_out_episodes(words: Tokenizer, episodes: list[Episode], ask: Ask) -> HeldOut | None:
    try:
        return _measured(EpisodeRows(words, episodes, length=ask.length, batch=EVAL_ROWS), words, ask)
    except DataError:  # the few there are do not fit
        return None


def _measured(rows: PackedRows, words: Tokenizer, ask: Ask) -> HeldOut:
    """Rows to evaluate on, with the bytes that their learned tokens stand for."""
    steps = max(1, min(rows.count, ask.eval_tokens // ask.length) // EVAL_ROWS)
    sizes = np.array([len(word) for word in words.token_bytes])
    seen = [rows.rows(step) for step in range(steps)]
    size = sum(int(sizes[part.targets[part.mask]].sum()) for part in seen)
    return HeldOut(rows, steps, EVAL_ROWS, size / sum(part.supervised for part in seen))
