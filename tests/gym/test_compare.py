# SPDX-License-Identifier: AGPL-3.0-or-later
"""Trees and answers are compared as data; one true answer, and only one, is an answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rusty_r2.gym import compare
from rusty_r2.gym.verdict import judge
from rusty_r2.task import Task, Tree

BEFORE = {"a.txt": "one\n", "b.txt": "two\n", "old.log": "x"}


def tree(files, message="", **check):
    return judge(Task("t", "p", Tree(**check), files=BEFORE), files, message)


def test_a_tree_must_be_as_asked_and_otherwise_as_it_was():
    check = {"expect": {"c.txt": "three\n", "old.log": None}}
    good = {"a.txt": b"one\n", "b.txt": "two\n", "c.txt": b"three\n"}
    verdict = tree(good, **check)
    assert (verdict.passed, verdict.passed_tests, verdict.total, verdict.why) == (True, 3, 3, "")
    assert verdict.level == ""
    for files, why in [
        (good | {"c.txt": "three"}, "c.txt does not hold what was asked for"),
        ({"a.txt": "one\n", "b.txt": "two\n"}, "c.txt is missing"),
        (good | {"old.log": "x"}, "old.log is still there"),
        (good | {"a.txt": "ONE\n"}, "a.txt was to stay as it was"),
        ({"a.txt": "one\n", "c.txt": "three\n"}, "b.txt was to stay as it was"),
        (good | {"new\x1b": "?"}, "new� was not asked for"),
    ]:
        verdict = tree(files, **check)
        assert (verdict.passed, verdict.passed_tests, verdict.why) == (False, 2, why)
        loose = tree(files, keep=False, **check)
        assert loose.passed is ("stay" in why or "not asked" in why)


@pytest.mark.parametrize(
    ("answer", "message", "right"),
    [
        ("42", "42", True), ("42", "The answer is 42.", True), ("42", "thinking: 1 2 3\nIt is 42", True),
        ("42", "421", False),
        ("42", "1.42", False), ("42", "42.5", False), ("42", "-42", False), ("-42", "-42", True), ("42",
        "", False),
        ("42", "40 41 42 43", False), ("42", "42 files, 7 folders", False), ("42", "42\nDone.", False),
        ("7", "in b7 it is 7", True),
        ("1,234", "1,234 lines", True), ("3.5", "3.5 MB", True), ("42", "forty-two", False), ("42",
        "42%", True),
        ("a.txt", "a.txt", True), ("a.txt", "`a.txt`", True), ("a.txt", "data.txt", False), ("a.txt",
        "x/a.txt", False),
        ("a.txt", "a.txt or b.txt", False), ("a.txt", "a.txt b.txt old.log", False), ("a.txt",
        "The file is a.txt.", True),
        ("alice", "alice, says old.log", True), ("alice", "It was alice, who logged in.", True), ("alice",
        "alices", False), ("alice",
        "alice " * 20, False),
        ("two words", "it says two words", True), ("two words", "two other words", False),
    ],
)  # fmt: skip
def test_the_last_line_gives_one_answer(answer, message, right):
    verdict = tree(BEFORE, message, answer=answer)
    assert verdict.passed is right and bool(verdict.why) is not right


@settings(deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 10**6), min_size=1))
def test_naming_many_numbers_is_no_answer(wanted, others):
    line = " ".join(map(str, [*others, wanted]))
    assert (compare.answer(line, str(wanted), {}) == "") is (set(others) == {wanted})


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda i: st.lists(i) | st.tuples(i),
    )
)
def test_a_value_is_the_same_as_itself_and_can_be_shown(value):
    assert compare.same(value, value)
    assert len(compare.shown(value)) <= 80


def test_big_things_are_shown_small():
    assert compare.shown(1 << 10_000) == "an integer of 10001 bits"
    assert compare.shown([0] * 1000) == "a list of 1000 items"
    assert compare.shown({"a": (1,), "b": {2}}) == "{'a': (1,), 'b': {2}}"
