# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a command changed in its copy of the folder: compared with the folder, and carried over to it.

Contents come out of the sandbox by `read`, which follows no link; modes and link targets by one small
program that runs inside. What is protected, or is a link that leads outside, stays behind and is named.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rusty_r2.agent.diff import diff
from rusty_r2.agent.journal import Journal
from rusty_r2.agent.protected import on_disk
from rusty_r2.errors import SandboxError
from rusty_r2.gym.sandbox import Change, Limits, Sandbox

COMPARED = 10
"""files changed by one command whose difference is shown"""
_LOOK = """
import json, os, stat, sys
found = {}
for path in json.load(sys.stdin):
    try:
        status = os.lstat(path)
        link = os.readlink(path) if stat.S_ISLNK(status.st_mode) else None
        found[path] = [status.st_mode, link]
    except OSError:
        pass
json.dump(found, sys.stdout)
"""


def compared(box: Sandbox, folder: Path, changes: Sequence[Change], limits: Limits) -> list[str]:
    """The diff of the first files that changed; those it leaves out are named."""
    files = [c for c in changes if c.kind in ("modified", "added") and not c.path.endswith("/")]
    seen = _look(box, [c.path for c in files[:COMPARED] if c.kind == "modified"], limits)
    lines: list[str] = []
    for change in files[:COMPARED]:
        before = None
        with contextlib.suppress(OSError):  # it was a link or a pipe
            before = on_disk(folder, change.path) if change.kind == "modified" else None
        with contextlib.suppress(OSError):  # it is one now: its name is shown
            lines += diff(change.path, before, box.read(change.path))
            lines += _new_mode(folder / change.path, seen.get(change.path)) if before is not None else []
    left = [f"@@ not compared: {c.path} ({c.kind}, {c.size:,} bytes) @@" for c in files[COMPARED:]]
    return [*lines, *left]


def _new_mode(place: Path, seen: list[Any] | None) -> list[str]:
    """Who may read, write and run a file, where that changed."""
    if seen is None:
        return []
    before, after = stat.S_IMODE(place.lstat().st_mode), stat.S_IMODE(seen[0])
    return [f"@@ mode {before:o} becomes {after:o} @@"] if before != after else []


def carry_over(
    box: Sandbox,
    changes: Sequence[Change],
    journal: Journal,
    protected: Callable[[str], bool],
    limits: Limits,
) -> list[str]:
    """Make the changes real; returns what was left behind, with the reason."""
    seen = _look(box, [change.path for change in changes if change.kind != "deleted"], limits)
    left = []
    for change in changes:
        path = change.path.rstrip("/")
        try:
            if protected(path) or _holds(journal.folder / path, path, protected):
                left.append(f"{path} (protected)")
            elif change.kind == "deleted":
                journal.remove(path)
            elif change.path.endswith("/"):
                journal.make_folder(path)
            else:
                _put(box, journal, path, seen.get(path))
        except OSError as error:
            left.append(f"{path} ({error.strerror or error})")
    return left


def failed(left: list[str], changes: int) -> list[str]:
    """What of it means that the work is not done: `git init` does its own without hooks and config."""
    return [] if len(left) < changes and all(one.endswith("(protected)") for one in left) else left


def _holds(place: Path, path: str, protected: Callable[[str], bool]) -> bool:
    """Whether a folder that would go away or be replaced has something protected in it."""
    if place.is_symlink() or not place.is_dir():
        return False
    below = (found.relative_to(place).as_posix() for found in place.rglob("*"))
    return any(protected(f"{path}/{name}") for name in below)


def _put(box: Sandbox, journal: Journal, path: str, seen: list[Any] | None) -> None:
    mode, target = seen if seen is not None else (None, None)
    if target is None:
        journal.write(path, box.read(path), mode)
    elif _leads_outside(path, target):
        raise OSError("a link to the outside")
    else:
        journal.link(path, target)


def _leads_outside(path: str, target: str) -> bool:
    ending = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return ending.startswith("/") or ending.split("/")[0] == ".."


def _look(box: Sandbox, paths: list[str], limits: Limits) -> dict[str, list[Any]]:
    """Modes and link targets, as a program inside sees them."""
    if not paths:
        return {}
    names = [path.rstrip("/") for path in paths]
    room = replace(limits, out_keep=64 << 20, out_total=64 << 20)
    result = box.run(["python3", "-I", "-c", _LOOK], stdin=json.dumps(names).encode(), limits=room)
    try:
        found = json.loads(result.stdout)
    except ValueError as error:
        raise SandboxError(f"the changes could not be read back: {result.output[-200:]}") from error
    return {path: found[path] for path in names if path in found}
