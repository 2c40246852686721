# SPDX-License-Identifier: AGPL-3.0-or-later
"""The verdict on a task: the one door through which code earns anything.

    judge(task, files, message) -> Verdict

Nothing the candidate's process does can be a verdict. It lives in a sandbox (candidate.py) and returns
values; the expected values and the comparison live here (`Calls`), or in a second sandbox (tester.py) whose
questions this process carries over and whose report it alone receives (`Code`). A file tree is compared as
data (`Tree`).

    supervisor (here) ──── channel ──── candidate's sandbox
            └───────────── channel ──── tester's sandbox           the two never meet

A candidate that dies, hangs or talks nonsense fails. A sandbox that could not be made raises SandboxError:
that is nobody's score. Tests that cannot be read raise TaskError. Safe to call from many threads.
See docs/verdict.md for what tests may do.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import marshal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from rusty_r2.errors import ConfigError, SandboxError, TaskError
from rusty_r2.gym import compare, wire
from rusty_r2.gym.sandbox import Limits, Sandbox, open_sandbox
from rusty_r2.task import Calls, Code, Task, Tree

LIMITS = Limits()
"""what a verdict may use where the task says nothing; `wall_s` is for the whole of it"""
GRACE_S = 2.0
"""how long the tester may take to report after it was told that the candidate is gone"""
NOTICE_S = 0.05
"""how long a process that hung up may take to be seen as dead, and of what"""
START_S = 60.0
"""a sandbox that says nothing for so long is broken"""


@dataclass(frozen=True)
class Verdict:
    """What a candidate's work is worth, and why."""

    passed: bool
    passed_tests: int
    total: int
    why: str = ""
    """empty when passed; else what failed first, fit to be shown to the model: no hidden expected value"""
    parses: bool = True
    """the candidate's Python file is Python"""
    level: str = ""
    """the sandbox level it was reached at; empty where nothing had to run"""
    degraded: tuple[str, ...] = ()
    wall_s: float = 0.0


class Lost(Exception):
    """The candidate will not answer any more; the text is the reason given."""


def judge(
    task: Task,
    files: Mapping[str, str | bytes],
    message: str = "",
    *,
    limits: Limits | None = None,
    level: str = "auto",
    at_least: str = "landlock",
) -> Verdict:
    """Carry out a task's check on the files (and final message) a candidate left behind."""
    if level == "off":
        raise ConfigError("a verdict without a sandbox is worth nothing. Leave the level at auto")
    began = time.monotonic()
    limits = limits_of(task, limits or LIMITS)
    check = task.check
    if isinstance(check, Tree):
        found = list(compare.tree(check, task.files, files, message))
        why = next(filter(None, found), "")
        verdict = Verdict(not why, found.count(""), len(found), why)
    elif check.path not in files:
        total = len(check.cases) if isinstance(check, Calls) else 1
        verdict = Verdict(False, 0, total, f"{check.path} is missing", parses=False)
    else:
        with Party("candidate", limits, level, files, at_least) as candidate:
            if candidate.misplaced:
                verdict = Verdict(False, 0, 1, candidate.misplaced, parses=False)
            elif isinstance(check, Calls):
                verdict = _judge_calls(task, check, candidate)
            else:
                verdict = _judge_code(task, check, candidate)
            verdict = replace(verdict, level=candidate.level, degraded=candidate.degraded)
    return replace(verdict, wall_s=time.monotonic() - began)


def limits_of(task: Task, limits: Limits) -> Limits:
    """The task's own limits on top of others."""
    known = asdict(limits)
    for name, value in task.limits.items():
        if name not in known:
            raise TaskError(f"task {task.name}: there is no limit {name!a}; say one of {sorted(known)}")
        known[name] = type(known[name])(value)
    return Limits(**known)


# ── the two sandboxes ───────────────────────────────────────────────────────────────────────────


class Party:
    """One side of a verdict, in a sandbox of its own: `candidate` or `tester`."""

    def __init__(
        self,
        role: str,
        limits: Limits,
        level: str,
        files: Mapping[str, str | bytes] | None = None,
        at_least: str = "landlock",
    ) -> None:
        self.role = role
        self.limits = limits
        roomy = replace(limits, wall_s=limits.wall_s + START_S)  # the deadline here comes first
        self.sandbox: Sandbox = open_sandbox(level=level, at_least=at_least, limits=roomy)
        self.level = self.sandbox.level
        self.degraded = tuple(self.sandbox.degraded)
        self.misplaced = ""
        try:
            self.place(files or {})
            self.guest = self.sandbox.guest(LOADER)
        except OSError as error:
            self.sandbox.close()
            raise SandboxError(
                f"the {role}'s sandbox could not be started: {error}. Type: rusty doctor"
            ) from error
        except BaseException:
            self.sandbox.close()
            raise
        self.deadline = time.monotonic() + START_S
        with contextlib.suppress(OSError):  # `start` will say so
            wire.send(self.guest.channel, program(role), self.deadline)

    def __enter__(self) -> Party:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            self.guest.kill()
            self.guest.wait()
        finally:
            self.guest.channel.close()
            self.sandbox.close()

    def place(self, files: Mapping[str, str | bytes]) -> None:
        """Write the candidate's files. That they do not fit is its own fault; no descriptors left is ours."""
        for path, content in files.items():
            try:
                self.sandbox.write(path, content)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                    raise
                self.misplaced = wire.printable(f"{path} cannot be placed: {error.strerror or error}", 200)
                return

    def start(self, first: Any) -> None:
        """Wait until it is up (nothing foreign has run yet), hand over the work, start the clock."""
        try:
            up = wire.parse(wire.receive(self.guest.channel, self.deadline))
            wire.send(self.guest.channel, wire.text(first), self.deadline)
        except (OSError, EOFError, wire.WireError) as error:
            self.guest.kill()
            reason = self.guest.wait().reason
            raise SandboxError(
                f"the {self.role}'s sandbox ended before it began ({reason}, {error}). Type: rusty doctor"
            ) from error
        if up != ["up"]:
            raise SandboxError(f"the {self.role}'s sandbox said {up!a:.80}. Type: rusty doctor")
        self.deadline = time.monotonic() + self.limits.wall_s

    def send(self, data: bytes) -> None:
        """Say something to it."""
        try:
            wire.send(self.guest.channel, data, self.deadline)
        except (OSError, wire.WireError) as error:
            raise Lost(self.reason(error)) from error

    def receive(self) -> bytes:
        """What it says next."""
        try:
            return wire.receive(self.guest.channel, self.deadline)
        except (OSError, EOFError, wire.WireError) as error:
            raise Lost(self.reason(error)) from error

    def reason(self, error: Exception) -> str:
        """Why it is silent, in words."""
        if isinstance(error, TimeoutError):
            return f"time is up: it took more than {self.limits.wall_s:g} s"
        if isinstance(error, wire.WireError):
            return f"the {self.role}'s answer is not a value ({error})"
        time.sleep(NOTICE_S)
        self.guest.kill()
        ended = {
            "cpu": f"it used more than {self.limits.cpu_s:g} s of CPU time",
            "memory": "it used too much memory",
            "disk": "it wrote too much",
            "output": "it printed too much",
        }
        return ended.get(self.guest.wait().reason, f"the {self.role}'s process ended by itself")


def _begin(candidate: Party) -> tuple[bool, str]:
    """Let the candidate's file be compiled, then run: (it parses, why it cannot be used)."""
    parses = False
    try:
        kind, why = _pair(candidate.receive())
        parses = kind == "parses"  # said before a line of the candidate has run
        if parses:
            kind, why = _pair(candidate.receive())
        if kind == "ready":
            return True, ""
        return parses, wire.printable(f"importing it: {why}" if parses else f"it does not parse: {why}", 300)
    except Lost as lost:
        return parses, str(lost)


def _pair(data: bytes) -> tuple[str, str]:
    try:
        kind, why = wire.parse(data)
    except (wire.WireError, TypeError, ValueError):
        raise Lost("the candidate's answer is not a value") from None
    return str(kind), str(why)


# ── calls ───────────────────────────────────────────────────────────────────────────────────────


def _judge_calls(task: Task, check: Calls, candidate: Party) -> Verdict:
    total = len(check.cases)
    if not total:
        raise TaskError(f"task {task.name}: its check has no cases")
    candidate.start(check.path)
    parses, why = _begin(candidate)
    passed = 0
    try:
        for number, case in enumerate(check.cases if not why else ()):
            call = wire.text([number, ["h", 0, check.function], wire.pack(list(case.args)), wire.pack({})])
            candidate.send(call)
            problem = _weigh(number, case.expected, case.raises, check.tolerance, candidate.receive())
            passed += not problem
            if problem and not why:
                arguments = ", ".join(compare.shown(argument) for argument in case.args)
                why = wire.printable(f"{check.function}({arguments}) {problem}", 300)
    except Lost as lost:
        why = why or str(lost)
    except wire.WireError as error:
        raise TaskError(f"task {task.name}: a case's arguments cannot be sent: {error}") from error
    return Verdict(passed == total, passed, total, why, parses)


def _weigh(number: int, expected: Any, raises: str, tolerance: float, data: bytes) -> str:
    """Empty where an answer is the expected one, else what it was."""
    try:
        answer = wire.parse(data)
        if type(answer) is not list or len(answer) < 5 or answer[0] != number:
            raise Lost("the candidate answered out of turn")
        if answer[1] == "x":
            names = [entry[-1] for entry in answer[2] if entry[0] == "b"]
            said = wire.printable(str(answer[4]), 120)
            own = str(answer[2][0][-1])
            return "" if raises and raises in names else f"raised {wire.printable(own, 60)}: {said}"
        if answer[1] != "v":
            raise Lost("the candidate's answer is not a value")
        got = wire.unpack(answer[2])
    except (TypeError, IndexError, KeyError, ValueError, OverflowError, RecursionError):
        raise Lost("the candidate's answer is not a value") from None
    except wire.WireError as error:
        return f"returned something that is no value: {error}"
    if raises:
        return f"returned {compare.shown(got)} where an error was asked for"
    return "" if compare.same(got, expected, tolerance) else f"returned {compare.shown(got)}"


# ── tests written as code ───────────────────────────────────────────────────────────────────────


def _judge_code(task: Task, check: Code, candidate: Party) -> Verdict:
    if check.style not in ("unittest", "pytest", "assert"):
        raise TaskError(f"task {task.name}: style {check.style!a} is unknown; say unittest, pytest or assert")
    with Party("tester", candidate.limits, candidate.level) as tester:
        candidate.start(check.path)
        dotted = check.path.removesuffix(".py").replace("/", ".")
        names = list(dict.fromkeys((dotted, dotted.rpartition(".")[2])))
        tester.start([check.source, check.style, check.entry, names])
        planned = _plan(task, tester)
        parses, why = _begin(candidate)
        if why:
            return Verdict(False, 0, max(planned, 1), why, parses)
        passed, total, why = _carry(tester, candidate, planned)
    if total == 0:
        raise TaskError(f"task {task.name}: its tests hold no test")
    return Verdict(passed == total and not why, passed, total, why, parses)


def _plan(task: Task, tester: Party) -> int:
    try:
        kind, planned, problem = wire.parse(tester.receive())
    except (Lost, wire.WireError, ValueError, TypeError) as error:
        raise SandboxError(f"the tests of {task.name} were not read: {error}. Type: rusty doctor") from error
    if kind != "plan":
        raise TaskError(f"the tests of {task.name} do not parse: {problem}")
    return int(planned)


def _carry(tester: Party, candidate: Party, planned: int) -> tuple[int, int, str]:
    """Carry questions and answers between the two until the tester reports: (passed, total, why)."""
    lost = ""
    try:
        while True:
            data = tester.receive()
            if data[:1] == b"V":
                passed, total, why = wire.parse(data[1:])
                return passed, total, lost or why
            try:
                candidate.send(data[1:])
                answer = b"R" + candidate.receive()
            except Lost as gone:
                lost = str(gone)
                answer = b"X" + lost.encode()
                tester.deadline = time.monotonic() + GRACE_S
            tester.send(answer)
    except Lost as gone:
        # the tests themselves ran out of time or memory, which a candidate's values can bring about
        why = lost or str(gone)
        if "by itself" in why and not lost:
            raise SandboxError(f"the tester died: {why}. Type: rusty doctor") from gone
        return 0, max(planned, 1), why


# ── what is sent into a sandbox ─────────────────────────────────────────────────────────────────

_ROLES = {"candidate": ("wire", "candidate"), "tester": ("wire", "stubs", "pytest_shim", "tester")}

LOADER = """
import marshal, os, sys, types
size, data = int.from_bytes(os.read(3, 4), "little"), b""
while len(data) < size:
    data += os.read(3, size - len(data)) or os._exit(1)
package = None
for name in ("rusty_r2", "rusty_r2.gym"):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = []
for name, code in marshal.loads(data):
    module = sys.modules["rusty_r2.gym." + name] = types.ModuleType("rusty_r2.gym." + name)
    setattr(package, name, module)
    exec(code, module.__dict__)
    if name == "pytest_shim":
        sys.modules["pytest"] = module
for name in [name for name in sys.modules if name.partition(".")[0] == "rusty_r2"]:
    del sys.modules[name]
module.main()
"""
"""what a guest runs first: it takes its program from the channel, as code this interpreter has compiled"""


@functools.cache
def program(role: str) -> bytes:
    """The program of one side, compiled once, so that no sandbox spends time on it."""
    parts = []
    for name in _ROLES[role]:
        source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        parts.append((name, compile(source, f"<{name}>", "exec", dont_inherit=True, optimize=2)))
    return marshal.dumps(parts)
