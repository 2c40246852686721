"""On a GPU: the same learning, nothing waited for, and a run that began on a CPU goes on."""

import pytest

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")

from rusty_r2 import run  # noqa: E402
from rusty_r2.train import optim  # noqa: E402
from rusty_r2.train.distributed import World  # noqa: E402
from rusty_r2.train.recorded import WARM  # noqa: E402
from rusty_r2.train.session import Session  # noqa: E402
from rusty_r2.train.supervised import SupervisedConfig, train  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def options(shards, words, folder, **changes):
    small = {"preset": "nano", "seq_len": 64, "batch_size": 8, "max_steps": 12, "log_interval": 1}
    small |= {"ckpt_interval": 4, "eval_interval": 0, "eval_tokens": 2048, "sample_tokens": 4}
    small |= {"checkpoints_dir": folder, "device": "cuda"}
    return SupervisedConfig(**{"data_dir": shards, "tokenizer_path": words} | small | changes)


def losses(folder):
    return [line["loss/train"] for line in run.metrics(folder) if "loss/train" in line]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_gpu_learns_what_a_cpu_learns(tmp_path, shards, words, precision, monkeypatch):
    monkeypatch.setattr(optim, "FIRST_SCALE", 2.0**8)  # no step of fp16 is left out to find its scale
    cpu = train(options(shards, words, tmp_path / "cpu", device="cpu", precision="fp32"))
    gpu = train(options(shards, words, tmp_path / "gpu", precision=precision))
    assert losses(gpu) == pytest.approx(losses(cpu), rel=1e-3 if precision == "fp32" else 2e-2)


def test_fp16_finds_its_scale_and_learns(tmp_path, shards, words):
    gpu = train(options(shards, words, tmp_path / "gpu", precision="fp16"))
    last = [line for line in run.metrics(gpu) if "optim/skipped" in line][-1]
    assert last["optim/loss_scale"] == optim.FIRST_SCALE * 0.5 ** last["optim/skipped"]
    assert losses(gpu)[-1] < losses(gpu)[0] - 0.3 and last["optim/skipped"] < 8


def test_a_run_that_began_on_a_cpu_goes_on_on_a_gpu_and_back(tmp_path, shards, words):
    straight = train(options(shards, words, tmp_path / "straight", device="cpu", precision="fp32"))
    folder = tmp_path / "moved"
    for device, stopped in (("cpu", True), ("cuda", True), ("cpu", True), ("cuda", False)):
        session = Session(
            options(shards, words, folder, device=device, precision="fp32", resume="auto"),
            World(torch.device(device)),
        )
        session.deadline = 0.0 if stopped else session.deadline  # in the past: one step, saved
        session.go()
    assert losses(folder) == pytest.approx(losses(straight), rel=1e-3)


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_recorded_step_is_the_step(tmp_path, shards, words, carry, precision):
    same = {"carry_state": carry, "precision": precision}
    plain = train(options(shards, words, tmp_path / "plain", record=False, **same))
    played = train(options(shards, words, tmp_path / "played", record=True, **same))
    assert losses(played) == pytest.approx(losses(plain), rel=1e-4 if precision == "fp32" else 5e-3)


def test_a_step_that_cannot_be_played_is_taken_as_it_is(tmp_path, shards, words):
    played = train(options(shards, words, tmp_path / "one", precision="fp32"))
    parts = train(
        options(shards, words, tmp_path / "four", precision="fp32", batch_size=2, grad_accum_steps=4)
    )
    assert losses(parts) == pytest.approx(losses(played), rel=1e-3)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("carry", [False, True])
def test_a_step_waits_for_nothing(tmp_path, shards, words, carry):
    session = Session(
        options(shards, words, tmp_path / "run", carry_state=carry, max_steps=10), World(torch.device("cuda"))
    )
    session.trainer = session._trainer()
    learn, seen = session.trainer._learn, []

    def watched(batch):
        torch.cuda.set_sync_debug_mode("error" if len(seen) > WARM else "default")
        try:
            learn(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        seen.append(batch.step)

    session.trainer._learn = watched
    session.trainer.fit(lambda last: False)
    session.run.close()
    assert seen == list(range(10))
