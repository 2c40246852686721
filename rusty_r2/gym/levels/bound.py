# SPDX-License-Identifier: AGPL-3.0-or-later
"""The user's own folder inside a sandbox of level `ns`: writable, read-only, or as the lower half of a dry
run.

Protected paths are bound read-only on themselves, and every folder above them on itself, because a folder
that is a mount point cannot be renamed out of the way. Paths are opened one step at a time and no link is
followed: a planted link must not choose what we mount on. When root starts the sandbox, the folder is seen
through an id-mapped mount: its owner appears as the payload's user, and nothing inside ever is host root.
"""
# ruff: noqa: PTH102, PTH103, PTH116

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
from collections.abc import Iterator
from typing import Any

from rusty_r2.gym.levels import kernel

WORK = "/work"
OVER = "/over"
NO_LINKS_BENEATH = 0x02 | 0x04 | 0x08
SAFE = kernel.NO_SUID | kernel.NO_DEV


def idmapped(config: dict[str, Any]) -> int:
    """In the launcher, as root: the folder as a detached mount whose owner is the payload's user."""
    owner = os.stat(config["workspace"])
    holder = kernel.clone(kernel.NEW_USER)
    if holder == 0:
        signal.pause()
        os._exit(0)
    try:
        for name, theirs, ours in (
            ("uid_map", owner.st_uid, config["uid"]),
            ("gid_map", owner.st_gid, config["gid"]),
        ):
            kernel.write_file(f"/proc/{holder}/{name}", f"{theirs} {ours} 1")
        namespace = os.open(f"/proc/{holder}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return kernel.idmapped_clone(config["workspace"], namespace)
        finally:
            os.close(namespace)
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)


def mount(config: dict[str, Any], source: int, old: str, *, detached: bool) -> list[str]:
    """In the zygote, while the host's tree is still at `old`. Returns what could not be done."""
    os.makedirs(WORK, exist_ok=True)
    if detached:
        kernel.attach(source, WORK)
    else:
        kernel.mount(f"{old}/proc/self/fd/{source}", WORK, flags=kernel.BIND)
    os.close(source)
    writable = config["mode"] == "rw"
    kernel.set_attributes(WORK, SAFE | (0 if writable else kernel.READ_ONLY), recursive=False)
    return _protect(config["protect"], old) if writable else []


def _protect(paths: list[str], old: str) -> list[str]:
    notes: list[str] = []
    root = os.open(WORK, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    pinned: set[str] = set()
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            step = "/".join(parts[:depth])
            try:
                if step not in pinned:
                    _bind_on_itself(root, step, old)
                    pinned.add(step)
            except FileNotFoundError:
                break
            except OSError as error:
                notes.append(f"{step} cannot be protected: {error.strerror}")
                break
        else:
            with _opened(root, path) as leaf:
                kernel.set_attributes(f"{old}/proc/self/fd/{leaf}", SAFE | kernel.READ_ONLY, recursive=False)
    os.close(root)
    return notes


def _bind_on_itself(root: int, path: str, old: str) -> None:
    with _opened(root, path) as place:
        if stat.S_ISLNK(os.fstat(place).st_mode):
            raise OSError(errno.ELOOP, "it is a link")
        name = f"{old}/proc/self/fd/{place}"
        kernel.mount(name, name, flags=kernel.BIND)


@contextlib.contextmanager
def _opened(root: int, path: str) -> Iterator[int]:
    descriptor = kernel.open_beneath(root, path, os.O_PATH, resolve=NO_LINKS_BENEATH)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def overlay(folder: str) -> None:
    """A dry run: what is written goes to the workspace's tmpfs, the user's folder is only read."""
    for name in ("up", "wk"):
        os.mkdir(f"{folder}/{name}")
    options = f"lowerdir={WORK},upperdir={folder}/up,workdir={folder}/wk,userxattr"
    kernel.mount("overlay", OVER, "overlay", SAFE, options)
