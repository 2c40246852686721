# SPDX-License-Identifier: AGPL-3.0-or-later
"""Honest work passes, anything else says why it failed, and what is broken is no score."""

from __future__ import annotations

import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rusty_r2.errors import SandboxError, TaskError
from rusty_r2.gym import verdict as door
from rusty_r2.gym.sandbox import Limits
from rusty_r2.gym.verdict import Verdict, judge
from rusty_r2.task import Calls, Case, Code, Task


def code(source: str, style: str = "unittest", entry: str = "", path: str = "template.py") -> Task:
    return Task(name="t", prompt="p", check=Code(path, textwrap.dedent(source), style, entry))


def calls(*cases: Case, tolerance: float = 0.0) -> Task:
    return Task(name="t", prompt="p", check=Calls("template.py", "f", cases, tolerance))


def on(task: Task, source: str, **options) -> Verdict:
    return judge(task, {"template.py": source}, **options)


def test_calls_are_counted():
    task = calls(Case((1, 2), 3), Case(([1], [2]), [1, 2]), Case(("a", 1), raises="TypeError"))
    verdict = on(task, "def f(a, b): return a + b")
    assert (verdict.passed, verdict.passed_tests, verdict.total, verdict.why) == (True, 3, 3, "")
    assert verdict.level and verdict.parses and verdict.wall_s > 0
    verdict = on(task, "def f(a, b): return 3")
    assert (verdict.passed, verdict.passed_tests, verdict.total) == (False, 1, 3)
    assert verdict.why == "f([1], [2]) returned 3"


@pytest.mark.parametrize(
    ("expected", "returned", "passed"),
    [
        (1, "1", True), (1, "1.0", True), (1, "True", False), (True, "1", False), ([1], "(1,)", False),
        ({1: 2}, "{True: 2}", False), ({1, 2}, "{2, 1}", True), ({1}, "{True}", False), ("a", "b'a'", False),
        ({"a": 1, "b": 2}, "{'b': 2, 'a': 1}", True), (None, "None", True), (0, "None", False),
        (0.3, "0.1 + 0.2", False),
        (float("nan"), "float('nan')", True), (1.0, "float('nan')", False), (2**80, "2**80", True),
        (1e308, "10**400", False),
        ([], "range(0)", False), ([1, 2], "[1, 2].__iter__()", False), ("\ud800", "'\\ud800'", True),
    ],
)  # fmt: skip
def test_values_are_compared_strictly(expected, returned, passed):
    assert on(calls(Case((), expected)), f"def f(): return {returned}").passed is passed


def test_floats_may_be_given_room():
    task = calls(Case((), [0.3, {"a": 1e6}]), tolerance=1e-6)
    assert on(task, "def f(): return [0.1 + 0.2, {'a': 1e6 + 1e-3}]").passed
    assert not on(task, "def f(): return [0.31, {'a': 1e6}]").passed


def test_errors_count_by_their_builtin_ancestors():
    task = calls(Case((), raises="LookupError"))
    assert on(task, "class Mine(KeyError): pass\ndef f(): raise Mine('x')").passed
    assert on(task, "def f(): return {}['x']").passed
    verdict = on(task, "def f(): return 1")
    assert verdict.why == "f() returned 1 where an error was asked for"
    assert on(task, "def f(): raise ValueError('no\\x1b[31m')").why == "f() raised ValueError: no�[31m"


def test_what_cannot_run_says_why():
    task = calls(Case((), 1), Case((), 1))
    broken = on(task, "def f(:")
    assert not broken.parses and "does not parse: SyntaxError" in broken.why and broken.total == 2
    missing = judge(task, {"other.py": "x = 1"})
    assert not missing.parses and missing.why == "template.py is missing"
    unimportable = on(task, "import nothing_of_that_name")
    assert unimportable.parses and "importing it: ModuleNotFoundError" in unimportable.why
    assert on(task, "x = 1").why.startswith("f() raised AttributeError")
    dead = on(task, "import os\ndef f(): os._exit(0)")
    assert dead.parses and dead.why == "the candidate's process ended by itself"
    assert not on(task, "\0").parses and not judge(task, {"template.py": b"\xff\xfe"}).parses


def test_time_is_one_deadline_for_all():
    task = calls(*[Case((), 1)] * 50)
    verdict = on(task, "import time\ndef f():\n    time.sleep(0.2)\n    return 1", limits=Limits(wall_s=3))
    assert not verdict.passed and 0 < verdict.passed_tests <= 15
    assert verdict.why == "time is up: it took more than 3 s"
    busy = on(task, "def f():\n    while True: pass", limits=Limits(wall_s=30, cpu_s=1))
    assert "CPU" in busy.why


def test_a_task_sets_its_own_limits():
    task = Task("t", "p", Calls("template.py", "f", (Case((), 1),)), limits={"wall_s": 0.5})
    assert "0.5 s" in on(task, "import time\ndef f(): time.sleep(9)").why
    with pytest.raises(TaskError, match="no limit 'wall'"):
        on(Task("t", "p", Calls("template.py", "f", (Case((), 1),)), limits={"wall": 1}), "f = int")


def test_files_that_do_not_fit_are_the_candidates_fault():
    task = calls(Case((), 1))
    for files in ({"x/y": "", "x": ""}, {"big.bin": bytes(65 << 20)}, {"../up.py": ""}):
        verdict = judge(task, {**files, "template.py": "def f(): return 1"})
        assert not verdict.passed and "cannot be placed" in verdict.why


def test_neighbours_can_be_imported_and_read():
    files = {
        "app/__init__.py": "",
        "app/core.py": "from .words import HELLO\nimport util\ndef f(): return HELLO + util.read()",
        "app/words.py": "HELLO = 'hello '",
        "util.py": "def read(): return open('data.txt').read()",
        "data.txt": b"world",
    }
    task = Task("t", "p", Calls("app/core.py", "f", (Case((), "hello world"),)))
    assert judge(task, files).passed
    tests = "from app.core import f\nimport core\nassert f() == core.f() == 'hello world'"
    assert judge(code(tests, "assert", path="app/core.py"), files).passed


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (code("def broken(:"), "do not parse"),
        (code("x = 1"), "hold no test"),
        (code("x = 1", "nose"), "style 'nose' is unknown"),
        (calls(), "no cases"),
        (calls(Case((object(),), 1)), "cannot be sent"),
    ],
)
def test_a_task_that_cannot_be_judged_is_no_score(task, words):
    with pytest.raises(TaskError, match=words):
        on(task, "def f(x): return x")


def test_a_broken_sandbox_is_no_score(monkeypatch):
    task = calls(Case((), 1))
    monkeypatch.setattr(door, "LOADER", "raise SystemExit(1)")
    with pytest.raises(SandboxError, match="ended before it began"):
        on(task, "def f(): return 1")


def test_many_threads_and_nothing_left_behind():
    task = calls(Case((2,), 4), Case((3,), 6))
    tests = code("from template import f\nassert f(2) == 4\n", "assert")
    on(task, "def f(x): return 2 * x")

    def one(number: int) -> bool:
        right = number % 2 == 0
        return (
            on([task, tests][number % 3 == 0], f"def f(x): return {'2' if right else '3'} * x").passed
            is right
        )

    before = len(list(Path("/proc/self/fd").iterdir()))
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(60)))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
