# SPDX-License-Identifier: AGPL-3.0-or-later
"""The spawner: a small, warm, single-threaded Python that forks every payload.

It is a process of its own so that the trainer never forks (slow with gigabytes, deadly with threads) and
a Python payload never waits for an interpreter to start. `launch.py` starts it as `python -I -S -c` and
sends it the modules of this folder over a socket; it reads no file of ours and inherits no environment.

    supervisor ── socket ── launcher ─┬─ watches the supervisor; dies with it
                                      └─ zygote ── run ── payload      (dies with the launcher)

A request is one JSON packet with descriptors. What a payload is asked to do travels in a descriptor that
only its own process reads: nothing of one run stays in the memory that the next run is forked from.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import select
import signal
import socket
from typing import Any, NoReturn

from rusty_r2.gym.levels import jail, kernel, payload, template

MESSAGE = 1 << 16

_WARM = """
collections copy dataclasses datetime decimal enum fractions functools heapq itertools json math operator
random re runpy socket statistics string struct textwrap traceback types typing unittest
"""
WARM = _WARM.split()
"""imported once, before any fork: what payloads most often want"""


def main(control: socket.socket, config: dict[str, Any]) -> NoReturn:
    """Called by the bootstrap in launch.py; the launcher and the zygote both end here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel.forget_keys()
    try:
        for name in WARM:
            __import__(name)
        spawner = _enter(control, config)
    except BaseException as error:
        _reply(control, {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    gc.collect()
    gc.freeze()
    _reply(control, {"ready": True, "notes": spawner.notes})
    _serve(control, spawner)


def _enter(control: socket.socket, config: dict[str, Any]) -> template.Namespaces | jail.Jail:
    """Split into a launcher, which stays outside, and a zygote, which returns from here."""
    if config["level"] == "inside bwrap":
        return jail.Jail(config)
    supervisor = os.pidfd_open(config["supervisor"])
    if os.getppid() != config["supervisor"]:
        os._exit(1)
    if config["level"] == "bwrap":
        pid = jail.start_bwrap(control, config)
    elif config["level"] == "ns":
        tree = template.prepare(config)
        pid, gate = template.clone_zygote(config)
    else:
        pid = os.fork()
    if pid:
        control.close()
        _watch(pid, supervisor)
    kernel.die_with_parent()
    os.close(supervisor)
    return template.Namespaces(config, gate, tree) if config["level"] == "ns" else jail.Jail(config)


def _watch(child: int, supervisor: int) -> NoReturn:
    """The launcher's whole life: end the zygote when the supervisor ends, and end with it."""
    zygote = os.pidfd_open(child)
    poll = select.poll()
    for descriptor in (zygote, supervisor):
        poll.register(descriptor, select.POLLIN)
    poll.poll()
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(zygote, signal.SIGKILL)
    os.waitpid(child, 0)
    os._exit(0)


def _serve(control: socket.socket, spawner: template.Namespaces | jail.Jail) -> NoReturn:
    running: dict[int, tuple[int, int]] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in running:
                poll.unregister(descriptor)
                _reap(descriptor, *running.pop(descriptor))
            else:
                _answer(control, spawner, running, poll)


def _answer(
    control: socket.socket,
    spawner: template.Namespaces | jail.Jail,
    running: dict[int, tuple[int, int]],
    poll: select.poll,
) -> None:
    request, descriptors = _receive(control)
    turn = request["turn"]
    try:
        if request["op"] == "run":
            pid = spawner.spawn(request, descriptors)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = (pid, os.dup(descriptors[payload.STATUS]))
            poll.register(pidfd, select.POLLIN)
            _reply(control, {"turn": turn, "pid": pid}, [pidfd])
        elif request["op"] == "open":
            folders = spawner.open(request)
            _reply(control, {"turn": turn}, folders)
            for folder in folders:
                os.close(folder)
        else:
            spawner.close(request)
            _reply(control, {"turn": turn})
    except OSError as error:
        _reply(control, {"turn": turn, "error": f"{request['op']}: {error}"})
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _reap(pidfd: int, pid: int, status: int) -> None:
    """The last word on a run, written by the parent: no payload ever holds this end of the pipe."""
    _, code, usage = os.wait4(pid, 0)
    line = {
        "wait": os.waitstatus_to_exitcode(code),
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "max_rss": usage.ru_maxrss * 1024,
    }
    with contextlib.suppress(OSError):
        os.write(status, json.dumps(line).encode() + b"\n")
    os.close(status)
    os.close(pidfd)


def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, ancillary, _, _ = control.recvmsg(MESSAGE, socket.CMSG_SPACE(8 * 4))
    if not data:
        os._exit(0)  # the supervisor hung up
    descriptors = array.array("i")
    for level, kind, rights in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(rights[: len(rights) - len(rights) % descriptors.itemsize])
    return json.loads(data), list(descriptors)


def _reply(control: socket.socket, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    try:
        control.sendmsg([json.dumps(message).encode()], rights)
    except OSError:
        os._exit(1)
