# SPDX-License-Identifier: AGPL-3.0-or-later
"""Level `ns`: our own namespaces, no package needed. What happens inside is in template.py.

All workspaces in memory share one warm spawner of this process; a folder of the user gets a spawner of
its own, because a spawner can see only what was bound when it started.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from rusty_r2.errors import ConfigError
from rusty_r2.gym.levels import changes, host
from rusty_r2.gym.levels.launch import Spawner
from rusty_r2.gym.levels.spawned import Place, SpawnedSandbox
from rusty_r2.gym.sandbox import Limits

_shared: dict[tuple[int, str], Spawner] = {}
_lock = threading.Lock()


def config(
    workspace: Path | None = None, mode: str = "rw", protect: tuple[str, ...] = (), network: str = "none"
) -> dict[str, Any]:
    uid, gid = host.identity()
    read_only = [*host.SYSTEM, *host.interpreter_paths()]
    hidden = host.package_root()
    return {
        "level": "ns",
        "python": host.python(),
        "uid": uid,
        "gid": gid,
        "was_root": host.steps_down(),
        "read_only": read_only,
        "hidden": [hidden] if any(hidden.startswith(f"{path}/") for path in read_only) else [],
        "workspace": str(workspace.resolve()) if workspace else "",
        "mode": mode,
        "protect": list(protect),
        "network": network,
        "etc": host.names() if network == "host" else {},
    }


def open_ns(
    limits: Limits, *, workspace: Path | None, mode: str, protect: tuple[str, ...], network: str
) -> SpawnedSandbox:
    if workspace is not None:
        return _open_bound(limits, workspace=workspace, mode=mode, protect=protect, network=network)
    if network == "host":
        raise ConfigError("the host's network is for a person's own folder. Say network none or loopback")
    spawner = shared_spawner("ns", config())
    number = spawner.number()
    _, (folder,) = spawner.ask(_open_request(number, limits))
    release = partial(spawner.ask, {"op": "close", "id": number})
    return SpawnedSandbox(_place(spawner, number, folder, network, release=release), limits)


def _open_bound(
    limits: Limits, *, workspace: Path, mode: str, protect: tuple[str, ...], network: str
) -> SpawnedSandbox:
    spawner = Spawner(config(workspace, mode, protect, network))
    try:
        _, (folder, *layers) = spawner.ask(_open_request(0, limits))
    except BaseException:
        spawner.close()
        raise
    place = _place(spawner, 0, folder, network, release=lambda: _release(spawner, layers))
    place.request["env"] = host.environment("/tmp", "/tmp", host.interpreter_paths())
    place.writable = mode != "ro"
    place.protect = protect
    if mode == "overlay":
        place.finish = lambda result: replace(result, changes=changes.between(layers[1], layers[0]))
    else:
        owner = workspace.stat()
        os.close(folder)
        place.owned = False
        place.folder = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
        place.uid, place.gid = (owner.st_uid, owner.st_gid) if host.steps_down() else (place.uid, place.gid)
        appeared = changes.Appeared(place.folder, protect)
        place.finish = lambda result: replace(result, changes=appeared() or None)
        place.degraded = (*place.degraded, "no disk quota in a bound folder, only for each file")
    return SpawnedSandbox(place, limits)


def _open_request(number: int, limits: Limits) -> dict[str, Any]:
    return {"op": "open", "id": number, "disk": ceil(limits.disk), "inodes": ceil(limits.inodes)}


def _place(spawner: Spawner, number: int, folder: int, network: str, release: Callable[[], object]) -> Place:
    uid, gid = host.identity()
    env = host.environment("/box", "/tmp", host.interpreter_paths())
    return Place(
        level="ns",
        degraded=tuple(spawner.notes),
        spawner=spawner,
        request={"id": number, "network": network, "cwd": "/box", "env": env},
        folder=folder,
        uid=uid,
        gid=gid,
        by_pidfd=True,
        release=release,
    )


def _release(spawner: Spawner, layers: list[int]) -> None:
    for layer in layers:
        os.close(layer)
    spawner.close()


def shared_spawner(level: str, settings: dict[str, Any]) -> Spawner:
    """The spawner of this process for a level; a fork of this process starts its own."""
    with _lock:
        spawner = _shared.get((os.getpid(), level))
        if spawner is None or not spawner.alive():
            spawner = _shared[os.getpid(), level] = Spawner(settings)
            atexit.register(spawner.close)
        return spawner
