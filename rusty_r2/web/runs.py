# SPDX-License-Identifier: AGPL-3.0-or-later
"""Run folders as the page shows them: what ran, its numbers over time, and how two of them differ.

Only what `rusty_r2/run.py` writes is read (config.json, run.json, metrics.jsonl). A run is named by its place
under the runs folder and looked up among the folders found there: a name from outside never becomes a path.
"""

from __future__ import annotations

import json
import os
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rusty_r2.errors import ConfigError
from rusty_r2.run import checkpoints
from rusty_r2.web.curves import Chart, Series, chart, finite

DEEPEST = 3
"""folders under folders that are looked into"""
MOST = 2000
"""folders that are looked at in all"""
LARGEST = 256 * 2**20
"""bytes of metrics.jsonl that are read, from its end"""
SILENT = 900.0
"""seconds without a word after which a run that never ended is taken for dead"""
FIRST = ("reward/mean", "eval/pass_rate", "play/pass_rate", "loss/train", "eval/bits_per_byte", "eval/loss")
"""numbers that are shown before all others"""
NO_CURVES = ("step", "time", "eval/low", "eval/high")


@dataclass(frozen=True)
class RunFolder:
    name: str
    path: Path
    config: dict[str, Any]
    about: dict[str, Any]
    """run.json: command, versions, machine, when, how it ended"""
    written: float
    """when metrics.jsonl last grew, in seconds since 1970; 0 where there is none"""
    size: int
    """bytes of metrics.jsonl"""

    @property
    def state(self) -> str:
        ended = str(self.about.get("ended", "unknown"))
        if ended == "running" and time.time() - self.written > SILENT:
            return "silent"
        return ended

    @property
    def live(self) -> bool:
        return self.state == "running"

    @property
    def stamp(self) -> str:
        """Changes whenever there is something new to show."""
        return f"{self.size}-{self.state}"

    @property
    def saved(self) -> list[str]:
        """Names of its checkpoints, oldest first, and of the best one."""
        try:
            steps = [path.name for path in checkpoints(self.path)]
        except (OSError, ValueError):
            steps = []
        return steps + [name for name in ("best", "merged", "adapter") if (self.path / name).is_dir()]


class Runs:
    """The run folders under one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: OrderedDict[tuple[str, int, float], list[dict[str, Any]]] = OrderedDict()

    def all(self) -> list[RunFolder]:
        """Every run, the one that spoke last first."""
        return sorted(map(self._folder, self._found()), key=lambda run: (-_when(run), run.name))

    def get(self, name: str) -> RunFolder:
        for path in self._found():
            if path.relative_to(self.root).as_posix() == name:
                return self._folder(path)
        raise ConfigError(f"there is no run {name!a} in {self.root}. Type: ls {self.root}")

    def metrics(self, run: RunFolder) -> list[dict[str, Any]]:
        """What a run logged, oldest first. A line cut short, or one that is no object, is left out."""
        key = (run.name, run.size, run.written)
        if key not in self._read:
            self._read[key] = _metrics(run.path / "metrics.jsonl")
            while len(self._read) > 8:
                self._read.popitem(last=False)
        return self._read[key]

    def keys(self, *runs: RunFolder) -> list[str]:
        """Every number that can be drawn, the telling ones first."""
        found = {
            key
            for run in runs
            for line in self.metrics(run)
            for key, value in line.items()
            if key not in NO_CURVES and finite(value) is not None
        }
        return sorted(found, key=lambda key: (FIRST.index(key) if key in FIRST else len(FIRST), key))

    def charts(self, runs: Sequence[RunFolder], keys: Sequence[str], across: str = "step") -> list[Chart]:
        """A chart for each number, all runs in the same axes."""
        return [chart(key, [self._series(run, key, across) for run in runs]) for key in keys]

    def _series(self, run: RunFolder, key: str, across: str) -> Series:
        lines = [line for line in self.metrics(run) if key in line]
        start = next((t for line in self.metrics(run) if (t := finite(line.get("time"))) is not None), 0.0)

        def x(line: dict[str, Any]) -> float | None:
            if across == "minutes":
                at = finite(line.get("time"))
                return None if at is None else (at - start) / 60
            return finite(line.get("step"))

        points = [(at, finite(line[key])) for line in lines if (at := x(line)) is not None]
        band = []
        if key == "eval/pass_rate":
            for line in lines:
                low, high, at = finite(line.get("eval/low")), finite(line.get("eval/high")), x(line)
                if low is not None and high is not None and at is not None:
                    band.append((at, low, high))
        return Series(run.name, points, band)

    def before_after(
        self, run: RunFolder, keys: Sequence[str]
    ) -> dict[str, tuple[float, float, float, float]]:
        """First, last, lowest and highest of each number."""
        told = {}
        for key in keys:
            values = [value for line in self.metrics(run) if (value := finite(line.get(key))) is not None]
            if values:
                told[key] = (values[0], values[-1], min(values), max(values))
        return told

    def _found(self) -> list[Path]:
        below = folders_below(self.root, DEEPEST)
        return [
            path for path, names in below if path != self.root and {"run.json", "metrics.jsonl"} & set(names)
        ]

    def _folder(self, path: Path) -> RunFolder:
        try:
            facts = (path / "metrics.jsonl").stat()
            written, size = facts.st_mtime, facts.st_size
        except OSError:
            written, size = 0.0, 0
        name = path.relative_to(self.root).as_posix()
        return RunFolder(
            name, path, read_json(path / "config.json"), read_json(path / "run.json"), written, size
        )


def folders_below(
    root: Path, deepest: int, passed_over: Collection[str] = ()
) -> Iterator[tuple[Path, list[str]]]:
    """Folders and the names of their files; hidden ones and checkpoints are left out."""
    for here, folders, names in islice(os.walk(root), MOST):
        path = Path(here)
        inner = sorted(n for n in folders if not n.startswith((".", "step_")) and n not in passed_over)
        folders[:] = inner if len(path.relative_to(root).parts) < deepest else []
        yield path, names


def config_diff(first: RunFolder, second: RunFolder) -> list[tuple[str, str, str]]:
    """The options in which two runs differ."""
    keys = sorted(first.config.keys() | second.config.keys())
    told = [(key, option(first.config, key), option(second.config, key)) for key in keys]
    return [row for row in told if row[1] != row[2]]


def option(config: dict[str, Any], key: str) -> str:
    if key not in config:
        return "–"
    return json.dumps(config[key], ensure_ascii=False)


def read_json(path: Path, largest: int = 8 * 2**20) -> dict[str, Any]:
    """A JSON object from a file, {} where there is none to read."""
    try:
        if path.stat().st_size > largest:
            return {}
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _metrics(path: Path) -> list[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - LARGEST))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(data, dict):
            found.append(data)
    return found


def _when(run: RunFolder) -> float:
    if run.written:
        return run.written
    try:
        return run.path.stat().st_mtime
    except OSError:
        return 0.0
