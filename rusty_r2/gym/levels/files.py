# SPDX-License-Identifier: AGPL-3.0-or-later
"""Reading and writing a workspace from outside, when its owner may have laid traps in it.

Every path is resolved by the kernel below one directory descriptor, with no symbolic link, no other mount
and no `..` (openat2). Pipes, sockets and devices are never opened for real. What a payload did wrong
comes back as an OSError, because a broken workspace is the payload's doing and must not pass for broken
infrastructure.
"""
# ruff: noqa: PTH101

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from rusty_r2.gym.levels import kernel

MAX_FILES = 10_000
MAX_DEPTH = 64


def read(root: int, path: str, limit: int, *, owned: bool) -> bytes:
    """The content of a regular file. `owned`: a mode that shuts us out is the payload's doing, so undo it."""
    descriptor = _open_file(root, _relative(path), owned)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"{path!a} is longer than {limit} bytes")
    return content


def write(root: int, path: str, content: bytes, *, owned: bool) -> None:
    """Make or replace a regular file, and the folders above it."""
    *folders, name = _relative(path).split("/")
    here = os.dup(root)
    try:
        for folder in folders:
            below = _enter(here, folder, owned)
            os.close(here)
            here = below
        descriptor = _create(here, name, owned)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    finally:
        os.close(here)


def collect(root: int, limit: int, *, owned: bool) -> dict[str, bytes]:
    """Every regular file by its path; links and special files are left out."""
    found: dict[str, bytes] = {}
    room = limit
    for path, descriptor in _walk(root, "", 0, owned):
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(room + 1)
        room -= len(content)
        found[path] = content
        if room < 0 or len(found) > MAX_FILES:
            raise OSError(errno.EFBIG, f"the workspace holds more than {MAX_FILES} files or {limit} bytes")
    return dict(sorted(found.items()))


def usage(root: int) -> tuple[int, int]:
    """(bytes on disk, entries) below a folder."""
    total, entries = 0, 0
    for _, status in _entries(root, 0):
        total += status.st_blocks * 512
        entries += 1
    return total, entries


def remove(root: int) -> None:
    """Empty a folder, whatever its owner made of it: folders are flattened, so that no depth defeats us."""
    moved = 0
    while listed := _list(root):
        for name, is_folder in listed:
            if not is_folder:
                os.unlink(name, dir_fd=root)
                continue
            below = _enter(root, name, True)
            try:
                os.fchmod(below, 0o700)
                for inner, inner_is_folder in _list(below):
                    if inner_is_folder:
                        moved += 1
                        os.rename(inner, f".rusty-{moved}", src_dir_fd=below, dst_dir_fd=root)
                    else:
                        os.unlink(inner, dir_fd=below)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=root)


def _list(folder: int) -> list[tuple[str, bool]]:
    with os.scandir(folder) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]


def _relative(path: str) -> str:
    clean = os.path.normpath(path)
    if not path or "\0" in path or clean.startswith("/") or clean.split("/")[0] in ("..", "."):
        raise OSError(errno.EINVAL, f"{path!a} is not a path below the workspace")
    return clean


def _open_file(folder: int, path: str, owned: bool) -> int:
    try:
        descriptor = kernel.open_beneath(folder, path, os.O_RDONLY | os.O_NONBLOCK)
    except PermissionError:
        if not owned:
            raise
        _unlock(folder, path)
        descriptor = kernel.open_beneath(folder, path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path!a} is not a regular file")
    return descriptor


def _enter(folder: int, name: str, owned: bool) -> int:
    try:
        return kernel.open_beneath(folder, name, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        os.mkdir(name, 0o755, dir_fd=folder)
    except PermissionError:
        if not owned:
            raise
        _unlock(folder, name)
    return kernel.open_beneath(folder, name, os.O_RDONLY | os.O_DIRECTORY)


def _create(folder: int, name: str, owned: bool) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
    try:
        descriptor = kernel.open_beneath(folder, name, flags, 0o644)
    except PermissionError:
        if not owned:
            raise
        os.unlink(name, dir_fd=folder)
        descriptor = kernel.open_beneath(folder, name, flags, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{name!a} is not a regular file")
    return descriptor


def _unlock(folder: int, path: str) -> None:
    """Give ourselves back the rights that the payload took from its own file."""
    descriptor = kernel.open_beneath(folder, path, os.O_PATH)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(mode) | 0o700)
    finally:
        os.close(descriptor)


def _walk(folder: int, prefix: str, depth: int, owned: bool) -> Iterator[tuple[str, int]]:
    if depth > MAX_DEPTH:
        raise OSError(errno.EFBIG, f"the workspace is deeper than {MAX_DEPTH} folders")
    with os.scandir(folder) as entries:
        listed = [
            (entry.name, entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False))
            for entry in entries
        ]
    for name, is_folder, is_file in listed:
        if is_folder:
            below = _enter(folder, name, owned)
            try:
                yield from _walk(below, f"{prefix}{name}/", depth + 1, owned)
            finally:
                os.close(below)
        elif is_file:
            yield prefix + name, _open_file(folder, name, owned)


def _entries(folder: int, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    if depth > MAX_DEPTH:
        return
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            yield name, status
            if stat.S_ISDIR(status.st_mode):
                below = _enter(folder, name, True)
                try:
                    yield from _entries(below, depth + 1)
                finally:
                    os.close(below)
        except OSError:
            continue  # it went away while we looked
