# SPDX-License-Identifier: AGPL-3.0-or-later
"""Level `bwrap`: bubblewrap makes the namespaces, where only it may (Ubuntu's AppArmor profile, for one).

One bubblewrap per sandbox, with a spawner inside it; its runs are kept apart by jail.py. Everything is on
an allow-list and the root is an empty tmpfs. Lessons built in: bubblewrap is started with no environment,
for its first process shows it to the payload; never by root; nothing is mounted below a bound folder,
where a planted link could redirect it.
"""

from __future__ import annotations

import shutil
from math import ceil
from pathlib import Path
from typing import Any

from rusty_r2.errors import ConfigError, SandboxError
from rusty_r2.gym.levels import host, landlock, launch
from rusty_r2.gym.levels.spawned import Place, SpawnedSandbox
from rusty_r2.gym.sandbox import Limits

TRUSTED = "/usr/local/bin:/usr/bin:/bin"
"""a bwrap that lies in a workspace is nobody's sandbox"""


def open_bwrap(
    limits: Limits, *, workspace: Path | None, mode: str, protect: tuple[str, ...], network: str
) -> SpawnedSandbox:
    if network == "host":
        raise ConfigError("a network needs the sandbox level ns; this is bwrap. Say network none or loopback")
    if mode == "overlay":
        raise ConfigError("a dry run needs the sandbox level ns; this is bwrap. Say mode rw or ro")
    if workspace is not None and host.steps_down():
        raise SandboxError(
            "bwrap cannot give root's folder to a payload that is not root. Use an ordinary user"
        )
    settings = config(limits, workspace=workspace, mode=mode, network=network)
    spawner = launch.Spawner(settings)
    _, (folder,) = spawner.ask({"op": "open", "folder": "/box"})
    gaps = [
        "no inode limit",
        "/tmp, /dev/shm and the workspace each have the whole disk limit",
        *spawner.notes,
    ]
    if workspace is not None:
        gaps += ["no disk quota in a bound folder", "protected paths are not enforced"]
    place = Place(
        level="bwrap",
        degraded=tuple(gaps),
        spawner=spawner,
        request={
            "id": 0,
            "network": network,
            "cwd": "/box",
            "env": host.environment("/box", "/tmp", host.reachable_paths()),
            "read": [],
            "write": ["/box", "/tmp", "/dev/shm"],
        },
        folder=folder,
        uid=settings["uid"],
        gid=settings["gid"],
        by_pidfd=False,
        release=spawner.close,
        writable=mode == "rw",
        owned=workspace is None,
        protect=protect if workspace else (),
    )
    return SpawnedSandbox(place, limits)


def config(limits: Limits, *, workspace: Path | None, mode: str, network: str) -> dict[str, Any]:
    uid, gid = host.identity()
    return {
        "level": "bwrap",
        "python": host.python(),
        "uid": uid,
        "gid": gid,
        "was_root": host.steps_down(),
        "confine": True,
        "network": network,
        "read": ["/"],
        "write": list(landlock.DEVICES),
        "bwrap": command(limits, workspace=workspace, mode=mode),
    }


def command(limits: Limits, *, workspace: Path | None, mode: str) -> list[str]:
    """The whole argv; FILTER stands for the descriptor of the seccomp program, the control socket follows."""
    tool = shutil.which("bwrap", path=TRUSTED)
    if tool is None:
        raise SandboxError("bubblewrap is not installed. Type: apt install bubblewrap")
    disk = str(ceil(limits.disk))
    words = [tool, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    words += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    words += ["--uid", "1000", "--gid", "1000", "--hostname", "box", "--seccomp", "FILTER"]
    for path in (*host.SYSTEM, *host.reachable_paths()):
        words += _bind(path)
    words += ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/dev/shm", "/tmp"):
        words += ["--size", disk, "--tmpfs", folder]
    if workspace is not None:
        words += ["--bind" if mode == "rw" else "--ro-bind", str(workspace.resolve()), "/box"]
    else:
        words += ["--size", disk, "--tmpfs", "/box"]
    for root in (*host.SYSTEM, *host.reachable_paths()):
        if host.package_root().startswith(f"{root}/"):
            words += ["--tmpfs", host.package_root(), "--remount-ro", host.package_root()]
    words += ["--chdir", "/box", "--remount-ro", "/", "--"]
    return [*words, host.reachable_python(), "-I", "-S", "-B", "-X", "utf8", "-c", launch.BOOTSTRAP]


def _bind(path: str) -> list[str]:
    place = Path(path)
    if place.is_symlink() and path.count("/") == 1:
        return ["--symlink", str(place.readlink()), path]
    return ["--ro-bind", path, path] if place.exists() else []
