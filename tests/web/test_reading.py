"""A trace as parts: the order, the differences, and whatever types came from outside."""

import itertools
import json

import pytest

from rusty_r2.gym import catalog
from rusty_r2.protocol import Edit, render
from rusty_r2.trace import ExecutionTrace, Step, ToolCallTrace
from rusty_r2.web import reading


def shown(part):
    return [(line.kind, line.text) for line in part.lines]


def test_an_edit_is_compared_with_the_file_the_task_began_with():
    task = next(
        task for task in catalog.tasks("train", seed=1, count=60) if set(task.files) & set(task.solution)
    )
    path = next(iter(set(task.files) & set(task.solution)))
    trace = ExecutionTrace(task_name=task.name, steps=[Step(render(Edit(path, task.solution[path])))])
    kinds = {kind for kind, _ in shown(reading.parts(trace)[1])}
    assert "gone" in kinds or "same" in kinds
    unknown = ExecutionTrace(task_name="no-1-train-" + "9" * 5000, steps=trace.steps)
    assert {kind for kind, _ in shown(reading.parts(unknown)[1])} == {"added", "place"}


def test_a_second_edit_is_compared_with_the_first():
    steps = [Step(render(Edit("a.py", "one\ntwo\n"))), Step(render(Edit("a.py", "one\nthree\n")))]
    _, _, second = reading.parts(ExecutionTrace(steps=steps))
    assert shown(second) == [
        ("place", "@@ -1,2 +1,2 @@"),
        ("same", " one"),
        ("gone", "-two"),
        ("added", "+three"),
    ]


@pytest.mark.parametrize(
    ("arguments", "kind", "line"),
    [
        ({"file_path": "a", "old_string": "x", "new_string": "y"}, "edit", ("added", "+y")),
        ({"path": "a", "content": "y"}, "edit", ("added", "+y")),
        ({"patch": "*** Update File: a\n-x\n+y"}, "edit", ("gone", "-x")),
        ({"command": ["bash", "-lc", "ls"]}, "command", None),
        ({"cmd": "ls"}, "command", None),
        ({"query": "ls"}, "tool", None),
    ],
)
def test_tools_of_other_agents_are_understood(arguments, kind, line):
    part = reading.parts(ExecutionTrace(tool_calls=[ToolCallTrace("Tool", arguments, "ok", True, 3.0)]))[1]
    assert part.kind == kind and part.came.head == "ok" and (line is None or line in shown(part))


def test_long_parts_fold_and_longer_ones_are_cut():
    told = reading.words("\n".join(map(str, range(100))), 10)
    assert told.head.count("\n") == 9 and told.rest_lines == 90 and told.left == 0
    assert reading.words("x" * 100_000).left == 100_000 - reading.MOST
    many = ExecutionTrace(steps=[Step("no action")] * 5000)
    assert len(reading.parts(many)) == reading.MOST_PARTS + 1


def test_a_blind_reader_is_told_no_reward():
    trace = ExecutionTrace(steps=[Step("words", reward=0.7)])
    assert reading.parts(trace)[1].about == "reward +0.70" and reading.parts(trace, blind=True)[1].about == ""


ODD = (None, 7, -1.5, True, "words", [], ["x", {"y": [1]}], {}, {"a": {"b": None}})


def test_whatever_types_came_from_outside_are_shown(store, serve, client):
    """Fields are checked at the border: what arguments, results, lists and turns hold may be anything."""
    for number, (one, other) in enumerate(itertools.product(ODD, repeat=2)):
        call = {"tool_name": "t", "arguments": {}, "result": one, "success": False, "duration_ms": -1}
        given = {"arguments": {"path": one, "content": other, "command": [one], "patch": other}}
        thought = {"step_type": "", "content": "", "insights": [other], "issues": [one, other]}
        data = {
            "trace_id": f"odd-{number}",
            "user_query": "odd",
            "tool_calls": [call, call | given],
            "reasoning_steps": [thought],
            "steps": [{"reply": json.dumps(one)}, {"reply": "{}"}],
            "history": [{"role": one, "content": other}],
            "tasks_failed": [{"why": one}],
            "reward_parts": {"part": one, "other": other},
            "reward_score": 0.5,
        }
        store.append(ExecutionTrace.from_dict(data))
    page = client(serve())
    for number in range(len(ODD) ** 2):
        status, _, body = page.get(f"/trace?id=odd-{number}")
        assert status == 200, body
    assert page.get("/label")[0] == 200


def test_a_list_shows_the_request_and_not_the_files_below_it(store, serve, client):
    store.append(ExecutionTrace(trace_id="one", user_query="remove a.txt\n\nFILES: a.txt b.txt"))
    store.append(ExecutionTrace(trace_id="two", user_query="mend it\n\nCURRENT_FILE: total.py\nx = 1"))
    page = client(serve())
    body = page.get("/traces")[2]
    assert '<span class="query">remove a.txt</span>' in body and '<span class="query">mend it</span>' in body
    body = page.get("/trace?id=one")[2]
    assert "<title>remove a.txt" in body and "FILES: a.txt b.txt" in body, "the whole of it, on its own page"
