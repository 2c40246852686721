"""What was trained on is found, however it is wrapped; what was not is not."""

import gzip
import json
import lzma

import pytest

from rusty_r2.errors import DataError
from rusty_r2.eval import contamination
from rusty_r2.eval.contamination import figures, overlap
from rusty_r2.protocol import Edit, Msg, render

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


def test_the_form_in_which_all_items_are_put_is_no_match(tmp_path):
    asked = "Write a {} and save it as solution.py, then see to it that all of the tests below pass"
    items = [(asked.format(word),) for word in ("queue", "stack", "heap", "tree", "graph", "list")]
    (tmp_path / "a.txt").write_text(asked.format("parser"))
    assert seen(items, tmp_path / "a.txt") == [False] * 6
    assert seen(items[:2], tmp_path / "a.txt") == [True] * 2, "two that are alike prove no form"


@pytest.mark.parametrize("workers", [1, 2])
def test_the_very_rows_of_drills_are_read(tmp_path, workers, monkeypatch):
    pytest.importorskip("tokenizers", reason="needs the train extra")
    from rusty_r2.data.drills import DrillsConfig, build
    from rusty_r2.data.episode import ask

    monkeypatch.setattr(contamination, "ROWS", 2)
    episodes = [ask("MSG", "x", f"question {n}: {LONG} and more of it", Msg("no")) for n in range(60)]
    episodes += [ask("EDIT", "x", "Write area", Edit("a.py", CODE))]
    (tmp_path / "some.jsonl").write_text("".join(episode.to_json() + "\n" for episode in episodes))
    (tmp_path / "prose.txt").write_text("A tale that goes on and on about nothing much at all: " * 400)
    text = (str(tmp_path / "prose.txt"),)
    config = DrillsConfig(
        tmp_path / "d", lessons=2, gym=0, episodes=tmp_path / "some.jsonl", text=text, seq_len=256, workers=1
    )
    build(config)
    held = [(LONG,), ("Write area", CODE), ("goes on and on about nothing much at all a tale that goes",)]
    held += [("this was never said to anybody who could have learned it by heart, was it",)]
    found = overlap({"set": held}, [tmp_path / "d"], workers)["set"]
    assert found == [True, True, True, False]


def test_what_the_system_says_in_every_episode_is_passed_over(tmp_path):
    path = tmp_path / "episodes.jsonl"
    turns = [["system", LONG], ["user", "hello there my old friend"]]
    path.write_text(json.dumps({"turns": turns}) + "\n")
    assert seen([(LONG,), ("hello there my old friend",)], path) == [False, True]


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


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bytes.jsonl", b'{"text": "fine"}\n\xff\xfe\n'),
        ("cut.jsonl.gz", gzip.compress(b'{"text": "fine"}\n', mtime=0)[:20]),
        ("no.jsonl.xz", b"nothing of the kind"),
        ("deep.jsonl", b"[" * 100_000),
    ],
)
def test_damaged_training_data_are_one_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name) as told:
        seen([(LONG,)], tmp_path / name)
    assert "\n" not in str(told.value)


def test_the_figure_counts_items(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(LONG)
    held = {"set": [(LONG,), ("something else entirely, never read",)]}
    (figure,) = figures(held, overlap(held, [path]))
    assert figure.value == 50 and figure.lower_is_better and figure.name == "set in the training data"
