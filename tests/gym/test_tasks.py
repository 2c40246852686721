# SPDX-License-Identifier: AGPL-3.0-or-later
"""The hand-made tasks: each is fair, and together they use every layout and every check."""

import pytest

from rusty_r2.gym import catalog
from rusty_r2.gym.env import TASKS
from rusty_r2.gym.proof import faults
from rusty_r2.gym.verdict import judge
from rusty_r2.task import Code, Tree


@pytest.mark.parametrize("task", catalog.handmade(), ids=lambda task: task.name)
def test_gold_passes_the_start_fails_and_nothing_leaks(task):
    assert faults(task) == []


def test_there_are_enough_of_every_sort():
    tasks = catalog.handmade()
    assert len(tasks) >= 12
    assert {task.check.kind for task in tasks} == {"calls", "code", "tree"}
    assert {task.check.style for task in tasks if isinstance(task.check, Code)} == {
        "unittest",
        "pytest",
        "assert",
    }
    assert {task.check.answer is None for task in tasks if isinstance(task.check, Tree)} == {True, False}
    assert {task.split for task in tasks} == {"train", "heldout"}
    layouts = {(TASKS / task.name / "task.toml").is_file() for task in tasks}
    assert layouts == {True, False}


def test_sum_list_is_broken_until_it_is_fixed():
    task = catalog.get("sum_list")
    assert set(task.files) == {"template.py"}
    assert not judge(task, task.files).passed
    assert judge(task, {**task.files, **task.solution}).passed
