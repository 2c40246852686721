# SPDX-License-Identifier: AGPL-3.0-or-later
"""The catalog through its commands: list, check, play; tasks that differ, and are the same every time."""

import json
from dataclasses import replace

import pytest

from rusty_r2.cli import main
from rusty_r2.errors import TaskError
from rusty_r2.gym import catalog
from rusty_r2.gym.families import FAMILIES, fingerprint
from rusty_r2.gym.proof import faults, gold, lint
from rusty_r2.protocol import Cmd, Edit, Msg
from rusty_r2.task import Calls, Case, Code, Task, Tree

needs_sandbox = pytest.mark.usefixtures("confined")


def test_tasks_are_different_and_the_same_every_time():
    first = list(catalog.tasks("train", count=60))
    assert first == list(catalog.tasks("train", count=60))
    assert len({fingerprint(task) for task in first}) == 60
    assert {task.split for task in first} == {"train"}
    assert first != list(catalog.tasks("train", seed=1, count=60))


def test_held_out_tasks_come_from_all_families():
    tasks = list(catalog.tasks("heldout", count=3 * len(FAMILIES)))
    assert {task.family for task in tasks} == set(FAMILIES)
    assert {task.split for task in tasks} == {"heldout"}


def test_a_choice_of_families_and_levels():
    tasks = list(catalog.tasks("train", count=20, families=["sort", "lists"], difficulty=(2, 3)))
    assert {task.family for task in tasks} == {"sort", "lists"}
    assert {task.difficulty for task in tasks} == {2, 3}


def test_a_task_is_found_again_by_its_name():
    for task in [*catalog.tasks("heldout", count=50), *catalog.handmade()]:
        assert catalog.get(task.name) == task


@pytest.mark.parametrize(
    "name", ["", "nope", "rename", "rename-1-train-x", "rename-9-train-0", "copy-1-train-0"]
)
def test_a_name_of_nothing_is_an_error(name):
    with pytest.raises(TaskError):
        catalog.get(name)


@pytest.mark.parametrize(
    "asked", [{"split": "test"}, {"families": ["nope"]}, {"families": ["count_words"], "difficulty": 3}]
)
def test_an_impossible_choice_is_an_error(asked):
    with pytest.raises(TaskError):
        list(catalog.tasks(**{"split": "heldout", "count": 1, **asked}))


def test_list_names_everything(capsys):
    assert main(["gym", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == {*FAMILIES, *(task.name for task in catalog.handmade())}
    assert main(["gym", "list", "--split", "heldout"]) == 0
    shown = capsys.readouterr().out
    assert "copy" in shown
    assert "rusty gym play" in shown.splitlines()[-1]


@needs_sandbox
def test_check_proves_a_task_of_every_family(capsys):
    assert main(["gym", "check", "--count", "1", "--split", "heldout", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["faults"] == {}
    assert said["checked"] > len(FAMILIES)


@needs_sandbox
def test_check_of_some(capsys):
    assert main(["gym", "check", "sum_list", "rename", "--count", "1"]) == 0
    assert "7 tasks are fair" in capsys.readouterr().out


def test_check_of_nothing_known(capsys):
    assert main(["gym", "check", "nope"]) == 1
    assert "nope" in capsys.readouterr().err


@needs_sandbox
def test_play_shows_both_sides(capsys):
    assert main(["gym", "play", "rename", "--difficulty", "2"]) == 0
    said = capsys.readouterr().out
    assert "[assistant]" in said
    assert "passed, reward 1.0" in said


@needs_sandbox
def test_play_by_hand(capsys, monkeypatch, tmp_path):
    replies = tmp_path / "replies"
    replies.write_text('{"action": "CMD", "command": "ls"}\n{"action": "MSG", "message": "enough"}\n')
    with replies.open() as lines:
        monkeypatch.setattr("sys.stdin", lines)
        assert main(["gym", "play", "sum_list", "--by", "hand"]) == 0
    said = capsys.readouterr().out
    assert "template.py" in said
    assert "not passed, reward -0.1" in said


FAIR = Task(
    "fair",
    "Make double(n) return twice n.",
    Calls("d.py", "double", (Case((123,), 246), Case((["scrap"],), ["scrap", "scrap"]))),
    {"d.py": "def double(n):\n    pass\n"},
    {"d.py": "def double(n):\n    return n * 2\n"},
)
UNFAIR = {
    "a line of gold": replace(FAIR, prompt="Write `return n * 2`."),
    "the hidden case": replace(FAIR, prompt="Note that double(123) works."),
    "the hidden expected value": replace(FAIR, files={**FAIR.files, "n.txt": "['scrap', 'scrap']"}),
    "looks like a grader": replace(FAIR, files={**FAIR.files, "tests/test_d.py": "assert 1"}),
    "a gold command": Task("t", "Type touch a_new_file.", Tree({"a": ""}), commands=("touch a_new_file",)),
    "the tests": Task(
        "t", "Do.", Code("d.py", "assert d.x == 5\n"), {"d.py": "x = 4", "x": "assert d.x == 5\n"}
    ),
    "the prompt holds the answer": Task("t", "Are there 3 or not?", Tree(answer="3"), message="3"),
    "a list of guesses": Task("t", "Who is it?", Tree(answer="bob"), {"users": "amy bob"}, message="bob"),
    "no gold message": Task("t", "How many?", Tree(answer="3"), commands=("ls",)),
}


@pytest.mark.parametrize("fault", UNFAIR)
def test_lint_sees_a_leak(fault):
    assert any(fault in found for found in lint(UNFAIR[fault]))
    assert list(lint(FAIR)) == []


@needs_sandbox
@pytest.mark.parametrize(
    ("task", "fault"),
    [
        (replace(FAIR, files=FAIR.solution), "the start state already passes"),
        (replace(FAIR, solution={"d.py": "def double(n):\n    return n + n + 1\n"}), "gold does not pass"),
        (replace(FAIR, solution={}), "there is no gold solution"),
        (Task("t", "Make a.", Tree({"a": ""}), commands=("false", "touch a")), "gold command fails: false"),
        (
            Task("t", "Make a.", Tree({"a": ""}), commands=("touch a", "touch b")),
            "longer than it needs to be",
        ),
    ],
    ids=["solved", "wrong", "none", "failing", "long"],
)
def test_an_unfair_task_is_found_out(task, fault):
    assert any(fault in found for found in faults(task))


def test_gold_is_what_a_perfect_player_would_do():
    assert gold(FAIR) == [Edit("d.py", FAIR.solution["d.py"])]
    gone = replace(FAIR, solution={"a b": None, "c": "1"}, message="ok")
    assert gold(gone) == [Edit("c", "1"), Cmd("rm 'a b'"), Msg("ok")]
    assert gold(replace(gone, commands=("ls",))) == [Cmd("ls"), Msg("ok")]
