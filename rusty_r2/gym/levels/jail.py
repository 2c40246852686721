# SPDX-License-Identifier: AGPL-3.0-or-later
"""The inside of the levels `landlock`, `bwrap` and `off`: runs without namespaces of their own.

Every run has a keeper and a payload. The keeper stands in a Landlock domain that lets no signal out, so
its `kill(-1)` reaches the whole tree of the payload and nobody else: a process group that cannot be left.
The payload stands in a second domain below it, with the file rules, seccomp and rlimits; it can neither
signal nor trace the keeper. The keeper ends the run when the payload ends, when the supervisor says so or
is gone, or when the spawner is gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from typing import Any, NoReturn

from rusty_r2.gym.levels import kernel, payload, seccomp

SCOPED = 6
"""the Landlock version that can keep signals in"""


class Jail:
    """The zygote's half: `config["confine"]` is false only for `off`."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.notes: list[str] = []
        self.config = config
        self.landlock = kernel.landlock_version() if config["confine"] else 0
        by_path = config["level"] != "landlock" or config["was_root"]
        self.filter = seccomp.program(kernel.ARCH, config["network"], by_path=by_path)
        if config["was_root"] and config["level"] == "landlock":
            kernel.become(config["uid"], config["gid"])
        if config["confine"] and self.landlock < SCOPED:
            if config["level"] == "landlock":
                raise OSError(
                    f"Landlock {self.landlock} cannot keep signals in; version {SCOPED} (Linux 6.12) can"
                )
            self.notes.append(
                "old Landlock: leftovers of a run are hunted one by one until the sandbox closes"
            )
        if config["confine"]:
            kernel.dumpable(False)

    def open(self, request: dict[str, Any]) -> list[int]:
        return [os.open(request["folder"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]

    def close(self, request: dict[str, Any]) -> None:
        """The folder is the supervisor's to remove."""

    def spawn(self, request: dict[str, Any], fds: list[int]) -> int:
        zygote = os.pidfd_open(os.getpid())
        pid = os.fork()
        if pid == 0:
            self._keep(request, fds, zygote)
        os.close(zygote)
        return pid

    def _keep(self, request: dict[str, Any], fds: list[int], zygote: int) -> NoReturn:
        status = fds[payload.STATUS]
        try:
            os.setsid()
            kernel.adopt_orphans()
            if self.config["confine"]:
                kernel.landlock_scope()
            pid = os.fork()
            if pid == 0:
                job = payload.read_job(fds[payload.JOB])
                self._confine(request)
                os.close(status)
                payload.payload(request, job, fds)
            status, control, zygote = payload.keep_only(status, fds[payload.CONTROL], zygote)
            code = self._wait(pid, control, zygote)
            payload.say(status, {"code": code})
            os._exit(0)
        except BaseException as error:
            payload.say(status, {"error": f"{type(error).__name__}: {error}"})
            os._exit(125)

    def _wait(self, pid: int, control: int, zygote: int) -> int:
        """Until the payload ends or must; then until nothing of it is left."""
        pidfd = os.pidfd_open(pid)
        poll = select.poll()
        for descriptor in (pidfd, control, zygote):
            poll.register(descriptor, select.POLLIN)
        if pidfd not in dict(poll.poll()):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(ChildProcessError):
            while True:
                self._kill_all()
                os.waitpid(-1, 0)
        return code

    def _kill_all(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.config["confine"]:
                os.kill(-1, signal.SIGKILL)  # the domain confines it to this run
                return
            for child in _children():
                os.kill(child, signal.SIGKILL)

    def _confine(self, request: dict[str, Any]) -> None:
        kernel.limit(request["limits"], more_processes=_tasks_of(os.getuid()))
        if not self.config["confine"]:
            return
        kernel.landlock(
            [*self.config["read"], *request["read"]],
            [*self.config["write"], *request["write"]],
            version=self.landlock,
            network=self.config["network"],
        )
        kernel.install_filter(self.filter)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def _tasks_of(uid: int) -> int:
    """RLIMIT_NPROC counts all tasks of a uid here: the budget goes on top of those that run already."""
    found = 0
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:  # noqa: PTH116
                    found += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208
    return found


def start_bwrap(control: socket.socket, config: dict[str, Any]) -> int:
    """Run a second spawner inside bubblewrap; it gets its modules by the same socket."""
    filter_file = os.memfd_create("seccomp")
    os.write(filter_file, seccomp.program(kernel.ARCH, config["network"]))
    os.lseek(filter_file, 0, os.SEEK_SET)
    pid = os.fork()
    if pid:
        os.close(filter_file)
        return pid
    try:
        kernel.die_with_parent()
        if config["was_root"]:
            kernel.become(config["uid"], config["gid"])
        for descriptor in (control.fileno(), filter_file):
            os.set_inheritable(descriptor, True)
        words = [str(filter_file) if word == "FILTER" else word for word in config["bwrap"]]
        words += [str(control.fileno())]
        os.execve(words[0], words, {})  # bwrap's own environment is visible inside
    finally:
        os._exit(127)
