# SPDX-License-Identifier: AGPL-3.0-or-later
"""What of this host a payload gets to see, and as whom it runs. Shared by all levels, on the supervisor's
side. What stays the same as long as this process is looked up once, not for every sandbox.

Started by root, payloads run as another user. At `ns` the spawner opens an interpreter in root's own
folders before it steps down; the other levels cannot, and take one that everybody can reach.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

from rusty_r2.errors import SandboxError

NOBODY = 65534
STRANGERS = 1_900_000_000
"""from here on up, uids of payloads that root starts: one for each process, so that they share nothing"""
SYSTEM = (
    "/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/nix/store",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime",
    "/etc/ssl/certs", "/etc/mime.types",
)  # fmt: skip
"""what programs need to start; nothing here is private to a user"""


NAMES = ("resolv.conf", "hosts", "nsswitch.conf", "services", "protocols")
"""files of /etc that turn names into addresses"""


def names() -> dict[str, str]:
    """What they say; copied, for some are links into folders that a payload does not see."""
    found = {name: Path("/etc", name) for name in NAMES}
    return {name: path.read_text("utf-8", "replace") for name, path in found.items() if path.is_file()}


def identity() -> tuple[int, int]:
    """The host uid and gid of payloads: ours, but never root's."""
    other = _other_id(os.getpid()) if os.geteuid() == 0 else None
    return (os.geteuid(), os.getegid()) if other is None else (other, other)


def steps_down() -> bool:
    """Whether payloads run as somebody else than we do."""
    return identity()[0] != os.geteuid()


@lru_cache(maxsize=1)
def _other_id(pid: int) -> int | None:
    """An id this user namespace knows; None where root is the only one, and so an ordinary user outside."""
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for wanted in (STRANGERS + pid, NOBODY):
        if any(int(first) <= wanted < int(first) + int(count) for first, _, count in ranges):
            return wanted
    return None


@cache
def interpreter_paths() -> tuple[str, ...]:
    """Where this Python's own files are; site packages of a virtual environment are not among them."""
    base = Path(sys.base_prefix).resolve()
    if Path("/usr") in (base, *base.parents):
        return ()
    if base in (Path("/"), Path.home()) or base in Path.home().parents:
        return sysconfig.get_path("stdlib"), python()
    return (str(base),)


def reachable_paths() -> list[str]:
    return [path for path in interpreter_paths() if _reachable(Path(path))]


def _reachable(path: Path) -> bool:
    """Whether the payload's user can walk there."""
    return not steps_down() or all(folder.stat().st_mode & 0o001 for folder in path.parents)


@cache
def python() -> str:
    """The real interpreter: not a shim, not the link of a virtual environment."""
    return str(Path(getattr(sys, "_base_executable", None) or sys.executable).resolve())


def reachable_python() -> str:
    own = python()
    if _reachable(Path(own)):
        return own
    system = shutil.which("python3", path="/usr/bin:/bin")
    if system is None:
        raise SandboxError(
            f"the payload's user cannot reach {sys.base_prefix}. Install a python3 for all users"
        )
    return system


@cache
def package_root() -> str:
    """Our own package holds gold solutions: payloads must not see it."""
    return str(Path(__file__).resolve().parents[2])


def environment(home: str, temporary: str, interpreter: Sequence[str]) -> dict[str, str]:
    """The whole environment of a payload; nothing is inherited."""
    own = [f"{path}/bin" for path in interpreter if Path(path, "bin").is_dir()]
    path = ":".join([*own, "/usr/local/bin", "/usr/bin", "/bin"])
    return {"PATH": path, "HOME": home, "TMPDIR": temporary, "LANG": "C.UTF-8", "USER": "box", "TERM": "dumb"}
