# SPDX-License-Identifier: AGPL-3.0-or-later
"""Watch one payload from outside: feed it, read it, measure it, and end it by the one way there is.

The run is over when its status pipe closes, and that happens when the spawner has reaped the run's first
process: by then nothing of the payload lives. A payload that keeps a stream open cannot hold us; a
payload that writes for ever is read, cut and then ended. Timeout, cancelling and every limit go through
`Process.kill`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rusty_r2.errors import SandboxError
from rusty_r2.gym.sandbox import Limits, Reason, Result

TICK_S = 0.05
GRACE_S = 15.0
CHUNK = 1 << 16
MAX_STATUS = 1 << 16


class Kept:
    """The first and the last bytes of a stream, and how many it had."""

    def __init__(self, keep: int) -> None:
        self.half = keep // 2
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.half - len(self.head)
        self.head += data[: max(room, 0)]
        self.tail += data[max(room, 0) :]
        del self.tail[: max(len(self.tail) - self.half, 0)]

    @property
    def dropped(self) -> int:
        return self.total - len(self.head) - len(self.tail)

    def bytes(self) -> bytes:
        gap = b"\n[... %d bytes cut ...]\n" % self.dropped if self.dropped else b""
        return bytes(self.head) + gap + bytes(self.tail)


@dataclass
class Process:
    """A started payload: our ends of its pipes, and how to end it."""

    pidfd: int
    stdin: int
    stdout: int
    stderr: int
    status: int
    control: int
    """a byte here, or its end, ends the run at levels without a pid namespace"""
    by_pidfd: bool
    """killing the first process ends the whole run"""
    in_place: bool
    """the payload itself is the first process, with no init above it to tell how it ended"""
    reason: Reason | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def kill(self, reason: Reason) -> None:
        """The one kill path. Safe to call at any time, from any thread, more than once."""
        with self.lock:
            if self.reason is None:
                self.reason = reason
            if self.by_pidfd and self.pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            elif self.control >= 0:
                with contextlib.suppress(OSError):
                    os.write(self.control, b"x")

    def close(self) -> None:
        with self.lock:
            for name in ("pidfd", "stdin", "stdout", "stderr", "status", "control"):
                if getattr(self, name) >= 0:
                    os.close(getattr(self, name))
                    setattr(self, name, -1)


def watch(
    process: Process,
    limits: Limits,
    *,
    level: str,
    degraded: tuple[str, ...],
    stdin: bytes = b"",
    cancel: threading.Event | None = None,
    also: Callable[[], Reason | None] | None = None,
) -> Result:
    """Until it ends or must end. `also` is asked now and then for another reason to stop."""
    watching = _Watch(process, limits, stdin, cancel, also)
    try:
        return watching.result(level, degraded)
    except BaseException:  # Ctrl-C too: nothing may live when we leave
        process.kill("cancelled")
        watching.wait_for_end()
        raise
    finally:
        process.close()


class _Watch:
    def __init__(
        self,
        process: Process,
        limits: Limits,
        stdin: bytes,
        cancel: threading.Event | None,
        also: Callable[[], Reason | None] | None,
    ) -> None:
        self.process, self.limits, self.cancel, self.also = process, limits, cancel, also
        self.pending = memoryview(stdin)
        self.kept = {process.stdout: Kept(limits.out_keep), process.stderr: Kept(limits.out_keep)}
        self.told = bytearray()
        self.start = time.monotonic()
        self.root = host_pid(process.pidfd)
        self.over = False
        self.killed_at = 0.0

    def result(self, level: str, degraded: tuple[str, ...]) -> Result:
        with selectors.DefaultSelector() as selector:
            for stream in (*self.kept, self.process.status):
                os.set_blocking(stream, False)
                selector.register(stream, selectors.EVENT_READ)
            if self.pending:
                os.set_blocking(self.process.stdin, False)
                selector.register(self.process.stdin, selectors.EVENT_WRITE)
            else:
                self._close_stdin()
            while not self.over:
                for key, _ in selector.select(self._pause()):
                    self._serve(key.fd, selector)
                self._judge()
        for stream, kept in self.kept.items():
            self._drain(stream, kept)
        return self._sum_up(level, degraded)

    def wait_for_end(self) -> None:
        end = time.monotonic() + GRACE_S
        while not self.over and time.monotonic() < end:
            select.select([self.process.status], [], [], TICK_S)
            data = _read(self.process.status)
            self.over = data == b"" or b'"wait"' in (data or b"")

    def _pause(self) -> float:
        """How long we may sleep: short while there is something to measure, to the deadline at most."""
        elapsed = time.monotonic() - self.start
        left = self.limits.wall_s - elapsed
        return max(0.0, min(left, TICK_S)) if self.process.reason is None else TICK_S

    def _serve(self, descriptor: int, selector: selectors.BaseSelector) -> None:
        if descriptor == self.process.stdin:
            self._feed(selector)
            return
        data = _read(descriptor)
        if data is None:
            return
        if not data:
            selector.unregister(descriptor)
            self.over = self.over or descriptor == self.process.status
        elif descriptor == self.process.status:
            self.told += data[: MAX_STATUS - len(self.told)]
            self.over = b'"wait"' in self.told
        else:
            self.kept[descriptor].add(data)

    def _feed(self, selector: selectors.BaseSelector) -> None:
        try:
            self.pending = self.pending[os.write(self.process.stdin, self.pending[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self.pending = memoryview(b"")
        if not self.pending:
            selector.unregister(self.process.stdin)
            self._close_stdin()

    def _close_stdin(self) -> None:
        os.close(self.process.stdin)
        self.process.stdin = -1

    def _judge(self) -> None:
        elapsed = time.monotonic() - self.start
        if self.process.reason is not None:
            self.killed_at = self.killed_at or elapsed
            if elapsed - self.killed_at > GRACE_S:
                raise SandboxError("a payload could not be ended. See: rusty doctor")
            return
        if self.over:
            return
        reason: Reason | None = None
        if elapsed >= self.limits.wall_s:
            reason = "timeout"
        elif self.cancel is not None and self.cancel.is_set():
            reason = "cancelled"
        elif sum(kept.total for kept in self.kept.values()) > self.limits.out_total:
            reason = "output"
        elif (
            elapsed >= TICK_S
            and self.root
            and tree_memory(self.root, self.limits.mem_tree) > self.limits.mem_tree
        ):
            reason = "memory"
        elif self.also is not None:
            reason = self.also()
        if reason is not None:
            self.process.kill(reason)

    def _drain(self, stream: int, kept: Kept) -> None:
        """What the dead left in the pipe; bounded by the pipe."""
        for _ in range(64):
            data = _read(stream)
            if not data:
                return
            kept.add(data)

    def _sum_up(self, level: str, degraded: tuple[str, ...]) -> Result:
        told = _parse(bytes(self.told))
        if "error" in told:
            raise SandboxError(f"the sandbox could not be set up: {told['error']}. See: rusty doctor")
        if "wait" not in told:
            raise SandboxError("the sandbox's spawner ended during a run. Try again; see: rusty doctor")
        status = told.get("code", told["wait"])
        reason = self.process.reason
        if reason is None and "code" not in told and not self.process.in_place:
            raise SandboxError("the sandbox was ended from outside (out of memory?). See: rusty doctor")
        if reason is not None:
            status = -signal.SIGKILL
        out, err = self.kept.values()
        return Result(
            code=status if status >= 0 else None,
            signal=-status if status < 0 else None,
            stdout=out.bytes(),
            stderr=err.bytes(),
            truncated=bool(out.dropped or err.dropped),
            dropped=out.dropped + err.dropped,
            wall_s=time.monotonic() - self.start,
            cpu_s=told["cpu_s"],
            max_rss=told["max_rss"],
            reason=reason or _reason(status, told["cpu_s"], self.limits),
            level=level,
            degraded=degraded,
        )


def _reason(status: int, cpu_s: float, limits: Limits) -> Reason:
    number = -status if status < 0 else status - 128  # a shell reports its child's signal that way
    if number == signal.SIGXCPU or (number == signal.SIGKILL and cpu_s >= limits.cpu_s):
        return "cpu"
    if number == signal.SIGXFSZ:
        return "disk"
    return "signal" if status < 0 else "exit"


def _parse(lines: bytes) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for line in lines.splitlines():
        told |= json.loads(line)
    return told


def _read(descriptor: int) -> bytes | None:
    """None: nothing now. Empty: closed."""
    try:
        return os.read(descriptor, CHUNK)
    except BlockingIOError:
        return None


def host_pid(pidfd: int) -> int:
    """The number that our /proc knows a process by, whatever namespace it lives in; 0 where it is gone."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            return max(int(line.split()[1]), 0)
    return 0


def descendants(pid: int) -> list[int]:
    found = [pid]
    for process in found:  # grows as it is walked
        try:
            for task in Path(f"/proc/{process}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except (OSError, ValueError):
            continue
    return found


def tree_memory(root: int, enough: int) -> int:
    """Bytes that a process tree holds. Quick and too high at first; exact only where that says `enough`."""
    tree = descendants(root)
    quick = sum(_fields(f"/proc/{pid}/status", ("RssAnon", "RssShmem", "VmSwap")) for pid in tree)
    if quick <= enough:
        return quick
    exact = sum(_fields(f"/proc/{pid}/smaps_rollup", ("Pss_Anon", "Pss_Shmem", "SwapPss")) for pid in tree)
    return exact or quick


def _fields(path: str, names: tuple[str, ...]) -> int:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.partition(":")[0] in names)
