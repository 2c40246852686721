"""A round that was begun: a slip changes nothing in it, and who stops it is told how to go on."""

import signal

import pytest

from rusty_r2 import cli
from rusty_r2.loop import demo, gathering
from rusty_r2.loop.config import LoopConfig
from rusty_r2.loop.run import go

from .helpers import LightMind


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (["--source", "nosuch"], "--source nosuch does not exist"),
        (["--base", "nosuch"], "no base model 'nosuch'"),
        (["--base", "empty"], "holds no model (no config.json). Type: --base smollm2"),
    ],
)
def test_a_slip_changes_nothing_in_a_round_that_was_begun(tmp_path, capsys, monkeypatch, wrong, why):
    class Stopped(LightMind):
        def train(self, folder, rows):
            (folder / "half").write_text("trained")
            raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(KeyboardInterrupt):
        go(LoopConfig(source=demo.write(tmp_path, "demo")), mind=Stopped())
    begun = {path: path.stat().st_mtime_ns for path in (tmp_path / "loops").rglob("*")}
    assert any(path.name == "half" for path in begun)
    assert cli.main(["loop", "--source", "demo.jsonl", *wrong]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert why in said and "--base-model" not in said
    assert begun == {path: path.stat().st_mtime_ns for path in (tmp_path / "loops").rglob("*")}


def test_a_round_whose_source_is_gone_goes_on_with_the_traces_it_has(tmp_path):
    source = demo.write(tmp_path, "demo")

    class Stopped(LightMind):
        def train(self, folder, rows):
            raise KeyboardInterrupt

    config = LoopConfig(source=source, out=tmp_path / "loop")
    with pytest.raises(KeyboardInterrupt):
        go(config, mind=Stopped())
    source.unlink()
    assert go(config, mind=LightMind()).promoted


def test_ctrl_c_says_that_the_same_command_goes_on(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gathering, "collect", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    assert cli.main(["loop", "--source", "demo"]) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "rusty loop: stopped; loops/agent keeps what is done, the same command goes on"
