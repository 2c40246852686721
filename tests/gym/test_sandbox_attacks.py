# SPDX-License-Identifier: AGPL-3.0-or-later
"""The attack battery (attacks/) at every level this machine offers, as this user and, for root, as a
stranger too.

Each attack must fail inside; the ones that are safe to try must succeed outside, or they prove nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rusty_r2.gym.sandbox import probe

SCRIPT = Path(__file__).parent / "attacks" / "run.py"
STRANGER = 12345
GAPS = {
    "ns": set(),
    "bwrap": {"D02"},
    "landlock": {"R14", "D01", "D02", "D04"},
}
"""named in docs/sandbox.md: no inode limit; processes can be seen to exist, the quota is only looked at"""


def levels() -> list[str]:
    return [report.name for report in probe() if report.available and report.name != "off"]


def battery(user: str, *options: str) -> dict:
    if user == "stranger":
        if os.geteuid() != 0:
            pytest.skip("only root can become a stranger")
        python = shutil.which("python3", path="/usr/bin:/bin")
        if python is None or not readable_by_all(SCRIPT):
            pytest.skip("a stranger can reach no Python or not this checkout")
        identity = {"user": STRANGER, "group": STRANGER, "extra_groups": []}
    else:
        python, identity = sys.executable, {}
    done = subprocess.run(
        [python, "-B", str(SCRIPT), *options],
        capture_output=True, text=True, cwd="/", timeout=590,
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp"}, **identity,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def readable_by_all(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in path.parents) and bool(
        path.stat().st_mode & 0o004
    )


@pytest.mark.parametrize("user", ["self", "stranger"])
@pytest.mark.timeout(600)
def test_nothing_gets_through(level: str, user: str) -> None:
    found = battery(user, "--level", level)
    assert set(found["succeeded"]) - GAPS[level] == set()
    assert found["attacks"] >= 110


REACHED = {"N01", "N02", "N03", "N04", "N08", "N10", "N12", "N13"}
"""what a person gives away with the host's network, said in docs/sandbox.md"""


@pytest.mark.skipif("ns" not in levels(), reason="a network needs ns")
@pytest.mark.timeout(600)
def test_with_the_hosts_network_nothing_but_the_network_is_reached() -> None:
    found = battery("self", "--network")
    assert set(found["succeeded"]) - REACHED == set() and {"N01", "N03"} <= set(found["succeeded"])


@pytest.mark.parametrize("user", ["self", "stranger"])
@pytest.mark.timeout(600)
def test_the_attacks_bite_without_a_sandbox(user: str) -> None:
    found = battery(user, "--control")
    assert found["failed"] == []
    assert found["attacks"] >= 60
