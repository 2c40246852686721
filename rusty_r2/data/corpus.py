# SPDX-License-Identifier: AGPL-3.0-or-later
"""Text becomes token shards, once, with nothing read twice and nothing lost to a power cut.

    rusty data corpus                                   this machine's own code, manuals and documentation
    rusty data corpus --source notes code.jsonl.xz hf:openai/gsm8k:main --output-dir corpus

Documents come in a fixed order, in blocks. A block is checked for duplicates (data/dedup.py), split by a
hash of its text (a document is held out on every machine or on none), tokenised on all cores and written;
then a journal says how far we are. A killed build continues from the journal and ends with the same bytes.
Reading the shards is data/shards.py; where text comes from is data/sources.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rusty_r2 import files
from rusty_r2.config import plain, resolved
from rusty_r2.data.dedup import Seen, rank_of
from rusty_r2.data.meter import Meter
from rusty_r2.data.sources import documents_of
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.lm.documents import Document, parcels
from rusty_r2.lm.tokenizer import BOS, EOS, Tokenizer, as_reply

SPLITS = ("train", "heldout")


@dataclass(frozen=True)
class CorpusConfig:
    source: tuple[str, ...] = ("machine",)
    """folders, files, hf:OWNER/NAME[:CONFIG], or `machine` for this machine's own text"""
    output_dir: Path = Path("corpus")
    """where the shards go"""
    tokenizer: Path | None = None
    """a tokenizer folder; the shipped one where not given"""
    licence: str = "unknown"
    """licence of documents that do not name their own"""
    heldout: float = 0.01
    """share of documents kept out of training, by a hash of their text"""
    max_mb: float = 0.0
    """megabytes of text to take from each source; 0 takes all"""
    shortest: int = 32
    """characters; shorter documents are dropped"""
    alike: float = 0.8
    """share of equal MinHash bins from which a document counts as a near duplicate; above 1 keeps them"""
    wrapped: float = 0.1
    """share of the training code that is written as a JSON reply, so that escapes are learned early"""
    shard_mb: float = 64.0
    """a new shard file is begun after this many megabytes"""
    block_mb: float = 4.0
    """text between two entries of the journal"""

    def __post_init__(self) -> None:
        if not 0 <= self.heldout < 1 or not 0 <= self.wrapped <= 1:
            raise ConfigError("--heldout and --wrapped are shares between 0 and 1")
        if min(self.shard_mb, self.block_mb) <= 0 or self.max_mb < 0 or not self.source:
            raise ConfigError("--shard-mb and --block-mb must be above 0, and --source must name something")


def build(config: CorpusConfig) -> str:
    """Make (or go on making) a corpus folder."""
    tokenizer = Tokenizer.load(config.tokenizer)
    if (config.output_dir / "manifest.json").is_file():
        raise DataError(f"{config.output_dir} is finished. Use it, or give another --output-dir")
    builder = Builder(config, tokenizer)
    with Meter() as meter:
        for block in builder.blocks():
            builder.add(block)
            tokens = sum(counts["tokens"] for counts in builder.progress.splits.values())
            meter.show(f"{builder.progress.read:,} documents, {tokens / 1e6:.1f} M tokens")
    folder = builder.finish()
    counts = builder.progress.splits
    told = ", ".join(f"{counts[name]['tokens']:,} {name} tokens" for name in SPLITS)
    dropped = ", ".join(f"{count:,} {why}" for why, count in sorted(builder.progress.dropped.items()))
    return (
        f"{told} from {builder.progress.read:,} documents (dropped: {dropped or 'none'})\n{folder}\n"
        f"next: rusty train supervised --data-dir {folder}"
    )


@dataclass
class Progress:
    """How far a build is; the journal holds it as JSON."""

    options: str
    read: int = 0
    """documents taken from the sources, kept or not"""
    files: dict[str, int] = field(default_factory=dict)
    """bytes that count of each file written so far"""
    splits: dict[str, dict[str, Any]] = field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in SPLITS:
            self.splits.setdefault(name, {"documents": 0, "tokens": 0, "bytes": 0, "shards": 0})


class Builder:
    """Turns blocks of documents into shard files. `add` is all or nothing."""

    def __init__(self, config: CorpusConfig, tokenizer: Tokenizer) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.folder = config.output_dir
        self.work = self.folder / "unfinished"
        self.seen = Seen(config.alike)
        self.progress = self._resume()

    def blocks(self) -> Iterator[list[Document]]:
        """The documents not yet read, some megabytes at a time."""
        left = islice(self._stream(), self.progress.read, None)
        return parcels(left, self.config.block_mb * 1e6, lambda document: len(document.text))

    def add(self, block: list[Document]) -> None:
        """Tokenise and write one block, then note it in the journal."""
        import numpy as np

        progress = self.progress
        dropped = Counter(progress.dropped)
        fresh = [document for document in block if not self._drop(document, dropped)]
        splits = [SPLITS[rank_of(document.text) < self.config.heldout] for document in fresh]
        written: dict[str, tuple[list[Any], list[tuple[int, int]]]] = defaultdict(lambda: ([], []))
        ids_of = self.tokenizer.encode_batch([document.text for document in fresh])
        for document, split, ids in zip(fresh, splits, ids_of, strict=True):
            if self.config.alike <= 1 and self.seen.nearly(np.array(ids)):
                dropped["near duplicates"] += 1
                continue
            if self._is_wrapped(document, split):
                document = replace(document, text=as_reply(document))
                ids = self.tokenizer.encode(document.text)
            tokens = np.array([BOS, *ids, EOS], dtype="<u2")
            size = len(document.text.encode())
            written[split][0].append(tokens)
            written[split][1].append((len(tokens), size))
            self._count(document, split, len(tokens), size)
        for split, (pieces, lengths) in sorted(written.items()):
            self._write(split, np.concatenate(pieces), np.array(lengths, dtype="<u4"))
        texts, signatures = self.seen.journal()
        self._append(self.work / "texts", texts)
        self._append(self.work / "signatures", signatures)
        progress.read += len(block)
        progress.dropped = dict(dropped)
        _save(self.work / "journal.json", plain(vars(progress)))

    def finish(self) -> Path:
        """Write the manifest and clear the journal away."""
        if not self.progress.splits["train"]["documents"]:
            shutil.rmtree(self.work)  # there is nothing to go on with, and other sources may be tried here
            if not any(self.folder.iterdir()):
                self.folder.rmdir()
            raise DataError(
                f"no document of {', '.join(self.config.source)} was kept. Type: rusty data corpus --help"
            )
        _save(self.folder / "manifest.json", self._manifest())
        shutil.rmtree(self.work)
        return self.folder

    def _stream(self) -> Iterator[Document]:
        for source in self.config.source:
            taken = 0.0
            for document in documents_of(source, licence=self.config.licence):
                if self.config.max_mb and taken >= self.config.max_mb * 1e6:
                    break
                taken += len(document.text)
                whole = document.text.encode("utf-8", "replace").decode()  # JSON can hold half characters
                yield replace(document, text=whole)

    def _drop(self, document: Document, dropped: Counter[str]) -> bool:
        if len(document.text) < self.config.shortest:
            dropped["too short"] += 1
            return True
        if self.seen.exactly(document.text):
            dropped["duplicates"] += 1
            return True
        return False

    def _is_wrapped(self, document: Document, split: str) -> bool:
        """Whether this code is written as the reply that would make it. Held-out text stays as it is."""
        code = document.path.endswith(".py") and split == "train"
        return code and rank_of(document.path + document.text) < self.config.wrapped

    def _count(self, document: Document, split: str, tokens: int, size: int) -> None:
        counts = self.progress.splits[split]
        counts["documents"] += 1
        counts["tokens"] += tokens
        counts["bytes"] += size
        new = {"documents": 0, "tokens": 0, "bytes": 0, "heldout": 0, "licences": []}
        source = self.progress.sources.setdefault(document.source, new)
        source["documents"] += 1
        source["tokens"] += tokens
        source["bytes"] += size
        source["heldout"] += split == "heldout"
        if document.licence not in source["licences"]:
            source["licences"] = sorted([*source["licences"], document.licence])

    def _write(self, split: str, tokens: Any, lengths: Any) -> None:
        counts = self.progress.splits[split]
        last = f"{split}_{counts['shards'] - 1:05d}.tokens"
        if not counts["shards"] or self.progress.files[last] >= self.config.shard_mb * 1e6:
            counts["shards"] += 1
        name = f"{split}_{counts['shards'] - 1:05d}"
        self._append(self.folder / f"{name}.tokens", tokens.tobytes())
        self._append(self.folder / f"{name}.documents", lengths.tobytes())

    def _append(self, path: Path, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        name = str(path.relative_to(self.folder))
        self.progress.files[name] = self.progress.files.get(name, 0) + len(data)

    def _resume(self) -> Progress:
        """The journal's state with the files cut to it, or a new start."""
        described = json.dumps([plain(resolved(self.config)), self.tokenizer.fingerprint], sort_keys=True)
        options = hashlib.sha256(described.encode()).hexdigest()[:12]
        journal = self.work / "journal.json"
        self.work.mkdir(parents=True, exist_ok=True)
        progress = Progress(options)
        if journal.is_file():
            progress = Progress(**json.loads(journal.read_text()))
            if progress.options != options:
                raise DataError(
                    f"{self.folder} was begun with other options. Delete it or give another --output-dir"
                )
        for path in [*self.folder.glob("*.tokens"), *self.folder.glob("*.documents"), *self.work.glob("*s")]:
            os.truncate(path, progress.files.get(str(path.relative_to(self.folder)), 0))
        if progress.read:
            self.seen.restore((self.work / "texts").read_bytes(), (self.work / "signatures").read_bytes())
        return progress

    def _shard(self, name: str) -> dict[str, Any]:
        tokens = self.progress.files[name] // 2
        return {"file": name, "tokens": tokens, "sha256": files.digest(self.folder / name)}

    def _manifest(self) -> dict[str, Any]:
        progress, config = self.progress, self.config
        splits = {}
        for split, counts in progress.splits.items():
            names = [f"{split}_{number:05d}.tokens" for number in range(counts["shards"])]
            splits[split] = counts | {"shards": [self._shard(name) for name in names]}
        return {
            "format": 1,
            "tokenizer": self.tokenizer.fingerprint,
            "vocab_size": len(self.tokenizer),
            "options": plain(resolved(config)),
            "documents_read": progress.read,
            "dropped": progress.dropped,
            "splits": splits,
            "sources": [{"source": name, **facts} for name, facts in sorted(progress.sources.items())],
        }


def _save(path: Path, data: Any) -> None:
    files.write(path, json.dumps(data, indent=1) + "\n")
