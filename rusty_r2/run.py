# SPDX-License-Identifier: AGPL-3.0-or-later
"""One training run = one folder. What a stage leaves there is all that the next stage knows of it.

    runs/ppo-7/
      config.json       every option with the value in force; `--config` of it repeats the run
      run.json          what ran: command, versions, git commit, machine, seed, when, how it ended
      metrics.jsonl     one line a logged step: {"step": 20, "time": …, "loss/policy": …}
      events.out.…      the same numbers and sample texts for TensorBoard
      step_000200/      a checkpoint: whole and checksummed, or not there

`Run.start` makes the folder, or with `resume="auto"` finds where an earlier try at it stopped.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

from rusty_r2 import __version__, files
from rusty_r2.config import resolved
from rusty_r2.errors import CheckpointError, ConfigError
from rusty_r2.events import EventFile
from rusty_r2.redact import redact

LINEAGE = "lineage.json"
"""in a merged model's folder: where it came from, and whether training made it worse"""
LIBRARIES = ("numpy", "torch", "tokenizers", "safetensors", "transformers", "peft", "trl", "accelerate")


class Run:
    """A run in progress. Use it as a context manager: how it ended is written to run.json."""

    def __init__(self, folder: Path, resumed_from: Path | None, events: Path | None = None) -> None:
        self.folder = folder
        self.resumed_from = resumed_from
        """the checkpoint to load before the first step, where there is one"""
        self._metrics = open(folder / "metrics.jsonl", "a", encoding="utf-8")
        self._events = EventFile(events or folder)
        if resumed_from is not None:
            self._events.restart(step_of(resumed_from) + 1)

    @classmethod
    def start(
        cls,
        name: str,
        config: Any,
        *,
        folder: Path | None = None,
        resume: str = "",
        may_change: Iterable[str] = (),
        events: Path | None = None,
    ) -> Run:
        """Begin a run named after its kind.

        `folder` None takes the next free `runs/NAME-N`. `resume` is "" (start anew; a folder that holds
        a run already is refused), "auto" (go on from the newest whole checkpoint, or start), or the
        path of a checkpoint. Options other than `may_change` must be those of the earlier try.
        `events` is another folder for TensorBoard's files.
        """
        checkpoint = _find_checkpoint(folder, resume)
        target = _claimed(Path("runs"), name) if folder is None else folder
        if checkpoint is None and resume != "auto" and (target / "config.json").exists():
            raise ConfigError(f"{target} holds a run already. Add --resume auto, or name another folder")
        target.mkdir(parents=True, exist_ok=True)
        for left in target.glob(".tmp-*"):  # what a killed save left behind
            shutil.rmtree(left, ignore_errors=True)
        if checkpoint is not None and checkpoint.parent == target:
            _same_options(target, config, set(may_change))
            _forget_after(target / "metrics.jsonl", step_of(checkpoint))
        else:
            _forget_after(target / "metrics.jsonl", -1)
        files.write(target / "config.json", json.dumps(resolved(config), indent=2) + "\n")
        run = cls(target, checkpoint, events)
        run.note(name=name, resumed_from=str(checkpoint) if checkpoint else None, **_provenance(config))
        return run

    def log(self, step: int, facts: Mapping[str, Any]) -> None:
        """Numbers of one step, to metrics.jsonl and TensorBoard. A non-finite number is kept as null."""
        numbers = {tag: float(value) for tag, value in facts.items()}
        finite = {tag: value if math.isfinite(value) else None for tag, value in numbers.items()}
        line = {"step": step, "time": round(time.time(), 3), **finite}
        self._metrics.write(json.dumps(line) + "\n")
        self._metrics.flush()
        self._events.numbers(step, numbers)

    def text(self, step: int, tag: str, text: str) -> None:
        """A sample worth reading, for TensorBoard's text page."""
        self._events.text(step, tag, text)

    @contextmanager
    def checkpoint(self, step: int, *, keep: int = 3) -> Iterator[Path]:
        """Fill the folder that is yielded; it becomes `step_N` whole, and the oldest beyond `keep` go."""
        final = self.folder / f"step_{step:06d}"
        with files.whole_folder(final) as folder:
            yield folder
        for old in checkpoints(self.folder)[:-keep] if keep else []:
            _remove(old)

    def note(self, **facts: Any) -> None:
        """Facts about the run as a whole, kept in run.json."""
        path = self.folder / "run.json"
        files.write(path, json.dumps(noted(path) | facts, indent=2) + "\n")

    def close(self, ended: str = "done") -> None:
        if not self._metrics.closed:
            self.note(ended=ended, finished=_now())
            self._metrics.close()
            self._events.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        self.close(
            "done" if kind is None else "stopped" if kind is KeyboardInterrupt else f"error: {kind.__name__}"
        )


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint folders of a run, oldest first; whether one is whole is for `newest`."""
    found = (path for path in folder.glob("step_*") if path.is_dir())
    return sorted((path for path in found if path.name.removeprefix("step_").isdecimal()), key=step_of)


def step_of(checkpoint: Path) -> int:
    try:
        return int(checkpoint.name.removeprefix("step_"))
    except ValueError as error:
        raise CheckpointError(f"{checkpoint} is not named step_N") from error


def newest(folder: Path) -> Path | None:
    """The newest checkpoint of a run whose checksums hold; a damaged one is passed over."""
    return next((path for path in reversed(checkpoints(folder)) if not files.verify(path)), None)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """What a run logged, oldest first; a line that a kill or a full disk cut short is left out."""
    return [line for _, line in _logged(folder / "metrics.jsonl")]


def _logged(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The whole lines of metrics.jsonl, as they stand there and as data."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.split("\n")[:-1]:
        with suppress(ValueError):
            data = json.loads(line)
            if isinstance(data, dict) and "step" in data:
                yield line, data


def noted(path: Path) -> dict[str, Any]:
    """The JSON table that a stage left there; {} where there is none, or half of one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _find_checkpoint(folder: Path | None, resume: str) -> Path | None:
    if resume in ("", "auto"):
        return newest(folder) if resume and folder is not None else None
    path = Path(resume)
    found = newest(path) if checkpoints(path) else path
    problem = f"{path} holds no checkpoint" if found is None else files.verify(found)
    if problem:
        raise CheckpointError(f"{problem}. Type: ls -d {path}/step_*")
    return found


def _same_options(folder: Path, config: Any, may_change: set[str]) -> None:
    try:
        before = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}") from error
    now = json.loads(json.dumps(resolved(config)))
    for key in sorted(set(now) & set(before) - may_change - {"resume"}):
        if now[key] != before[key]:
            was = f"was {before[key]!a} and is {now[key]!a} now"
            raise ConfigError(
                f"{folder} cannot be resumed: {key} {was}. Repeat it, or start in another folder"
            )


def _forget_after(path: Path, step: int) -> None:
    """Cut what an earlier try logged after the checkpoint that is resumed: those steps come again."""
    if path.exists():
        kept = [line for line, data in _logged(path) if data["step"] <= step]
        files.write(path, "".join(line + "\n" for line in kept))


def _claimed(root: Path, name: str) -> Path:
    """The next free NAME-N, made at once: who asks at the same moment gets another."""
    root.mkdir(parents=True, exist_ok=True)
    taken = [path.name.rpartition("-")[2] for path in root.glob(f"{name}-*")]
    for number in count(max([int(n) for n in taken if n.isdecimal()], default=0) + 1):
        folder = root / f"{name}-{number}"
        with suppress(FileExistsError):
            folder.mkdir()
            break
    return folder


def _remove(folder: Path) -> None:
    """Unname first, so that a kill in the middle leaves no half checkpoint under a checkpoint's name."""
    doomed = folder.with_name(f".tmp-old-{folder.name}-{os.getpid()}")
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _provenance(config: Any) -> dict[str, Any]:
    return {
        "command": redact(shlex.join(["rusty", *sys.argv[1:]]))[0],
        "version": __version__,
        "git": _git_commit(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "libraries": {name: found for name in LIBRARIES if (found := _version(name))},
        "seed": getattr(config, "seed", None),
        "started": _now(),
        "ended": "running",
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit this code is from, with a + where the tree has changes; None outside a checkout."""
    here = str(Path(__file__).parent)
    try:
        commit = _said("git", "-C", here, "rev-parse", "HEAD")
        dirty = _said("git", "-C", here, "status", "--porcelain", "-uno")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if dirty else "")


def _said(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=5, check=True).stdout.strip()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
