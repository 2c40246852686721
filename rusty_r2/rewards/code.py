# SPDX-License-Identifier: AGPL-3.0-or-later
"""Rewards for code: does it parse, and does it run to its end?

Both look at the fenced blocks of the answer; the syntax reward also at Python files the agent wrote.
Python and shell are run (in the sandbox, see running.py), other languages count as code but are not
judged. A request for code that is answered without any earns 0, so silence never beats a failed try;
so does code that does nothing: `pass`, fixed prints, a function that only returns a constant.
Whether code is *right* is for the gym's tests; these two only know whether it works at all.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

from rusty_r2.errors import ConfigError
from rusty_r2.rewards import running
from rusty_r2.rewards.base import BaseReward, RewardResult, nothing
from rusty_r2.rewards.reading import (
    PYTHON,
    SHELL,
    UNRUN,
    Block,
    answer,
    blocks,
    calls,
    passed,
    python_tree,
    related,
    wanted_names,
    wants_code,
    wrote_code,
)
from rusty_r2.trace import ExecutionTrace


class CodeExecutionReward(BaseReward):
    """The code of the answer was run, and all of it worked."""

    name = "code_execution"
    weight = 2.0
    is_binary = True

    def __init__(self, timeout: float = 30, sandbox: bool = True) -> None:
        if not sandbox:
            raise ConfigError("code from traces runs only in the sandbox: sandbox=True. Type: rusty doctor")
        self.timeout = timeout

    def compute(self, trace: ExecutionTrace) -> RewardResult:
        return self._weigh(trace, run=True)

    def known(self, trace: ExecutionTrace) -> RewardResult | None:
        """What can be said from earlier runs; None where something would have to run first."""
        result = self._weigh(trace, run=False)
        return None if result.details.get("not_run") else result

    def _weigh(self, trace: ExecutionTrace, *, run: bool) -> RewardResult:
        found = blocks(answer(trace))
        programs = list(_programs(found, trace.user_query))
        if not programs:
            return _no_code(trace, found)
        outcomes: list[running.Outcome] = []
        for language, source, idle in programs:
            outcome = running.Outcome(False, idle) if idle else self._outcome(language, source, run)
            if outcome is None:
                return nothing(not_run=True)
            outcomes.append(outcome)
        judged = [outcome for outcome in outcomes if outcome.ok is not None]
        why = [outcome.why for outcome in outcomes if not outcome.ok]
        if not judged:
            return nothing(not_judged=why)
        worked = sum(bool(outcome.ok) for outcome in judged)
        details = {"programs": len(programs), "judged": len(judged), "worked": worked, "why": why}
        return RewardResult(float(worked == len(judged)), True, details, error=why[0] if why else None)

    def _outcome(self, language: str, source: str, run: bool) -> running.Outcome | None:
        if not run:
            return running.OUTCOMES.peek(running.key_of(language, source, self.timeout))
        started = running.run_python if language == "python" else running.run_shell
        return started(source, self.timeout)


class SyntaxValidationReward(BaseReward):
    """Every piece of Python and JSON that was written can be read."""

    name = "syntax_validation"
    weight = 1.0
    is_binary = True

    def compute(self, trace: ExecutionTrace) -> RewardResult:
        found = blocks(answer(trace))
        shown, written = _checkable(found), _written(trace)
        if not shown and not written:
            return _no_code(trace, found)
        wrong = [why for block in (*shown, *written) if (why := _unreadable(block))]
        asked = wants_code(trace.user_query) and passed(trace) is None
        python = [block.source for block in (*shown, *(written if asked else ())) if _is_python(block)]
        if python and not wrong and (idle := does_nothing("\n".join(python), trace.user_query)):
            wrong = [idle]
        details = {"checked": len(shown) + len(written), "wrong": wrong}
        return RewardResult(float(not wrong), True, details, error=wrong[0] if wrong else None)


def _no_code(trace: ExecutionTrace, found: list[Block]) -> RewardResult:
    """Nothing to judge: that is a fault only where code was asked for and nothing else was done."""
    other = any(block.language in UNRUN | SHELL and block.source.strip() for block in found)
    if wants_code(trace.user_query) and not other and not wrote_code(trace):
        return RewardResult(0.0, True, {"why": "asked for code, gave none"}, error="no code")
    return nothing(why="no code to judge")


def _programs(found: list[Block], query: str) -> Iterator[tuple[str, str, str]]:
    """(language, source, why it does nothing): Python blocks build on each other, so they are one program."""
    python = [block.source for block in found if _is_python(block)]
    if python:
        joined = "\n".join(python)
        yield "python", joined, does_nothing(joined, query)
    for block in found:
        if block.language in SHELL:
            yield "shell", block.source, _idle_script(block.source, query)


def _is_python(block: Block) -> bool:
    """Marked as Python, or unmarked and plainly Python: output and diagrams are unmarked too."""
    if block.language in PYTHON:
        return True
    if block.language:
        return False
    tree = python_tree(block.source)
    return isinstance(tree, ast.Module) and _acts(tree, "")


def _checkable(found: list[Block]) -> list[Block]:
    return [block for block in found if _is_python(block) or block.language == "json"]


_WHOLE = re.compile(r"^EDIT$|write|creat|save", re.I)
"""calls that write a file whole; others change a part, which need not parse by itself"""


def _written(trace: ExecutionTrace) -> list[Block]:
    """The last version of every Python or JSON file the agent wrote that has to do with the request."""
    whole = (call for call in calls(trace) if call.ok and _WHOLE.search(call.name))
    last = {call.path: call.content for call in whole}
    kinds = {".py": "python", ".json": "json"}
    return [
        Block(kinds[end], content)
        for path, content in last.items()
        for end in kinds
        if content is not None and path.endswith(end)
        if passed(trace) is not None or related(trace.user_query, f"{path}\n{content}")
    ]


def _unreadable(block: Block) -> str:
    if block.language == "json":
        try:
            json.loads(block.source)
        except (ValueError, RecursionError) as error:
            return f"no JSON: {error}"[:200]
        return ""
    tree = python_tree(block.source)
    return tree if isinstance(tree, str) else ""


# ── code that does nothing ──────────────────────────────────────────────────────────────────────


def does_nothing(source: str, query: str) -> str:
    """Why a Python program cannot have earned anything, or "". What does not parse may fail on its own."""
    tree = python_tree(source)
    if isinstance(tree, str):
        return ""
    if not _acts(tree, query.casefold()):
        return "the code does nothing"
    if any(isinstance(node, ast.Try) and _hides_errors(node) for node in tree.body):
        return "the code hides its errors"
    names = list(wanted_names(query))
    if names and not _defined(tree) & set(names):
        return f"the code does not define {names[0]}"
    return ""


def _acts(tree: ast.Module, query: str) -> bool:
    try:
        return any(_has_effect(node, query) for node in tree.body)
    except RecursionError:  # thousands of branches: whatever it is, it is not nothing
        return True


def idle_block(block: Block, query: str) -> bool:
    """Whether a block of an answer holds nothing, in any language we can read."""
    if block.language in SHELL:
        return bool(_idle_script(block.source, query))
    if block.language in PYTHON or not block.language:
        tree = python_tree(block.source)
        return isinstance(tree, ast.Module) and bool(does_nothing(block.source, query))
    return not block.source.strip()


def _defined(tree: ast.Module) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    return names | {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


_EMPTY = (ast.Pass, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Break, ast.Continue)
_EMPTY_CALLS = {"exit", "quit", "sleep", "_exit", "abort"}


def _has_effect(node: ast.stmt, query: str) -> bool:
    """Whether a statement does more than pass the time."""
    if isinstance(node, _EMPTY):
        return False
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return any(_has_effect(inner, query) for inner in node.body) or bool(getattr(node, "bases", []))
    if isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, (ast.Constant, ast.Name)):
        return True
    if isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
        inner = [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
        return any(_has_effect(part, query) for part in inner)
    if isinstance(node, ast.AnnAssign) and node.value is None:
        return True
    value = getattr(node, "value", None)
    if isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return)):
        return value is not None and _says_something(value, query)
    return True


def _hides_errors(node: ast.Try) -> bool:
    """Whether whatever goes wrong is passed over in silence."""
    broad = (None, "Exception", "BaseException")
    return any(
        getattr(handler.type, "id", None) in broad
        and not isinstance(handler.type, (ast.Tuple, ast.Attribute))
        and not any(_has_effect(inner, "") or isinstance(inner, ast.Expr) for inner in handler.body)
        for handler in node.handlers
    )


def _says_something(value: ast.expr, query: str) -> bool:
    """Whether an expression computes, or shows a text that was asked for."""
    if isinstance(value, ast.Constant):
        return bool(value.value) and isinstance(value.value, (str, int, float)) and _asked_for(value, query)
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return any(_says_something(item, query) for item in value.elts)
    if isinstance(value, ast.Call):
        name = getattr(value.func, "attr", getattr(value.func, "id", ""))
        if name in _EMPTY_CALLS:
            return False
        if name == "print":
            return any(_says_something(argument, query) for argument in value.args)
    return True


def _asked_for(value: ast.Constant, query: str) -> bool:
    said = str(value.value).strip(" .!?\n").casefold()
    return len(said) > 1 and said in query


def _idle_script(source: str, query: str) -> str:
    lines = [line.strip().removeprefix("$ ") for line in source.splitlines()]
    real = [line for line in lines if line and not line.startswith("#")]
    for line in real:
        word, _, rest = line.partition(" ")
        said = rest.strip(" '\"").casefold()
        fixed = word in ("echo", "printf") and not any(mark in line for mark in "$`|><")
        if fixed and said and said in query.casefold():
            return ""
        if not fixed and word not in ("true", ":", "exit", "sleep", "set", "clear"):
            return ""
    return "the script does nothing"
