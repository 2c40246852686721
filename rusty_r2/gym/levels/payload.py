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


def child(
    request: dict[str, Any], fds: list[int], confine: Callable[[], None], *, in_place: bool
) -> NoReturn:
    """Confine this process, then be the payload, or be its init: start it, reap all, tell how it ended."""
    try:
        job = read_job(fds[JOB])
        confine()
        if in_place:
            os.close(fds[STATUS])
            payload(request, job, fds)
        pid = os.fork()
        if pid == 0:
            os.close(fds[STATUS])
            payload(request, job, fds)
        (status,) = keep_only(fds[STATUS])
        finished = -1
        while finished != pid:
            finished, code = os.wait()
        say(status, {"code": os.waitstatus_to_exitcode(code)})
        os._exit(0)
    except BaseException as error:
        say(fds[STATUS], {"error": f"{type(error).__name__}: {error}"})
        os._exit(125)


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
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(job["argv"][0], job["argv"], request["env"])
    except (OSError, ValueError) as error:
        os.write(2, f"{job.get('argv', ['chdir'])[0]!a}: {error}\n".encode())
        os._exit(126 if isinstance(error, PermissionError) else 127)
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
