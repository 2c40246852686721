"""Supervised training: it learns, and what is only arrangement changes nothing."""

import io
import json
import math
import os
import subprocess
import sys
import textwrap
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")

import numpy as np  # noqa: E402

from rusty_r2 import config, run  # noqa: E402
from rusty_r2.data.episode import ask  # noqa: E402
from rusty_r2.data.shards import Rows  # noqa: E402
from rusty_r2.errors import ConfigError, RustyError, TrainingError  # noqa: E402
from rusty_r2.lm import checkpoint  # noqa: E402
from rusty_r2.lm.rwkv import PRESETS, TinyRWKVLM  # noqa: E402
from rusty_r2.protocol import Cmd  # noqa: E402
from rusty_r2.train.distributed import World  # noqa: E402
from rusty_r2.train.loop import Trainer  # noqa: E402
from rusty_r2.train.optim import Descent, groups, optimizer  # noqa: E402
from rusty_r2.train.progress import Progress  # noqa: E402
from rusty_r2.train.supervised import SupervisedConfig, train  # noqa: E402


@dataclass(frozen=True)
class Noise:
    """Random tokens, some of them not supervised, with documents that begin anywhere."""

    words: int = 300
    length: int = 24
    rows_of_a_step: int = 8
    different: bool = True
    """every step has rows of its own"""

    def rows(self, step, which):
        random = np.random.default_rng(step if self.different else 0)
        shape = (self.rows_of_a_step, self.length + 1)
        tokens = random.integers(0, self.words, shape)
        mask = random.random((shape[0], self.length)) < np.linspace(0, 1, shape[0])[:, None]
        reset = random.random((shape[0], self.length)) < 0.1
        pick = slice(which.start, which.stop)
        return Rows(tokens[pick, :-1], tokens[pick, 1:], mask[pick], reset[pick])


def trainer_of(source, *, rows=8, micro=8, steps=3, double=False, lr=0.01, carry=False, world=None):
    torch.manual_seed(5)
    model = TinyRWKVLM.of(PRESETS["nano"], vocab_size=300)
    for parameter in model.parameters():  # a new model's zeros would hide most of the gradient
        torch.nn.init.normal_(parameter, std=0.3) if parameter.ndim > 1 else None
    model = model.double() if double else model
    model.value_head.requires_grad_(False)
    world = world or World(torch.device("cpu"))
    return Trainer(
        model=model,
        trunk=model.trunk,
        source=source,
        descent=Descent(optimizer("adamw", groups(model, weight_decay=0.1))),
        world=world,
        progress=Progress(steps, stream=io.StringIO()),
        rows=rows,
        micro=micro,
        max_steps=steps,
        rate=lambda step: lr,
        carried=model.initial_state(rows) if carry else None,
        log_interval=1,
    )


def fitted(trainer):
    trainer.fit(lambda last: False)
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


def options(shards, words, tmp_path, **changes):
    small = {"preset": "nano", "seq_len": 64, "batch_size": 4, "max_steps": 6, "eval_tokens": 2048}
    small |= {"sample_tokens": 8, "log_interval": 2, "device": "cpu", "precision": "fp32"}
    places = {"data_dir": shards, "tokenizer_path": words, "checkpoints_dir": tmp_path / "run"}
    given = places | small | changes
    paths = ("data_dir", "resume_from_checkpoint")
    return SupervisedConfig(**given | {name: Path(given[name]) for name in paths if name in given})


@pytest.mark.parametrize("micro", [1, 3, 5])
@pytest.mark.parametrize("carry", [False, True])
def test_rows_at_once_is_only_arrangement(micro, carry):
    whole = fitted(trainer_of(Noise(), double=True, carry=carry))
    parts = fitted(trainer_of(Noise(), double=True, carry=carry, micro=micro))
    assert all(torch.allclose(whole[name], parts[name], atol=1e-7, rtol=1e-6) for name in whole)


def test_the_loss_is_the_mean_over_all_supervised_tokens_of_the_step():
    logged = []
    trainer = trainer_of(Noise(), micro=3, steps=1)
    trainer.log = lambda step, facts: logged.append(facts)
    rows = Noise().rows(0, range(8))
    with torch.no_grad():
        hidden, _ = trainer.model.trunk(torch.tensor(rows.ids), reset=torch.tensor(rows.reset))
        nll = torch.nn.functional.cross_entropy(
            trainer.model.head(hidden).flatten(0, 1), torch.tensor(rows.targets).flatten(), reduction="none"
        )
        expected = nll[torch.tensor(rows.mask).flatten()].mean()
    fitted(trainer)
    assert logged[0]["loss/train"] == pytest.approx(float(expected), rel=1e-5)
    assert logged[0]["data/tokens"] == 8 * 24


def test_state_carried_over_windows_is_one_long_window():
    class Two:
        def rows(self, step, which):
            whole = Noise(length=48, different=False).rows(0, which)
            part = slice(24 * step, 24 * step + 24)
            return Rows(*(array[:, part] for array in (whole.ids, whole.targets, whole.mask, whole.reset)))

    logged = []
    for source, steps in ((Two(), 2), (Noise(length=48, different=False), 1)):
        trainer = trainer_of(source, steps=steps, lr=0.0, carry=True, micro=3)
        trainer.log_interval = steps
        trainer.log = lambda step, facts: logged.append(facts["loss/train"])
        fitted(trainer)
    assert logged[0] == pytest.approx(logged[1], rel=1e-5)


def test_a_nano_model_learns_one_batch_by_heart():
    trainer = trainer_of(Noise(different=False), steps=60)
    logged = []
    trainer.log = lambda step, facts: logged.append(facts["loss/train"])
    fitted(trainer)
    assert logged[0] > math.log(300) - 1 and logged[-1] < 0.05


def test_nano_learns_python_from_its_own_library(tmp_path, shards, words):
    longer = options(
        shards, words, tmp_path, batch_size=8, max_steps=100, lr=6e-3, eval_tokens=8192, log_interval=50
    )
    folder = train(longer)
    (bits,) = (line["eval/bits_per_byte"] for line in run.metrics(folder) if "eval/bits_per_byte" in line)
    train_tokens = np.fromfile(shards / "train_00000.tokens", "<u2")
    held_out = np.fromfile(shards / "heldout_00000.tokens", "<u2")
    lengths = np.fromfile(shards / "heldout_00000.documents", "<u4").reshape(-1, 2)
    odds = (np.bincount(train_tokens, minlength=600) + 1) / (len(train_tokens) + 600)
    by_frequency_alone = -np.log2(odds[held_out[held_out != 1]]).sum() / lengths[:, 1].sum()
    assert 1.5 < bits < 0.85 * by_frequency_alone


def test_a_run_leaves_metrics_in_families_samples_and_a_checkpoint_to_use(tmp_path, shards, words):
    folder = train(options(shards, words, tmp_path, eval_interval=3))
    lines = run.metrics(folder)
    assert [line["step"] for line in lines if "loss/train" in line] == [2, 4, 6]
    assert [line["step"] for line in lines if "eval/bits_per_byte" in line] == [3, 6]
    families = {"loss/train", "optim/lr", "optim/grad_norm", "optim/skipped", "time/tokens_per_s"}
    assert families <= set(lines[0]) and "eval/loss" in lines[1]
    assert "▸".encode() in b"".join(path.read_bytes() for path in folder.glob("events.*"))
    last = folder / "step_000006"
    assert checkpoint.load(last).config.d_hidden == PRESETS["nano"].d_hidden
    assert (last / "tokenizer.json").read_bytes() == (words / "tokenizer.json").read_bytes()


def test_raw_text_becomes_shards_once(tmp_path, library, words, monkeypatch):
    monkeypatch.setenv("RUSTY_HOME", str(tmp_path / "home"))
    train(options(library, words, tmp_path, max_steps=1))
    (kept,) = (tmp_path / "home" / "cache" / "corpus").iterdir()
    before = (kept / "manifest.json").stat().st_mtime_ns
    train(options(library, words, tmp_path, max_steps=1, checkpoints_dir=tmp_path / "again"))
    assert (kept / "manifest.json").stat().st_mtime_ns == before
    assert (tmp_path / "again" / "step_000001").is_dir()


def test_init_takes_weights_tokenizer_and_size_and_begins_at_step_0(tmp_path, shards, words):
    first = train(options(shards, words, tmp_path, max_steps=1)) / "step_000001"
    second = options(shards, None, tmp_path, init=first, lr=0.0, max_steps=1, checkpoints_dir=tmp_path / "b")
    again = checkpoint.load(train(second) / "step_000001").state_dict()
    assert all(torch.equal(again[name], value) for name, value in checkpoint.load(first).state_dict().items())


def test_a_run_that_stays_not_finite_ends_with_one_clear_line(tmp_path, shards, words):
    first = train(options(shards, words, tmp_path, max_steps=1)) / "step_000001"
    model = checkpoint.load(first)
    with torch.no_grad():
        model.ln_out.weight[3] = float("nan")
    checkpoint.save(tmp_path / "broken", model, tokenizer=words)
    doomed = options(
        shards, words, tmp_path, init=tmp_path / "broken", max_steps=60, checkpoints_dir=tmp_path / "b"
    )
    with pytest.raises(TrainingError, match=r"last 2\d steps up to 2\d were not finite.*--lr") as caught:
        train(doomed)
    assert "\n" not in str(caught.value)
    assert run.metrics(tmp_path / "b")[-1]["optim/skipped"] >= 20
    assert json.loads((tmp_path / "b" / "run.json").read_text())["ended"] == "error: TrainingError"


def test_out_of_memory_takes_fewer_rows_at_once_and_learns_the_same(
    tmp_path, shards, words, monkeypatch, capsys
):
    """Going forward with 8 rows fails, with 4 the second half's way back: gradients are half there."""
    beyond = 1 << 56  # bytes: no address space holds them, so torch's allocator itself says no
    wide = options(shards, words, tmp_path, batch_size=8, max_steps=1, sample_tokens=0)
    expected = run.metrics(train(wide))[0]
    real, tried, failed = Trainer.loss, [], []

    def hungry(trainer, part, state=None):
        assert not any(left() is not None for left in failed), "what failed is still in memory"
        tried.append(len(part.ids))
        nll, after = real(trainer, part, state)
        if tried == [8] or tried == [8, 4, 4]:
            failed.append(weakref.ref(nll))
        if tried == [8]:
            torch.empty(beyond, dtype=torch.uint8)
        elif tried == [8, 4, 4]:
            nll.register_hook(lambda _: torch.empty(beyond, dtype=torch.uint8))
        return nll, after

    capsys.readouterr()
    monkeypatch.setattr(Trainer, "loss", hungry)
    found = run.metrics(train(replace(wide, checkpoints_dir=tmp_path / "narrow")))[0]
    assert tried[:7] == [8, 4, 4, 2, 2, 2, 2]
    told = [line for line in capsys.readouterr().err.splitlines() if "out of memory: from here" in line]
    assert ["4 rows" in told[0], "2 rows" in told[1], len(told)] == [True, True, 2]
    for name in ("loss/train", "optim/grad_norm"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on memory that holds")
@pytest.mark.skipif(torch.version.cuda is not None, reason="CUDA's libraries crash under a limit on memory")
def test_under_a_limit_on_memory_a_run_takes_fewer_rows_and_learns_the_same(tmp_path, shards, words):
    program = textwrap.dedent("""
        import resource, sys
        from rusty_r2.cli import main
        import torch, rusty_r2.train.session, torch._dynamo
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + (150 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        sys.exit(main(sys.argv[1:]))
    """)
    wide = options(shards, words, tmp_path, seq_len=128, batch_size=64, max_steps=1, sample_tokens=0)
    expected = run.metrics(train(wide))[0]["loss/train"]
    given = {**config.resolved(wide), "checkpoints_dir": str(tmp_path / "narrow")}
    (tmp_path / "options.json").write_text(json.dumps(given))
    told = subprocess.run(
        [sys.executable, "-c", program, "train", "supervised", "--config", tmp_path / "options.json"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
        timeout=200,
    )
    assert told.returncode == 0, told.stderr[-2000:]
    assert "out of memory: from here" in told.stderr
    assert run.metrics(tmp_path / "narrow")[0]["loss/train"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_dir": "nowhere"}, "rusty data corpus"),
        ({"tokenizer_path": None}, "--tokenizer-path"),
        ({"preset": "giant"}, "nano, micro, tiny"),
        ({"device": "cuda"}, "no GPU"),
        ({"device": "tpu"}, "--device auto"),
        ({"precision": "fp16"}, "--precision fp32"),
        ({"batch_size": 0}, "--batch_size must be at least 1"),
        ({"warmup_pct": 5.0}, "0 to 1"),
        ({"max_minutes": -1.0}, "--max_minutes cannot be negative"),
        ({"keep": -1}, "--keep cannot be negative"),
        ({"lr": -1.0}, "--lr cannot be negative"),
        ({"beta2": 1.5}, "--beta2 is from 0 up to 1"),
        ({"seq_len": 10_000_000}, "Make a larger corpus"),
        ({"resume_from_checkpoint": "nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_work_is_one_line(tmp_path, shards, words, changes, message):
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(RustyError, match=message) as caught:
        train(options(shards, words, tmp_path, **changes))
    assert "\n" not in str(caught.value)


def test_a_run_is_not_overwritten(tmp_path, shards, words):
    train(options(shards, words, tmp_path, max_steps=1))
    with pytest.raises(ConfigError, match="--resume auto"):
        train(options(shards, words, tmp_path, max_steps=1))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")  # torch's compiler meets its own old parts, and says so
def test_a_compiled_model_learns_the_same_and_saves_plain_names(tmp_path, shards, words):
    plain = train(options(shards, words, tmp_path, checkpoints_dir=tmp_path / "a"))
    fast = train(options(shards, words, tmp_path, checkpoints_dir=tmp_path / "b", compile=True))
    a, b = (checkpoint.load(folder / "step_000006").state_dict() for folder in (plain, fast))
    assert a.keys() == b.keys() and not any("_orig_mod" in name for name in b)
    assert all(torch.allclose(a[name], b[name], atol=1e-4) for name in a)


def test_gradient_checkpointing_learns_the_same(tmp_path, shards, words):
    plain = train(options(shards, words, tmp_path, checkpoints_dir=tmp_path / "a", max_steps=2))
    again = train(
        options(
            shards, words, tmp_path, checkpoints_dir=tmp_path / "b", max_steps=2, gradient_checkpointing=True
        )
    )
    a, b = (checkpoint.load(folder / "step_000002").state_dict() for folder in (plain, again))
    assert all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)


def episodes_at(path, *, learned=True):
    turns = [ask("CMD", "test", f"show file number {n}", Cmd(f"cat file_{n}.txt")).turns for n in range(300)]
    told = [
        [*turn, *([] if learned or turn[0] != "assistant" else [False])] for turns in turns for turn in turns
    ]
    grouped = [told[at : at + 3] for at in range(0, len(told), 3)]
    path.write_text("".join(json.dumps({"kind": "CMD", "turns": turns}) + "\n" for turns in grouped))
    return path


def test_episodes_teach_what_rusty_says_and_nothing_else(tmp_path, words, capfd):
    path = episodes_at(tmp_path / "episodes.jsonl")
    folder = train(options(path, words, tmp_path, seq_len=1024, max_steps=30, lr=6e-3, batch_size=2))
    said = capfd.readouterr().err
    assert "of the tokens are supervised" in said and "are longer than" not in said
    losses = [line["loss/train"] for line in run.metrics(folder) if "loss/train" in line]
    assert losses[-1] < 0.5 * losses[0]
    (bits,) = (line["eval/bits_per_byte"] for line in run.metrics(folder) if "eval/bits_per_byte" in line)
    assert 0 < bits < 2


def test_episodes_with_nothing_to_learn_stop_at_once(tmp_path, words):
    path = episodes_at(tmp_path / "episodes.jsonl", learned=False)
    with pytest.raises(RustyError, match="to learn from"):
        train(options(path, words, tmp_path))
    with pytest.raises(ConfigError, match="--carry-state"):
        train(options(episodes_at(path), words, tmp_path, carry_state=True))
    with pytest.raises(RustyError, match="none of .* episodes fits a row of 8 tokens"):
        train(options(path, words, tmp_path, seq_len=8))
    assert not (tmp_path / "run").exists()


def test_what_is_plainly_no_data_is_said_before_torch_is_read(tmp_path):
    from rusty_r2.data.corpus import Builder, CorpusConfig
    from rusty_r2.lm.tokenizer import Tokenizer

    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("The cat sat on the mat. " * 40)
    asked = CorpusConfig(source=(str(tmp_path / "text"),), output_dir=tmp_path / "corpus")
    builder = Builder(asked, Tokenizer.load(None))
    builder.add(next(builder.blocks()))  # and killed before it is finished
    program = (
        "import sys; from rusty_r2 import cli\n"
        "status = cli.main(['train', 'supervised', '--data-dir', sys.argv[1]])\n"
        "print('torch' in sys.modules); sys.exit(status)\n"
    )
    for name, why in (
        ("nosuch", "does not exist. Make a corpus"),
        ("corpus", "was not finished. Go on with"),
    ):
        words = [sys.executable, "-c", program, str(tmp_path / name)]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 1 and why in done.stderr and done.stderr.count("\n") == 1
        assert done.stdout == "False\n" and not (tmp_path / "runs").exists()
