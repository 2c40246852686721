# SPDX-License-Identifier: AGPL-3.0-or-later
"""Which level is chosen where the kernel says no: simulated containers, in child processes."""

# ruff: noqa: E501

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rusty_r2.gym.levels import host, landlock, launch, ns, spawned
from rusty_r2.gym.sandbox import Limits, probe

ROOT = Path(__file__).resolve().parents[2]
AVAILABLE = [report.name for report in probe() if report.available]

CONTAINER = """
import errno, struct, sys
from rusty_r2.gym.levels import kernel, seccomp
from rusty_r2.gym.levels.seccomp import ANY_BIT, EQUAL, LOAD, RETURN, ERRNO, ALLOW, NAMESPACE_FLAGS
numbers = seccomp.NUMBERS[kernel.ARCH]
code = [(LOAD, 0, 0, 0)]
for name in sys.argv[1].split(","):
    code += [(EQUAL, 0, 1, numbers[name]), (RETURN, 0, 0, ERRNO | (errno.ENOSYS if "landlock" in name else errno.EPERM))]
code += [(EQUAL, 0, 3, numbers["clone"]), (LOAD, 0, 0, 16), (ANY_BIT, 0, 1, NAMESPACE_FLAGS), (RETURN, 0, 0, ERRNO | 1)]
code += [(RETURN, 0, 0, ALLOW)]
kernel.no_new_privileges()
kernel.install_filter(b"".join(struct.pack("<HBBI", *step) for step in code))
"""
OPENING = """
from rusty_r2.errors import SandboxError
from rusty_r2.gym.sandbox import open_sandbox, probe
try:
    with open_sandbox() as box:
        print(box.level, box.run("echo ran").stdout)
except SandboxError as error:
    print("refused:", error)
"""
DOCKER = "unshare,setns,mount,umount2,pivot_root,fsopen,open_tree,move_mount,mount_setattr"


NAMES = """
import sys, pytest
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def output(program: str, *words: str) -> str:
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_container(denied: str) -> str:
    return output(CONTAINER + OPENING, denied)


@pytest.mark.skipif("landlock" not in AVAILABLE, reason="needs Landlock 6")
def test_a_container_without_namespaces_gets_landlock() -> None:
    assert in_container(DOCKER) == "landlock b'ran\\n'\n"


def test_where_nothing_works_it_refuses_and_says_why() -> None:
    said = in_container(f"{DOCKER},landlock_create_ruleset")
    assert said.startswith("refused: no sandbox level works here (ns: ")
    assert "landlock: " in said and said.rstrip().endswith("See: rusty doctor")


def test_tests_are_named_alike_where_nothing_works() -> None:
    """Workers that ask a busy machine at different moments must collect the same tests."""
    here = Path(__file__).parent
    files = [
        *here.glob("test_sandbox*.py"),
        here / "hacks",
        here / "test_env.py",
        here.parent / "agent" / "test_workspace.py",
    ]
    said = [
        output(NAMES, "", *map(str, files)),
        output(CONTAINER + NAMES, f"{DOCKER},landlock_create_ruleset", *map(str, files)),
    ]
    names, others = ([line for line in text.splitlines() if "::" in line] for text in said)
    assert names == others and len(names) > 200


@pytest.mark.skipif(shutil.which("unshare") is None or "ns" not in AVAILABLE, reason="needs unshare and ns")
def test_root_of_a_rootless_container_is_an_ordinary_user() -> None:
    code = "from rusty_r2.gym.sandbox import open_sandbox\nwith open_sandbox() as b: print(b.level, b.run('id -u').stdout)"
    python = host.reachable_python()
    identity = {"user": 12345, "group": 12345, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(
        ["unshare", "-Ur", python, "-B", "-c", code],
        cwd=ROOT, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, **identity,
    )  # fmt: skip
    if "ModuleNotFoundError" in done.stderr or "unshare failed" in done.stderr:
        pytest.skip("a stranger cannot reach this checkout or make a namespace")
    assert (done.stdout, done.stderr) == ("ns b'1000\\n'\n", "")


def test_the_package_is_carved_out_of_what_landlock_shows(tmp_path: Path) -> None:
    for folder in ("lib/site/rusty", "lib/site/numpy", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    hidden = str(tmp_path / "lib/site/rusty")
    assert landlock.around(str(tmp_path), hidden) == [f"{tmp_path}/bin", f"{tmp_path}/lib/site/numpy"]
    assert landlock.around(str(tmp_path / "bin"), hidden) == [f"{tmp_path}/bin"]
    assert landlock.around(hidden, hidden) == []


@pytest.mark.skipif("ns" not in AVAILABLE, reason="needs ns")
def test_the_package_is_covered_where_ns_would_show_it() -> None:
    spawner = launch.Spawner(ns.config() | {"hidden": ["/usr/share"]})
    _, (folder,) = spawner.ask(ns._open_request(1, Limits()))
    with spawned.SpawnedSandbox(ns._place(spawner, 1, folder, "none", spawner.close), Limits()) as box:
        assert box.run("ls -A /usr/share").stdout == b""
        assert box.run("touch /usr/share/x").code == 1
        assert box.run("ls /usr/bin/env").ok


def test_a_spawner_that_cannot_be_started_leaves_no_socket() -> None:
    """As for a user who may not run this Python."""
    held = Path("/proc/self/fd")
    before = len(list(held.iterdir()))
    with pytest.raises(OSError, match="none"):
        launch.Spawner({"python": "/none", "level": "ns"})
    assert len(list(held.iterdir())) == before
