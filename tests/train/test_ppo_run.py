"""A run of PPO: stopped and resumed it is the same run, it ends in time, and bad input is one line."""

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")

import torch.nn.functional as F  # noqa: E402

from rusty_r2 import cli, files, run  # noqa: E402
from rusty_r2.data.drills import task_names  # noqa: E402
from rusty_r2.errors import CheckpointError, ConfigError, TrainingError  # noqa: E402
from rusty_r2.gym import catalog  # noqa: E402
from rusty_r2.lm import checkpoint  # noqa: E402
from rusty_r2.lm.tokenizer import VOCAB, Tokenizer  # noqa: E402
from rusty_r2.train import ppo  # noqa: E402
from rusty_r2.train.ppo import PPOConfig, judge, ppo_loss, to_come, update  # noqa: E402
from rusty_r2.train.ppo_run import Training  # noqa: E402

NOWHERE = Path("nowhere")


@pytest.fixture
def start(lively, tmp_path):
    return checkpoint.save(tmp_path / "start", lively, tokenizer=VOCAB)


SMALL = {
    "total_timesteps": 16,
    "num_steps": 8,
    "max_turns": 2,
    "slots": 4,
    "max_new_tokens": 12,
    "constrain": True,
    "ppo_epochs": 2,
    "num_minibatches": 2,
    "eval_tasks": 4,
    "valid_tasks": 3,
    "max_difficulty": 1,
    "device": "cpu",
    "ckpt_interval": 1,
}


def weights_of(folder):
    return checkpoint.load(folder).state_dict()


@pytest.mark.parametrize("advantage", ["gae", "group"])
def test_stopped_and_resumed_is_never_stopped_bit_for_bit(start, drills, tmp_path, advantage):
    options = SMALL | {"advantage": advantage, "group_size": 2}
    if advantage == "gae":
        options |= {"replay": drills, "replay_rows": 2}
        options |= {"wide_names": True, "freeze_words": True, "quiet": 0.5}
    whole = ppo.train(PPOConfig(init_checkpoint=start, checkpoints_dir=tmp_path / "whole", **options))
    half = PPOConfig(init_checkpoint=start, checkpoints_dir=tmp_path / "half", **options)
    # the same run, ended after its first round as a kill between two rounds would
    monkey = pytest.MonkeyPatch()
    finish = Training.finish

    def killed(self, number, facts):
        finish(self, number, facts)
        raise KeyboardInterrupt

    monkey.setattr(Training, "finish", killed)
    with pytest.raises(KeyboardInterrupt):
        ppo.train(half)
    monkey.undo()
    if half.replay is not None:
        with pytest.raises(ConfigError, match="its replay was"):
            ppo.train(replace(half, resume="auto", replay=None))
    ppo.train(replace(half, resume="auto"))
    a, b = weights_of(whole / "step_000002"), weights_of(tmp_path / "half" / "step_000002")
    assert all(torch.equal(a[name], b[name]) for name in a)
    same = {name for name, before in weights_of(start).items() if torch.equal(a[name], before)}
    tables = {"token_embedding.weight", "lm_head.weight"}
    assert same & tables == (tables if half.freeze_words else set())
    assert not any(name.endswith("key.weight") for name in same)
    if half.replay is not None:
        first, second = (
            [line for line in run.metrics(folder) if "loss/replay" in line]
            for folder in (whole, half.checkpoints_dir)
        )
        assert [line["loss/replay"] for line in first] == [line["loss/replay"] for line in second]
        assert len(first) == 2


def test_a_step_with_replay_goes_down_both_losses(start, drills, tmp_path):
    """The gradients are those of PPO's loss and of the plain mean cross entropy of what Rusty says."""
    options = SMALL | {
        "ppo_epochs": 1,
        "num_minibatches": 1,
        "replay": drills,
        "replay_rows": 3,
        "replay_coef": 0.7,
    }
    found = []
    with Training(PPOConfig(init_checkpoint=start, checkpoints_dir=tmp_path / "run", **options)) as training:
        model, config = training.model, training.config
        buffer, _ = training.play(1)
        judge(buffer, config)
        training.descend = lambda number: found.extend(p.grad.clone() for p in model.parameters())
        told = update(training, buffer, 4)  # the fourth round of one step each: step 3
        model.zero_grad()
        for batch in buffer.minibatches(1, torch.Generator()):
            loss, _ = ppo_loss(batch.choices(model, training.sampling), batch, config)
        rows = training.replay.data.train.rows(3, range(3))
        assert rows.ids.shape == (3, 24) and 0 < rows.supervised < rows.ids.size / 2
        logits = model(torch.from_numpy(rows.ids), reset=torch.from_numpy(rows.reset))[0]
        mask, targets = torch.from_numpy(rows.mask), torch.from_numpy(rows.targets)
        known = F.cross_entropy(logits[mask], targets[mask])
        (loss + 0.7 * known).backward()
    assert told["loss/replay"] == pytest.approx(float(known.detach()), rel=1e-5)
    for one, parameter in zip(found, model.parameters(), strict=True):
        assert (one - parameter.grad).abs().max() <= 1e-4 * parameter.grad.abs().max() + 1e-7


def test_a_value_head_that_was_never_trained_begins_with_the_mean(lively, tokenizer, tmp_path):
    """Else, with nothing expected, the first words of every reply are punished for being early."""
    model = lively
    torch.nn.init.zeros_(model.value_head.weight)
    torch.nn.init.zeros_(model.value_head.bias)
    plain = checkpoint.save(tmp_path / "plain", model, tokenizer=VOCAB)
    config = PPOConfig(init_checkpoint=plain, checkpoints_dir=tmp_path / "run", **SMALL)
    with Training(config) as training:
        buffer, _ = training.play(1)
        expected = to_come(buffer.rewards())
        assert expected != 0 and float(training.model.value_head.bias.detach()) == pytest.approx(expected)
        assert buffer.value == pytest.approx(expected)
        training.model.value_head.weight.data += 0.01
        again, _ = training.play(2)
        assert float(training.model.value_head.bias.detach()) == pytest.approx(expected)
        assert np.ptp(again.value) > 0


def test_bad_input_is_one_clear_line(start, tmp_path):
    with pytest.raises(ConfigError, match="--max-minutes"):
        PPOConfig(init_checkpoint=NOWHERE, max_minutes=-1)
    with pytest.raises(CheckpointError, match="rusty train supervised"):
        ppo.train(PPOConfig(init_checkpoint=tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="--num-steps"):
        PPOConfig(init_checkpoint=start, advantage="group", num_steps=10, group_size=8)
    with pytest.raises(ConfigError, match="no family"):
        ppo.train(PPOConfig(init_checkpoint=start, families=("nonsense",), device="cpu"))
    options = SMALL | {"constrain": False, "checkpoints_dir": tmp_path / "mute"}
    with pytest.raises(TrainingError, match="does not speak the protocol"):
        ppo.train(PPOConfig(init_checkpoint=start, **options))


def test_rows_that_cannot_be_replayed_are_refused_before_a_model_is_loaded(
    start, drills, tmp_path, monkeypatch
):
    def heavy(*args, **options):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(checkpoint, "load", heavy)
    with pytest.raises(ConfigError, match="rusty data drills --output-dir"):
        ppo.train(PPOConfig(init_checkpoint=start, replay=tmp_path / "nothing", device="cpu"))
    facts = (drills / "drills.json").read_text().replace(Tokenizer.load().fingerprint, "another")
    files.write(drills / "drills.json", facts)
    with pytest.raises(ConfigError, match="made with tokenizer another"):
        ppo.train(PPOConfig(init_checkpoint=start, replay=drills, device="cpu"))
    for wrong in ({"replay_rows": 0}, {"replay_coef": -0.1}):
        with pytest.raises(ConfigError, match="--replay-rows is 1 or more"):
            PPOConfig(init_checkpoint=start, **wrong)


def test_wide_names_are_for_training_tasks_alone(start, tmp_path):
    from rusty_r2.gym.families.base import is_held
    from rusty_r2.gym.families.words import WORDS

    found, options = {}, SMALL | {"num_steps": 120, "families": ("rename",)}
    for wide in (False, True):
        folder = tmp_path / str(wide)
        config = PPOConfig(init_checkpoint=start, checkpoints_dir=folder, wide_names=wide, **options)
        with Training(config) as training:
            names = {Path(path).stem for task in training._tasks() for path in task.files}
            found[wide] = (training.validation, training.heldout, names)
    assert found[True][:2] == found[False][:2]
    more = (found[True][2] - found[False][2]) & set(task_names(VOCAB)) - set(WORDS)
    assert len(more) > 10 and not any(map(is_held, more))


def test_a_tokenizer_of_another_size_is_refused(start, tmp_path):
    other = Tokenizer.train(["some words to learn " * 50], size=400)
    with pytest.raises(CheckpointError, match="words"):
        ppo.train(
            PPOConfig(init_checkpoint=start, tokenizer_path=other.save(tmp_path / "other"), device="cpu")
        )


def test_minutes_end_a_run_in_time_evaluated_and_saved(start, tmp_path):
    options = SMALL | {"total_timesteps": 8000, "max_minutes": 0.001, "ckpt_interval": 1000}
    folder = ppo.train(PPOConfig(init_checkpoint=start, checkpoints_dir=tmp_path / "short", **options))
    told = run.metrics(folder)
    assert [line["step"] for line in told if "time/update_s" in line] == [1]
    assert [line["step"] for line in told if "eval/pass_rate" in line] == [0, 1]
    assert (folder / "step_000001" / "ppo.json").is_file() and (folder / "best").is_dir()
    parts = next(line for line in told if "time/update_s" in line)
    shares = sum(parts[f"time/{name}_share"] for name in ("model", "sandbox", "host"))
    assert shares == pytest.approx(1, abs=0.05)


def test_a_run_that_was_asked_to_stop_says_so_and_goes_on_with_the_line_it_printed(start, tmp_path, capsys):
    config = PPOConfig(init_checkpoint=start, checkpoints_dir=tmp_path / "run", **SMALL)
    play = Training.play

    def asked(self, number):
        self.stop.asked = "SIGINT"
        return play(self, number)

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(Training, "play", asked)
        folder = ppo.train(config)
    assert run.noted(folder / "run.json")["ended"] == "stopped"
    line = next(line for line in capsys.readouterr().err.splitlines() if "Go on: rusty " in line)
    assert cli.main(shlex.split(line.partition("Go on: rusty ")[2])) == 0
    assert run.noted(folder / "run.json")["ended"] == "done"
    assert run.newest(folder).name == "step_000002"


def test_a_resumed_run_is_evaluated_at_its_end_and_best_weights_that_are_gone_are_made_again(start, tmp_path):
    config = PPOConfig(init_checkpoint=start, checkpoints_dir=tmp_path / "run", **SMALL)
    folder = ppo.train(replace(config, total_timesteps=8))
    shutil.rmtree(folder / "best")  # a kill while they were exchanged
    ppo.train(replace(config, resume="auto"))
    assert checkpoint.load(folder / "best") is not None
    assert [line["step"] for line in run.metrics(folder) if "eval/pass_rate" in line] == [0, 1, 2]


def test_updates_that_are_not_finite_end_with_a_command_that_works(start, tmp_path):
    config = PPOConfig(init_checkpoint=start, checkpoints_dir=tmp_path / "run", **SMALL)
    with Training(config) as training:
        weights = list(training.model.parameters())
        with pytest.raises(TrainingError, match="not finite") as caught:
            for _ in range(9):
                training.learn(sum(weight.sum() for weight in weights) * float("nan"))
                training.descend(1)
    words = shlex.split(str(caught.value).partition("rate: rusty ")[2])
    assert words[:3] == ["train", "ppo", "--init-checkpoint"] and Path(words[3], "config.json").is_file()
    assert words[4] == "--lr" and float(words[5]) < config.lr


def test_the_speed_on_the_progress_line_is_of_the_tokens_played(start, tmp_path):
    config = PPOConfig(
        init_checkpoint=start, checkpoints_dir=tmp_path / "run", **SMALL | {"total_timesteps": 80}
    )
    told = []
    with Training(config) as training:
        training.progress.report = lambda step, tokens, facts: told.append(tokens)
        shown = ("reward/mean", "play/pass_rate", "policy/kl")
        facts = dict.fromkeys(shown, 0.0) | {"time/round_s": 1.0}
        for number, tokens in enumerate((900, 50, 60), start=1):
            training.finish(number, facts | {"play/tokens": tokens})
    assert told == [900, 950, 1010]


def test_what_decides_about_the_best_weights_is_neither_trained_on_nor_held_out(start, tmp_path):
    options = SMALL | {"valid_tasks": 5, "num_steps": 6}
    with Training(PPOConfig(init_checkpoint=start, checkpoints_dir=tmp_path / "run", **options)) as training:
        assert {task.split for task in training.validation} == {"train"}
        assert len(training.validation) == 5
        assert not {task.name for task in training.validation} & {task.name for task in training.heldout}
        drawn = [training.validation[0], *catalog.tasks("train", seed=77, count=3)]
        training.curriculum.next = iter(drawn).__next__
        assert training._tasks() == drawn[1:]
