# SPDX-License-Identifier: AGPL-3.0-or-later
"""Run folders as the page shows them: what ran, its numbers over time, and how two of them differ.

Only what `rusty_r2/run.py` writes is read (config.json, run.json, metrics.jsonl). A run is named by its place
under the runs folder and looked up among the folders found there: a name from outside never becomes a path.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rusty_r2.errors import ConfigError
from rusty_r2.run import checkpoints
from rusty_r2.web.curves import Chart, Series, chart, finite

DEEPEST = 3
"""folders under folders that are looked into"""
MOST = 2000
"""folders that are looked at in all"""
KEPT = 8
"""runs whose numbers are remembered"""
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


class Logged(NamedTuple):
    """One number as it was logged; what is not finite is None."""

    step: float | None
    time: float | None
    value: float | None


@dataclass
class _Columns:
    """What was read of a metrics.jsonl so far, number by number; of one that grew only new lines are read."""

    file: tuple[int, int] = (0, 0)
    end: int = 0
    columns: dict[str, list[Logged]] = field(default_factory=dict)

    def read(self, path: Path) -> None:
        try:
            with open(path, "rb") as file:
                facts = os.fstat(file.fileno())
                if (facts.st_dev, facts.st_ino) != self.file or facts.st_size < self.end:
                    self.file, self.columns = (facts.st_dev, facts.st_ino), {}
                    self.end = max(0, facts.st_size - LARGEST)
                file.seek(self.end)
                fresh = file.read(LARGEST).rpartition(b"\n")[0]
        except OSError:
            self.file, self.end, self.columns = (0, 0), 0, {}
            return
        self.end += len(fresh) + bool(fresh)
        for line in fresh.split(b"\n"):
            with contextlib.suppress(ValueError, RecursionError):
                data = json.loads(line)
                if isinstance(data, dict):
                    self._take(data)

    def _take(self, line: dict[str, Any]) -> None:
        step, when = finite(line.get("step")), finite(line.get("time"))
        for key, value in line.items():
            if key not in ("step", "time") and (value is None or finite(value) is not None):
                self.columns.setdefault(key, []).append(Logged(step, when, finite(value)))


class Runs:
    """The run folders under one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: OrderedDict[str, _Columns] = OrderedDict()
        self._lock = threading.Lock()

    def all(self) -> list[RunFolder]:
        """Every run, the one that spoke last first."""
        return sorted(map(self._folder, self._found()), key=lambda run: (-_when(run), run.name))

    def get(self, name: str) -> RunFolder:
        for path in self._found():
            if path.relative_to(self.root).as_posix() == name:
                return self._folder(path)
        raise ConfigError(f"there is no run {name!a} in {self.root}. Type: ls {self.root}")

    def numbers(self, run: RunFolder) -> dict[str, list[Logged]]:
        """What a run logged, by name, oldest first. A line that is cut short or no object is left out."""
        with self._lock:
            known = self._read.setdefault(run.name, _Columns())
            self._read.move_to_end(run.name)
            while len(self._read) > KEPT:
                self._read.popitem(last=False)
            known.read(run.path / "metrics.jsonl")
            return dict(known.columns)

    def keys(self, *runs: RunFolder) -> list[str]:
        """Every number that can be drawn, the telling ones first."""
        found = {key for run in runs for key in self.numbers(run) if key not in NO_CURVES}
        return sorted(found, key=lambda key: (FIRST.index(key) if key in FIRST else len(FIRST), key))

    def charts(self, runs: Sequence[RunFolder], keys: Sequence[str], across: str = "step") -> list[Chart]:
        """A chart for each number, all runs in the same axes."""
        told = [(run.name, self.numbers(run)) for run in runs]
        return [chart(key, [_series(name, columns, key, across) for name, columns in told]) for key in keys]

    def before_after(
        self, run: RunFolder, keys: Sequence[str]
    ) -> dict[str, tuple[float, float, float, float]]:
        """First, last, lowest and highest of each number."""
        told, columns = {}, self.numbers(run)
        for key in keys:
            values = [one.value for one in columns.get(key, ()) if one.value is not None]
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


def _series(name: str, columns: dict[str, list[Logged]], key: str, across: str) -> Series:
    start = min(
        (one.time for column in columns.values() for one in column[:1] if one.time is not None), default=0
    )

    def place(one: Logged) -> float | None:
        if across == "minutes":
            return None if one.time is None else (one.time - start) / 60
        return one.step

    points = [(x, one.value) for one in columns.get(key, ()) if (x := place(one)) is not None]
    if key != "eval/pass_rate":
        return Series(name, points)
    low, high = (
        {place(one): one.value for one in columns.get(f"eval/{edge}", ())} for edge in ("low", "high")
    )
    edges = [(x, low.get(x), high.get(x)) for x, _ in points]
    return Series(name, points, [(x, a, b) for x, a, b in edges if a is not None and b is not None])


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


def _when(run: RunFolder) -> float:
    if run.written:
        return run.written
    try:
        return run.path.stat().st_mtime
    except OSError:
        return 0.0
