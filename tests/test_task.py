# SPDX-License-Identifier: AGPL-3.0-or-later
"""Tasks: both folder layouts, the way to JSON and back, and paths that must not leave the workspace."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rusty_r2.errors import TaskError
from rusty_r2.gym.env import TASKS
from rusty_r2.task import Calls, Case, Code, Task, Tree, clean_path, index

CHECKS = (
    Calls("a.py", "f", (Case((1, [2, "x"]), {"k": None}), Case((), raises="ValueError")), tolerance=1e-6),
    Code("a.py", "import unittest\n", "unittest"),
    Tree({"a": "text", "b": None}, keep=False, answer="7"),
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.kind)
def test_a_task_survives_json(check):
    task = Task(
        "t", "do it", check, {"a.py": "x = 1\n"}, {"b": None}, ("ls", "pwd"), "done", "f", 2, "heldout"
    )
    assert Task.from_dict(json.loads(json.dumps(task.to_dict()))) == task


def test_an_unknown_field_is_named():
    data = Task("t", "do it", CHECKS[1]).to_dict() | {"colour": "red"}
    with pytest.raises(TaskError, match="colour"):
        Task.from_dict(data)


def test_an_unknown_check_is_named():
    data = Task("t", "do it", CHECKS[1]).to_dict() | {"check": {"kind": "vibes"}}
    with pytest.raises(TaskError, match="vibes"):
        Task.from_dict(data)


def test_an_empty_prompt_is_refused():
    with pytest.raises(TaskError, match="prompt"):
        Task("t", " \n", CHECKS[1])


def write(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


SMALL = {
    "prompt.txt": "Fix it.",
    "template.py": "x = 1\n",
    "tests.py": "import unittest\n",
    "solution.py": "x = 2\n",
}


def test_the_small_layout(tmp_path):
    task = Task.load(write(tmp_path / "fix_it", SMALL))
    assert task.name == "fix_it"
    assert task.files == {"template.py": "x = 1\n"}
    assert task.solution == {"template.py": "x = 2\n"}
    assert task.check == Code("template.py", "import unittest\n", "unittest")


@pytest.mark.parametrize("missing", ["template.py", "tests.py"])
def test_a_missing_part_is_named(tmp_path, missing):
    folder = write(tmp_path, SMALL)
    (folder / missing).unlink()
    with pytest.raises(TaskError, match=missing):
        Task.load(folder)


def test_the_rich_layout_with_calls(tmp_path):
    task = Task.load(
        write(
            tmp_path / "half",
            {
                "task.toml": 'difficulty = 2\nsplit = "heldout"\n'
                '[check]\nkind = "calls"\npath = "h.py"\nfunction = "half"\n',
                "instruction.md": "Halve.",
                "environment/h.py": "def half(n): pass\n",
                "solution/h.py": "def half(n): return n / 2\n",
                "tests/cases.json": '[{"args": [4], "expected": 2}, {"args": ["x"], "raises": "TypeError"}]',
            },
        )
    )
    assert (task.name, task.family, task.difficulty, task.split) == ("half", "half", 2, "heldout")
    assert task.check == Calls("h.py", "half", (Case((4,), 2), Case(("x",), raises="TypeError")))


def test_the_rich_layout_with_a_tree(tmp_path):
    task = Task.load(
        write(
            tmp_path / "tidy",
            {
                "task.toml": 'commands = ["mv a b/c"]\nsolution_absent = ["a"]\n'
                '[check]\nkind = "tree"\nabsent = ["a"]\n',
                "instruction.md": "Move.",
                "environment/a": "1\n",
                "solution/b/c": "1\n",
                "tests/expect/b/c": "1\n",
            },
        )
    )
    assert task.check == Tree({"b/c": "1\n", "a": None})
    assert task.solution == {"b/c": "1\n", "a": None}
    assert task.commands == ("mv a b/c",)


def test_a_broken_toml_names_its_file(tmp_path):
    folder = write(tmp_path, {"task.toml": "difficulty = ", "instruction.md": "Do."})
    with pytest.raises(TaskError, match="task.toml"):
        Task.load(folder)


TREE = '[check]\nkind = "tree"\n'
CALLS = '[check]\nkind = "calls"\npath = "a.py"\nfunction = "f"\n'


@pytest.mark.parametrize(
    ("settings", "cases"),
    [
        ('check = "x"', "[]"),
        (CALLS, "{"),
        (CALLS, "[" * 100_000),
        (CALLS, "[5]"),
        ('[check]\nkind = "code"\npath = "a.py"\nfile = 5', "[]"),
        (CALLS.replace("a.py", "../a.py"), '[{"args": [1], "expected": 1}]'),
        (f"{TREE}absent = 5", "[]"),
        (f"solution_absent = 5\n{TREE}", "[]"),
        (f'difficulty = "hard"\n{TREE}', "[]"),
        (f'split = "moon"\n{TREE}', "[]"),
        (f'{TREE}[limits]\nwall_s = "long"', "[]"),
    ],
)
def test_settings_of_the_wrong_kind_are_one_line(tmp_path, settings, cases):
    parts = {"task.toml": settings, "instruction.md": "Do.", "tests/cases.json": cases}
    with pytest.raises(TaskError) as told:
        Task.load(write(tmp_path, parts))
    assert "\n" not in str(told.value)


def test_a_folder_of_neither_layout_is_refused(tmp_path):
    with pytest.raises(TaskError, match="neither"):
        Task.load(tmp_path)


def test_index_finds_every_folder_in_order(tmp_path):
    for name in ("b", "a", "group/c"):
        write(tmp_path / name, SMALL)
    assert [folder.name for folder in index(tmp_path)] == ["a", "b", "c"]


def test_index_of_nothing_is_an_error(tmp_path):
    with pytest.raises(TaskError, match="not a folder"):
        list(index(tmp_path / "none"))


@pytest.mark.parametrize("path", ["", ".", "/", "/etc/passwd", "..", "a/../b", "../a", "a\0b"])
def test_paths_that_leave_the_workspace_are_refused(path):
    with pytest.raises(TaskError):
        clean_path(path)


@given(st.lists(st.sampled_from(["..", ".", "a", "b c", "", "é"]), max_size=5).map("/".join))
def test_a_cleaned_path_stays_below_the_workspace(path):
    try:
        clean = clean_path(path)
    except TaskError:
        return
    assert clean_path(clean) == clean
    root = Path("/workspace")
    assert (root / clean).resolve().is_relative_to(root)


def test_what_python_compiled_beside_a_task_is_no_part_of_it(tmp_path):
    whole = Task.load(TASKS / "clean_project")
    folder = tmp_path / "clean_project"
    shutil.copytree(TASKS / "clean_project", folder)
    cache = folder / "environment" / "src" / "__pycache__"
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "app.cpython-311.pyc").write_bytes(b"\xa7\x0d")
    assert Task.load(folder).files == whole.files
