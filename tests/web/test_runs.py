"""Run folders: only what lies there is found, whatever is asked for, and whatever is in the files."""

import json
import os

import pytest

from rusty_r2 import files
from rusty_r2.config import home
from rusty_r2.errors import ConfigError
from rusty_r2.registry import Gate, Registry
from rusty_r2.run import Run
from rusty_r2.web.runs import Runs, config_diff
from rusty_r2.web.shelf import Shelf, kind_of_rows, lineage, source


def make_run(folder, lines=(), config=None, ended="done"):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config or {}))
    (folder / "run.json").write_text(
        json.dumps({"name": folder.name, "ended": ended, "command": "rusty train x"})
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def runs(tmp_path):
    lines = [
        {"step": n, "time": 100.0 + 60 * n, "reward/mean": n / 10, "loss/total": 1 / (n + 1)}
        for n in range(20)
    ]
    make_run(
        tmp_path / "runs" / "ppo-1",
        lines,
        {"lr": 0.1, "seed": 0, "init_checkpoint": "runs/sft-1/step_000010"},
    )
    make_run(tmp_path / "runs" / "ppo-2", lines[:5], {"lr": 0.2, "seed": 0, "clip": 0.2}, ended="running")
    make_run(tmp_path / "runs" / "loop" / "1" / "kto", [])
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "metrics.jsonl").write_text('{"step": 1, "secret": 1}\n')
    return Runs(tmp_path / "runs")


def test_what_is_there_is_found(runs):
    assert sorted(run.name for run in runs.all()) == ["loop/1/kto", "ppo-1", "ppo-2"]
    first, second = runs.get("ppo-1"), runs.get("ppo-2")
    assert (first.state, second.state, second.live) == ("done", "running", True)
    assert runs.keys(first) == ["reward/mean", "loss/total"]
    assert config_diff(first, second) == [
        ("clip", "–", "0.2"), ("init_checkpoint", '"runs/sft-1/step_000010"', "–"), ("lr", "0.1", "0.2"),
    ]  # fmt: skip
    assert runs.before_after(first, ["reward/mean"]) == {"reward/mean": (0.0, 1.9, 0.0, 1.9)}


def test_a_run_that_fell_silent_is_not_live(runs):
    path = runs.get("ppo-2").path / "metrics.jsonl"
    os.utime(path, (1, 1))
    assert runs.get("ppo-2").state == "silent"


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "..",
        ".",
        "",
        "/etc",
        "ppo-1/../../outside",
        "ppo-1/",
        "ppo-1\0",
        "loop",
        "%2e%2e/outside",
    ],
)
def test_a_name_never_becomes_a_path(runs, name):
    with pytest.raises(ConfigError):
        runs.get(name)


def test_a_name_from_outside_is_answered_with_404(runs, serve, client):
    page = client(serve())
    for name in ("..%2Foutside", "%2Fetc", "ppo-1%2F..%2F..%2Foutside", "%00"):
        for path in (f"/run?name={name}", f"/run/live?name={name}", f"/compare?a=ppo-1&b={name}"):
            status, _, body = page.get(path)
            assert status == 404 and "secret" not in body
    for path in ("/static/..%2Fapp.py", "/static/%2e%2e/app.py", "/static/page.jinja", "/static/"):
        assert page.get(path)[0] == 404


def test_a_new_line_is_shown_and_damage_is_passed_over(runs):
    run = runs.get("ppo-2")
    assert len(runs.numbers(run)["reward/mean"]) == 5
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write(
            '{"step": 5, "reward/mean": null, "odd": "words", "huge": 1'
            + "0" * 400
            + "}\nnot json\n[1]\n"
            + "[" * 9999
            + "\n{cut"
        )
    fresh = runs.get("ppo-2")
    assert len(runs.numbers(fresh)["reward/mean"]) == 6 and runs.keys(fresh) == ["reward/mean", "loss/total"]
    assert runs.numbers(fresh)["reward/mean"][-1].value is None
    assert fresh.stamp != run.stamp
    for name in ("config.json", "run.json"):
        (run.path / name).write_text("[" * 9999)
    assert runs.get("ppo-2").config == {} and runs.get("ppo-2").state == "unknown"


def test_numbers_that_grow_are_read_once_and_a_run_that_starts_again_anew(runs):
    path = runs.get("ppo-2").path / "metrics.jsonl"

    def values():
        return [one.value for one in runs.numbers(runs.get("ppo-2")).get("n", ())]

    assert values() == []
    with open(path, "a") as file:
        file.write('{"step": 5, "n": 1}\n{"step": 6, ')
    assert values() == [1]
    with open(path, "a") as file:
        file.write('"n": 2}\n')
    assert values() == [1, 2] and len(runs.numbers(runs.get("ppo-2"))["reward/mean"]) == 5
    files.write(path, '{"step": 0, "n": 3}\n' * 40)
    assert values() == [3] * 40
    path.write_text('{"step": 0, "n": 4}\n')
    assert values() == [4]
    path.unlink()
    assert values() == []


def test_a_pass_rate_has_its_interval_around_it(tmp_path):
    lines = [
        {"step": n, "time": 60 * n, "eval/pass_rate": 0.5, "eval/low": 0.4, "eval/high": 0.6} for n in (0, 9)
    ]
    make_run(tmp_path / "runs" / "a", lines)
    runs = Runs(tmp_path / "runs")
    assert runs.keys(runs.get("a")) == ["eval/pass_rate"]
    for across in ("step", "minutes"):
        (made,) = runs.charts([runs.get("a")], ["eval/pass_rate"], across)
        assert len(made.series[0].band.split()) == 4


def test_the_pages_draw_and_compare(runs, serve, client):
    page = client(serve())
    listed = page.get("/runs")[2]
    assert "/run?name=ppo-1" in listed and "/run?name=loop%2F1%2Fkto" in listed
    drawn = page.get("/run?name=ppo-1")[2]
    assert drawn.count("<polyline") == 2 and "Before and after" in drawn and "data-live" not in drawn
    assert page.get("/run?name=ppo-1&key=loss/total&key=nothing")[2].count("<polyline") == 1
    both = page.get("/compare?a=ppo-1&b=ppo-2&x=minutes")[2]
    assert both.count("<polyline") == 4 and "Options that differ" in both and "<code>0.2</code>" in both
    assert page.get("/run?name=loop%2F1%2Fkto")[0] == 200


def test_the_live_part_is_sent_only_when_something_is_new(runs, serve, client):
    page = client(serve())
    stamp = runs.get("ppo-2").stamp
    assert page.get(f"/run/live?name=ppo-2&stamp={stamp}")[0] == 204
    with open(runs.get("ppo-2").path / "metrics.jsonl", "a") as file:
        file.write('{"step": 9, "reward/mean": 4.25}\n')
    status, _, body = page.get(f"/run/live?name=ppo-2&stamp={stamp}")
    assert status == 200 and "4.25" in body and "<html" not in body and "data-live" in body


def test_a_real_run_is_read(tmp_path, serve, client, monkeypatch):
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Options:
        lr: float = 0.5

    monkeypatch.chdir(tmp_path)
    with Run.start("toy", Options()) as run:
        run.log(1, {"loss/train": 2.0})
        run.log(2, {"loss/train": float("nan")})
        run.log(3, {"loss/train": 1.0})
        with run.checkpoint(3) as folder:
            (folder / "weights").write_text("w")
    page = client(serve())
    body = page.get("/run?name=toy-1")[2]
    assert "step_000003" in body and ">done<" in body and body.count("<circle") == 2
    assert "toy-1" in page.get("/shelf")[2]


def test_the_registry_is_shown_with_its_lineage(tmp_path, serve, client, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "kto-1", config={"data": "rows.jsonl"})
    (tmp_path / "model.gguf").write_bytes(b"GGUF not really")
    registry = Registry()
    digest = files.digest(tmp_path / "model.gguf")
    made = {"base": "smollm2", "traces": {"count": 40, "digest": "abc"}, "run": "runs/kto-1/merged"}
    registry.add(
        "agent", tmp_path / "model.gguf", gate=Gate(True, digest), lineage=made, scores={"tasks": "7 of 10"}
    )
    registry.promote("agent")
    (tmp_path / "worse.gguf").write_bytes(b"GGUF worse")
    refused = Gate(False, "0" * 64, reasons=("the template differs",))
    registry.add("agent", tmp_path / "worse.gguf", gate=refused)
    (registry.root / "broken" / "v0001").mkdir(parents=True)
    (registry.root / "broken" / "v0001" / "record.json").write_text("[]")
    status, _, body = client(serve()).get("/shelf")
    assert status == 200 and "version 1 in use" in body and "agent@2" in body
    for told in (
        "7 of 10",
        "count 40, digest abc",
        "smollm2",
        'href="/run?name=kto-1"',
        "the template differs",
    ):
        assert told in body
    assert "broken" in body and "cannot be read" in body and "The shipped model" in body


def test_looking_at_everything_writes_nothing(runs, tmp_path, serve, client, store, trace):
    store.append(trace(1))

    def tree():
        found = (path for root in (tmp_path, home()) for path in root.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in found if not path.name.startswith("t.db")}

    before = tree()
    page = client(serve())
    for path in (
        "/traces",
        "/trace?id=trace-00001",
        "/label",
        "/agreement",
        "/runs",
        "/run?name=ppo-1",
        "/shelf",
    ):
        assert page.get(path)[0] == 200
    assert tree() == before and store.labels("trace-00001") == []


def test_datasets_and_what_was_made_from_what(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    shards = {"train": {"shards": [{"file": "a", "tokens": 1000}]}}
    manifest = {"splits": shards, "tokenizer": "abc", "sources": [{"source": "man", "licence": "GPL"}]}
    (tmp_path / "code" / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "rows").mkdir()
    rows = [{"prompt": "q", "completion": "a", "label": n > 0, "trace_id": f"t{n % 2}"} for n in range(3)]
    (tmp_path / "rows" / "kto.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "notes.jsonl").write_text('{"hello": 1}\n')
    (tmp_path / "bad.jsonl").write_bytes(b"\xff\xfe\n")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "manifest.json").write_text(
        '{"splits": {"train": {"shards": {"x": 1}}, "test": {"shards": [{"tokens": "7"}]}}, "sources": [3]}'
    )
    make_run(tmp_path / "runs" / "sft", config={"data_dir": "code"})
    make_run(
        tmp_path / "runs" / "kto",
        config={"base_model": "runs/sft/step_000001", "data": "rows/kto.jsonl", "lr": 1},
    )
    datasets = Shelf(tmp_path).datasets()
    assert [(one.name, one.kind, one.traces) for one in datasets] == [
        ("code", "corpus", 0), ("odd", "corpus", 0), ("rows/kto.jsonl", "KTO rows", 2),
    ]  # fmt: skip
    assert ("good / bad", "2 / 1") in datasets[2].facts and ("man", "GPL") in datasets[0].facts
    every = {run.name: run for run in Runs(tmp_path / "runs").all()}
    base, data = lineage(every["kto"], every, datasets)
    assert base.href == "/run?name=sft" and base.further[0].href.startswith("/shelf#d-code")
    assert data.further[0].text == "2 traces"


def test_a_large_folder_is_read_look_by_look(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").write_text('{"messages": []}\n')
    monkeypatch.setattr("rusty_r2.web.shelf.BUDGET", 40)
    shelf = Shelf(tmp_path)
    assert (len(shelf.datasets()), shelf.unread) == (2, 1)
    assert (len(shelf.datasets()), shelf.unread) == (3, 0)


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ("trace_id user_query", "traces"),
        ("prompt chosen rejected", "DPO rows"),
        ("prompt completions", "GRPO rows"),
        ("prompt completion label", "KTO rows"),
        ("messages", "SFT rows"),
        ("kind turns", "episodes"),
        ("step", ""),
    ],
)
def test_kinds_of_rows(keys, kind):
    assert kind_of_rows(dict.fromkeys(keys.split())) == kind


def test_runs_that_were_made_from_each_other_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "a", config={"init": "runs/b"})
    make_run(tmp_path / "runs" / "b", config={"init": "runs/a"})
    every = {run.name: run for run in Runs(tmp_path / "runs").all()}
    assert lineage(every["a"], every, [])[0].href == "/run?name=b"


def test_a_run_with_a_name_that_is_no_text_can_be_an_origin(tmp_path):
    odd = os.fsdecode(b"\xff")
    make_run(tmp_path / odd)
    every = {run.name: run for run in Runs(tmp_path).all()}
    assert source("init", str(tmp_path / odd), every, []).href == "/run?name=%3F"
