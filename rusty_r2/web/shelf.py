# SPDX-License-Identifier: AGPL-3.0-or-later
"""Datasets and models on this disk, and what was made from what.

Everything is read from what the stages leave behind: manifests of corpora, files of rows (each row names its
trace), options of runs (which data, which starting weights), records of the registry. A path that leads to a
thing found here becomes a link; any other is shown as it was written. What does not change is read once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import rusty_r2
from rusty_r2.errors import RustyError
from rusty_r2.registry import Registry, Version
from rusty_r2.web.runs import RunFolder, folders_below, read_json

DEEPEST = 3
MOST_FILES = 300
LARGEST = 64 * 2**20
"""bytes of a file of rows that are counted; a larger one is listed by its size"""
BUDGET = 128 * 2**20
"""bytes that are read at one look; a folder with more appears look by look"""
PASSED_OVER = {"node_modules", "__pycache__", "site-packages", "build", "dist", "tests", "docs"}
TELLING = (
    "data",
    "init",
    "base",
    "tokenizer",
    "checkpoint",
    "source",
    "adapter",
    "episodes",
    "reference",
    "teacher",
)
"""an option with such a word in its name says what a run was made from"""


@dataclass(frozen=True)
class Dataset:
    name: str
    """its place under the folder that is looked through"""
    path: Path
    kind: str
    size: int
    facts: tuple[tuple[str, str], ...] = ()
    traces: int = 0
    """different traces it was made from, where its rows say so"""


@dataclass(frozen=True)
class Source:
    """One thing another was made from."""

    role: str
    text: str
    href: str = ""
    further: tuple[Source, ...] = ()


class Shelf:
    """What lies in one folder and below."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unread = 0
        """files that the last look had no time for"""
        self._known: dict[tuple[str, int, float], Dataset | None] = {}

    def datasets(self) -> list[Dataset]:
        found, left, self.unread = [], BUDGET, 0
        for path in self._files():
            try:
                facts = path.stat()
            except OSError:
                continue
            key = (str(path), facts.st_size, facts.st_mtime)
            size = min(facts.st_size, LARGEST)
            if key not in self._known and size > left:
                self.unread += 1
                continue  # the next look goes on from here
            if key not in self._known:
                left -= size
                self._known[key] = self._look(path, facts.st_size)
            held = self._known[key]
            if held is not None:
                found.append(held)
        return sorted(found, key=lambda one: one.name)

    def _files(self) -> Iterator[Path]:
        given = 0
        for path, names in folders_below(self.folder, DEEPEST, PASSED_OVER):
            for name in sorted(names):
                wanted = name == "manifest.json" or (name.endswith(".jsonl") and name != "metrics.jsonl")
                if wanted and given < MOST_FILES:
                    given += 1
                    yield path / name

    def _look(self, path: Path, size: int) -> Dataset | None:
        if path.name == "manifest.json":
            return self._corpus(path)
        name = path.relative_to(self.folder).as_posix()
        kind = kind_of_rows(_first_row(path))
        if not kind:
            return None
        if size > LARGEST:
            return Dataset(name, path, kind, size, (("rows", "not counted: too large"),))
        lines, good, ids = 0, 0, set()
        with open(path, "rb") as file:
            for line in file:
                row = _row(line)
                lines += 1
                good += row.get("label") is True
                ids |= set(_trace_ids(row))
        facts = [("rows", f"{lines:,}")]
        if kind == "KTO rows":
            facts.append(("good / bad", f"{good:,} / {lines - good:,}"))
        return Dataset(name, path, kind, size, tuple(facts), len(ids))

    def _corpus(self, path: Path) -> Dataset | None:
        held = read_json(path)
        splits = held.get("splits")
        if not isinstance(splits, Mapping):
            return None
        facts = [("tokenizer", str(held.get("tokenizer", ""))[:16])]
        total = 0
        for split, counts in splits.items():
            shards = counts.get("shards", []) if isinstance(counts, Mapping) else []
            listed = shards if isinstance(shards, list) else []
            each = [s.get("tokens") for s in listed if isinstance(s, Mapping)]
            tokens = sum(count for count in each if isinstance(count, int))
            total += 2 * tokens
            facts.append((f"{split} tokens", f"{tokens:,}"))
        sources = held.get("sources")
        for one in sources[:12] if isinstance(sources, list) else []:
            if isinstance(one, Mapping):
                facts.append(
                    (str(one.get("source", "source")), str(one.get("licence", one.get("licences", ""))))
                )
        name = path.parent.relative_to(self.folder).as_posix()
        return Dataset(name, path.parent, "corpus", total, tuple(facts))


def kind_of_rows(row: Mapping[str, Any]) -> str:
    """What a file holds, from its first row; "" for what is no dataset of ours."""
    keys = row.keys()
    if keys >= {"trace_id", "user_query"}:
        return "traces"
    if keys >= {"prompt", "chosen", "rejected"}:
        return "DPO rows"
    if keys >= {"prompt", "completions"}:
        return "GRPO rows"
    if keys >= {"prompt", "completion", "label"}:
        return "KTO rows"
    if keys >= {"prompt", "completion"} or "messages" in keys:
        return "SFT rows"
    return "episodes" if keys >= {"kind", "turns"} else ""


def lineage(
    run: RunFolder, runs: Mapping[str, RunFolder], datasets: list[Dataset], depth: int = 5
) -> tuple[Source, ...]:
    """What a run was made from, and what that was made from."""
    found = []
    others = {name: other for name, other in runs.items() if name != run.name}
    for key, value in run.config.items():
        if isinstance(value, str) and value and any(word in key for word in TELLING):
            found.append(source(key, value, others, datasets, depth))
    return tuple(found)


def source(
    role: str, text: str, runs: Mapping[str, RunFolder], datasets: list[Dataset], depth: int = 5
) -> Source:
    """A path as it was written, with a link where it leads to something found here."""
    path = _absolute(Path(text))
    for name, other in runs.items():
        root = _absolute(other.path)
        if path == root or root in path.parents:
            further = lineage(other, runs, datasets, depth - 1) if depth else ()
            return Source(role, text, "/run?" + urlencode({"name": name}, errors="replace"), further)
    for dataset in datasets:
        if path in (_absolute(dataset.path), _absolute(dataset.path).parent):
            made_of = f"{dataset.traces:,} traces" if dataset.traces else ""
            further = (Source("made of", made_of, "/traces"),) if made_of else ()
            return Source(role, text, "/shelf#" + anchor(dataset.name), further)
    return Source(role, text)


@dataclass(frozen=True)
class Registered:
    """A model of the registry as the page shows it."""

    name: str
    in_use: int | None
    served: str
    versions: list[tuple[Version, tuple[Source, ...]]]
    """newest first, each with what it was made from"""
    problem: str = ""
    """why its record cannot be read"""


def registered(
    registry: Registry, runs: Mapping[str, RunFolder], datasets: list[Dataset]
) -> Iterator[Registered]:
    for name in registry.names():
        try:
            told = [(one, _made_from(one, runs, datasets)) for one in reversed(registry.versions(name))]
            served = "  ".join(f"{key} {value}" for key, value in registry.deployed(name).items())
            yield Registered(name, registry.pointer(name)[0], served, told)
        except (RustyError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            yield Registered(name, None, "", [], f"its record cannot be read: {error}")


def _made_from(
    version: Version, runs: Mapping[str, RunFolder], datasets: list[Dataset]
) -> tuple[Source, ...]:
    found = []
    for role, value in version.lineage.items():
        if isinstance(value, str) and value:
            found.append(source(role, value, runs, datasets))
        elif value:
            facts = value.items() if isinstance(value, Mapping) else [("", value)]
            told = ", ".join(f"{key} {fact}".strip() for key, fact in facts)
            found.append(Source(role, told, "/traces" if role == "traces" else ""))
    return tuple(found)


def shipped_card() -> str:
    """What is said of the model that comes with the package."""
    try:
        return (Path(rusty_r2.__file__).parent / "lm" / "shipped" / "README.md").read_text(encoding="utf-8")
    except OSError:
        return ""


def anchor(name: str) -> str:
    """A name as the end of an address."""
    return "d-" + "".join(char if char.isascii() and char.isalnum() else "-" for char in name)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path.expanduser() if str(path).startswith("~") else path))  # noqa: PTH100


def _first_row(path: Path) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as file:
            return _row(file.readline(2**20))
    except OSError:
        return {}


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _trace_ids(row: Mapping[str, Any]) -> Iterator[str]:
    for key in ("trace_id", "trace_ids", "chosen_trace_id", "rejected_trace_id"):
        value = row.get(key)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str):
                yield one
