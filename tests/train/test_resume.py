"""Stopped and resumed is never stopped, bit for bit, whatever stopped it."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")

from rusty_r2 import files, run  # noqa: E402
from rusty_r2.errors import CheckpointError, ConfigError  # noqa: E402
from rusty_r2.train.supervised import SupervisedConfig, train  # noqa: E402

STEPS = 20
LATE = STEPS - 3
PATIENT = f"""
import sys, time
from rusty_r2 import run
from rusty_r2.cli import main
from rusty_r2.train import loop

log, hear, heard = run.Run.log, loop.Stop._hear, []

def log_and_wait(self, step, facts):
    log(self, step, facts)
    while step == {LATE} and not heard:
        time.sleep(0.01)

def hear_and_remember(self, *signal):
    heard.append(signal)
    hear(self, *signal)

run.Run.log, loop.Stop._hear = log_and_wait, hear_and_remember
sys.exit(main())
"""
"""the command line, but no run ends before its signal has come, however fast the machine"""


def options(shards, words, folder, **changes):
    small = {"preset": "nano", "seq_len": 64, "batch_size": 4, "grad_accum_steps": 1, "max_steps": STEPS}
    small |= {"ckpt_interval": 4, "log_interval": 1, "eval_interval": 0, "eval_tokens": 1024}
    small |= {"sample_tokens": 0, "device": "cpu", "precision": "fp32", "checkpoints_dir": folder}
    return {"data_dir": shards, "tokenizer_path": words} | small | changes


def command(choices):
    given = [
        [f"--{name}", str(value)] if not isinstance(value, bool) else [f"--{name}"]
        for name, value in choices.items()
    ]
    return [
        sys.executable,
        "-c",
        PATIENT,
        "train",
        "supervised",
        *(word for pair in given for word in pair),
    ]


def stop_with(number, choices, after_steps, delay):
    """Run the command, and send the signal a moment after it has logged so many steps of its own."""
    log = choices["checkpoints_dir"] / "metrics.jsonl"
    child = subprocess.Popen(
        command(choices), stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    said = child.stderr.readline()  # introduces itself: what an earlier try logged too much is cut off by now
    before = log.read_text().count("\n")
    while child.poll() is None:
        seen = log.read_text()
        if seen.count("\n") >= before + after_steps or f'"step": {LATE},' in seen:
            break
        time.sleep(0.01)
    time.sleep(delay)
    child.send_signal(number)
    said += child.stderr.read()
    child.stderr.close()
    return child.wait(timeout=120), said


def outcome(folder):
    """All that must be equal: weights, optimizer, random state, position, and what was logged."""
    last = folder / f"step_{STEPS:06d}"
    kept = {path.name: files.digest(path) for path in sorted(last.iterdir()) if path.name != files.CHECKSUMS}
    assert {"model.safetensors", "trainer.safetensors", "trainer.json"} <= set(kept)
    losses = [(line["step"], line["loss/train"]) for line in run.metrics(folder) if "loss/train" in line]
    return kept, losses


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory, shards, words):
    made = {}

    def run_of(**changes):
        key = json.dumps(changes, sort_keys=True)
        if key not in made:
            folder = tmp_path_factory.mktemp("straight") / "run"
            train(SupervisedConfig(**options(shards, words, folder, **changes)))
            made[key] = outcome(folder)
        return made[key]

    return run_of


@pytest.mark.parametrize("carry", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_terminated_and_interrupted_is_never_stopped(tmp_path, shards, words, never_stopped, carry):
    chance = random.Random(carry)
    changes = {"carry_state": True} if carry else {}
    choices = options(shards, words, tmp_path / "run", resume="auto", **changes)
    stops = [signal.SIGKILL, signal.SIGTERM, signal.SIGKILL] if carry else [signal.SIGKILL, signal.SIGINT]
    for number in stops:
        status, said = stop_with(number, choices, chance.randint(1, 6), chance.random() / 10)
        if number == signal.SIGKILL:
            assert status == -signal.SIGKILL
        else:
            assert status == 0 and "--resume auto" in said
            assert json.loads((tmp_path / "run" / "run.json").read_text())["ended"] == "stopped"
    train(SupervisedConfig(**choices))
    assert outcome(tmp_path / "run") == never_stopped(**changes)


def test_a_stop_is_saved_at_the_step_it_came(tmp_path, shards, words):
    choices = options(shards, words, tmp_path / "run", ckpt_interval=1000, max_steps=100_000)
    status, said = stop_with(signal.SIGTERM, choices, 2, 0.0)
    kept = run.newest(tmp_path / "run")
    assert status == 0 and kept is not None
    assert f"stopped at step {run.step_of(kept)}" in said


def test_out_of_time_is_a_stop(tmp_path, shards, words):
    folder = train(SupervisedConfig(**options(shards, words, tmp_path / "run", max_minutes=1e-6)))
    assert run.step_of(run.newest(folder)) == 1
    assert json.loads((folder / "run.json").read_text())["ended"] == "stopped"


def test_fewer_rows_at_once_on_resume_learn_the_same(tmp_path, shards, words, never_stopped):
    choices = options(shards, words, tmp_path / "run", max_minutes=1e-6)
    train(SupervisedConfig(**choices))
    less = choices | {"batch_size": 1, "grad_accum_steps": 4, "max_minutes": 0.0, "resume": "auto"}
    train(SupervisedConfig(**less))
    _, losses = outcome(tmp_path / "run")
    _, expected = never_stopped()
    assert [loss for _, loss in losses] == pytest.approx([loss for _, loss in expected], rel=1e-4)


@pytest.mark.parametrize("carry", [False, True])
def test_a_checkpoint_goes_on_in_another_folder(tmp_path, shards, words, never_stopped, carry):
    changes = {"carry_state": True} if carry else {}
    first = options(shards, words, tmp_path / "first", max_minutes=1e-6, **changes)
    folder = train(SupervisedConfig(**first))
    second = options(shards, words, tmp_path / "second", resume_from_checkpoint=folder, **changes)
    train(SupervisedConfig(**second))
    assert outcome(tmp_path / "second")[0] == never_stopped(**changes)[0]


def test_other_rows_or_other_data_are_refused(tmp_path, shards, words):
    choices = options(shards, words, tmp_path / "run", max_minutes=1e-6)
    folder = train(SupervisedConfig(**choices))
    with pytest.raises(ConfigError, match="rows was 4 and is 8"):
        train(SupervisedConfig(**choices | {"batch_size": 8, "resume": "auto"}))
    with pytest.raises(ConfigError, match="lr was 0.002 and is 0.1"):
        train(SupervisedConfig(**choices | {"lr": 0.1, "resume": "auto"}))
    (run.newest(folder) / "model.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="damaged"):
        train(SupervisedConfig(**choices | {"resume_from_checkpoint": run.checkpoints(folder)[0]}))
