"""What was trained on is found, however it is wrapped; what was not is not."""

import json
import lzma

import pytest

from rusty_r2.errors import DataError
from rusty_r2.eval.contamination import figures, overlap
from rusty_r2.protocol import Edit, render

LONG = "the quick brown fox jumps over the lazy dog and then sleeps until noon in the barn"
CODE = "def area(width, height):\n    if width < 0:\n        raise ValueError\n    return width * height\n"


def seen(items, path):
    return overlap({"set": items}, [path])["set"]


def test_thirteen_words_in_a_row_are_found_and_twelve_are_not(tmp_path):
    path = tmp_path / "trained.txt"
    path.write_text("Before it. THE QUICK brown  fox jumps over\nthe lazy dog and then sleeps until. After")
    assert seen([(LONG,)], path) == [True]
    assert seen([(LONG.replace("quick", "slow"),)], path) == [False]


def test_short_items_count_only_where_all_their_parts_are_there_whole(tmp_path):
    path = tmp_path / "episodes.jsonl"
    turns = [
        ["user", "List all the files here"],
        ["assistant", '{"action": "CMD", "command": "ls -la --sort time"}'],
    ]
    path.write_text(json.dumps({"turns": turns}) + "\n")
    both, one = (
        ("List all the files here", "ls -la --sort time"),
        ("List all the files here", "ls -la --sort size"),
    )
    assert seen([both, one, ("ls",)], path) == [True, False, False]


def test_escapes_and_compression_hide_nothing(tmp_path):
    path = tmp_path / "episodes.jsonl.xz"
    with lzma.open(path, "wt") as file:
        file.write(json.dumps({"turns": [["assistant", render(Edit("a.py", CODE))]]}) + "\n")
        file.write(json.dumps({"text": LONG, "split": "dev"}) + "\n")
    assert seen([("Write area", CODE), (LONG,)], path) == [True, False], "held-out rows are not trained on"


def test_a_folder_is_read_and_a_missing_one_is_said(tmp_path):
    (tmp_path / "notes.md").write_text(LONG)
    assert seen([(LONG,)], tmp_path) == [True]
    with pytest.raises(DataError, match="does not exist"):
        seen([(LONG,)], tmp_path / "nowhere")


def test_the_figure_counts_items(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(LONG)
    held = {"set": [(LONG,), ("something else entirely, never read",)]}
    (figure,) = figures(held, overlap(held, [path]))
    assert figure.value == 50 and figure.lower_is_better and figure.name == "set in the training data"
