# SPDX-License-Identifier: AGPL-3.0-or-later
# ruff: noqa: N802  (unittest's own names)
"""The tests' side of a verdict: runs task tests in a sandbox of their own and reports what passed.

The supervisor (verdict.py) ships this text with wire.py and stubs.py. File descriptor 3 leads to the
supervisor only, which carries questions on to the candidate's sandbox; the report goes to the supervisor and
the candidate never sees this process. Served are unittest classes, pytest-style functions and classes
(pytest_shim.py stands in for pytest) and plain asserts, counted one by one, with or without HumanEval's
`check(candidate)`.

A report names the test and the line, and an error's words only where the candidate itself raised it:
the words of a failed assertion would tell the expected value.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import socket
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from rusty_r2.gym import stubs, wire

TESTS = "tests"


class Tally:
    """What passed so far. As a context manager it weighs one assertion."""

    def __init__(self, channel: socket.socket, planned: int) -> None:
        self.channel = channel
        self.total = planned
        self.ran = 0
        self.passed = 0
        self.why = ""
        self.link = stubs.Link(channel, self.give_up)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        self.weigh("", error)
        return True

    def weigh(self, name: str, error: BaseException | None) -> None:
        """Count one test; the first failure is the reason given."""
        self.ran += 1
        if error is None:
            self.passed += 1
        elif not self.why:
            self.why = self.explain(name, error)

    def explain(self, name: str, error: BaseException) -> str:
        """What failed and where, without the expected value."""
        words = type(error).__name__
        if error is self.link.last_error or isinstance(error, (ImportError, stubs.CannotCross)):
            words += f": {error}"
        place = name or f"the test on line {_line(error)}"
        return wire.printable(f"{place}: {words}", 300)

    def give_up(self, why: str) -> NoReturn:
        """There will be no more answers. Nothing in the tests may catch this, so the process ends here."""
        self.why = self.why or wire.printable(why, 300)
        self.ran += 1
        self.report()
        os._exit(0)

    def report(self) -> None:
        total = max(self.total, self.ran)
        wire.send(self.channel, b"V" + wire.text([self.passed, total, self.why]))


def _line(error: BaseException) -> int:
    """The last line of the tests that the error went through."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == TESTS:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def plan(source: str, style: str) -> tuple[ast.Module, int]:
    """Parse the tests and count them from the outside, before anything of the candidate is asked."""
    tree = ast.parse(source, TESTS)
    if style == "assert":
        return tree, sum(_counts(node) for node in ast.walk(tree))
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return tree, sum(node.name.startswith("test") for node in functions)


def _counts(node: ast.AST) -> bool:
    """An assertion that can fail (HumanEval has some that say `assert True`)."""
    return isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant)


class _Weighed(ast.NodeTransformer):
    """Puts `with tally:` around assertions, so that one failure does not hide the next.

    Inside `try` they stay as they are: the tests may mean to catch them.
    """

    count = 0

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if not _counts(node):
            return node
        self.count += 1
        name = ast.Name("__tally__", ast.Load())
        made = ast.With(items=[ast.withitem(context_expr=name)], body=[node])
        return ast.fix_missing_locations(ast.copy_location(made, node))

    def visit_Try(self, node: ast.Try) -> ast.AST:
        return node


def run_asserts(tree: ast.Module, entry: str, module: stubs.Module, tally: Tally) -> None:
    """Plain asserts, or `check(candidate)`; ends with an error that no assertion caught."""
    weighed = _Weighed()
    code = compile(weighed.visit(tree), TESTS, "exec", dont_inherit=True)
    space = types.ModuleType(TESTS).__dict__
    space["__tally__"] = tally
    has_check = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
    if not has_check:
        for name in sorted(module._wanted):
            try:
                space[name] = getattr(module, name)
            except AttributeError:
                continue
    exec(code, space)
    if has_check:
        space[entry] = getattr(module, entry)
        space["check"](space[entry])
    if not weighed.count:
        tally.weigh("", None)
    elif not tally.ran:
        tally.give_up("the tests came to an end without one assertion")
    tally.total = tally.ran


def free_names(tree: ast.Module) -> set[str]:
    """Names the tests use without making them: these, and no others, may come from the candidate unasked.

    A candidate that defines `abs` or `math` too must not change what the tests mean by them.
    """
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return used - set(_bound(tree)) - set(vars(builtins))


def _bound(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


class _Result(unittest.TestResult):
    """Counts a test once, whatever its subtests and fixtures did."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self.tally = tally
        self.trouble: BaseException | None = None

    def startTest(self, test: unittest.TestCase) -> None:
        self.trouble = None

    def stopTest(self, test: unittest.TestCase) -> None:
        self.tally.weigh(_name(test), self.trouble)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._note(test, err[1])

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._note(test, err[1])

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._note(test, err[1])

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._note(test, unittest.SkipTest(reason))

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._note(test, AssertionError("passed unexpectedly"))

    def _note(self, test: Any, error: BaseException) -> None:
        if isinstance(test, unittest.TestCase):
            self.trouble = self.trouble or error
        else:  # a class or module fixture: none of its tests will run
            self.tally.weigh(str(test), error)


def _name(test: unittest.TestCase) -> str:
    return test.id().rpartition(".")[2]


def run_tests(source: str, tally: Tally) -> None:
    """unittest classes and pytest-style functions, in the order they are written."""
    module = types.ModuleType(TESTS)
    sys.modules[TESTS] = module
    exec(compile(source, TESTS, "exec", dont_inherit=True), module.__dict__)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    functions = list(_functions(module))
    tally.total = suite.countTestCases() + len(functions)
    suite.run(_Result(tally))
    for name, function in functions:
        try:
            function()
        except BaseException as error:
            tally.weigh(name, error)
        else:
            tally.weigh(name, None)


def _functions(module: types.ModuleType) -> Iterator[tuple[str, Callable[[], Any]]]:
    """pytest-style tests with their parameters and fixtures filled in."""
    shim = sys.modules.get("pytest")
    for name, thing in list(vars(module).items()):
        if inspect.isfunction(thing) and name.startswith("test") and thing.__module__ == TESTS:
            yield from _filled(shim, module, name, thing)
        elif inspect.isclass(thing) and name.startswith("Test") and not issubclass(thing, unittest.TestCase):
            for word in vars(thing):
                if word.startswith("test"):
                    yield from _filled(shim, module, word, None, thing)


def _filled(
    shim: Any, module: types.ModuleType, name: str, function: Callable[..., Any] | None, owner: Any = None
) -> Iterator[tuple[str, Callable[[], Any]]]:
    if shim is not None:
        yield from shim.expand(module, name, function, owner)
    elif owner is None and function is not None:
        yield name, function
    else:
        yield name, lambda: getattr(owner(), name)()


def main() -> None:
    """Read the tests, wait for the candidate, run them, report."""
    channel = socket.socket(fileno=3)
    wire.send(channel, wire.text(["up"]))
    source, style, entry, names = wire.parse(wire.receive(channel))
    try:
        tree, planned = plan(source, style)
        wire.send(channel, wire.text(["plan", planned, ""]))
    except (SyntaxError, ValueError) as error:
        wire.send(channel, wire.text(["broken", 0, f"{type(error).__name__}: {error}"]))
        os._exit(0)
    tally = Tally(channel, planned)
    wanted = free_names(tree) | ({entry} if entry else set())
    for name in names:
        sys.modules[name] = stubs.module(name, tally.link, wanted, [entry])
    try:
        if style == "assert":
            run_asserts(tree, entry, sys.modules[names[0]], tally)  # type: ignore[arg-type]
        else:
            run_tests(source, tally)
    except BaseException as error:
        tally.weigh("", error)
    tally.report()
    os._exit(0)
