# SPDX-License-Identifier: AGPL-3.0-or-later
"""Where commands run: the contract that every sandbox level keeps.

    with open_sandbox(files={"a.py": "print(6 * 7)"}) as box:
        print(box.run("python3 a.py").output)

`open_sandbox` picks the strongest level that really works here: `ns`, `bwrap`, `landlock`. It never picks
`off`, and never one weaker than `at_least`. A command that fails is a Result; only broken infrastructure
is a SandboxError. Wrong paths given to `read` and `write` are OSErrors. The levels themselves are in
levels/, what each promises in docs/sandbox.md.
"""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from rusty_r2.closing import Closing
from rusty_r2.errors import ConfigError, SandboxError
from rusty_r2.gym import safetext

Reason = Literal["exit", "signal", "timeout", "cpu", "memory", "disk", "output", "cancelled"]
Mode = Literal["ro", "rw", "overlay"]
Network = Literal["none", "loopback", "host"]
"""host: all that this machine can reach; only for a person's own folder, and only at the level ns"""

LEVELS = ("ns", "bwrap", "landlock", "off")
"""strongest first"""
DEFAULT_PROTECTED = (
    ".git/hooks", ".git/config", ".git/info", ".gitmodules", ".gitattributes", ".gitconfig", ".github",
    ".gitlab-ci.yml", ".pre-commit-config.yaml", ".vscode", ".idea", ".mcp.json", ".envrc", ".env",
    ".bashrc", ".bash_profile", ".profile", ".zshrc", ".zprofile", ".ssh", ".pypirc", ".npmrc",
)  # fmt: skip
"""files that other programs of the user run or trust later"""


@dataclass(frozen=True)
class Limits:
    wall_s: float = 10.0
    """seconds on the clock, start to end"""
    cpu_s: int = 10
    """seconds of CPU of any one process"""
    mem_process: int = 1 << 30
    """address space of any one process"""
    mem_tree: int = 1 << 30
    """memory of all processes together"""
    nproc: int = 64
    """processes and threads together"""
    nofile: int = 256
    """open files of any one process"""
    fsize: int = 64 << 20
    """length of any one file"""
    disk: int = 64 << 20
    """bytes that all files of the workspace and /tmp may hold"""
    inodes: int = 8192
    """files and folders there"""
    stack: int = 8 << 20
    """stack of a thread"""
    out_keep: int = 64 << 10
    """bytes kept of each stream: the first half and the last half"""
    out_total: int = 16 << 20
    """bytes read of both streams before the run is ended"""


@dataclass(frozen=True)
class Change:
    """What a run did to one path of the user's folder."""

    kind: Literal["added", "modified", "deleted", "protected"]
    """protected: something appeared where a protected path was free"""
    path: str
    size: int = 0


@dataclass(frozen=True)
class Result:
    """How a run ended. A failing command is a result, not an exception."""

    code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool
    dropped: int
    wall_s: float
    cpu_s: float
    max_rss: int
    reason: Reason
    level: str
    degraded: tuple[str, ...] = ()
    changes: tuple[Change, ...] | None = None

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.reason == "exit"

    @property
    def output(self) -> str:
        """Both streams, safe to show on a terminal."""
        return safetext.neutral(self.stdout) + safetext.neutral(self.stderr)


@dataclass(frozen=True)
class LevelReport:
    name: str
    available: bool
    why: str
    """how it was tried, or what stands in the way and what to type"""
    degraded: tuple[str, ...] = ()


class Guest(ABC):
    """A confined Python that runs trusted source first; `channel` is our end of its descriptor 3."""

    channel: socket.socket

    @abstractmethod
    def kill(self) -> None:
        """End it and all it started, now."""

    @abstractmethod
    def wait(self) -> Result:
        """How it ended; blocks until it did, at most until its wall clock."""

    def __enter__(self) -> Guest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.wait()
        self.channel.close()


class Sandbox(Closing, ABC):
    level: str
    degraded: tuple[str, ...]
    cwd: str
    """where commands and guests start, as they see it"""

    @abstractmethod
    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        limits: Limits | None = None,
        cancel: threading.Event | None = None,
    ) -> Result:
        """Run a command to its end; a str goes through the shell. When this returns, nothing of it lives."""

    @abstractmethod
    def guest(self, source: str, *, limits: Limits | None = None) -> Guest:
        """Fork a warm Python, confine it, and let it run `source`."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """One file of the workspace; OSError where there is none, or a link in its place."""

    @abstractmethod
    def write(self, path: str, content: str | bytes) -> None:
        """Make or replace one file of the workspace, with the folders above it."""

    @abstractmethod
    def files(self) -> dict[str, bytes]:
        """All regular files of the workspace; no link is followed. OSError where it holds too much."""

    @abstractmethod
    def close(self) -> None:
        """Give the workspace back. A bound folder stays as it is."""


def open_sandbox(
    *,
    level: str = "auto",
    at_least: str = "landlock",
    limits: Limits | None = None,
    files: Mapping[str, str | bytes] | None = None,
    workspace: Path | None = None,
    mode: Mode = "rw",
    protect: tuple[str, ...] = DEFAULT_PROTECTED,
    network: Network = "none",
) -> Sandbox:
    """A fresh workspace in memory (or the user's folder), at the strongest level this machine offers."""
    from rusty_r2.gym.levels import choose

    box = choose.open_level(
        choose.pick(level, at_least),
        limits or Limits(),
        workspace=workspace,
        mode=mode,
        protect=protect,
        network=network,
    )
    try:
        for path, content in (files or {}).items():
            box.write(path, content)
    except BaseException:
        box.close()
        raise
    return box


def probe(*, every: bool = True) -> list[LevelReport]:
    """Levels tried for real in a child, strongest first; all of them, or down to the first that works."""
    from rusty_r2.gym.levels import choose

    return choose.reports(every=every)


__all__ = [
    "DEFAULT_PROTECTED",
    "Change",
    "ConfigError",
    "Guest",
    "LevelReport",
    "Limits",
    "Result",
    "Sandbox",
    "SandboxError",
    "open_sandbox",
    "probe",
]
