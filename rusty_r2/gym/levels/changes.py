# SPDX-License-Identifier: AGPL-3.0-or-later
"""What runs did to the user's folder: the change set of a dry run, and protected paths that appeared."""
# ruff: noqa: PTH208

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from rusty_r2.gym.levels import kernel
from rusty_r2.gym.sandbox import Change

NO_LINKS_BENEATH = 0x02 | 0x04 | 0x08
MAX_DEPTH = 64


def between(lower: int, upper: int) -> tuple[Change, ...]:
    """The change set that an overlay's upper folder means for its lower one."""
    return tuple(sorted(_walk(lower, upper, ""), key=lambda change: change.path))


def _walk(lower: int, upper: int, prefix: str) -> Iterator[Change]:
    if prefix.count("/") > MAX_DEPTH:
        return
    for name in os.listdir(upper):
        path = prefix + name
        now = os.stat(name, dir_fd=upper, follow_symlinks=False)
        before = _status(lower, path)
        if stat.S_ISCHR(now.st_mode) and now.st_rdev == 0:
            yield Change("deleted", path)
        elif stat.S_ISDIR(now.st_mode):
            try:
                below = kernel.open_beneath(upper, name, os.O_RDONLY | os.O_DIRECTORY)
            except PermissionError:  # the payload shut it; what is inside stays untold
                yield Change("added" if before is None else "modified", f"{path}/")
                continue
            try:
                if before is None:
                    yield Change("added", f"{path}/")
                elif _opaque(below):
                    yield from _replaced(lower, path, set(os.listdir(below)))
                yield from _walk(lower, below, f"{path}/")
            finally:
                os.close(below)
        else:
            yield Change("added" if before is None else "modified", path, now.st_size)


def _opaque(folder: int) -> bool:
    try:
        return os.getxattr(folder, "user.overlay.opaque") == b"y"
    except OSError:
        return False


def _replaced(lower: int, path: str, kept: set[str]) -> Iterator[Change]:
    """A folder was deleted and made again: what it held before is gone."""
    try:
        folder = kernel.open_beneath(lower, path, os.O_RDONLY | os.O_DIRECTORY, resolve=NO_LINKS_BENEATH)
    except OSError:
        return
    try:
        yield from (Change("deleted", f"{path}/{name}") for name in os.listdir(folder) if name not in kept)
    finally:
        os.close(folder)


def _status(root: int, path: str) -> os.stat_result | None:
    try:
        descriptor = kernel.open_beneath(root, path, os.O_PATH, resolve=NO_LINKS_BENEATH)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            return None
        return os.stat(root)  # something is there, behind a link or a locked folder
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


class Appeared:
    """Protected paths that were free when the sandbox was opened: nothing can be bound there, so we look."""

    def __init__(self, root: int, protect: tuple[str, ...]) -> None:
        self.root = root
        self.free = [path for path in protect if _status(root, path) is None]

    def __call__(self) -> tuple[Change, ...]:
        return tuple(Change("protected", path) for path in self.free if _status(self.root, path) is not None)
