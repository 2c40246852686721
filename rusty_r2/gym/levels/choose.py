# SPDX-License-Identifier: AGPL-3.0-or-later
"""Which level to use: found by really opening a sandbox at each and running something in it.

The answers are remembered in this process only: one kernel answers differently in a container. A level that
was good and then fails when opened is an error, never a quiet step down.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from rusty_r2.errors import ConfigError, RustyError, SandboxError
from rusty_r2.gym.levels import bwrap, kernel, landlock, ns, seccomp
from rusty_r2.gym.sandbox import LEVELS, LevelReport, Limits, Mode, Network, Sandbox

APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
USERNS = Path("/proc/sys/user/max_user_namespaces")


def pick(level: str, at_least: str) -> str:
    """The level to open. `auto` is the strongest that works; nothing below `at_least` is ever returned."""
    for word in (level, at_least):
        if word not in (*LEVELS, "auto"):
            raise ConfigError(f"there is no sandbox level {word!a}; say auto or one of {', '.join(LEVELS)}")
    floor = LEVELS.index(at_least)
    if level != "auto":
        if LEVELS.index(level) > floor:
            raise ConfigError(
                f"the sandbox level {level} is weaker than {at_least}, which is the least allowed here"
            )
        return level
    tried = []
    for name in LEVELS[: min(floor + 1, LEVELS.index("off"))]:
        tried.append(_try(name, os.getpid(), os.geteuid()))
        if tried[-1].available:
            return name
    reasons = "; ".join(f"{report.name}: {report.why}" for report in tried)
    raise SandboxError(f"no sandbox level works here ({reasons}). See: rusty doctor")


def open_level(
    level: str,
    limits: Limits,
    *,
    workspace: Path | None,
    mode: Mode,
    protect: tuple[str, ...],
    network: Network,
) -> Sandbox:
    _check_system()
    if workspace is not None and not workspace.is_dir():
        raise ConfigError(f"{workspace} is not a folder")
    if level == "ns":
        return ns.open_ns(limits, workspace=workspace, mode=mode, protect=protect, network=network)
    if level == "bwrap":
        return bwrap.open_bwrap(limits, workspace=workspace, mode=mode, protect=protect, network=network)
    return landlock.open_jail(level, limits, workspace=workspace, mode=mode, protect=protect, network=network)


def _check_system() -> None:
    if sys.platform != "linux":
        raise SandboxError(
            f"the sandbox needs Linux; this is {platform.system()}. Run it in a Linux container or machine"
        )
    if kernel.ARCH not in seccomp.NUMBERS or not hasattr(os, "pidfd_open"):
        raise SandboxError(f"the sandbox needs Linux 5.3 on x86_64 or aarch64; this is {platform.platform()}")


def reports(*, every: bool = True) -> list[LevelReport]:
    """All levels, or those down to the first that works: what `auto` picks, and what stood in its way."""
    found: list[LevelReport] = []
    for level in LEVELS[: LEVELS.index("off")]:
        found.append(_try(level, os.getpid(), os.geteuid()))
        if found[-1].available and not every:
            return found
    return [*found, OFF]


OFF = LevelReport("off", True, "never chosen for you: it must be typed", ("nothing is confined",))


@lru_cache(maxsize=16)
def _try(level: str, pid: int, uid: int) -> LevelReport:
    """Open it, run a command, and see that the command could not see a file of ours."""
    try:
        with (
            tempfile.NamedTemporaryFile() as canary,
            open_level(
                level, Limits(wall_s=20), workspace=None, mode="rw", protect=(), network="none"
            ) as box,
        ):
            Path(canary.name).chmod(0o644)
            result = box.run(f"echo works; cat {canary.name} && echo leaks")
    except (RustyError, OSError) as error:
        return LevelReport(level, False, f"{str(error).removesuffix('. See: rusty doctor')}{_hint(level)}")
    if result.stdout != b"works\n":
        return LevelReport(level, False, f"it opened but did not confine: {result.output!a}")
    return LevelReport(level, True, "a command ran in it and saw no file outside", box.degraded)


def _hint(level: str) -> str:
    if level != "ns":
        return ""
    with contextlib.suppress(OSError):
        if APPARMOR.read_text().strip() == "1":
            return (
                " (AppArmor restricts user namespaces here. Type: apt install bubblewrap apparmor-profiles)"
            )
    with contextlib.suppress(OSError):
        if USERNS.read_text().strip() == "0":
            return " (user.max_user_namespaces is 0. Type: sysctl user.max_user_namespaces=10000)"
    return " (containers often forbid user namespaces; landlock needs none)"
