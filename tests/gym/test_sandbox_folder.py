# SPDX-License-Identifier: AGPL-3.0-or-later
"""The user's own folder in a sandbox: bound writable, read-only, and as a dry run."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rusty_r2.errors import ConfigError
from rusty_r2.gym.sandbox import Change, open_sandbox, probe

LEVELS = [report.name for report in probe() if report.available and report.name != "off"]
needs_ns = pytest.mark.skipif("ns" not in LEVELS, reason="needs the level ns")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".git" / "hooks").mkdir(parents=True)
    (tmp_path / ".git" / "config").write_text("[core]\n")
    (tmp_path / ".bashrc").write_text("# mine\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "b.py").write_text("B")
    (tmp_path / "a.txt").write_text("A")
    return tmp_path


@pytest.fixture
def binding(level: str) -> str:
    if level != "ns" and os.geteuid() == 0:
        pytest.skip("started by root, only ns can show root's folder to a payload that is not root")
    return level


def snapshot(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_writable(folder: Path, binding: str) -> None:
    with open_sandbox(level=binding, workspace=folder) as box:
        assert box.run("cat a.txt; echo more > new.txt; rm src/b.py").ok
        box.write("made/here.txt", "x")
        assert box.run("cat made/here.txt").stdout == b"x"
        assert box.read("new.txt") == b"more\n"
    assert (folder / "new.txt").read_text() == "more\n"
    assert (folder / "new.txt").stat().st_uid == os.geteuid()
    assert not (folder / "src" / "b.py").exists()


def test_read_only(folder: Path, binding: str) -> None:
    before = snapshot(folder)
    with open_sandbox(level=binding, workspace=folder, mode="ro") as box:
        assert box.run("cat a.txt").stdout == b"A"
        assert not box.run("echo x > a.txt || rm a.txt || touch new").ok
        with pytest.raises(PermissionError):
            box.write("a.txt", "x")
    assert snapshot(folder) == before


@needs_ns
def test_protected_paths_stay(folder: Path) -> None:
    tricks = """
echo x >> .git/config; echo x > .git/hooks/pre-commit; rm -rf .git .bashrc; mv .git .old; mv .git/hooks .git/h
mv .bashrc b; ln -sf /dev/null .bashrc; ln .git/config c && echo x >> c; cp -r .git .git2; chmod 777 .bashrc
python3 -c "import os; os.rename('.git', '.x')"
mkdir -p .github/workflows && echo x > .github/workflows/ci.yml
"""
    before = snapshot(folder)
    with open_sandbox(level="ns", workspace=folder) as box:
        result = box.run(tricks)
        for path in (".git/hooks/x", ".bashrc", "./.git//config", "src/../.bashrc"):
            with pytest.raises(PermissionError):
                box.write(path, "x")
    after = snapshot(folder)
    for path in (".git/config", ".bashrc"):
        assert after[path] == before[path]
    assert not list((folder / ".git" / "hooks").iterdir())
    assert result.changes == (Change("protected", ".github"),)


@needs_ns
def test_planted_links_do_not_choose_what_is_mounted(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".git").symlink_to(outside)
    (folder / ".vscode").symlink_to("/oldroot/etc")
    with open_sandbox(level="ns", workspace=folder) as box:
        assert box.run("true").ok
        assert any(".git cannot be protected" in note for note in box.degraded)
    assert list(outside.iterdir()) == []


@needs_ns
def test_a_dry_run_tells_and_touches_nothing(folder: Path) -> None:
    before = snapshot(folder)
    with open_sandbox(level="ns", workspace=folder, mode="overlay") as box:
        result = box.run(
            "echo n > new; echo more >> a.txt; rm -rf src; mkdir -p x/y; echo z > x/y/z; echo e > .bashrc"
        )
        assert result.ok
        assert result.changes == (
            Change("modified", ".bashrc", 2),
            Change("modified", "a.txt", 6),
            Change("added", "new", 2),
            Change("deleted", "src"),
            Change("added", "x/"),
            Change("added", "x/y/"),
            Change("added", "x/y/z", 2),
        )
        assert box.run("mkdir src; echo 1 > src/c; cat a.txt").stdout == b"Amore\n"
        changes = box.run("true").changes or ()
        assert {Change("deleted", "src/b.py"), Change("added", "src/c", 2)} <= set(changes)
        assert box.read("a.txt") == b"Amore\n"
        shut = box.run("mkdir -p shut/in; chmod 000 shut; mkdir -p $(seq -s/ 100)").changes or ()
        assert Change("added", "shut/") in shut
    assert snapshot(folder) == before


@pytest.mark.parametrize("level", ["bwrap", "landlock"], indirect=True)
def test_no_dry_run_elsewhere(folder: Path, level: str) -> None:
    with pytest.raises(ConfigError, match="needs the sandbox level ns"):
        open_sandbox(level=level, workspace=folder, mode="overlay")


def test_a_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a folder"):
        open_sandbox(workspace=tmp_path / "none")


@needs_ns
def test_the_hosts_network_and_nothing_else_of_the_host(folder: Path) -> None:
    """TCP of this machine is reached; its abstract sockets, processes and files are not."""
    with socket.create_server(("127.0.0.1", 0)) as outside, socket.socket(socket.AF_UNIX) as abstract:
        name = f"\0rusty-{os.getpid()}"
        abstract.bind(name)
        abstract.listen()
        port = outside.getsockname()[1]
        tcp = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        unix = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
        raw = "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"
        with open_sandbox(level="ns", workspace=folder, network="host") as box:
            assert box.run(["python3", "-c", tcp]).ok
            assert not box.run(["python3", "-c", unix]).ok
            assert not box.run(["python3", "-c", raw]).ok
            assert not box.run(f"kill -0 {os.getpid()}").ok and not box.run(f"cat {__file__}").ok
            assert box.run("ls /proc | grep -c '^[0-9]'").stdout.strip() in (b"3", b"4")
        with open_sandbox(level="ns", workspace=folder) as box:
            assert not box.run(["python3", "-c", tcp]).ok


def test_the_hosts_network_is_for_a_folder_and_for_ns(folder: Path, level: str) -> None:
    with pytest.raises(ConfigError, match="own folder|level ns|network of its own"):
        open_sandbox(level=level, network="host")
    if level != "ns":
        with pytest.raises(ConfigError, match="level ns"):
            open_sandbox(level=level, workspace=folder, network="host")
