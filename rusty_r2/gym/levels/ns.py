# SPDX-License-Identifier: AGPL-3.0-or-later
"""Level `ns`: our own namespaces, no package needed. What happens inside is in template.py.

All workspaces in memory share one warm spawner of this process; a folder of the user gets a spawner of
its own, because a spawner can see only what was bound when it started.
"""

from __future__ import annotations

import atexit
import os
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any

from rusty_r2.gym.levels.launch import Spawner
from rusty_r2.gym.levels.spawned import Place, SpawnedSandbox
from rusty_r2.gym.sandbox import Limits

NOBODY = 65534
SYSTEM = (
    "/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/nix/store",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime",
    "/etc/ssl/certs", "/etc/mime.types",
)  # fmt: skip
"""what programs need to start; nothing here is private to a user"""

_shared: dict[int, Spawner] = {}
_lock = threading.Lock()


def identity() -> tuple[int, int]:
    """The host uid and gid of payloads: ours, but never root's."""
    return (os.geteuid(), os.getegid()) if os.geteuid() else (NOBODY, NOBODY)


def interpreter_paths() -> list[str]:
    """Where this Python's own files are; site packages of a virtual environment are not among them."""
    base = Path(sys.base_prefix).resolve()
    if str(base).startswith("/usr"):
        return []
    if base in (Path("/"), Path.home()) or base in Path.home().parents:
        return [sysconfig.get_path("stdlib"), str(Path(sys.executable).resolve())]
    return [str(base)]


def package_root() -> str:
    """Our own package holds gold solutions: payloads must not see it."""
    return str(Path(__file__).resolve().parents[2])


def environment(home: str, temporary: str) -> dict[str, str]:
    own = [f"{path}/bin" for path in interpreter_paths()[:1] if Path(path, "bin").is_dir()]
    path = ":".join([*own, "/usr/local/bin", "/usr/bin", "/bin"])
    return {"PATH": path, "HOME": home, "TMPDIR": temporary, "LANG": "C.UTF-8", "USER": "box", "TERM": "dumb"}


def config() -> dict[str, Any]:
    uid, gid = identity()
    read_only = [*SYSTEM, *interpreter_paths()]
    hidden = package_root()
    return {
        "level": "ns",
        "uid": uid,
        "gid": gid,
        "was_root": os.geteuid() == 0,
        "read_only": read_only,
        "hidden": [hidden] if any(hidden.startswith(f"{path}/") for path in read_only) else [],
    }


def open_ns(limits: Limits, *, network: str) -> SpawnedSandbox:
    spawner = shared_spawner()
    number = spawner.number()
    _, (folder,) = spawner.ask({"op": "open", "id": number, "disk": limits.disk, "inodes": limits.inodes})
    uid, gid = identity()
    place = Place(
        level="ns",
        degraded=tuple(spawner.notes),
        spawner=spawner,
        request={"id": number, "network": network, "cwd": "/box", "env": environment("/box", "/tmp")},
        folder=folder,
        uid=uid,
        gid=gid,
        by_pidfd=True,
        release=lambda: void(spawner.ask({"op": "close", "id": number})),
    )
    return SpawnedSandbox(place, limits)


def void(_: object) -> None:
    """For callbacks whose answer nobody needs."""


def shared_spawner() -> Spawner:
    """The spawner of this process; a fork of this process starts its own."""
    with _lock:
        spawner = _shared.get(os.getpid())
        if spawner is None or not spawner.alive():
            spawner = _shared[os.getpid()] = Spawner(config())
            atexit.register(spawner.close)
        return spawner
