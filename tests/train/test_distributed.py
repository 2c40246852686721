"""Two processes under torchrun take the steps that one would."""

import os
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")

from rusty_r2 import run  # noqa: E402
from rusty_r2.errors import ConfigError  # noqa: E402
from rusty_r2.lm import checkpoint  # noqa: E402
from rusty_r2.train.distributed import World  # noqa: E402
from rusty_r2.train.supervised import SupervisedConfig, train  # noqa: E402

STEPS = 6
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


def options(shards, words, folder, **changes):
    small = {"preset": "nano", "seq_len": 64, "batch_size": 4, "max_steps": STEPS, "ckpt_interval": 3}
    small |= {"log_interval": 1, "eval_interval": 3, "eval_tokens": 2048, "sample_tokens": 4}
    small |= {"device": "cpu", "precision": "fp32", "checkpoints_dir": folder}
    return {"data_dir": shards, "tokenizer_path": words} | small | changes


def command(choices):
    flags = [word for name, value in choices.items() for word in (f"--{name}", str(value)) if word != "True"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    return [*launch, "-m", "rusty_r2.cli", "train", "supervised", *flags]


def on_two_processes(choices):
    done = subprocess.run(
        command(choices),
        capture_output=True,
        text=True,
        timeout=240,
        env=ONE_THREAD,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def logged(folder, tag):
    return [line[tag] for line in run.metrics(folder) if tag in line]


@pytest.mark.parametrize("carry", [pytest.param(False, marks=pytest.mark.slow), True])
def test_two_processes_learn_what_one_learns(tmp_path, shards, words, carry):
    changes = {"carry_state": True, "grad_accum_steps": 2} if carry else {}
    one = train(SupervisedConfig(**options(shards, words, tmp_path / "one", **changes)))
    done = on_two_processes(options(shards, words, tmp_path / "two", **changes))
    assert "2 x cpu" in done.stderr
    assert logged(tmp_path / "two", "loss/train") == pytest.approx(logged(one, "loss/train"), rel=1e-5)
    bits = logged(one, "eval/bits_per_byte")
    assert len(bits) == 2 and logged(tmp_path / "two", "eval/bits_per_byte") == pytest.approx(bits, rel=1e-5)
    a, b = (checkpoint.load(folder / f"step_{STEPS:06d}").state_dict() for folder in (one, tmp_path / "two"))
    assert all(torch.allclose(a[name], b[name], atol=2e-5) for name in a)
    # one process goes on from what two have left
    last = tmp_path / "two" / f"step_{STEPS:06d}"
    more = options(
        shards, words, tmp_path / "on", resume_from_checkpoint=last, max_steps=STEPS + 2, **changes
    )
    assert len(logged(train(SupervisedConfig(**more)), "loss/train")) == 2


@pytest.mark.slow
def test_ctrl_c_stops_both_and_one_goes_on(tmp_path, shards, words):
    choices = options(
        shards, words, tmp_path / "run", max_steps=10_000, ckpt_interval=10_000, eval_interval=0
    )
    child = subprocess.Popen(
        command(choices), stderr=subprocess.PIPE, text=True, start_new_session=True, env=ONE_THREAD
    )
    said = next(line for line in child.stderr if line.startswith("step"))
    os.killpg(child.pid, signal.SIGINT)  # a terminal sends it to everybody
    said += child.stderr.read()
    child.stderr.close()
    child.wait(timeout=60)
    kept = run.newest(tmp_path / "run")
    assert kept is not None and f"stopped at step {run.step_of(kept)}" in said
    more = choices | {"max_steps": run.step_of(kept) + 2, "resume": "auto"}
    train(SupervisedConfig(**more))
    assert run.step_of(run.newest(tmp_path / "run")) == more["max_steps"]


def test_every_row_is_somebody_s_once():
    for rows in range(3, 20):
        shares = [World(torch.device("cpu"), rank=rank, size=3).share(rows) for rank in range(3)]
        assert [row for share in shares for row in share] == list(range(rows))
    with pytest.raises(ConfigError, match="--batch-size"):
        World(torch.device("cpu"), rank=0, size=3).share(2)
