# SPDX-License-Identifier: AGPL-3.0-or-later
"""Levels `landlock` and `off`: a folder on disk as the workspace. What happens inside is in jail.py.

`landlock` is for containers that forbid namespaces: files and network are shut, signals are kept in, but
there is no disk quota in the kernel (we look, and end the run) and the names of some host files can be
seen. `off` confines nothing; it exists for a person who types it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from rusty_r2.errors import ConfigError
from rusty_r2.gym.levels import files, host, kernel, ns
from rusty_r2.gym.levels.spawned import Place, SpawnedSandbox
from rusty_r2.gym.sandbox import Limits, Reason

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
ACCOUNTS = ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts")
LOOK_S = 0.25
PREFIX = "rusty-box-"


def config(level: str) -> dict[str, Any]:
    uid, gid = host.identity() if level == "landlock" else (os.geteuid(), os.getegid())
    read = [*host.SYSTEM, *host.reachable_paths(), *ACCOUNTS]
    return {
        "level": level,
        "python": host.reachable_python() if level == "landlock" else host.python(),
        "uid": uid,
        "gid": gid,
        "was_root": host.steps_down(),
        "confine": level == "landlock",
        "network": "pairs",
        "read": [path for root in read for path in around(root, host.package_root())],
        "write": list(DEVICES),
    }


def around(root: str, hidden: str) -> list[str]:
    """`root`, or what is left of it when one folder below must stay unseen: Landlock can only add rights."""
    if not hidden.startswith(f"{root}/"):
        return [] if root == hidden else [root]
    return [path for child in sorted(Path(root).iterdir()) for path in around(str(child), hidden)]


def open_jail(
    level: str, limits: Limits, *, workspace: Path | None, mode: str, protect: tuple[str, ...], network: str
) -> SpawnedSandbox:
    if network != "none" and level == "landlock":
        raise ConfigError(
            "the sandbox level landlock has no network of its own. Say network none, or level ns"
        )
    if mode == "overlay":
        raise ConfigError(f"a dry run needs the sandbox level ns; this is {level}. Say mode rw or ro")
    settings = config(level)
    own = _make_folder(settings["uid"], settings["gid"])
    box = workspace.resolve() if workspace else own / "box"
    degraded = _gaps(level, bound=workspace is not None)
    spawner = ns.shared_spawner(level, settings)
    folder = os.open(box, os.O_RDONLY | os.O_DIRECTORY)
    place = Place(
        level=level,
        degraded=degraded,
        spawner=spawner,
        request={
            "id": 0,
            "network": network,
            "cwd": str(box),
            "env": host.environment(str(box), str(own / "tmp"), host.reachable_paths())
            if level != "off"
            else _own_environment(own),
            "read": [str(box)],
            "write": [str(own / "tmp"), *([str(box)] if mode == "rw" else [])],
        },
        folder=folder,
        uid=settings["uid"],
        gid=settings["gid"],
        by_pidfd=False,
        release=lambda: _remove(own),
        over=None if workspace else _Usage(own),
        writable=mode == "rw",
        owned=workspace is None,
        protect=protect if workspace else (),
    )
    return SpawnedSandbox(place, limits)


def _gaps(level: str, *, bound: bool) -> tuple[str, ...]:
    if level == "off":
        return ("nothing is confined: commands can do all that you can",)
    quota = "no disk quota" if bound else "disk quota checked every quarter second, not enforced"
    gaps = [quota, "no private /proc, /tmp and /dev/shm", "names of files outside can be looked up"]
    if not host.steps_down():
        gaps.append("chmod and touch by path are refused, inside too")
    return (*gaps, "protected paths are not enforced") if bound else tuple(gaps)


def _own_environment(own: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {"TMPDIR": str(own / "tmp"), "TERM": "dumb"}


def _make_folder(uid: int, gid: int) -> Path:
    _sweep(Path(tempfile.gettempdir()))
    own = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    for folder in (own, own / "box", own / "tmp"):
        folder.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(folder, uid, gid)
    return own


def _sweep(temporary: Path) -> None:
    """Remove what supervisors that were killed could not."""
    for folder in temporary.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(folder.name.removeprefix(PREFIX).partition("-")[0])
            ours = folder.lstat().st_uid in (os.geteuid(), host.STRANGERS + pid)
            if ours and not Path(f"/proc/{pid}").exists():
                _remove(folder)


def _remove(own: Path) -> None:
    folder = os.open(own, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchmod(folder, 0o700)
        files.remove(folder)
    finally:
        os.close(folder)
    own.rmdir()


class _Usage:
    """Looks now and then how much a workspace on disk holds."""

    def __init__(self, own: Path) -> None:
        self.own = own
        self.next = 0.0

    def __call__(self, limits: Limits) -> Reason | None:
        if time.monotonic() < self.next:
            return None
        folder = os.open(self.own, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        uid, gid = host.identity()
        try:
            with kernel.acting_as(uid, gid):
                size, entries = files.usage(folder)
        finally:
            os.close(folder)
        self.next = time.monotonic() + LOOK_S
        return "disk" if size > limits.disk or entries > limits.inodes else None
