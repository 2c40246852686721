# SPDX-License-Identifier: AGPL-3.0-or-later
"""The last steps of every forked child: confine yourself, then be the payload.

Shared by all levels. A command gets an init that reaps and reports; a guest runs in place, in this warm
interpreter. What the payload keeps is its three streams and, for a guest, one connected socket on
descriptor 3.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from rusty_r2.gym.levels import kernel

INSIDE = 1000
"""the payload's uid and gid as it sees them in a user namespace"""
STDIN, STDOUT, STDERR, STATUS, JOB, CONTROL, CHANNEL = range(7)
"""the order of the descriptors of a run request; CHANNEL only for a guest"""
CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT)
"""a command must find them as a shell would leave them"""


def child(
    request: dict[str, Any], fds: list[int], confine: Callable[[], None], *, in_place: bool
) -> NoReturn:
    """Confine this process, then be the payload, or be its init: start it, reap all, tell how it ended."""
    status = fds[STATUS]
    try:
        job = read_job(fds[JOB])
        confine()
        if in_place:
            os.close(status)
            status = -1
            payload(request, job, fds)
        status, *streams = keep_only(fds[STATUS], fds[STDIN], fds[STDOUT], fds[STDERR])
        say(status, {"code": _run_command(request, job["argv"], streams)})
        os._exit(0)
    except BaseException as error:
        say(status, {"error": f"{type(error).__name__}: {error}"})
        os._exit(125)


def _run_command(request: dict[str, Any], argv: list[str], streams: list[int]) -> int:
    """As init: start the command without a second copy of this interpreter, and reap until it ends."""
    os.umask(0o022)
    os.environ.clear()
    os.environ.update(request["env"])
    actions = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(streams)]
    try:
        os.chdir(request["cwd"])
        pid = os.posix_spawnp(
            argv[0], argv, request["env"], file_actions=actions, setsid=True, setsigdef=CHANGED_BY_PYTHON
        )
    except (OSError, ValueError, IndexError) as error:
        return _not_started(streams[2], argv, error)
    for descriptor in streams:
        os.close(descriptor)
    while True:
        finished, code = os.wait()
        if finished == pid:
            return os.waitstatus_to_exitcode(code)


def _not_started(stderr: int, argv: list[str], error: Exception) -> int:
    """Told as a shell would: 126 for what may not be run, 127 for what is not there."""
    os.write(stderr, f"{argv[:1]!a}: {error}\n".encode())
    return 126 if isinstance(error, PermissionError) else 127


def keep_only(*wanted: int) -> list[int]:
    """Move these to descriptor 3 and up, close all others: an init must not hold the pipes of other runs."""
    floor = max(*wanted, len(wanted) + 8) + 1
    high = [os.dup2(descriptor, floor + index, False) for index, descriptor in enumerate(wanted)]
    kept = [os.dup2(descriptor, 3 + index, False) for index, descriptor in enumerate(high)]
    kernel.close_from(3 + len(kept))
    nothing = os.open("/dev/null", os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.close(nothing)
    return kept


def say(status: int, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        os.write(status, json.dumps(message).encode() + b"\n")


def read_job(descriptor: int) -> dict[str, Any]:
    chunks = []
    offset = 0
    while chunk := os.pread(descriptor, 1 << 20, offset):
        chunks.append(chunk)
        offset += len(chunk)
    job: dict[str, Any] = json.loads(b"".join(chunks))
    return job


def payload(request: dict[str, Any], job: dict[str, Any], fds: list[int]) -> NoReturn:
    """Nothing of ours is left but the three streams and, for a guest, its channel on descriptor 3."""
    os.setsid()
    keep = [os.dup(fds[index]) for index in (STDIN, STDOUT, STDERR, CHANNEL) if index < len(fds)]
    floor = max(*keep, *fds, 16) + 1
    high = [os.dup2(descriptor, floor + index, False) for index, descriptor in enumerate(keep)]
    for number, descriptor in enumerate(high):
        os.dup2(descriptor, number)
    kernel.close_from(len(high))
    os.umask(0o022)
    try:
        os.chdir(request["cwd"])
        if "argv" in job:
            for number in CHANGED_BY_PYTHON:
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(job["argv"][0], job["argv"], request["env"])
    except (OSError, ValueError, IndexError) as error:
        os._exit(_not_started(2, job.get("argv", []), error))
    _run_source(job["source"], request["env"])


def _run_source(source: str, env: dict[str, str]) -> NoReturn:
    """Run trusted Python in this very interpreter, as if it had just started."""
    os.environ.clear()
    os.environ.update(env)
    for name in [name for name in sys.modules if name.partition(".")[0] == "rusty_r2"]:
        del sys.modules[name]
    sys.argv = ["guest"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    namespace = {"__name__": "__main__", "__builtins__": __builtins__}
    code = 0
    try:
        exec(compile(source, "<guest>", "exec"), namespace)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code & 255)
