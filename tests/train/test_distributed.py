"""Two processes under torchrun take the steps that one would."""

import os
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


def options(shards, words, folder, **changes):
    small = {"preset": "nano", "seq_len": 64, "batch_size": 4, "max_steps": STEPS, "ckpt_interval": 3}
    small |= {"log_interval": 1, "eval_interval": 3, "eval_tokens": 2048, "sample_tokens": 4}
    small |= {"device": "cpu", "precision": "fp32", "checkpoints_dir": folder}
    return {"data_dir": shards, "tokenizer_path": words} | small | changes


def on_two_processes(choices):
    flags = [word for name, value in choices.items() for word in (f"--{name}", str(value)) if word != "True"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*launch, "-m", "rusty_r2.cli", "train", "supervised", *flags],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
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


def test_every_row_is_somebody_s_once():
    for rows in range(3, 20):
        shares = [World(torch.device("cpu"), rank=rank, size=3).share(rows) for rank in range(3)]
        assert [row for share in shares for row in share] == list(range(rows))
    with pytest.raises(ConfigError, match="--batch-size"):
        World(torch.device("cpu"), rank=0, size=3).share(2)
