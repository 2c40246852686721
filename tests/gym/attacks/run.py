# SPDX-License-Identifier: AGPL-3.0-or-later
"""Run the battery and print one JSON object: attack name → whether it succeeded.

    python3 tests/gym/attacks/run.py --level ns          all of them in that sandbox
    python3 tests/gym/attacks/run.py --network           in a folder that was given the host's network
    python3 tests/gym/attacks/run.py --control           with no sandbox: do they bite?

A script of its own, on the standard library only, so that it can be started as any user and by any Python.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import files  # noqa: E402
import processes  # noqa: E402
import system  # noqa: E402
from world import Attack, World  # noqa: E402

from rusty_r2.gym.levels import host  # noqa: E402
from rusty_r2.gym.sandbox import Limits, open_sandbox  # noqa: E402

BATTERY = files.ATTACKS + processes.ATTACKS + system.ATTACKS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", default="ns")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    world = World()
    found = {}
    for attack in BATTERY:
        if not attack.name.startswith(options.only):
            continue
        if options.control and not bites_here(attack):
            continue
        world.reset()
        level = None if options.control else options.level
        found[attack.name], result = attempt(attack, world, level, network=options.network)
        if options.v and found[attack.name] != options.control:
            print(attack.name, attack.what, result, file=sys.stderr)
    world.close()
    shutil.rmtree(world.home, ignore_errors=True)
    succeeded = sorted(name for name in found if found[name])
    failed = sorted(name for name in found if not found[name])
    print(json.dumps({"uid": os.geteuid(), "attacks": len(found), "succeeded": succeeded, "failed": failed}))


def bites_here(attack: Attack) -> bool:
    return attack.bites == "any" or (attack.bites == "root" and os.geteuid() == 0)


def attempt(attack: Attack, world: World, level: str | None, *, network: bool) -> tuple[bool, object]:
    """One attack, in a fresh sandbox (or a person's folder, as `rusty chat` opens it) or in none."""
    special = {"<package>": host.package_root(), "<hostname>": socket.gethostname()}
    command = attack.command(world)
    for key, value in special.items():
        command = [word.replace(key, value) for word in command]
    if level is None:
        result = bare(command)
    else:
        limits = Limits(**{"wall_s": 8.0, **attack.limits})
        with tempfile.TemporaryDirectory() as folder:
            given = {"workspace": Path(folder), "mode": "overlay", "network": "host"} if network else {}
            with open_sandbox(level=level, at_least="landlock", limits=limits, **given) as box:
                result = box.run(command)
    return attack.succeeded(world, result), result


def bare(command: list[str]) -> SimpleNamespace:
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        environment = os.environ | {"TMPDIR": folder}
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        return SimpleNamespace(stdout=out, stderr=err, wall_s=time.monotonic() - start, reason="exit")


if __name__ == "__main__":
    main()
