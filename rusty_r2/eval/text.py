# SPDX-License-Identifier: AGPL-3.0-or-later
"""How well a mind foretells text it never read: bits per byte on held-out documents.

Bits per byte compares minds with different words. A document is held out by a hash of its text
(data/dedup.py), on every machine or on none, so documents given with `--text` need no list of what was
trained on; a corpus folder has its held-out part ready. Without `--text` this program's own source is read:
written after any corpus, and the same for all. Each document counts with its first characters, by its bytes.
With `--fresh-text` a second figure leaves out near duplicates: texts of which a fifth or more stands in one
of the documents that are not held out (near.py).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rusty_r2 import files
from rusty_r2.data.dedup import rank_of
from rusty_r2.data.shards import Shards
from rusty_r2.eval import near
from rusty_r2.eval.batched import Batched
from rusty_r2.eval.figures import Figure, absent, mean
from rusty_r2.eval.job import EvalConfig, Job
from rusty_r2.eval.kept import Row
from rusty_r2.eval.mind import Ours
from rusty_r2.lm.documents import documents
from rusty_r2.lm.tokenizer import BOS, Tokenizer

COUNT = 120
"""documents where no limit is given"""
CHARACTERS = 4096
"""of each document"""
HELD_OUT = 0.01
"""share of documents that `data corpus` holds out"""
NAME = "bits per byte"
COPIED = 0.2
"""share of a text in one training document from which it counts as a near duplicate"""
Bits = Callable[[str], float]


def measure(job: Job) -> list[Figure]:
    wanted = texts(job.config)[: job.config.limit or COUNT]
    more: dict[str, Any] = {"unit": "bits/byte", "lower_is_better": True}
    bits_of = scorer(job)
    if bits_of is None:
        return [absent(NAME, "this kind of address tells no probabilities of what it reads", **more)]
    with job.kept("text", characters=CHARACTERS) as kept:
        keys = {hashlib.blake2b(text.encode(), digest_size=8).hexdigest(): text for text in wanted}
        todo = [key for key in keys if key not in kept.rows]
        with job.bar("text", len(todo)) as bar:
            for key in todo:
                size = len(keys[key].encode())
                kept.add(key, {"begins": keys[key][:80], "bytes": size, "bits": bits_of(keys[key])})
                bar.advance()
        rows = [kept.rows[key] for key in keys]
    source = ", ".join(path.name for path in job.config.text_sources) or "this program's own source"
    figures = [_mean(NAME, rows, note=f"held-out text: {source}", **more)]
    if job.config.fresh_text:
        shares = copies(job.config, list(keys.values()))
        fresh = [row for row, share in zip(rows, shares, strict=True) if share < COPIED]
        note = f"without {len(rows) - len(fresh)} of {len(rows)} texts that a training document holds much of"
        figures.append(_mean(f"{NAME}, no near duplicates", fresh, note=note, **more))
    return figures


def _mean(name: str, rows: Sequence[Row], **more: Any) -> Figure:
    sizes = [float(row["bytes"]) for row in rows]
    return mean(name, [row["bits"] / row["bytes"] for row in rows], weights=sizes, **more)


def scorer(job: Job) -> Bits | None:
    """What tells the bits of a text under this mind; None where it cannot be asked."""
    mind = job.mind
    if isinstance(mind, Ours):
        engine, tokenizer = mind.engine, mind.tokenizer
        return lambda text: float(-engine.score([BOS, *tokenizer.encode(text)])[0].sum()) / math.log(2)
    return _transformers(mind) if isinstance(mind, Batched) else None


def _transformers(mind: Batched) -> Bits:
    import torch

    model, words = mind.model.model, mind.model.tokenizer
    first = words.bos_token_id if words.bos_token_id is not None else words.eos_token_id

    def bits(text: str) -> float:
        ids = torch.tensor([[first, *words.encode(text, add_special_tokens=False)]], device=model.device)
        with torch.inference_mode():
            logp = model(ids).logits[0, :-1].float().log_softmax(-1)
        said = logp.gather(1, ids[0, 1:, None]).sum()
        return float(-said) / math.log(2)

    return bits


def texts(config: EvalConfig) -> list[str]:
    """Held-out texts in the order of their hash, each cut to its first characters; found once, then kept."""
    told = json.dumps([str(path.resolve()) for path in config.text_sources])
    kept = config.out / f"text-{hashlib.blake2b(told.encode(), digest_size=4).hexdigest()}.json"
    if config.text_sources and kept.is_file():
        found: list[str] = json.loads(kept.read_text(encoding="utf-8"))
        return found
    ranked = sorted({text: rank_of(text) for text in _held_out(config)}.items(), key=lambda item: item[1])
    # no tokenizer reads half a character (a lone surrogate)
    chosen = [text[:CHARACTERS].encode("utf-8", "replace").decode() for text, _ in ranked[: 5 * COUNT]]
    if config.text_sources:
        files.write(kept, json.dumps(chosen, ensure_ascii=False))
    return chosen


def copies(config: EvalConfig, wanted: Sequence[str]) -> list[float]:
    """How much of each text one training document holds; found once, then kept."""
    told = json.dumps([[str(path.resolve()) for path in config.text_sources], list(wanted)])
    kept = config.out / f"copies-{hashlib.blake2b(told.encode(), digest_size=4).hexdigest()}.json"
    if kept.is_file():
        found: list[float] = json.loads(kept.read_text(encoding="utf-8"))
        return found
    shares = near.copied(wanted, _trained_on(config))
    files.write(kept, json.dumps(shares))
    return shares


def _trained_on(config: EvalConfig) -> Iterator[str]:
    """The documents that are not held out. Of a corpus folder none: it was made without near duplicates."""
    for source in config.text_sources:
        if not _is_corpus(source):
            yield from (d.text for d in documents(source) if rank_of(d.text) >= HELD_OUT)


def _is_corpus(source: Path) -> bool:
    return (source / "manifest.json").is_file() and any(source.glob("*.documents"))


def _held_out(config: EvalConfig) -> Iterator[str]:
    for source in config.text_sources:
        if _is_corpus(source):
            yield from _shards(source)
        else:
            every = (document.text for document in documents(source))
            yield from (text for text in every if rank_of(text) < HELD_OUT and len(text) >= 32)
    if not config.text_sources:
        package = Path(__file__).parents[1]
        yield from (
            text
            for path in sorted(package.glob("*/*.py"))
            if len(text := path.read_text(encoding="utf-8")) > 1000
        )


def _shards(folder: Path) -> Iterator[str]:
    shards = Shards(folder, "heldout", length=1, batch=1)
    tokenizer = Tokenizer.load()
    for number in range(shards.documents):
        ids = np.asarray(shards.document(number))
        yield tokenizer.decode([int(token) for token in ids[1:-1]])
