# SPDX-License-Identifier: AGPL-3.0-or-later
"""A small host worth attacking, with secrets, a victim and listeners; and the shape of an attack."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rusty_r2.gym.levels import seccomp
from rusty_r2.gym.levels.kernel import ARCH

CANARY = "canary-7f3a91c2"
SLEEP = "424243"


class World:
    """What the payload must neither read, change, end nor reach."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="rusty-victim-"))
        self.home.chmod(0o755)
        self.secret = self.home / ".ssh" / "id_ed25519"
        self.secret.parent.mkdir()
        self.target = self.home / "target.txt"
        self.victim = subprocess.Popen(
            ["sleep", SLEEP[:-1]], env={"PATH": "/usr/bin:/bin", "API_KEY": CANARY}
        )
        self.hits: set[str] = set()
        self.ports = {name: self._listen(name) for name in ("tcp", "udp")}
        self.unix = str(self.home / "docker.sock")
        self.abstract = f"rusty-victim-{os.getpid()}"
        self._serve_unix("unix", self.unix)
        self._serve_unix("abstract", "\0" + self.abstract)
        os.environ["API_KEY"] = CANARY
        self.reset()

    def reset(self) -> None:
        self.secret.write_text(CANARY)
        self.target.write_text("orig")
        for name in ("new", "link-made"):
            (self.home / name).unlink(missing_ok=True)
        self.hits.clear()

    def _listen(self, name: str) -> int:
        kind = socket.SOCK_STREAM if name == "tcp" else socket.SOCK_DGRAM
        server = socket.socket(socket.AF_INET, kind)
        server.bind(("127.0.0.1", 0))
        threading.Thread(target=self._wait, args=(name, server), daemon=True).start()
        return int(server.getsockname()[1])

    def _serve_unix(self, name: str, address: str) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.bind(address)
        if name == "unix":
            Path(address).chmod(0o777)
        threading.Thread(target=self._wait, args=(name, server), daemon=True).start()

    def _wait(self, name: str, server: socket.socket) -> None:
        if server.type == socket.SOCK_STREAM:
            server.listen()
        while True:
            if server.type == socket.SOCK_STREAM:
                server.accept()[0].close()
            else:
                server.recv(64)
            self.hits.add(name)

    @property
    def victim_lives(self) -> bool:
        return self.victim.poll() is None

    @property
    def unharmed(self) -> bool:
        return self.target.exists() and self.target.read_text() == "orig" and not (self.home / "new").exists()

    def close(self) -> None:
        self.victim.send_signal(signal.SIGKILL)
        self.victim.wait()

    def words(self) -> dict[str, Any]:
        """What attack scripts may name in braces."""
        return {
            "home": self.home, "secret": self.secret, "target": self.target, "victim": self.victim.pid,
            "tcp": self.ports["tcp"], "udp": self.ports["udp"], "unix": self.unix, "abstract": self.abstract,
            "sleep": SLEEP, "me": os.getpid(),
        }  # fmt: skip


@dataclass(frozen=True)
class Attack:
    name: str
    what: str
    argv: tuple[str, ...]
    """words in angle brackets, such as <secret>, are filled in from the world"""
    bites: str = "never"
    """without a sandbox it succeeds for: any user, only root, never; or it is too rude to try (rude)"""
    escaped: Callable[[World, Any], bool] | None = None
    """given the world and the Result; by default: ESCAPED or the canary was printed"""
    limits: dict[str, Any] = field(default_factory=dict)

    def command(self, world: World) -> list[str]:
        filled = list(self.argv)
        for key, value in world.words().items():
            filled = [word.replace(f"<{key}>", str(value)) for word in filled]
        return filled

    def succeeded(self, world: World, result: Any) -> bool:
        if self.escaped is not None:
            return self.escaped(world, result)
        output = result.stdout + result.stderr
        return b"ESCAPED" in output or CANARY.encode() in output


def sh(script: str) -> tuple[str, ...]:
    return ("/bin/bash", "-c", script)


PRELUDE = f"""
import ctypes, errno, os, signal, socket, struct, sys, time, threading, mmap
libc = ctypes.CDLL(None, use_errno=True)
NR = {seccomp.NUMBERS.get(ARCH, {})!r}
def call(name, *args):
    number = NR[name] if isinstance(name, str) else name
    r = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    return r if r >= 0 else -ctypes.get_errno()
def escaped(*why):
    print("ESCAPED", *why, flush=True)
def reached(name, *args):
    r = call(name, *args)
    if r not in (-errno.EPERM, -errno.ENOSYS, -errno.EACCES): escaped(name, r)
"""


def py(script: str) -> tuple[str, ...]:
    return ("python3", "-I", "-S", "-B", "-c", PRELUDE + script)
