# SPDX-License-Identifier: AGPL-3.0-or-later
"""Work in stages, each a folder; killed anywhere, the next try goes on where this one was.

    stages = Stages(Path("loops/agent/round-001"))
    rows = stages.run("rows", {"traces": traces.digest, "method": "kto"}, make_rows)

    round-001/03-rows/
      started.json     the digest of what this stage was asked to do
      …                what it makes
      done.json        written last: what it found out, and the digest of each thing it made

A stage is done when done.json is there, was asked the same and what it made is still what it was; then it is
passed over. Asked the same and not done, the work goes on in its folder (a training run resumes there).
Asked something else, the folder is emptied first. What the stages do is for run.py and its neighbours.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rusty_r2 import files
from rusty_r2.config import plain
from rusty_r2.errors import ConfigError
from rusty_r2.run import noted

STARTED, DONE = "started.json", "done.json"


@dataclass(frozen=True)
class Made:
    """What a stage's work returns."""

    facts: dict[str, Any]
    """what there is to know, as plain data"""
    outputs: tuple[Path, ...] = ()
    """files and folders that later stages rest on"""


@dataclass(frozen=True)
class Done:
    """A stage that is done."""

    name: str
    folder: Path
    facts: dict[str, Any]
    digest: str
    """of what it was asked and what it made: the next stage's inputs"""
    seconds: float
    outputs: tuple[Path, ...] = ()

    @property
    def output(self) -> Path:
        """The one thing it made."""
        (path,) = self.outputs
        return path


Work = Callable[[Path], Made]


class Stages:
    """The stages of one round, in order."""

    def __init__(self, root: Path, told: Callable[[str], None] | None = None) -> None:
        self.root = root
        self.done: list[Done] = []
        self._told = told or (lambda _: None)

    def run(self, name: str, inputs: Mapping[str, Any], work: Work) -> Done:
        """Do the work of a stage, unless it is done."""
        number = len(self.done) + 1
        folder = self.root / f"{number:02d}-{name}"
        asked = _digest({"stage": name, **plain(dict(inputs))})
        known = read_done(folder)
        if known is not None and noted(folder / DONE).get("asked") == asked and whole(folder):
            self._told(f"{number:02d} {name}: done before")
        else:
            known = self._do(folder, name, asked, work)
        self.done.append(known)
        return known

    def _do(self, folder: Path, name: str, asked: str, work: Work) -> Done:
        if noted(folder / STARTED).get("asked") != asked or (folder / DONE).exists():
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        files.write(folder / STARTED, json.dumps({"stage": name, "asked": asked}) + "\n")
        self._told(f"{folder.name[:2]} {name} …")
        began = time.monotonic()
        made = work(folder)
        outputs = {path.relative_to(folder).as_posix(): tree_digest(path) for path in made.outputs}
        said = {
            "stage": name,
            "asked": asked,
            "digest": _digest({"asked": asked, "outputs": outputs}),
            "seconds": round(time.monotonic() - began, 3),
            "outputs": outputs,
            "facts": plain(made.facts),
        }
        files.write(folder / DONE, json.dumps(said, indent=1, ensure_ascii=False) + "\n")
        found = read_done(folder)
        assert found is not None
        return found


def read_done(folder: Path) -> Done | None:
    """What a stage left, or None where it is not done."""
    said = noted(folder / DONE)
    if not said:
        return None
    outputs = tuple(folder / name for name in said["outputs"])
    return Done(said["stage"], folder, said["facts"], said["digest"], said["seconds"], outputs)


def read_all(root: Path) -> list[Done]:
    """The stages of a round that are done, in order."""
    found = (read_done(path) for path in sorted(root.glob("[0-9][0-9]-*/")))
    return [one for one in found if one is not None]


def whole(folder: Path) -> bool:
    """Whether everything a stage made is still what it was."""
    outputs: dict[str, str] = noted(folder / DONE).get("outputs", {})
    return all(
        (folder / name).exists() and tree_digest(folder / name) == sum_ for name, sum_ in outputs.items()
    )


def tree_digest(path: Path) -> str:
    """SHA-256 of a file, or of everything in a folder."""
    if path.is_file():
        return files.digest(path)
    inside = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".tmp-"))
    return _digest({p.relative_to(path).as_posix(): files.digest(p) for p in inside})


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """Nobody else works in this folder."""
    root.mkdir(parents=True, exist_ok=True)
    with open(root / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another loop works in {root}. Wait for it, or give another --out") from error
        yield


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()
