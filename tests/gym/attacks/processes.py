# SPDX-License-Identifier: AGPL-3.0-or-later
"""Attacks on other processes and on the end of the run, and on what a process may use up."""

# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

from world import SLEEP, Attack, py, sh


def left_over(world, result):
    return alive(SLEEP) > 0


def alive(mark):
    found = 0
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += entry.read_bytes() == b"sleep\0" + mark.encode() + b"\0"
        except OSError:
            continue
    return found


def killed_victim(world, result):
    return not world.victim_lives


def more_than(limit):
    return lambda world, result: int((result.stdout.split() or [b"0"])[-1]) > limit


def late(seconds):
    return lambda world, result: result.wall_s > seconds or result.reason not in ("timeout", "cpu", "signal")


PROCESSES = [
    Attack("P01", "an orphan in a new session survives", sh("setsid sleep <sleep> & exit 0"), "rude", left_over),
    Attack("P02", "a daemon by two forks survives", py(
        "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: os.execvp('sleep', ['sleep', '<sleep>'])\n  os._exit(0)\nos.wait()"), "rude", left_over),
    Attack("P03", "an orphan holds stdout open", sh("sleep <sleep> & echo hi"), "rude",
           lambda world, result: result.wall_s > 3 or left_over(world, result)),
    Attack("P04", "fork storm", py(
        "n = 0\nfor _ in range(200):\n  try:\n    if os.fork() == 0: time.sleep(3); os._exit(0)\n    n += 1\n  except OSError: break\n"
        "print(n, flush=True); os.kill(0, 9)"), "any", more_than(64)),
    Attack("P05", "kill everything", py("try: os.kill(-1, 9)\nexcept OSError: pass"), "rude", killed_victim),
    Attack("P06", "kill by number", py(
        "for p in (<victim>, <me>, os.getppid()):\n  try: os.kill(p, 9)\n  except OSError: pass"), "rude", killed_victim),
    Attack("P07", "trace the parent, init and a victim", py(
        "for p in (os.getppid(), 1, <victim>):\n  r = call('ptrace', 16, p, 0, 0)\n  if r >= 0: escaped(p)"), "rude"),
    Attack("P08", "write the memory of init or parent", py(
        "for p in (1, os.getppid(), <victim>):\n  try: os.open(f'/proc/{p}/mem', os.O_RDWR); escaped(p)\n  except OSError: pass"), "any"),
    Attack("P09", "read another's memory by system call", py("reached('process_vm_readv', <victim>, 0, 0, 0, 0, 0)"), "any"),
    Attack("P10", "ignore every signal and spin", py(
        "for s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n  except (OSError, ValueError): pass\nwhile True: pass"),
        "never", late(4), {"wall_s": 1.0}),
    Attack("P11", "zombie flood", py(
        "n = 0\nfor _ in range(200):\n  try:\n    if os.fork() == 0: os._exit(0)\n    n += 1\n  except OSError: break\nprint(n)"), "any", more_than(64)),
    Attack("P12", "stop oneself and the parent", sh("kill -STOP $PPID; kill -STOP $$"), "rude", late(4), {"wall_s": 1.0}),
    Attack("P13", "real-time priority", py(
        "try: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)); escaped()\nexcept OSError: pass\n"
        "try: os.setpriority(0, 0, -10); escaped()\nexcept OSError: pass"), "root"),
    Attack("P14", "fork without end while being killed", py(
        "while True:\n  try:\n    if os.fork(): os._exit(0)\n  except OSError: time.sleep(0.001)\n  os.setsid()"), "rude",
        lambda world, result: result.wall_s > 5, {"wall_s": 1.0}),
    Attack("P15", "signal by pidfd", py(
        "try: signal.pidfd_send_signal(os.pidfd_open(<victim>), 9)\nexcept OSError: pass"), "rude", killed_victim),
    Attack("P16", "environment of the run's own init", py(
        "p = os.getppid()\nfor n in ('environ', 'maps', 'fd'):\n"
        "  try: (os.listdir if n == 'fd' else lambda x: open(x).read())(f'/proc/{p}/{n}'); escaped(n)\n  except OSError: pass"), "any"),
    Attack("P17", "trace a child of one's own (then its system calls)", py("reached('ptrace', 0, 0, 0, 0)"), "any"),
    Attack("P18", "the limits of init or of a victim", py(
        "b = ctypes.create_string_buffer(16)\nfor p in (<victim>, os.getppid()):\n  if call('prlimit64', p, 7, 0, b) == 0: escaped(p)"), "any"),
    Attack("P19", "the priority of a victim and of init", py(
        "for p in (<victim>, *[p for p in (os.getppid(),) if p == 1]):\n"
        "  if call('setpriority', 0, p, 19) == 0: escaped('nice')\n"
        "  if call('sched_setscheduler', p, 5, struct.pack('i', 0)) == 0: escaped('idle')\n"
        "  if call('ioprio_set', 1, p, 3 << 13) == 0: escaped('io')"), "any"),
    Attack("P20", "the processors of a victim", py(
        "try: os.sched_setaffinity(<victim>, {0}); escaped()\nexcept OSError: pass"), "any"),
]  # fmt: skip

MIB = 1 << 20
SMALL = {"mem_process": 256 * MIB, "mem_tree": 256 * MIB, "disk": 8 * MIB, "fsize": 16 * MIB, "inodes": 512}

RESOURCES = [
    Attack("M01", "heap", py("b = bytearray(400 << 20); escaped()"), "any", None, SMALL),
    Attack("M02", "shared anonymous memory", py("m = mmap.mmap(-1, 400 << 20); escaped()"), "any", None, SMALL),
    Attack("M03", "memfd", py("f = os.memfd_create('x'); os.write(f, bytes(1 << 20)); escaped()"), "any", None, SMALL),
    Attack("M04", "System V shared memory", py("reached('shmget', 0, 4 << 20, 0o1600)"), "any", None, SMALL),
    Attack("M05", "/dev/shm", sh("dd if=/dev/zero of=/dev/shm/rusty-x bs=1M count=40 2>/dev/null && echo ESCAPED; rm -f /dev/shm/rusty-x"), "any", None, SMALL),
    Attack("M06", "many processes, each below its limit", py(
        "for i in range(8):\n  if os.fork() == 0:\n    b = bytearray(60 << 20)\n    for k in range(0, len(b), 4096): b[k] = 1\n    time.sleep(3); os._exit(0)\n"
        "time.sleep(2.5); escaped(); os.kill(0, 9)"), "any", None, SMALL),
    Attack("M07", "many processes with shared anonymous memory", py(
        "for i in range(6):\n  if os.fork() == 0:\n    m = mmap.mmap(-1, 80 << 20)\n    for k in range(0, len(m), 4096): m[k] = 1\n    time.sleep(3); os._exit(0)\n"
        "time.sleep(2.5); escaped(); os.kill(0, 9)"), "any", None, SMALL),
    Attack("M08", "POSIX message queue", py("n = b'x%d' % os.getpid(); reached('mq_open', n, 0o102, 0o600, 0); call(NR['mq_open'] + 1, n)"), "any"),
    Attack("M09", "secret memory", py("r = call('memfd_secret', 0)\nif r >= 0: escaped()")),
    Attack("M10", "locked memory", py("b = ctypes.create_string_buffer(1 << 20)\nif libc.mlock(b, 1 << 20) == 0: escaped()"), "any"),
    Attack("D01", "fill the disk", sh("for i in 1 2 3 4 5 6 7 8; do head -c 12M /dev/zero > f$i || exit; done; echo ESCAPED"), "any", None, SMALL),
    Attack("D02", "use up the inodes", py("for i in range(3000): open(f'i{i}', 'w').close()\nescaped()"), "any", None, SMALL),
    Attack("D03", "one enormous sparse file", py("f = os.open('s', os.O_CREAT | os.O_RDWR); os.ftruncate(f, 1 << 40); escaped()"), "any", None, SMALL),
    Attack("D04", "fill /tmp", sh("for i in 1 2 3 4 5 6 7 8; do head -c 12M /dev/zero > $TMPDIR/f$i || exit; done; echo ESCAPED"), "never", None, SMALL),
    Attack("C01", "burn CPU", py("while True: pass"), "never", late(5), {"cpu_s": 1, "wall_s": 4.0}),
    Attack("C02", "raise the CPU limit", py("import resource\nresource.setrlimit(resource.RLIMIT_CPU, (99, 99)); escaped()"), "any"),
    Attack("O01", "endless stdout", sh("yes"), "never", lambda world, result: result.reason != "output" or len(result.stdout) > 70_000),
    Attack("O02", "endless stderr", sh("yes >&2"), "never", lambda world, result: result.reason != "output" or len(result.stderr) > 70_000),
    Attack("I01", "wait for input", sh("cat"), "never", lambda world, result: result.reason != "exit"),
    Attack("T01", "sleep past the clock", sh("sleep 30"), "never", late(3), {"wall_s": 0.5}),
    Attack("T02", "many threads", py(
        "n = 0\nfor _ in range(200):\n  try: threading.Thread(target=time.sleep, args=(2,), daemon=True).start(); n += 1\n  except RuntimeError: break\n"
        "print(n, flush=True); os._exit(0)"), "any", more_than(64)),
    Attack("F01", "descriptors without end", py(
        "n = 0\ntry:\n  while n < 900: os.open('/dev/null', 0); n += 1\nexcept OSError: pass\nprint(n)"), "any", more_than(256)),
    Attack("K01", "core dump", sh("ulimit -c unlimited 2>/dev/null; sh -c 'kill -SEGV $$'; ls core* 2>/dev/null | grep -q . && echo ESCAPED; true")),
    Attack("K02", "raise hard limits", sh("ulimit -n 4096 2>/dev/null && ulimit -u 4000 2>/dev/null && echo ESCAPED; true"), "any"),
]  # fmt: skip

ATTACKS = PROCESSES + RESOURCES
