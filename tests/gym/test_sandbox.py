# SPDX-License-Identifier: AGPL-3.0-or-later
"""One suite for every sandbox level: the contract of gym/sandbox.py, word for word."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from rusty_r2.errors import ConfigError, SandboxError
from rusty_r2.gym.levels import choose
from rusty_r2.gym.sandbox import LEVELS, LevelReport, Limits, Sandbox, open_sandbox, probe

REPORTS = {report.name: report for report in probe()}
HERE = [name for name in LEVELS if REPORTS[name].available]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    report = REPORTS[request.param]
    if not report.available:
        pytest.skip(f"the sandbox level {report.name} does not work here: {report.why}")
    return report.name


@pytest.fixture
def box(level: str) -> Iterator[Sandbox]:
    with open_sandbox(level=level, at_least="off", files={"a.txt": "hello", "d/b.bin": b"\0\xff"}) as sandbox:
        yield sandbox


def test_a_command_is_a_result(box: Sandbox, level: str) -> None:
    result = box.run("cat a.txt; echo oops >&2; exit 3")
    assert (result.code, result.signal, result.reason) == (3, None, "exit")
    assert (result.stdout, result.stderr, result.level) == (b"hello", b"oops\n", level)
    assert not result.ok
    assert result.output == "hellooops\n"
    assert result.degraded == box.degraded
    assert box.run(["echo", "a b"]).stdout == b"a b\n"
    assert box.run("true").ok


def test_a_signal_is_told(box: Sandbox) -> None:
    result = box.run("kill -TERM $$")
    assert (result.code, result.signal, result.reason) == (None, 15, "signal")


def test_what_cannot_be_started_is_a_result(box: Sandbox) -> None:
    assert box.run(["/no/such/program"]).code == 127
    assert box.run(["/"]).code == 126
    assert box.run(["echo", "nul\0byte"]).code == 127


def test_stdin_is_given_whole_or_empty(box: Sandbox) -> None:
    data = bytes(range(256)) * 4000
    assert box.run("wc -c", stdin=data).stdout.split() == [str(len(data)).encode()]
    assert box.run("cat").stdout == b""
    assert box.run("exit 0", stdin=data).ok


def test_the_workspace_persists_and_is_seen_from_both_sides(box: Sandbox) -> None:
    box.run("echo one > made.txt; mkdir -p x/y; echo two > x/y/z")
    assert box.read("made.txt") == b"one\n"
    box.write("x/new/deep.txt", "drei")
    assert box.run("cat x/new/deep.txt x/y/z").stdout == b"dreitwo\n"
    box.write("a.txt", b"over")
    assert box.files() == {
        "a.txt": b"over",
        "d/b.bin": b"\0\xff",
        "made.txt": b"one\n",
        "x/new/deep.txt": b"drei",
        "x/y/z": b"two\n",
    }


def test_planted_traps_are_not_followed(box: Sandbox) -> None:
    box.run(
        "ln -s /etc/passwd link; ln -s /etc dirlink; mkfifo pipe; ln -s . loop; mkdir locked;"
        "echo x > locked/f;"
        "chmod 000 locked a.txt 2>/dev/null; chmod 000 . 2>/dev/null; true"
    )
    for path in (
        "link",
        "dirlink/passwd",
        "../x",
        "/etc/passwd",
        "pipe",
        "d",
        "",
        ".",
        "a\0b",
        "loop/loop/a.txt",
    ):
        with pytest.raises(OSError):
            box.read(path)
    for path in ("link", "dirlink/evil", "../evil", "/tmp/evil", "pipe", "d", "", "loop/evil"):
        with pytest.raises(OSError):
            box.write(path, "x")
    assert box.files() == {"a.txt": b"hello", "d/b.bin": b"\0\xff", "locked/f": b"x\n"}
    assert box.read("a.txt") == b"hello"


def test_too_much_to_collect_is_an_os_error(level: str) -> None:
    with open_sandbox(level=level, at_least="off", limits=Limits(disk=1 << 20)) as box:
        box.run("truncate -s 1M one two three")
        with pytest.raises(OSError):
            box.files()


def test_a_very_deep_tree_is_an_os_error_and_can_be_closed(level: str) -> None:
    dig = "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')\nopen('f', 'w'); os.chmod('.', 0)"
    with open_sandbox(level=level, at_least="off") as box:
        box.run(["python3", "-c", dig])
        with pytest.raises(OSError):
            box.files()


def test_output_is_cut_in_the_middle_and_counted(box: Sandbox) -> None:
    limits = Limits(out_keep=1000, wall_s=20)
    result = box.run("echo first; seq 20000; echo last", limits=limits)
    whole = len("first\nlast\n" + "".join(f"{n}\n" for n in range(1, 20001)))
    assert result.ok and result.truncated
    assert result.stdout.startswith(b"first\n") and result.stdout.endswith(b"last\n")
    assert result.dropped == whole - 1000


def test_limits_have_names(box: Sandbox) -> None:
    assert box.run("sleep 30", limits=Limits(wall_s=0.3)).reason == "timeout"
    assert box.run("yes", limits=Limits(out_total=1 << 20)).reason == "output"
    assert box.run("while :; do :; done", limits=Limits(cpu_s=1, wall_s=60)).reason == "cpu"
    grow = "import time; b = bytearray(200 << 20); time.sleep(30)"
    assert box.run(["python3", "-c", grow], limits=Limits(mem_tree=100 << 20, wall_s=60)).reason == "memory"


def test_cancelling(box: Sandbox) -> None:
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    start = time.monotonic()
    result = box.run("sleep 60", limits=Limits(wall_s=60), cancel=cancel)
    assert (result.reason, result.code, result.signal) == ("cancelled", None, 9)
    assert time.monotonic() - start < 30


ECHO = """
import os, socket, sys
channel = socket.socket(fileno=3)
print("up", os.getcwd())
while data := channel.recv(100):
    channel.sendall(data.upper())
sys.exit(7)
"""


def test_a_guest_talks_on_its_channel(box: Sandbox) -> None:
    with box.guest(ECHO) as guest:
        guest.channel.sendall(b"abc")
        assert guest.channel.recv(10) == b"ABC"
        guest.channel.shutdown(socket.SHUT_WR)
        assert guest.channel.recv(10) == b""
        result = guest.wait()
    assert (result.code, result.reason, result.stdout) == (7, "exit", f"up {box.cwd}\n".encode())


def test_a_guest_can_be_killed_and_outlived(box: Sandbox) -> None:
    guest = box.guest("import time; time.sleep(60)")
    guest.kill()
    assert guest.wait().reason == "cancelled"
    assert guest.channel.recv(1) == b""
    guest.channel.close()
    with box.guest("raise ValueError('boo')") as failing:
        result = failing.wait()
    assert result.code == 1 and b"ValueError: boo" in result.stderr
    with box.guest(
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\nwhile True: os.abort()"
    ) as dying:
        assert dying.wait().reason == "signal"
    with box.guest("print('x' * 300_000)") as loud:
        assert loud.wait().dropped > 200_000


OPEN = """
import os
for number in range(300):
    try: os.fstat(number); print(number)
    except OSError: pass
"""


def test_a_payload_holds_its_streams_and_nothing_else(box: Sandbox) -> None:
    with box.guest("import time; time.sleep(60)", limits=Limits(wall_s=60)), box.guest(OPEN) as guest:
        assert guest.wait().stdout.split() == [b"0", b"1", b"2", b"3"]
        assert box.run(["python3", "-c", OPEN]).stdout.split() == [b"0", b"1", b"2"]


def test_closing_ends_guests(level: str) -> None:
    box = open_sandbox(level=level, at_least="off")
    guest = box.guest("import time; time.sleep(60)", limits=Limits(wall_s=60))
    box.close()
    assert guest.wait().reason == "cancelled"
    guest.channel.close()
    with pytest.raises(SandboxError, match="closed"):
        box.run("true")
    box.close()


def test_guests_know_nothing_of_each_other(box: Sandbox) -> None:
    secret = "expected-value-" + "4711"
    with box.guest(f"secret = {secret!r}; print(len(secret))") as first:
        first.wait()
    hunt = """
import gc, sys
mark = "expected-value-" + str(4700 + 11)
print(any(isinstance(o, str) and mark in o for o in gc.get_objects()), "rusty_r2" in sys.modules)
try:
    for line in open("/proc/self/maps"):
        where, rights, *_ = line.split()
        if rights.startswith("rw"):
            a, b = (int(x, 16) for x in where.split("-"))
            with open("/proc/self/mem", "rb") as memory:
                memory.seek(a)
                found = memory.read(b - a).count(mark.encode())
                if found > 2: print("FOUND")
except OSError:
    pass
"""
    with box.guest(hunt) as second:
        assert second.wait().stdout == b"False False\n"


def test_two_sandboxes_are_two_worlds(level: str) -> None:
    with (
        open_sandbox(level=level, at_least="off") as one,
        open_sandbox(level=level, at_least="off") as two,
    ):
        one.write("mine", "1")
        assert two.run("cat mine").code == 1
        assert two.files() == {}
        if level in ("ns", "bwrap"):
            one.run("echo 1 > /tmp/mine; echo 1 > /dev/shm/mine")
            assert two.run("ls /tmp /dev/shm /ws 2>/dev/null | grep mine").code == 1
            assert one.run("cat /tmp/mine").stdout == b"1\n"


def test_off_is_never_chosen_and_never_weaker_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="weaker"):
        open_sandbox(level="off")
    with pytest.raises(ConfigError, match="weaker"):
        open_sandbox(level="landlock", at_least="ns")
    with pytest.raises(ConfigError, match="no sandbox level"):
        open_sandbox(level="firejail")

    def nothing_works(level: str, *_: object) -> LevelReport:
        return LevelReport(level, False, "not here")

    monkeypatch.setattr(choose, "_try", nothing_works)
    with pytest.raises(Exception, match="no sandbox level works here.*ns: not here"):
        choose.pick("auto", "off")


def test_this_machine_offers_a_level() -> None:
    assert any(report.available for report in probe() if report.name != "off")
    with open_sandbox() as box:
        assert box.level == next(name for name in HERE if name != "off")
