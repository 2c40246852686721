# SPDX-License-Identifier: AGPL-3.0-or-later
"""Tests written as code, in a sandbox of their own: what they may do, and what no object may tell them."""

from __future__ import annotations

import textwrap

from rusty_r2.gym.verdict import Verdict, judge
from rusty_r2.task import Code, Task

RICH = """
class Empty(LookupError):
    pass

class Stack:
    def __init__(self, items=()):
        self.items = list(items)
    def push(self, item):
        self.items.append(item)
        return self
    def pop(self):
        if not self.items:
            raise Empty("nothing here")
        return self.items.pop()
    def __len__(self):
        return len(self.items)
    def __contains__(self, item):
        return item in self.items
    def __iter__(self):
        return iter(self.items)
    def __getitem__(self, key):
        return self.items[key]
    def __repr__(self):
        return f"Stack({self.items})"
    def __enter__(self):
        return self
    def __exit__(self, *exc):
        self.items.clear()

class Vector:
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __add__(self, other):
        return Vector(self.x + other.x, self.y + other.y)
    def __mul__(self, k):
        return Vector(self.x * k, self.y * k)
    __rmul__ = __mul__
    def __eq__(self, other):
        return isinstance(other, Vector) and (self.x, self.y) == (other.x, other.y)
    def __hash__(self):
        return hash((self.x, self.y))
    def __lt__(self, other):
        return abs(self) < abs(other)
    def __abs__(self):
        return (self.x**2 + self.y**2) ** 0.5

LIMIT = 7
def sort(xs):
    xs.sort()
def nested(d):
    d["a"].append(5)
    d["b"] = 1
def squares(n):
    for i in range(n):
        yield i * i
def apply(f, xs):
    return [f(x) for x in xs]
def memo(f):
    seen = {}
    def g(x):
        if x not in seen:
            seen[x] = f(x)
        return seen[x]
    return g
def fib(recur, n):
    return n if n < 2 else recur(n - 1) + recur(n - 2)
def fail(word):
    raise ValueError(word)
def leave():
    raise SystemExit(3)
def greet(name):
    print("hello", name)
def half(n):
    from fractions import Fraction
    return Fraction(n, 2)
def counter():
    total = 0
    def add(n=1):
        nonlocal total
        total += n
        return total
    return add
"""


def code(source: str, style: str = "unittest", entry: str = "") -> Task:
    return Task(name="t", prompt="p", check=Code("template.py", textwrap.dedent(source), style, entry))


def on(task: Task, source: str) -> Verdict:
    return judge(task, {"template.py": source})


def passes(source: str, style: str = "unittest", entry: str = "") -> None:
    verdict = on(code(source, style, entry), RICH)
    assert verdict.passed, verdict


def test_unittest_style():
    passes("""
        import unittest
        import template
        from template import Stack, Empty, Vector
        class Tests(unittest.TestCase):
            def setUp(self):
                self.s = Stack([1])
            def test_methods(self):
                self.assertEqual(len(self.s.push("a")), 2)
                self.assertEqual(self.s.pop(), "a")
                self.assertEqual((list(self.s), self.s[0], self.s.items, repr(self.s)),
                ([1], 1, [1], "Stack([1])"))
                self.assertIn(1, self.s)
                self.assertNotIn(2, self.s)
                self.assertIsInstance(self.s, Stack)
                self.assertNotIsInstance(Vector(1, 2), Stack)
                self.s.items = [9]
                self.assertEqual(self.s.pop(), 9)
            def test_own_errors(self):
                self.s.pop()
                with self.assertRaises(Empty) as caught:
                    self.s.pop()
                self.assertEqual(str(caught.exception), "nothing here")
                with self.assertRaises(LookupError):
                    self.s.pop()
                self.assertTrue(issubclass(Empty, LookupError))
            def test_operators(self):
                self.assertEqual(Vector(1, 2) + Vector(3, 4), Vector(4, 6))
                self.assertEqual(2 * Vector(1, 2) * 2, Vector(4, 8))
                self.assertNotEqual(Vector(1, 2), Vector(1, 3))
                self.assertEqual(abs(Vector(3, 4)), 5.0)
                self.assertLess(Vector(1, 1), Vector(2, 2))
                self.assertEqual(len({Vector(1, 2), Vector(1, 2)}), 1)
                self.assertEqual([v.x for v in sorted([Vector(2, 2), Vector(1, 1)])], [1, 2])
            def test_builtin_errors(self):
                with self.assertRaisesRegex(ValueError, "^boo$"):
                    template.fail("boo")
                with self.assertRaises(SystemExit):
                    template.leave()
                with self.assertRaises(AttributeError):
                    template.nothing
            def test_printed(self):
                import contextlib, io
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    template.greet("you")
                self.assertEqual(said.getvalue(), "hello you\\n")
            def test_fractions(self):
                from fractions import Fraction
                self.assertEqual(template.half(3), Fraction(3, 2))
            def test_context(self):
                with Stack([1]) as s:
                    self.assertEqual(len(s), 1)
                self.assertEqual(len(s), 0)
            def test_subtests(self):
                for n in range(3):
                    with self.subTest(n=n):
                        self.assertEqual(list(template.squares(n)), [i * i for i in range(n)])
    """)


def test_arguments_changed_in_place_are_changed_here_too():
    passes(
        """
        from template import sort, nested
        xs = [3, 1, 2]
        assert sort(xs) is None
        assert xs == [1, 2, 3]
        inner = [1]
        d = {"a": inner, "c": (1, [2])}
        nested(d)
        assert d == {"a": [1, 5], "b": 1, "c": (1, [2])}
        assert d["a"] is inner
        """,
        "assert",
    )


def test_functions_of_the_tests_can_be_handed_over():
    passes(
        """
        import template
        assert template.apply(lambda x: x + 1, [1, 2]) == [2, 3]
        assert template.apply(str, [1]) == ["1"]
        called = []
        g = template.memo(lambda x: (called.append(x), x * 2)[1])
        assert [g(2), g(2), g(3)] == [4, 4, 6] and called == [2, 3]
        def recur(n):
            return template.fib(recur, n)
        assert recur(7) == 13
        add = template.counter()
        assert (add(), add(5), template.counter()()) == (1, 6, 1)
        def bad(x):
            raise KeyError("mine")
        try:
            template.apply(bad, [1])
        except KeyError:
            caught = True
        assert caught
        """,
        "assert",
    )


def test_pytest_style():
    passes(
        """
        import pytest
        from template import *
        @pytest.fixture
        def stack():
            made = Stack()
            made.push(3)
            yield made
        @pytest.mark.parametrize("xs, wanted", [([2, 1], [1, 2]), ([], []), pytest.param([1], [1], id="one")])
        def test_sort(xs, wanted):
            sort(xs)
            assert xs == wanted
        @pytest.mark.parametrize("n", [1, 2])
        @pytest.mark.parametrize("m", [1, 2])
        def test_crossed(n, m):
            assert len(list(squares(n + m))) == n + m
        def test_fixture(stack):
            assert stack.pop() == 3
            with pytest.raises(Empty, match="nothing"):
                stack.pop()
            pytest.raises(ValueError, fail, "x")
        def test_printed(capsys):
            greet("world")
            assert capsys.readouterr().out == "hello world\\n"
        class TestVector:
            def test_abs(self):
                assert abs(Vector(1, 1)) == pytest.approx(1.41421356)
                assert [abs(Vector(3, 4)), LIMIT] == pytest.approx([5, 7])
        """,
        "pytest",
    )


def test_plain_asserts_are_counted_one_by_one():
    tests = "import math\nassert f(1) == 2\nassert f(2) == 3\nassert math.isclose(f(2.5), 3.5)\n"
    assert on(code(tests, "assert", "f"), "def f(x): return x + 1").passed_tests == 3
    verdict = on(code(tests, "assert", "f"), "def f(x): return 2")
    assert (verdict.passed, verdict.passed_tests, verdict.total) == (False, 1, 3)
    assert verdict.why == "the test on line 3: AssertionError"


def test_check_of_candidate():
    tests = "def check(candidate):\n  assert True\n  for i in range(3):\n   assert candidate(i) == i+1\n"
    verdict = on(code(tests, "assert", "inc"), "def inc(x): return x + 1")
    assert (verdict.passed, verdict.passed_tests, verdict.total) == (True, 3, 3)
    verdict = on(code(tests, "assert", "inc"), "def inc(x): return 2 if x == 1 else [][x]")
    assert (verdict.passed, verdict.passed_tests, verdict.total) == (False, 1, 3)
    assert verdict.why == "the test on line 4: IndexError: list index out of range"


def test_tests_that_reach_no_assertion_prove_nothing():
    tests = "def check(candidate):\n    for x in candidate():\n        assert x\n"
    assert not on(code(tests, "assert", "f"), "def f(): return []").passed


def test_a_report_tells_no_expected_value():
    for style, tests in {
        "unittest": "import unittest, template\nclass T(unittest.TestCase):\n    def test_a(self):\n"
        "        self.assertEqual(template.f(), 987654)\n",
        "pytest": "import template\ndef test_a():\n    assert template.f() == 987654, 'it is 987654'\n",
        "assert": "from template import f\nassert f() == 987654, 'it is 987654'\n",
    }.items():
        verdict = on(code(tests, style), "def f(): return 1")
        assert verdict.why and "987654" not in verdict.why


def test_an_object_judges_nothing():
    """The dangerous questions, one by one: each must fail or refuse, whatever the object's class says."""
    magic = """
        class Any:
            def __getattr__(self, name):
                return lambda *args: True
            def _yes(self, *args):
                return True
            def _zero(self, *args):
                return 0
            __eq__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = _yes
            __sub__ = __rsub__ = __add__ = __abs__ = __round__ = __int__ = __float__ = __index__ = _zero
            __hash__ = None
        def f(*args):
            return Any()
        class Loud:
            def __init__(self):
                self.value = Any()
            def get(self):
                return Any()
            __eq__ = Any._yes
            __hash__ = None
    """
    questions = [
        "f() == 3", "3 == f()", "[f()] == [3]", "(f(), 1) == (3, 1)", "{'a': f()} == {'a': 3}",
        "f() in [3]", "3 in f()",
        "f() < 3", "3 > f()", "abs(f() - 3) < 1e-9", "round(f(), 2) == 0", "math.isclose(f(), 3)",
        "int(f()) == 0",
        "f().startswith('a')", "f().issubset({1})", "{f()} == {3}", "sum([f()]) == 0",
        "sorted([f(), f()]) == []",
        "max(f(), 1) == 1", "f() is None", "not f()", "isinstance(f(), int)", "pytest.approx(3) == f()",
        "Loud() == 3",
        "Loud().get() == 3", "abs(Loud().get() - 3) < 1", "Loud().value < 3", "f().__eq__(3) is True",
        "re.match('a', f())",
    ]  # fmt: skip
    tests = "import math, re, pytest\nfrom template import f, Loud\n" + "".join(
        f"assert {q}\n" for q in questions
    )
    verdict = on(code(tests, "assert"), textwrap.dedent(magic))
    assert (verdict.passed_tests, verdict.total) == (0, len(questions)), verdict


def test_a_name_of_the_candidate_does_not_become_a_name_of_the_tests():
    tests = "import math\nfrom template import *\ndef test_near():\n    assert {} or math.isclose(f(), 3)\n"
    tests = tests.format("abs(f() - 3) < 1e-9")
    source = (
        "def abs(x): return 0\nclass math:\n    isclose = staticmethod(lambda *a: True)\ndef f(): return 1\n"
    )
    assert not on(code(tests, "pytest"), source).passed
    assert on(code(tests, "pytest"), source.replace("return 1", "return 3")).passed


def test_tests_that_swallow_everything_cannot_swallow_a_death():
    tests = "from template import f\ntry:\n    f()\nexcept BaseException:\n    pass\nassert 1 + 1 == 2\n"
    assert on(code(tests, "assert"), "def f(): raise ValueError").passed
    verdict = on(code(tests, "assert"), "import os\ndef f(): os._exit(0)")
    assert not verdict.passed and verdict.why == "the candidate's process ended by itself"


def test_partial_results_survive_a_death():
    tests = "from template import f\n" + "".join(
        f"def test_{n}():\n    assert f({n}) == {n}\n" for n in range(4)
    )
    verdict = on(code(tests, "pytest"), "import os\ndef f(n): return n if n < 2 else os._exit(0)")
    assert (verdict.passed, verdict.passed_tests, verdict.total) == (False, 2, 4)
