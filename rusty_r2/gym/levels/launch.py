# SPDX-License-Identifier: AGPL-3.0-or-later
"""Start a spawner and talk to it. The other end of the socket is zygote.py.

The spawner is an exec'd Python with an empty environment and no site packages; its modules are sent to
it, so it works from wherever this package is installed. It ends when this process ends, however that
happens.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

from rusty_r2.errors import SandboxError

MODULES = ("seccomp", "kernel", "payload", "bound", "template", "jail", "zygote")
"""in the order they can be executed"""
START_S = 30.0
MESSAGE = 1 << 16

BOOTSTRAP = """
import json, socket, sys, types
control = socket.socket(fileno=int(sys.argv[1]))
control.settimeout(None)
message = json.loads(control.recv(1 << 20))
for name, source in message["modules"]:
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    parent, _, leaf = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], leaf, module)
    exec(compile(source, name, "exec"), module.__dict__)
sys.modules["rusty_r2.gym.levels.zygote"].main(control, message["config"])
"""


def sources() -> list[tuple[str, str]]:
    """The modules of the inside, as (name, text); the packages above them are empty."""
    here = Path(__file__).parent
    packages = [(name, "") for name in ("rusty_r2", "rusty_r2.gym", "rusty_r2.gym.levels")]
    return packages + [
        (f"rusty_r2.gym.levels.{name}", (here / f"{name}.py").read_text("utf-8")) for name in MODULES
    ]


class Spawner:
    """One running zygote; any thread may ask it."""

    def __init__(self, config: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._next = self._asked = 0
        boot: dict[str, Any] = {"modules": sources(), "config": config | {"supervisor": os.getpid()}}
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        with theirs, contextlib.ExitStack() as failed:
            failed.enter_context(ours)
            self._process = subprocess.Popen(
                [config["python"], "-I", "-S", "-B", "-X", "utf8", "-c", BOOTSTRAP, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            failed.pop_all()
        ours.settimeout(START_S)
        try:
            ours.send(json.dumps(boot).encode())
            if config["level"] == "bwrap":
                boot["config"]["level"] = "inside bwrap"
                ours.send(json.dumps(boot).encode())
            self.notes: list[str] = _checked(self._receive()[0])["notes"]
        except BaseException:
            self.close()
            raise

    def number(self) -> int:
        with self._lock:
            self._next += 1
            return self._next

    def ask(
        self, request: dict[str, Any], descriptors: list[int] | None = None
    ) -> tuple[dict[str, Any], list[int]]:
        """One request, one reply; an error in it is raised."""
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        )
        with self._lock:
            self._asked += 1
            message = json.dumps(request | {"turn": self._asked}).encode()
            try:
                self._socket.sendmsg([message], rights)
            except OSError as error:
                raise SandboxError(f"the sandbox's spawner is gone ({error}). See: rusty doctor") from error
            while True:
                reply, found = self._receive()
                if reply["turn"] == self._asked:
                    break
                _discard(reply, found)  # the answer to a question that was interrupted
        return _checked(reply), found

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(MESSAGE, socket.CMSG_SPACE(4 * 4))
        except OSError as error:
            raise SandboxError(
                f"the sandbox's spawner does not answer ({error}). See: rusty doctor"
            ) from error
        if not data:
            raise SandboxError("the sandbox's spawner ended unexpectedly. See: rusty doctor")
        found = array.array("i")
        for _, _, rights in ancillary:
            found.frombytes(rights[: len(rights) - len(rights) % found.itemsize])
        if flags & socket.MSG_CTRUNC:  # some of them had no place in this process
            _discard(json.loads(data), list(found))
            raise SandboxError("this process can open no more files. Type: ulimit -n 4096")
        return json.loads(data), list(found)

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Hang up: the spawner and everything it started end."""
        self._socket.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    if "error" in reply:
        raise SandboxError(f"the sandbox could not be set up: {reply['error']}. See: rusty doctor")
    return reply


def _discard(reply: dict[str, Any], descriptors: list[int]) -> None:
    for descriptor in descriptors:
        if "pid" in reply:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
