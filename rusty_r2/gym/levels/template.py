# SPDX-License-Identifier: AGPL-3.0-or-later
"""Level `ns`, inside: a small read-only root, built once; fresh namespaces cut from it for every run.

Once, in the zygote: new user, mount, pid, network, ipc, uts and cgroup namespaces; a tmpfs root with /usr
and the like bound read-only; the host's tree detached. From then on the zygote itself sees no host file,
process or network. For each run: one clone into new user, mount, pid and ipc namespaces, the workspace
bound on /box, a fresh read-only /proc, no capabilities, rlimits, Landlock, seccomp. Killing the run's
first process kills the whole pid namespace. Where a person gave the host's network to their own folder, the
zygote and its runs stay in it, without any right over it.

Started by root, the zygote opens what it must as root and then becomes an ordinary uid: no payload keeps
host uid 0.
"""
# ruff: noqa: PTH102, PTH103, PTH106, PTH110, PTH112, PTH114, PTH115, PTH120, PTH211

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

from rusty_r2.gym.levels import bound, kernel, payload, seccomp

SAFE = kernel.NO_SUID | kernel.NO_DEV
DEVICES = ("null", "zero", "full", "random", "urandom")
LINKS = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
"""in /dev, to /proc/self"""
ETC = {
    "passwd": "root:x:0:0::/:/bin/sh\nbox:x:1000:1000::/box:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
    "group": "root:x:0:\nbox:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n",
}
ALL_NEW = kernel.NEW_USER | kernel.NEW_MOUNT | kernel.NEW_PID | kernel.NEW_NET | kernel.NEW_IPC
ALL_NEW |= kernel.NEW_UTS | kernel.NEW_CGROUP
OLD = "/.old"
SCOPED = 6
"""the Landlock version that keeps abstract sockets apart"""


def prepare(config: dict[str, Any]) -> int:
    """What only a launcher that is root can do: root's folder for a user who is not. -1: nothing to do."""
    return bound.idmapped(config) if config["workspace"] and config["was_root"] else -1


def clone_zygote(config: dict[str, Any]) -> tuple[int, int]:
    """Clone into the namespaces; the parent maps the ids, then opens the gate that the child waits at."""
    wait, go = os.pipe()
    pid = kernel.clone(ALL_NEW & ~kernel.NEW_NET if config["network"] == "host" else ALL_NEW)
    if pid == 0:
        kernel.die_with_parent()
        os.close(go)
        return 0, wait
    os.close(wait)
    if not config["was_root"]:
        kernel.write_file(f"/proc/{pid}/setgroups", "deny")
    kernel.write_file(f"/proc/{pid}/uid_map", f"{payload.INSIDE} {config['uid']} 1")
    kernel.write_file(f"/proc/{pid}/gid_map", f"{payload.INSIDE} {config['gid']} 1")
    os.write(go, b"1")
    return pid, go


class Namespaces:
    """The zygote's half of `ns`: workspaces it holds, runs it starts."""

    def __init__(self, config: dict[str, Any], gate: int, tree: int) -> None:
        if not os.read(gate, 1):
            os._exit(1)
        os.close(gate)
        self.notes: list[str] = []
        self.landlock = kernel.landlock_version()
        if not self.landlock:
            self.notes.append("no Landlock: mounts and seccomp alone guard the files")
        if config["network"] == "host" and self.landlock < SCOPED:
            raise OSError(
                f"Landlock {self.landlock} does not keep a run from the host's abstract sockets; "
                f"for a network version {SCOPED} (Linux 6.12) is needed"
            )
        known = ("none", "loopback", "host")
        self.filters = {network: seccomp.program(kernel.ARCH, network) for network in known}
        self.mode = config["mode"] if config["workspace"] else ""
        self._build(config, tree)

    def _build(self, config: dict[str, Any], tree: int) -> None:
        sources = {
            path: os.open(path, os.O_PATH | os.O_CLOEXEC)
            for path in config["read_only"]
            if os.path.exists(path)
        }
        links = {path: os.readlink(path) for path in config["read_only"] if os.path.islink(path)}
        if self.mode and tree < 0:
            folder = os.open(config["workspace"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            folder = tree
        if config["was_root"]:
            kernel.become(payload.INSIDE, payload.INSIDE)
        kernel.mount("none", "/", flags=kernel.RECURSIVE | kernel.PRIVATE)
        kernel.mount("tmpfs", "/tmp", "tmpfs", SAFE, "size=1m,nr_inodes=1024,mode=755")
        os.chdir("/tmp")
        os.mkdir(OLD[1:])
        kernel.pivot_root(".", OLD[1:])
        os.chdir("/")
        for path, descriptor in sources.items():
            if path in links and path.count("/") == 1:
                os.symlink(links[path], path)
            else:
                _bind_read_only(descriptor, path)
            os.close(descriptor)
        _furnish(config["etc"])
        for path in config["hidden"]:
            if os.path.isdir(path):
                kernel.mount("tmpfs", path, "tmpfs", SAFE | kernel.READ_ONLY, "size=4k,nr_inodes=2,mode=555")
        kernel.mount("tmpfs", "/ws", "tmpfs", SAFE, "size=1m,nr_inodes=65536,mode=700")
        if self.mode:
            self.notes += bound.mount(config, folder, OLD, detached=tree >= 0)
        self._mount_proc("/proc", 0)
        kernel.unmount(OLD)
        os.rmdir(OLD)
        kernel.mount("none", "/", flags=kernel.REMOUNT | kernel.BIND | kernel.READ_ONLY | SAFE)
        kernel.set_hostname(b"box")

    def _mount_proc(self, target: str, extra: int) -> None:
        kernel.mount("proc", target, "proc", SAFE | kernel.NO_EXEC | extra)

    def open(self, request: dict[str, Any]) -> list[int]:
        """A new workspace: one tmpfs for all that its runs may write, held until `close`. Its folders."""
        folder = f"/ws/{request['id']}"
        os.mkdir(folder)
        kernel.mount(
            "tmpfs", folder, "tmpfs", SAFE, f"size={request['disk']},nr_inodes={request['inodes']},mode=755"
        )
        for name in ("box", "tmp", "shm"):
            os.mkdir(f"{folder}/{name}")
        if self.mode == "overlay":
            bound.overlay(folder)
        seen = [self._box(folder), *([f"{folder}/up", bound.WORK] if self.mode == "overlay" else [])]
        return [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in seen]

    def _box(self, folder: str) -> str:
        return {"": f"{folder}/box", "overlay": bound.OVER}.get(self.mode, bound.WORK)

    def close(self, request: dict[str, Any]) -> None:
        folder = f"/ws/{request['id']}"
        kernel.unmount(folder)
        os.rmdir(folder)

    def spawn(self, request: dict[str, Any], fds: list[int]) -> int:
        flags = kernel.NEW_USER | kernel.NEW_MOUNT | kernel.NEW_PID | kernel.NEW_IPC
        # One empty network serves all runs while Landlock keeps them from meeting in it by abstract sockets.
        if request["network"] == "loopback" or self.landlock < SCOPED:
            flags |= kernel.NEW_NET
        pid = kernel.clone(flags)
        if pid == 0:
            payload.child(request, fds, lambda: self._confine(request), in_place=request["guest"])
        return pid

    def _confine(self, request: dict[str, Any]) -> None:
        kernel.die_with_parent()
        kernel.map_ids("self", payload.INSIDE, payload.INSIDE, payload.INSIDE)
        folder = f"/ws/{request['id']}"
        for source, target in (
            (self._box(folder), "/box"),
            (f"{folder}/tmp", "/tmp"),
            (f"{folder}/shm", "/dev/shm"),
        ):
            kernel.mount(source, target, flags=kernel.BIND | kernel.RECURSIVE)
        kernel.mount("/empty", "/ws", flags=kernel.BIND)  # the workspaces of others go out of sight
        self._mount_proc("/proc", kernel.READ_ONLY)
        if request["network"] == "loopback":
            kernel.loopback_up()
        kernel.drop_capabilities()
        kernel.no_new_privileges()
        kernel.limit(request["limits"])
        if self.landlock:
            kernel.landlock(
                ["/"],
                ["/box", "/tmp", "/dev/shm", *(f"/dev/{name}" for name in DEVICES)],
                version=self.landlock,
                network=request["network"],
            )
        kernel.install_filter(self.filters[request["network"]])
        kernel.dumpable(False)


def _bind_read_only(source: int, target: str) -> None:
    if stat.S_ISDIR(os.fstat(source).st_mode):
        os.makedirs(target, exist_ok=True)
    else:
        _touch(target)
    kernel.mount(f"{OLD}/proc/self/fd/{source}", target, flags=kernel.BIND | kernel.RECURSIVE)
    kernel.set_attributes(target, kernel.READ_ONLY | SAFE)


def _furnish(etc: dict[str, str]) -> None:
    """The little that programs expect: users, devices, places to mount on; `etc` where there is a network."""
    for name, text in {**ETC, **etc}.items():
        _touch(f"/etc/{name}")
        kernel.write_file(f"/etc/{name}", text)
    for name in DEVICES:
        _touch(f"/dev/{name}")
        kernel.mount(f"{OLD}/dev/{name}", f"/dev/{name}", flags=kernel.BIND)
        kernel.set_attributes(f"/dev/{name}", kernel.NO_SUID | kernel.NO_EXEC)
    for name, target in LINKS.items():
        with contextlib.suppress(FileExistsError):
            os.symlink(f"/proc/self/{target}", f"/dev/{name}")
    for folder in ("/box", "/tmp", "/dev/shm", "/proc", "/ws", "/empty", bound.WORK, bound.OVER):
        os.makedirs(folder, exist_ok=True)


def _touch(path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
