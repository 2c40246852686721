# SPDX-License-Identifier: AGPL-3.0-or-later
"""Proof that a task is fair: gold passes, doing nothing fails, and nothing gives the answer away.

`gold` says what a perfect player would do, as actions; episodes are made of it, `rusty gym play` plays it.
`faults` tries it for real in the environment (commands run in the sandbox, code is judged) and reads the
task's own words and files for leaks. An empty list is a proof; `rusty gym check` prints the others.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath

from rusty_r2.errors import TaskError
from rusty_r2.gym.env import CodingEnv, EnvConfig
from rusty_r2.gym.verdict import judge
from rusty_r2.protocol import Action, Cmd, Edit, Msg, render
from rusty_r2.task import Calls, Code, Task, Tree

TELLING = 10
"""a line or a value whose text is shorter than this stands in a file by chance"""


GRADERS = ("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", "tox.ini")


def gold(task: Task) -> list[Action]:
    """The actions that solve a task: its commands or its files, then its message."""
    actions: list[Action] = [Cmd(command) for command in task.commands]
    if not actions:
        gone = [path for path, content in task.solution.items() if content is None]
        actions = [Edit(path, text) for path, text in task.solution.items() if text is not None]
        actions += [Cmd(f"rm {shlex.join(gone)}")] if gone else []
    return [*actions, Msg(task.message)] if task.message else actions


def faults(task: Task, config: EnvConfig | None = None) -> list[str]:
    """What is wrong with a task; SandboxError where it could not be tried."""
    try:
        return list(dict.fromkeys([*lint(task), *_idle(task), *_gold_fails(task, config or EnvConfig())]))
    except TaskError as error:
        return [str(error)]


def _idle(task: Task) -> Iterator[str]:
    verdict = judge(task, task.files, "")
    if verdict.passed:
        yield "the start state already passes"


def _gold_fails(task: Task, config: EnvConfig) -> Iterator[str]:
    actions = gold(task)
    if not actions:
        yield "there is no gold solution"
        return
    if len(actions) > config.max_turns:
        config = EnvConfig(max_turns=len(actions), level=config.level, at_least=config.at_least)
    with CodingEnv([task], config) as env:
        env.reset(options={"task": task})
        for place, action in enumerate(actions):
            seen, _, terminated, truncated, info = env.step(render(action))
            last = place == len(actions) - 1
            if info["masked"]:
                yield f"the sandbox failed: {info['why']}"
                return
            if (terminated or truncated) and not last:
                yield f"gold is longer than it needs to be: over after {place + 1} of {len(actions)} actions"
                return
            if isinstance(action, Cmd) and not seen.startswith("exit 0"):
                yield f"gold command fails: {action.command} -> {seen.partition(chr(10))[0]}"
    if not info["passed"]:
        yield f"gold does not pass: {info['why']}"


def lint(task: Task) -> Iterator[str]:
    """Leaks that can be seen without running anything."""
    said = {"the prompt": task.prompt, **{f"the file {path}": text for path, text in task.files.items()}}
    for where, text in said.items():
        yield from (f"{where} holds {what}" for what in _leaks(task, text))
    yield from _reachable(task)
    if isinstance(task.check, Tree) and task.check.answer is not None:
        if not task.message:
            yield "the check asks for an answer, but there is no gold message"
        if _word(task.check.answer, task.prompt):
            yield "the prompt holds the answer"
        if not task.check.answer.isdecimal() and task.check.answer not in task.files:
            yield "the answer is neither a number nor a file: it could be hidden in a list of guesses"


def _leaks(task: Task, text: str) -> Iterator[str]:
    """Parts of gold, and hidden cases with their values, that stand in `text`."""
    if any(command in text for command in task.commands):
        yield "a gold command"
    old = {line.strip() for content in task.files.values() for line in content.splitlines()}
    new = (line.strip() for content in task.solution.values() for line in (content or "").splitlines())
    for line in new:
        if line not in old and len(line) >= TELLING and _word(line, text):
            yield f"a line of gold: {line}"
    if isinstance(task.check, Calls):
        for case in task.check.cases:
            shown = ", ".join(map(repr, case.args))
            if f"{task.check.function}({shown})" in text:
                yield f"the hidden case ({shown})"
            value = repr(case.expected)
            given = any(value in (content or "") for content in task.solution.values())
            if len(value) >= TELLING and value in text and text is not task.prompt and not given:
                yield f"the hidden expected value {value}"
    if isinstance(task.check, Code) and task.check.source.strip() in text:
        yield "the tests"


def _word(line: str, text: str) -> bool:
    """Whether `line` stands in `text` on its own, not as a part of something longer."""
    return re.search(rf"(?<!\w){re.escape(line)}(?!\w)", text) is not None


def _reachable(task: Task) -> Iterator[str]:
    """The grader must not stand in the workspace, nor under a name that a test runner picks up."""
    if isinstance(task.check, Tree):
        return
    for path in task.files:
        name = PurePosixPath(path).name
        if path != task.check.path and (name.startswith("test") or name in GRADERS):
            yield f"{path} looks like a grader inside the workspace"
