# SPDX-License-Identifier: AGPL-3.0-or-later
"""Code is shown with a request that is about what it says; else the names of what is there."""

from __future__ import annotations

import pytest

from rusty_r2.agent.named import MOST_SHOWN, named
from rusty_r2.gym import catalog

AREA = "def area(w, h):\n    return w + h\n"
WHOLE = [
    "run area.py",
    "rename area.py to size.py",
    "delete area.py, please",
    "how many lines are in area.py?",
    "show me the first line of area.py",
    "make area.py executable",
    "replace w with width in area.py",
    "is there a class.py beside area.py?",
]
INSIDE = [
    "fix area.py",
    "area in area.py should multiply",
    "there is a bug in area.py: it should multiply",
    "rename the function in area.py to size",
    "area(2, 3) gives 5, see area.py",
    "area.py: use Shape as the base of Circle",
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "area.py").write_text(AREA + "\n\nclass Circle:\n    pass\n")
    (tmp_path / "notes.txt").write_text("area\n")
    return tmp_path


@pytest.mark.parametrize("query", WHOLE)
def test_a_file_as_a_whole_is_only_named(folder, query):
    assert named(folder, query, 1000) == ("\n\nFILES: area.py notes.txt", [])


@pytest.mark.parametrize("query", INSIDE)
def test_what_is_in_it_is_shown(folder, query):
    told, code = named(folder, query, 1000)
    assert told.startswith("\n\nCURRENT_FILE: area.py\ndef area(w, h):") and code == ["area.py"]


def test_at_most_a_few_are_shown_and_long_ones_are_clipped(folder):
    for number in range(MOST_SHOWN + 2):
        (folder / f"m{number}.py").write_text(f"x = {'y' * 5000}\n")
    told, code = named(folder, "fix " + " ".join(f"m{n}.py" for n in range(MOST_SHOWN + 2)), 600)
    assert code == [f"m{n}.py" for n in range(MOST_SHOWN)] and len(told) < 1500


def test_nothing_named_is_nothing_shown(folder):
    for query in ("fix it", "hello", "what is a class?", "fix none.py"):
        assert named(folder, query, 1000) == ("", [])


def test_a_request_as_the_gym_words_it_shows_the_code_as_the_gym_does(tmp_path):
    """The rule is a guess at what training showed: it must hold for nearly all of the gym's tasks on code."""
    seen = shown = 0
    for number, task in enumerate(catalog.tasks("heldout", seed=6, count=300)):
        path = getattr(task.check, "path", "")
        if not path.endswith(".py") or path not in task.prompt or path not in task.files:
            continue
        place = tmp_path / str(number)
        place.mkdir()
        (place / path).write_text(task.files[path])
        seen += 1
        shown += named(place, task.prompt, 4000)[1] == [path]
    assert seen > 50 and shown >= 0.97 * seen
