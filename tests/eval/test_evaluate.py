"""One command, one table: through the user's door, stopped and gone on, with what is missing said."""

import json

import pytest

from rusty_r2.cli import main
from rusty_r2.eval import picture, safety, table
from rusty_r2.eval.figures import Figure, absent, mean, share
from rusty_r2.eval.job import EvalConfig, take
from rusty_r2.eval.kept import Kept


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.delenv("RUSTY_SHARED", raising=False)
    monkeypatch.chdir(tmp_path)


def test_one_command_measures_two_minds_side_by_side_and_goes_on(nano, tmp_path, capsys):
    asked = take(safety.requests()["dangerous"], EvalConfig(limit=2))
    (tmp_path / "trained.txt").write_text(f"They said: {asked[0]}")
    twin = tmp_path / "twin"
    twin.symlink_to(nano)
    options = [
        "--limit",
        "2",
        "--samples",
        "2",
        "--max-turns",
        "1",
        "--out",
        "out",
        "--trained-on",
        "trained.txt",
    ]
    assert main(["eval", str(nano), str(twin), *options]) == 0
    shown = capsys.readouterr().out
    for name in ("bits per byte", "valid actions, free", "gym pass@1", "gym pass@2", "shipped executed"):
        assert name in shown
    assert "no humaneval.jsonl" in shown and "next: less out/table.md" in shown
    told = json.loads((tmp_path / "out/results.json").read_text())
    assert list(told["minds"]) == [str(nano), str(twin)] and told["options"]["limit"] == 2
    figures = {figure["name"]: figure for figure in told["minds"][str(nano)]}
    assert figures["tokens per second"]["value"] > 0 and figures["peak memory"]["low"] > 10
    seen = figures["dangerous requests in the training data"]
    assert (seen["value"], seen["count"]) == (50, 2), "of the two that are measured"
    assert figures["harmless requests in the training data"]["value"] == 0
    assert {"gym pass@1: arithmetic", "gym pass@2: arithmetic"} <= set(figures), sorted(figures)
    assert "| arithmetic | " in (tmp_path / "out/table.md").read_text()
    before = {path.name: path.read_bytes() for path in (tmp_path / "out/samples").iterdir()}
    assert main(["eval", str(nano), str(twin), *options]) == 0
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out/samples").iterdir()}


def test_measures_taken_side_by_side_are_the_same(nano, tmp_path, capsys):
    options = ["--limit", "2", "--samples", "1", "--max-turns", "1", "--measures", "safety", "gym", "actions"]
    told = []
    for out, jobs in (("one", "1"), ("two", "2")):
        assert main(["eval", str(nano), *options, "--out", out, "--jobs", jobs]) == 0
        found = json.loads((tmp_path / out / "results.json").read_text())
        told.append(found["minds"])
        assert set(found["seconds"][str(nano)]) == {"safety", "gym", "actions"}
    assert told[0] == told[1]
    assert main(["eval", "nowhere", "--measures", "safety", "--jobs", "2"]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_an_unknown_measure_and_a_missing_mind_are_one_line(capsys):
    assert main(["eval", "nowhere", "--measures", "safety"]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert main(["eval", "rusty", "--measures", "beauty"]) == 2
    said = capsys.readouterr().err
    assert "'beauty'" in said and said.endswith("Type: rusty eval --help\n") and said.count("\n") == 1


def test_samples_survive_a_kill_and_other_weights_get_another_file(tmp_path):
    with Kept(tmp_path, "gym", {"address": "a/b", "digest": "1"}) as kept:
        kept.add("x", {"passed": True})
        kept.add("y", {"passed": False})
    kept.path.write_bytes(kept.path.read_bytes()[:-3])
    with Kept(tmp_path, "gym", {"address": "a/b", "digest": "1"}) as again:
        assert again.rows == {"x": {"passed": True}}
        again.add("y", {"passed": True})
    assert Kept(tmp_path, "gym", {"address": "a/b", "digest": "1"}).rows["y"] == {"passed": True}
    assert Kept(tmp_path, "gym", {"address": "a/b", "digest": "2"}).rows == {}


def test_two_runs_at_once_and_half_a_character_leave_samples_that_can_be_read(tmp_path):
    asked = {"address": "a", "digest": "1"}
    with Kept(tmp_path, "gym", asked) as one, Kept(tmp_path, "gym", asked) as other:
        one.add("x", {"reply": "half \ud800 and whole ü"})
        other.add("y", {"reply": "b"})
        one.add("z", {"reply": "c"})
    again = Kept(tmp_path, "gym", asked)
    assert set(again.rows) == {"x", "y", "z"} and again.rows["x"] == {"reply": "half \ud800 and whole ü"}


COLUMNS = {
    "ours": [
        share("gym pass@1", 3, 10),
        mean("bits", [1.0, 2.0], unit="bits/byte"),
        absent("tldr exact", "no file"),
    ],
    "theirs": [
        Figure("gym pass@1", 5, 1, 9, 10),
        share("gym pass@1: sort", 1, 2, detail=True),
        share("gym pass@8: sort", 2, 2, detail=True),
    ],
}


def test_the_table_has_a_dash_and_a_reason_for_what_is_missing():
    told = table.plain(COLUMNS)
    assert "30.0 (10.8 to 60.3)" in told and "tldr exact, ours: no file" in told and "sort" not in told
    assert "tldr exact: no file" in table.plain({"ours": COLUMNS["ours"]}), "said once where all lack it"
    long = table.markdown(COLUMNS)
    assert "| gym family, % | ours, pass@1 | ours, pass@8 | theirs, pass@1 | theirs, pass@8 | tasks |" in long
    assert "| sort | – | – | 50.0 (9.5 to 90.5) | 100.0 (34.2 to 100.0) | 2 |" in long
    assert "gym pass@1: sort" not in long and "gym family" not in table.markdown(COLUMNS, short=True)
    plain = table.results(COLUMNS, {"when": "now"})
    assert json.loads(json.dumps(plain, allow_nan=False))["minds"]["ours"][2]["value"] is None


def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="pip install 'rusty-r2[plots]'")
    made = picture.draw(COLUMNS, tmp_path / "a" / "picture.png")
    assert made.read_bytes().startswith(b"\x89PNG")
    assert picture.draw_families(COLUMNS, tmp_path / "families.png").read_bytes().startswith(b"\x89PNG")
    assert picture.draw_families({"ours": COLUMNS["ours"]}, tmp_path / "none.png") is None
