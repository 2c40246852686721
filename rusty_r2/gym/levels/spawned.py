# SPDX-License-Identifier: AGPL-3.0-or-later
"""The sandbox all levels share: a workspace descriptor, and a spawner that runs payloads in it.

A level gives it a spawner, the folder seen from outside, and what the payload sees; the rest is the same
everywhere.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any

from rusty_r2.errors import SandboxError
from rusty_r2.gym.levels import files, kernel
from rusty_r2.gym.levels.launch import Spawner
from rusty_r2.gym.levels.watch import Process, watch
from rusty_r2.gym.sandbox import Guest, Limits, Reason, Result, Sandbox


@dataclass
class Place:
    """What a level hands over when it opens a workspace."""

    level: str
    degraded: tuple[str, ...]
    spawner: Spawner
    request: dict[str, Any]
    """what every run request of this workspace says: its id, network, cwd, environment"""
    folder: int
    """the workspace, as a directory descriptor of ours"""
    uid: int
    gid: int
    by_pidfd: bool
    release: Callable[[], object]
    over: Callable[[Limits], Reason | None] | None = None
    """asked during a run whether the workspace has outgrown its limits"""
    writable: bool = True
    owned: bool = True
    """false for the user's own folder: its modes are the user's business"""
    protect: tuple[str, ...] = ()
    """paths that `write` refuses too"""
    finish: Callable[[Result], Result] = field(default=lambda result: result)
    """what a level adds to a result"""


class SpawnedGuest(Guest):
    def __init__(self, box: SpawnedSandbox, process: Process, channel: socket.socket, limits: Limits) -> None:
        self.channel = channel
        self._process = process
        self._end: Result | BaseException | None = None
        self._thread = threading.Thread(
            target=self._watch, args=(box, limits), daemon=True, name="rusty-guest"
        )
        self._thread.start()

    def _watch(self, box: SpawnedSandbox, limits: Limits) -> None:
        try:
            self._end = box.watch(self._process, limits)
        except BaseException as error:
            self._end = error

    def kill(self) -> None:
        self._process.kill("cancelled")

    @property
    def lives(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self.kill()
        self._thread.join()

    def wait(self) -> Result:
        self._thread.join()
        if isinstance(self._end, Result):
            return self._end
        raise SandboxError(f"a guest could not be watched: {self._end}") from self._end


class SpawnedSandbox(Sandbox):
    def __init__(self, place: Place, limits: Limits) -> None:
        self._place, self._limits = place, limits
        self.level, self.degraded = place.level, place.degraded
        self.cwd = place.request["cwd"]
        self._guests: list[SpawnedGuest] = []
        self._open = True

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        limits: Limits | None = None,
        cancel: threading.Event | None = None,
    ) -> Result:
        argv = [SHELL, "-c", command] if isinstance(command, str) else list(command)
        limits = limits or self._limits
        process = self._start({"argv": argv}, limits, [])
        return self.watch(process, limits, stdin=stdin, cancel=cancel)

    def guest(self, source: str, *, limits: Limits | None = None) -> Guest:
        ours, theirs = socket.socketpair()
        limits = limits or self._limits
        try:
            with theirs:
                process = self._start({"source": source}, limits, [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        guest = SpawnedGuest(self, process, ours, limits)
        self._guests = [*(other for other in self._guests if other.lives), guest]
        return guest

    def watch(
        self, process: Process, limits: Limits, *, stdin: bytes = b"", cancel: threading.Event | None = None
    ) -> Result:
        over = self._place.over
        result = watch(
            process,
            limits,
            level=self.level,
            degraded=self.degraded,
            stdin=stdin,
            cancel=cancel,
            also=(lambda: over(limits)) if over else None,
        )
        return self._place.finish(result)

    def _start(self, job: dict[str, Any], limits: Limits, extra: list[int]) -> Process:
        """Pipes, one request, and a process to watch. The job goes by its own descriptor (see zygote.py)."""
        self._check_open()
        whole = {name: ceil(value) for name, value in asdict(limits).items()}
        request = {"op": "run", "guest": bool(extra), "limits": whole} | self._place.request
        ours: list[int] = []
        theirs: list[int] = []
        try:
            for inward in (True, False, False, False, True):  # stdin, stdout, stderr, status, control
                read, write = os.pipe()
                ours.append(write if inward else read)
                theirs.append(read if inward else write)
            theirs.insert(4, _job(job))
            _, (pidfd,) = self._place.spawner.ask(request, theirs + extra)
        except BaseException as error:
            for descriptor in ours:
                os.close(descriptor)
            if isinstance(error, OSError):
                raise SandboxError(f"this machine failed the sandbox: {error}") from error
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        stdin, stdout, stderr, status, control = ours
        return Process(
            pidfd,
            stdin,
            stdout,
            stderr,
            status,
            control,
            by_pidfd=self._place.by_pidfd,
            in_place=bool(extra) and self._place.by_pidfd,
        )

    @contextlib.contextmanager
    def _folder(self) -> Iterator[None]:
        """With the payload's rights, and in a folder of ours whatever mode the payload gave it."""
        self._check_open()
        with kernel.acting_as(self._place.uid, self._place.gid):
            try:
                if self._place.owned:
                    os.fchmod(self._place.folder, 0o755)
                yield
            except OSError as error:
                if error.errno in HOST_FAULTS:
                    raise SandboxError(f"this machine failed the sandbox: {error}") from error
                raise

    def read(self, path: str) -> bytes:
        with self._folder():
            return files.read(self._place.folder, path, self._limits.disk, owned=self._place.owned)

    def write(self, path: str, content: str | bytes) -> None:
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        if not self._place.writable:
            raise PermissionError(errno.EROFS, f"the workspace is read-only: {path!a}")
        clean = os.path.normpath(path)
        if any(clean == kept or clean.startswith(f"{kept}/") for kept in self._place.protect):
            raise PermissionError(errno.EPERM, f"{path!a} is protected")
        with self._folder():
            files.write(self._place.folder, path, data, owned=self._place.owned)

    def files(self) -> dict[str, bytes]:
        with self._folder():
            return files.collect(self._place.folder, self._limits.disk, owned=self._place.owned)

    def close(self) -> None:
        if self._open:
            self._open = False
            for guest in self._guests:
                guest.end()
            os.close(self._place.folder)
            with contextlib.suppress(SandboxError):
                self._place.release()

    def _check_open(self) -> None:
        if not self._open:
            raise SandboxError("this sandbox is closed")


HOST_FAULTS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
"""errors that no payload can bring about from inside"""
SHELL = shutil.which("bash", path="/usr/bin:/bin") or "/bin/sh"


def _job(job: dict[str, Any]) -> int:
    descriptor = os.memfd_create("job")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(json.dumps(job).encode())
    return descriptor
