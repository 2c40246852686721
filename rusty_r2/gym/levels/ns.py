# SPDX-License-Identifier: AGPL-3.0-or-later
"""Level `ns`: our own namespaces, no package needed. What happens inside is in template.py.

All workspaces in memory share one warm spawner of this process; a folder of the user gets a spawner of
its own, because a spawner can see only what was bound when it started.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path
from typing import Any

from rusty_r2.gym.levels import host
from rusty_r2.gym.levels.launch import Spawner
from rusty_r2.gym.levels.spawned import Place, SpawnedSandbox
from rusty_r2.gym.sandbox import Limits

_shared: dict[tuple[int, str], Spawner] = {}
_lock = threading.Lock()


def config() -> dict[str, Any]:
    uid, gid = host.identity()
    read_only = [*host.SYSTEM, *host.interpreter_paths()]
    hidden = host.package_root()
    return {
        "level": "ns",
        "python": host.python(),
        "uid": uid,
        "gid": gid,
        "was_root": os.geteuid() == 0,
        "read_only": read_only,
        "hidden": [hidden] if any(hidden.startswith(f"{path}/") for path in read_only) else [],
    }


def open_ns(
    limits: Limits, *, workspace: Path | None, mode: str, protect: tuple[str, ...], network: str
) -> SpawnedSandbox:
    spawner = shared_spawner("ns", config())
    number = spawner.number()
    _, (folder,) = spawner.ask({"op": "open", "id": number, "disk": limits.disk, "inodes": limits.inodes})
    uid, gid = host.identity()
    place = Place(
        level="ns",
        degraded=tuple(spawner.notes),
        spawner=spawner,
        request={
            "id": number,
            "network": network,
            "cwd": "/box",
            "env": host.environment("/box", "/tmp", host.interpreter_paths()),
        },
        folder=folder,
        uid=uid,
        gid=gid,
        by_pidfd=True,
        release=lambda: void(spawner.ask({"op": "close", "id": number})),
    )
    return SpawnedSandbox(place, limits)


def void(_: object) -> None:
    """For callbacks whose answer nobody needs."""


def shared_spawner(level: str, settings: dict[str, Any]) -> Spawner:
    """The spawner of this process for a level; a fork of this process starts its own."""
    with _lock:
        spawner = _shared.get((os.getpid(), level))
        if spawner is None or not spawner.alive():
            spawner = _shared[os.getpid(), level] = Spawner(settings)
            atexit.register(spawner.close)
        return spawner
