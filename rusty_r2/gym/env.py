# SPDX-License-Identifier: AGPL-3.0-or-later
"""The coding gym: a task's files in a sandbox, what each reply does to them, and what that was worth.

    env = CodingEnv()
    observation, info = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step('{"action": "CMD", "command": "ls"}')

The API is Gymnasium's (adapter.py makes a `gymnasium.Env` of it). A reply is the model's raw text; the
first observation is the user's turn, each later one the observation turn that answers a reply.
Commands run in sandbox.py, verdict.py decides, EnvConfig holds every number. A sandbox is opened at the
first command, so a task that is solved by writing a file never needs one of its own.
Many episodes side by side are in vector.py; which task comes next is for curriculum.py.
"""

from __future__ import annotations

import errno
import math
import random
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rusty_r2.closing import Closing
from rusty_r2.errors import ConfigError, ProtocolError, SandboxError, TaskError
from rusty_r2.gym.sandbox import Limits, Result, Sandbox, open_sandbox
from rusty_r2.gym.verdict import Verdict, judge, limits_of
from rusty_r2.protocol import Action, Cmd, Edit, Msg, parse
from rusty_r2.task import Calls, Task, Tree, clean_path, index

TASKS = Path(__file__).parent / "tasks"
"""the hand-made tasks that come with the package"""
TOO_MUCH = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENAMETOOLONG)
"""what a command left behind does not fit into a second workspace: its own fault, not the machine's"""
MAX_NAME = 255
"""bytes in one part of a path, as Linux has it"""
MAX_DEPTH = 32
"""parts in a path"""
Files = dict[str, str | bytes]
Info = dict[str, Any]
_DEFINED = re.compile(r"^(?:async def|def|class) +(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class EnvConfig:
    """What an episode may do, and what each outcome is worth."""

    max_turns: int = 4
    """replies in an episode"""
    max_output: int = 1200
    """characters of a command's output that are shown: its head and its tail"""
    max_file: int = 4000
    """characters shown of the files to work on, all together"""
    max_files: int = 20
    """names of files shown at the start"""
    parses: float = 0.3
    """once an episode: the edited file can be read by Python and defines what it should"""
    passes: float = 0.7
    """everything asked for is there; what was not yet paid of `parses` comes with it"""
    partial: float = 0.0
    """shaping: this much times the share of tests that pass for the first time"""
    broken: float = -0.1
    """an edit after which Python cannot read the file"""
    refused: float = -0.1
    """an edit of a path outside the workspace"""
    talk: float = -0.1
    """a message while the task is not done; a wrong answer, or none where one was asked for"""
    malformed: float = -0.5
    """a reply that is no action"""
    turn: float = 0.0
    """added each turn; a small negative number prefers short episodes"""
    quiet: float = 0.0
    """share of the tasks, by their names, that go as in a chat: no verdict until a message says it is done"""
    wall_s: float = 5.0
    """seconds a command, or all tests together, may take"""
    disk: int = 16 << 20
    """bytes that the workspace may hold"""
    level: str = "auto"
    """sandbox level of commands and verdicts: auto (the strongest that works), ns, bwrap or landlock"""
    at_least: str = "landlock"
    """the weakest level that is accepted"""

    def __post_init__(self) -> None:
        if "off" in (self.level, self.at_least):
            raise ConfigError("the gym never runs code with the sandbox off. Type: rusty doctor")
        if self.max_turns < 1 or self.wall_s <= 0:
            raise ConfigError(f"max_turns {self.max_turns} and wall_s {self.wall_s:g} must be more than 0")


@dataclass
class _Episode:
    """Everything that belongs to one episode and to no other."""

    task: Task
    files: Files
    box: Sandbox | None = None
    turn: int = 0
    over: bool = False
    paid: bool = False
    share: float = 0.0
    waits: bool = False
    verdict: Verdict | None = None
    level: str = ""
    degraded: tuple[str, ...] = ()
    parts: dict[str, float] = field(default_factory=dict)
    """rewards of the turn under way, by name"""


class CodingEnv(Closing):
    """One task at a time: `reset`, then `step` until it is over, then `close`."""

    def __init__(self, tasks: Sequence[Task] | Path | None = None, config: EnvConfig | None = None) -> None:
        self.config = config or EnvConfig()
        wall_s = self.config.wall_s
        self._limits = Limits(wall_s=wall_s, cpu_s=math.ceil(wall_s), disk=self.config.disk)
        self._given = tasks
        self._tasks: Sequence[Task] | None = None
        self._rng = random.Random()
        self._now: _Episode | None = None

    @property
    def tasks(self) -> Sequence[Task]:
        """What `reset` draws from where it is given no task: the shipped ones unless told otherwise."""
        if self._tasks is None:
            given = TASKS if self._given is None else self._given
            self._tasks = [Task.load(folder) for folder in index(given)] if isinstance(given, Path) else given
            if not self._tasks:
                raise TaskError(f"there are no tasks in {given}. Type: rusty gym list")
        return self._tasks

    @property
    def task(self) -> Task:
        return self._episode().task

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, Info]:
        """Begin an episode: with `options["task"]`, or with one drawn by the seed."""
        self.close()
        if seed is not None:
            self._rng = random.Random(seed)
        task = (options or {}).get("task")
        if task is None:
            task = self.tasks[int(self._rng.random() * len(self.tasks))]
        if not isinstance(task, Task):
            raise TaskError(f'options["task"] must be a Task, not a {type(task).__name__}')
        self._now = _Episode(task, dict(task.files), waits=waits(task, self.config))
        return opening(task, self.config), self._info("", valid=True)

    def step(self, reply: str) -> tuple[str, float, bool, bool, Info]:
        """Carry out one reply. Whatever it says, what comes back is an observation."""
        now = self._episode()
        if now.over:
            raise TaskError("the episode is over. Call reset() first")
        now.turn += 1
        now.parts = {"turn": self.config.turn} if self.config.turn else {}
        kind = ""
        try:
            action = parse(reply)
            kind = action.kind
            seen, done = self._act(now, action)
        except ProtocolError as error:
            now.parts["malformed"] = self.config.malformed
            seen, done = f"SYSTEM_MSG: Invalid format: {error}. {error.hint}", False
        except SandboxError as error:
            return self._masked(now, error)
        truncated = not done and now.turn >= self.config.max_turns
        if truncated and now.waits:  # silence must not be worth more than a wrong answer
            now.parts["unanswered"] = self.config.talk
        if done or truncated:
            self._finish(now)
        return seen, float(sum(now.parts.values())), done, truncated, self._info(kind, valid=bool(kind))

    def close(self) -> None:
        """Give the sandbox back. Calling it again does no harm."""
        if self._now is not None:
            self._finish(self._now)

    def _act(self, now: _Episode, action: Action) -> tuple[str, bool]:
        """What the action showed, and whether the episode ends with it."""
        if isinstance(action, Msg):
            return self._told(now, action.message)
        seen = self._edited(now, action) if isinstance(action, Edit) else self._ran(now, action)
        return seen, now.verdict is not None and now.verdict.passed

    def _told(self, now: _Episode, message: str) -> tuple[str, bool]:
        if now.waits:
            verdict = self._judge(now, message)
            if verdict.passed:
                return "TEST_RESULT: right", True
            now.parts["talk"] = self.config.talk
            return "TEST_RESULT: wrong", True
        now.parts["talk"] = self.config.talk
        return "SYSTEM_MSG: The task is not done. Use CMD or EDIT.", False

    def _edited(self, now: _Episode, action: Edit) -> str:
        try:
            path = _place(action.path, now.files)
            if now.box is not None:
                now.box.write(path, action.content)
        except (TaskError, OSError) as error:
            now.parts["refused"] = self.config.refused
            return f"SYSTEM_MSG: EDIT refused: {error}"
        before = dict(now.files)
        now.files[path] = action.content
        return self._tested(now, before, f"wrote {path}")

    def _ran(self, now: _Episode, action: Cmd) -> str:
        now.box = box = now.box or self._open(now)
        result = box.run(action.command)
        seen = shown(result, self.config.max_output)
        before = now.files
        try:
            now.files = dict(box.files())
        except OSError as error:
            return f"{seen}\nSYSTEM_MSG: the workspace cannot be read: {error}"
        return self._tested(now, before, seen)

    def _open(self, now: _Episode) -> Sandbox:
        config, limits = self.config, limits_of(now.task, self._limits)
        try:
            box = open_sandbox(level=config.level, at_least=config.at_least, limits=limits, files=now.files)
        except OSError as error:  # the paths and sizes were looked at before: this is the machine's fault
            raise SandboxError(f"the workspace could not be filled: {error}. Type: rusty doctor") from error
        now.level, now.degraded = box.level, box.degraded
        return box

    def _tested(self, now: _Episode, before: Files, seen: str) -> str:
        """`seen`, and the tests' result where the files changed and the files decide."""
        if now.waits or _same(before, now.files):
            return seen
        verdict = self._judge(now, "")
        if verdict.passed:
            return f"{seen}\nTEST_RESULT: all pass"
        if not isinstance(now.task.check, Tree) and not _same(before, now.files, now.task.check.path):
            self._weigh_code(now, verdict)
        return f"{seen}\nTEST_RESULT: {_failed(verdict, self.config.max_output)}"

    def _weigh_code(self, now: _Episode, verdict: Verdict) -> None:
        """Pay for code that parses, once; code that merely went missing is worth nothing."""
        check = now.task.check
        assert not isinstance(check, Tree)
        first, last = (_text(files.get(check.path, "")) for files in (now.task.files, now.files))
        wanted = {*_DEFINED.findall(first), check.function if isinstance(check, Calls) else check.entry} - {
            ""
        }
        if not verdict.parses:
            now.parts["broken"] = self.config.broken
        elif not now.paid and last != first and wanted <= set(_DEFINED.findall(last)):
            now.paid = True
            now.parts["parses"] = self.config.parses

    def _judge(self, now: _Episode, message: str) -> Verdict:
        try:
            verdict = judge(
                now.task, now.files, message, limits=self._limits,
                level=self.config.level, at_least=self.config.at_least,
            )  # fmt: skip
        except OSError as error:
            if error.errno not in TOO_MUCH:
                raise SandboxError(f"the work could not be judged: {error}. Type: rusty doctor") from error
            verdict = Verdict(False, 0, 0, f"the workspace cannot be judged: {error}", parses=False)
        now.verdict = verdict
        now.level, now.degraded = verdict.level or now.level, verdict.degraded or now.degraded
        share = verdict.passed_tests / verdict.total if verdict.total else float(verdict.passed)
        if self.config.partial and share > now.share:
            now.parts["partial"] = self.config.partial * (share - now.share)
        now.share = max(now.share, share)
        if verdict.passed:
            now.parts["passes"] = self.config.passes
            if not now.paid:
                now.parts["parses"] = self.config.parses
                now.paid = True
        return verdict

    def _masked(self, now: _Episode, error: SandboxError) -> tuple[str, float, bool, bool, Info]:
        """Broken infrastructure is not a bad answer: the episode ends, and trainers leave it out."""
        now.parts = {}
        self._finish(now)
        info = self._info("", valid=True) | {"masked": True, "why": str(error)}
        return "SYSTEM_MSG: the sandbox failed; this episode does not count.", 0.0, False, True, info

    def _finish(self, now: _Episode) -> None:
        now.over = True
        box, now.box = now.box, None
        if box is not None:
            box.close()

    def _episode(self) -> _Episode:
        if self._now is None:
            raise TaskError("no episode has begun. Call reset() first")
        return self._now

    def _info(self, kind: str, *, valid: bool) -> Info:
        now = self._episode()
        verdict = now.verdict
        return {
            "task": now.task.name,
            "family": now.task.family,
            "difficulty": now.task.difficulty,
            "split": now.task.split,
            "turn": now.turn,
            "action": kind,
            "valid": valid,
            "masked": False,
            "passed": verdict is not None and verdict.passed,
            "passed_tests": verdict.passed_tests if verdict else 0,
            "total_tests": verdict.total if verdict else 0,
            "parses": verdict is not None and verdict.parses,
            "why": verdict.why if verdict else "",
            "level": now.level,
            "degraded": now.degraded,
            "rewards": dict(now.parts),
        }


def asks(task: Task) -> bool:
    """Whether the final message is the answer."""
    return isinstance(task.check, Tree) and task.check.answer is not None


def waits(task: Task, config: EnvConfig) -> bool:
    """Whether the verdict waits for a message, which ends the episode."""
    return asks(task) or zlib.crc32(task.name.encode()) < config.quiet * 2**32


def opening(task: Task, config: EnvConfig) -> str:
    """The first observation: what is wanted, and what is there."""
    if isinstance(task.check, Tree):
        names = {name.partition("/")[0] + "/" * ("/" in name) for name in task.files}
        return task.prompt.strip() + listed(names, config.max_files)
    said, room = task.prompt.strip(), config.max_file
    path = task.check.path
    for name in sorted(task.files, key=lambda name: (name != path, name)):
        body = task.files[name].rstrip()
        # a prompt that quotes the file need not be read twice
        said += f"\n\nCURRENT_FILE: {name}" + ("" if body in said else f"\n{clip(body, room)}")
        room = max(room - len(body), 80)
    return said


def listed(names: Iterable[str], most: int = EnvConfig.max_files) -> str:
    """The names of what is there, as they stand under a request; nothing where there is nothing."""
    found = sorted(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return f"\n\nFILES: {' '.join(found[:most])}{more}" if found else ""


def shown(result: Result, room: int) -> str:
    """A command's result as the model reads it: how it ended, then what it said."""
    ended = f"exit {result.code}" if result.reason == "exit" else f"stopped: {result.reason}"
    return f"{ended}\n{clip(result.output, room)}".rstrip()


def clip(text: str, room: int) -> str:
    """The head and the tail of `text` where it is longer than `room` characters."""
    if len(text) <= room:
        return text
    head, tail = text[: room * 2 // 3], text[len(text) - room // 3 :]
    return f"{head}\n[{len(text) - len(head) - len(tail)} characters left out]\n{tail}"


def _place(path: str, files: Files) -> str:
    """`path` cleaned, where a file can stand there beside `files`."""
    path = clean_path(path)
    parts = path.split("/")
    if len(parts) > MAX_DEPTH or any(len(part.encode()) > MAX_NAME for part in parts):
        raise TaskError(f"{path[:40]!a} is too long a path")
    above = next(("/".join(parts[:n]) for n in range(1, len(parts)) if "/".join(parts[:n]) in files), None)
    if above is not None:
        raise TaskError(f"{above!a} is a file, not a folder")
    if any(name.startswith(path + "/") for name in files):
        raise TaskError(f"{path!a} is a folder")
    return path


def _failed(verdict: Verdict, room: int) -> str:
    counted = f"{verdict.passed_tests} of {verdict.total} pass" if verdict.total else "not done"
    return clip(f"{counted}. {verdict.why}".strip(), room)


def _same(before: Files, after: Files, path: str = "") -> bool:
    names = [path] if path else {*before, *after}
    return all((name in before) == (name in after) for name in names) and all(
        _text(before[name]) == _text(after[name]) for name in names if name in before
    )


def _text(content: str | bytes) -> str:
    return content.decode("utf-8", "backslashreplace") if isinstance(content, bytes) else content
