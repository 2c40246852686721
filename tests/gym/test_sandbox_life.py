# SPDX-License-Identifier: AGPL-3.0-or-later
"""Nothing outlives a run, a sandbox or its supervisor; nothing piles up; ordinary work still works inside."""

# ruff: noqa: E501, PTH208

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rusty_r2.gym.levels import host, ns
from rusty_r2.gym.sandbox import Limits, open_sandbox, probe

LEVELS = [report.name for report in probe() if report.available and report.name != "off"]
ROOT = Path(__file__).resolve().parents[2]


def alive(mark: str) -> int:
    found = 0
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += entry.read_bytes() == b"sleep\0" + mark.encode() + b"\0"
        except OSError:
            continue
    return found


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return found


def test_no_leftovers_in_200_runs(level: str) -> None:
    """Daemons started at the last moment, after a clean exit and after a timeout."""
    runs = 200 if level == "ns" else 40
    with open_sandbox(level=level) as box:
        for number in range(runs):
            mark = f"77{os.getpid()}{number:04d}"
            daemons = f"for k in 1 2 3; do setsid sleep {mark} & done"
            if number % 20 == 19:
                result = box.run(f"{daemons}; sleep 60", limits=Limits(wall_s=0.15))
                assert result.reason == "timeout"
            else:
                assert box.run(f"{daemons}; exit 5").code == 5
            assert alive(mark) == 0


VICTIM = """
import sys
from rusty_r2.gym.sandbox import Limits, open_sandbox
box = open_sandbox(level=sys.argv[1])
guest = box.guest("import os; os.execvp('sleep', ['sleep', %r])" % sys.argv[2])
print("up", flush=True)
box.run(f"setsid sleep {sys.argv[2]} & sleep {sys.argv[2]}", limits=Limits(wall_s=60))
"""


def test_a_killed_supervisor_leaves_nothing(level: str) -> None:
    mark = f"78{os.getpid()}0"
    command = [sys.executable, "-c", VICTIM, level, mark]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"up\n"
        guard = time.monotonic() + 120
        while alive(mark) < 3 and time.monotonic() < guard:
            time.sleep(0.02)
        assert alive(mark) == 3
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
    guard = time.monotonic() + 120
    while alive(mark) and time.monotonic() < guard:
        time.sleep(0.02)
    assert alive(mark) == 0


def test_a_supervising_thread_may_end(tmp_path: Path) -> None:
    """The spawner belongs to the process, not to the thread that happened to start it."""
    with open_sandbox(level=LEVELS[0], workspace=None) as box:
        thread = threading.Thread(target=lambda: box.run("true"))
        thread.start()
        thread.join()
        assert box.run("echo on").stdout == b"on\n"
    boxes = []
    thread = threading.Thread(target=lambda: boxes.append(open_sandbox(level=LEVELS[0], workspace=tmp_path)))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert boxes[0].run("echo on").stdout == b"on\n"
    boxes[0].close()


@pytest.mark.skipif("ns" not in LEVELS, reason="needs the level ns")
def test_a_soak_of_300_runs_leaks_nothing(alone) -> None:
    """Many threads, many workspaces, commands and guests mixed: all counts are as before."""
    alone("soak")


def soak() -> None:
    with open_sandbox(level="ns") as warm:
        warm.run("true")
    spawner = ns.shared_spawner("ns", ns.config())
    (zygote,) = children(spawner._process.pid)

    def counts() -> tuple[int, int, int, int]:
        mounts = len(Path("/proc/self/mountinfo").read_text().splitlines())
        inside = len(Path(f"/proc/{zygote}/mountinfo").read_text().splitlines())
        fds = len(os.listdir(f"/proc/{zygote}/fd"))
        return len(os.listdir("/proc/self/fd")), fds, mounts, inside

    before = counts()
    errors: list[str] = []

    def work(worker: int) -> None:
        for number in range(25):
            try:
                with open_sandbox(level="ns", files={"n": str(number)}) as box:
                    with box.guest(
                        "import socket; socket.socket(fileno=3).sendall(open('n').read().encode())"
                    ) as guest:
                        assert guest.channel.recv(9) == str(number).encode()
                    result = box.run("cat n; sleep 9 & exit 3")
                    assert (result.code, result.stdout) == (3, str(number).encode())
                    assert box.run("echo x >> n").ok
            except Exception as error:
                errors.append(repr(error))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [], errors
    after = counts()
    assert after == before, (before, after)
    assert children(zygote) == []


def test_runs_side_by_side_do_not_wait_for_each_other(level: str) -> None:
    with open_sandbox(level=level) as one, open_sandbox(level=level) as two:
        enough = threading.Event()
        guest = one.guest("import time; time.sleep(60)", limits=Limits(wall_s=60))
        slow = threading.Thread(target=lambda: one.run("sleep 60", limits=Limits(wall_s=60), cancel=enough))
        slow.start()
        assert two.run("true").ok
        assert slow.is_alive()
        enough.set()
        guest.kill()
        guest.wait()
        guest.channel.close()
        slow.join()


def test_a_fork_of_this_process_gets_its_own_spawner() -> None:
    code = (
        "import os\nfrom rusty_r2.gym.sandbox import open_sandbox\n"
        "a = open_sandbox(); a.run('true')\n"
        "pid = os.fork()\n"
        "with open_sandbox() as b: assert b.run('echo hi').stdout == b'hi\\n'\n"
        "if pid == 0: os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "assert a.run('echo still').stdout == b'still\\n'\na.close()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


WORK = {
    "pool": "import multiprocessing as m\nif __name__ == '__main__':\n with m.Pool(2) as p: print(p.map(abs, [-1, 2]))",
    "threads": "import threading, queue\nq = queue.Queue()\n[threading.Thread(target=q.put, args=(i,)).start() for i in range(8)]\nprint(sum(q.get() for _ in range(8)))",
    "asyncio": "import asyncio\nasync def f():\n p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1); print((await p.communicate())[0])\nasyncio.run(f())",
    "sqlite": "import sqlite3\nc = sqlite3.connect('a.db'); c.execute('create table t(x)'); c.execute('insert into t values(7)'); c.commit(); print(c.execute('select * from t').fetchall())",
    "shared": "from multiprocessing import shared_memory as s\nx = s.SharedMemory(create=True, size=4096); x.close(); x.unlink(); print('ok')",
    "tempfile": "import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'x'); print('ok')",
    "ctypes": "import ctypes\nprint(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x + 1)(41))",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n def test(self): self.assertEqual(1, 1)\nunittest.main()",
}
SHELL = {
    "git": "git init -q . && git config user.email a@b && git config user.name n && echo x > f && git add f && git commit -qm m && git log --oneline | grep -c m",
    "gcc": "command -v gcc > /dev/null || exit 0; echo 'int main(){return 42;}' > a.c && gcc a.c -o a && ./a; test $? = 42",
    "pipes": "seq 1000 | sort -r | head -3 > o; diff <(echo a) <(echo a) && tar cf x.tar o && tar tf x.tar && find . -name o",
}
CANNOT = {"landlock": {"pool", "shared", "git", "gcc", "asyncio", "sqlite"}}
"""named in docs/sandbox.md: no private /dev/shm; for an ordinary user no chmod by path"""


def test_ordinary_work_works(level: str) -> None:
    failed = {}
    with open_sandbox(level=level, limits=Limits(wall_s=60, nproc=128)) as box:
        for name, source in WORK.items():
            box.write("work.py", source)
            result = box.run("python3 work.py")
            if not result.ok:
                failed[name] = result.output
        for name, command in SHELL.items():
            result = box.run(command)
            if not result.ok:
                failed[name] = result.output
    assert {name: why for name, why in failed.items() if name not in CANNOT.get(level, ())} == {}


@pytest.mark.parametrize("level", ["ns", "bwrap"], indirect=True)
def test_loopback_is_private(level: str) -> None:
    source = (
        "import socket, threading\ns = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n"
        "threading.Thread(target=lambda: s.accept()[0].sendall(b'pong')).start()\n"
        "print(socket.create_connection(s.getsockname()).recv(9))"
    )
    outside = __import__("socket").create_server(("127.0.0.1", 0))
    with outside, open_sandbox(level=level, network="loopback") as box:
        assert box.run(["python3", "-c", source]).stdout == b"b'pong'\n"
        port = outside.getsockname()[1]
        assert not box.run(
            ["python3", "-c", f"import socket; socket.create_connection(('127.0.0.1', {port}))"]
        ).ok


def test_payloads_never_keep_root() -> None:
    with open_sandbox() as box, box.guest("import time; time.sleep(30)") as guest:
        from rusty_r2.gym.levels.watch import host_pid

        status = Path(f"/proc/{host_pid(guest._process.pidfd)}/status").read_text()
        uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
        assert "0" not in uids
        assert set(uids) == {str(host.identity()[0])}
