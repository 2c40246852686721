"""PPO is right (its formulas against their definitions, its first ratio against 1) and it learns."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")

from rusty_r2 import run  # noqa: E402
from rusty_r2.agent import players as rollouts  # noqa: E402
from rusty_r2.agent.players import Players  # noqa: E402
from rusty_r2.errors import CheckpointError, ConfigError, TrainingError  # noqa: E402
from rusty_r2.gym import catalog  # noqa: E402
from rusty_r2.gym.env import EnvConfig  # noqa: E402
from rusty_r2.lm import checkpoint  # noqa: E402
from rusty_r2.lm.engine import Engine  # noqa: E402
from rusty_r2.lm.rwkv import TinyRWKVLM  # noqa: E402
from rusty_r2.lm.sampling import Sampling  # noqa: E402
from rusty_r2.lm.tokenizer import VOCAB, Tokenizer  # noqa: E402
from rusty_r2.train import ppo  # noqa: E402
from rusty_r2.train.buffer import Batch, Choices, RolloutBuffer  # noqa: E402
from rusty_r2.train.ppo import PPOConfig, gae, group_advantages, judge, ppo_loss, to_come  # noqa: E402

NOWHERE = Path("nowhere")
numbers = st.floats(-3, 3, width=32)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12), st.floats(0.5, 1), st.floats(0, 1))
def test_gae_is_its_definition(pairs, gamma, lam):
    rewards, values = (np.array(side, np.float32) for side in zip(*pairs, strict=True))
    for t in range(len(rewards)):
        total = 0.0
        for k in range(t, len(rewards)):
            following = values[k + 1] if k + 1 < len(rewards) else 0.0
            total += (gamma * lam) ** (k - t) * (rewards[k] + gamma * following - values[k])
        assert gae(rewards, values, gamma=gamma, lam=lam)[t] == pytest.approx(total, abs=1e-4)


def test_group_advantages_compare_like_with_like():
    totals, alike = np.array([0, 1, 0, 1, 5, 5, 5, 5], np.float32), np.full(8, 30, np.float32)
    scores = group_advantages(totals, alike, 4)
    assert scores[:4] == pytest.approx([-1, 1, -1, 1], abs=1e-4) and not scores[4:].any()


@given(st.lists(st.tuples(numbers, st.integers(1, 400)), min_size=2, max_size=8))
def test_long_failures_do_not_push_the_mean_token_down(pairs):
    totals, tokens = (np.array(side, np.float32) for side in zip(*pairs, strict=True))
    scores = group_advantages(totals, tokens, len(totals))
    assert (scores * tokens).sum() / tokens.sum() == pytest.approx(0, abs=1e-2)
    order = np.argsort(totals, kind="stable")
    assert (np.diff(scores[order]) >= -1e-3).all()


def test_what_is_to_come_is_what_every_choice_still_earned():
    assert to_come([np.array([0, 0, 1], np.float32), np.array([-0.5, 1.5], np.float32)]) == pytest.approx(1.1)


def random_batch(n=40, seed=0):
    chance = torch.Generator().manual_seed(seed)
    names = ("logp", "value", "advantage", "target", "start_logp")
    draws = {name: torch.randn(n, generator=chance) for name in names}
    old = Batch(ids=torch.zeros(1, 1), acted=torch.zeros(1, 1), weight=torch.ones(n), kept=None, **draws)
    new = Choices(*(torch.randn(n, generator=chance, requires_grad=True) for _ in range(3)))
    return new, old


@pytest.mark.parametrize("seed", range(5))
def test_the_clipped_loss_is_the_papers(seed):
    new, old = random_batch(seed=seed)
    config = PPOConfig(init_checkpoint=NOWHERE, ent_coef=0.01, kl_coef=0.1)
    loss, facts = ppo_loss(new, old, config)
    expected, eps = 0.0, config.clip_eps
    for i in range(len(new.logp)):
        logp, h, v = (float(x[i].detach()) for x in new)
        was, v_was, a, target, start = (
            float(getattr(old, n)[i]) for n in ("logp", "value", "advantage", "target", "start_logp")
        )
        ratio = np.exp(logp - was)
        expected += -min(ratio * a, min(max(ratio, 1 - eps), 1 + eps) * a)
        near = v_was + min(max(v - v_was, -eps), eps)
        expected += config.vf_coef * 0.5 * max((v - target) ** 2, (near - target) ** 2)
        expected -= config.ent_coef * h
        expected += config.kl_coef * (np.exp(start - logp) - (start - logp) - 1)
    assert float(loss.detach()) == pytest.approx(expected / len(new.logp), rel=1e-4)
    loss.backward()
    assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in new)
    assert float(facts["policy/clipped"]) > 0


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load()


def lively_model(words, seed=0):
    """A small model whose output is not all zeros, so that choices differ."""
    torch.manual_seed(seed)
    model = TinyRWKVLM(words, d_embed=16, d_hidden=32, n_layers=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.08 * torch.randn_like(parameter))
    return model


def played(model, tokenizer, *, weights="fp32", sampling=None, grammar=None, count=6, max_new_tokens=14):
    sampling = sampling or Sampling(temperature=1.0, seed=5)
    players = Players(
        tokenizer,
        slots=4,
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        env=EnvConfig(max_turns=2),
        grammar=grammar,
    )
    try:
        tasks = list(enumerate(catalog.tasks("train", seed=3, count=count)))
        engine = Engine.from_model(model, weights=weights)
        return sorted(players.play(engine, tasks), key=lambda episode: episode.number)
    finally:
        players.close()


MODES = {
    "plain": (Sampling(temperature=1.0, seed=5), False),
    "temperature": (Sampling(temperature=0.6, seed=5), False),
    "top-k": (Sampling(temperature=0.9, top_k=20, seed=5), False),
    "top-p": (Sampling(temperature=1.2, top_p=0.8, seed=5), False),
    "grammar": (Sampling(temperature=1.0, seed=5), True),
    "grammar and top-k": (Sampling(temperature=0.8, top_k=10, seed=5), True),
}


@pytest.mark.parametrize("mode", MODES)
def test_the_first_ratio_is_one_for_every_token_in_every_mode(tokenizer, mode):
    sampling, constrained = MODES[mode]
    grammar = None
    if constrained:
        from rusty_r2.lm.grammar import ActionGrammar

        grammar = ActionGrammar(tokenizer)
    model = lively_model(len(tokenizer))
    episodes = played(model, tokenizer, sampling=sampling, grammar=grammar)
    assert all(len(episode.replies) == 2 for episode in episodes if not episode.passed and not episode.masked)
    buffer = RolloutBuffer(episodes)
    batch = buffer.batch(range(len(buffer)))
    with torch.no_grad():
        choices = batch.choices(model, sampling)
    assert float(((choices.logp - batch.logp).exp() - 1).abs().max()) < 1e-5
    assert float((choices.value - batch.value).abs().max()) < 1e-5
    assert (choices.entropy >= 0).all() and (choices.logp <= 0).all()


def test_what_episodes_begin_with_is_read_once_and_learned_from_as_if_read_by_each(tokenizer):
    model = lively_model(len(tokenizer))
    sampling = Sampling(temperature=1.0, seed=5)
    buffer = RolloutBuffer(played(model, tokenizer, count=3, max_new_tokens=4))
    batch = buffer.batch(range(3))
    rows = [episode.ids for episode in buffer.episodes]
    assert batch.shared > 100 and all(row[: batch.shared] == rows[0][: batch.shared] for row in rows)
    assert not batch.acted[:, : batch.shared + 1].any() and buffer.batch([0]).shared == 0
    found = []
    for way in (batch, replace(batch, shared=0)):
        model.zero_grad()
        choices = way.choices(model, sampling)
        (choices.logp.sum() + choices.value.square().sum()).backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append([choices.logp.detach(), choices.value.detach(), *gradients])
    for once, each in zip(*found, strict=True):
        assert (once - each).abs().max() <= 1e-4 * each.abs().max() + 1e-6


@pytest.mark.parametrize("grid", [(1, 1), (4, 32)])
def test_rows_in_parts_are_rows_together(tokenizer, grid, monkeypatch):
    from rusty_r2.train import buffer as tensors

    monkeypatch.setattr(tensors, "PART", 2)
    monkeypatch.setitem(tensors.GRID, "cpu", grid)
    model, sampling = lively_model(len(tokenizer)), Sampling(temperature=1.0, top_k=9, seed=5)
    buffer = RolloutBuffer(played(model, tokenizer, sampling=sampling, count=9, max_new_tokens=4))
    batch = buffer.batch(range(9))
    sizes = [batch.ids[rows, batch.shared + 1 : columns].shape for rows, columns in batch.parts]
    assert len(sizes) > 1 and sizes[0][1] <= sizes[-1][1]
    assert all(rows % grid[0] == 0 and columns % grid[1] == 0 for rows, columns in sizes)
    together = replace(batch, parts=(), shared=0)
    with torch.no_grad():
        for one, other in zip(batch.choices(model, sampling), together.choices(model, sampling), strict=True):
            assert torch.allclose(one, other, atol=1e-5)
        assert torch.allclose(batch.choices(model, sampling).logp, batch.logp, atol=1e-5)
    assert batch.logp.tolist() == buffer.logp[batch.places].tolist()
    alone = [buffer.batch([row]) for row in range(9)]
    assert sorted(batch.places.tolist()) == [place for one in alone for place in one.places.tolist()]


def test_an_episode_is_the_conversation_and_only_its_own_tokens_act(tokenizer):
    from rusty_r2.agent.prompt import SYSTEM
    from rusty_r2.lm.chat import encode_turn, open_chat, open_reply

    for episode in played(lively_model(len(tokenizer)), tokenizer):
        ids = [
            *open_chat(),
            *encode_turn(tokenizer, "system", SYSTEM),
            *encode_turn(tokenizer, "user", episode.seen[0]),
        ]
        assert episode.ids[: len(ids)] == ids and not any(episode.acted[: len(ids)])
        text = tokenizer.decode(
            [t for t, own in zip(episode.ids, episode.acted, strict=True) if own and t > 15]
        )
        assert text.replace(" ", "")[:20] == "".join(episode.replies).replace(" ", "")[:20]
        assert episode.ids[len(ids)] == open_reply()[0] and not episode.acted[len(ids)]
        assert (
            len(episode.ids)
            == len(episode.acted)
            == len(episode.logp)
            == len(episode.value)
            == len(episode.reward)
        )
        assert episode.total == pytest.approx(-0.5 * len(episode.replies))


def test_what_an_episode_says_does_not_depend_on_who_else_plays(tokenizer):
    model = lively_model(len(tokenizer))
    many = played(model, tokenizer, count=6)
    again = played(model, tokenizer, count=3)
    assert [episode.ids for episode in many[:3]] == [episode.ids for episode in again]
    assert [episode.logp for episode in many[:3]] == [episode.logp for episode in again]


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
    ],
)
def test_a_scribe_plays_the_episodes_that_are_played_word_by_word(tokenizer, device):
    from rusty_r2.lm.engine_torch import TorchModel
    from rusty_r2.lm.scribe import Scribe

    model, sampling = lively_model(len(tokenizer)), Sampling(temperature=1.0, seed=5)
    expected = played(model, tokenizer, count=5)
    players = Players(tokenizer, slots=4, sampling=sampling, max_new_tokens=14, env=EnvConfig(max_turns=2))
    engine = Engine(TorchModel(model, weights="fp32", device=device), backend="torch")
    if device == "cpu":  # a GPU's engine brings its own
        players._engine = engine
        players._made = Scribe(
            engine.model, rows=4, sampling=sampling, limit=14, stops=rollouts.STOPS, steps=5
        )
    try:
        tasks = list(enumerate(catalog.tasks("train", seed=3, count=5)))
        for _ in range(2):
            found = sorted(players.play(engine, tasks), key=lambda episode: episode.number)
            assert isinstance(players._made, Scribe)
            assert [episode.ids for episode in found] == [episode.ids for episode in expected]
            assert [episode.replies for episode in found] == [episode.replies for episode in expected]
            assert [episode.acted for episode in found] == [episode.acted for episode in expected]
    finally:
        players.close()
    buffer = RolloutBuffer(found)
    batch = buffer.batch(range(len(buffer)))
    with torch.no_grad():
        choices = batch.choices(model, sampling)
    assert float(((choices.logp - batch.logp).exp() - 1).abs().max()) < 1e-4
    assert float((choices.value - batch.value).abs().max()) < 1e-4


def test_a_masked_episode_is_left_out(tokenizer):
    episodes = played(lively_model(len(tokenizer)), tokenizer, count=3)
    episodes[1].masked = True
    assert [episode.number for episode in RolloutBuffer(episodes).episodes] == [0, 2]
    assert rollouts.facts(episodes)["play/masked"] == 1


class Bandit:
    """A gym of one question: the first token of the reply is right or wrong."""

    def __init__(self, size, config=None, workers=0):
        self.size, self.done = size, []

    def __len__(self):
        return self.size

    def reset(self, slot, task=None, seed=None):
        return "Say yes.", {}

    def submit(self, slot, reply):
        right = float(reply.startswith("yes"))
        self.done.append(
            rollouts.Step(
                slot, "", right, True, False, {"valid": True, "passed": bool(right), "masked": False}
            )
        )

    def poll(self, wait=True):
        finished, self.done = self.done, []
        return finished

    def close(self):
        pass


def test_it_learns_a_two_choice_toy_from_chance_to_above_nine_tenths(tokenizer, monkeypatch):
    """Two words are possible; one is right. The whole machinery runs: engine, buffer, advantages, update."""
    monkeypatch.setattr(rollouts, "open_envs", Bandit)
    model = lively_model(len(tokenizer))
    yes, no = tokenizer.encode("yes")[0], tokenizer.encode("no")[0]
    with torch.no_grad():  # chance: the two words are far above all others, and equal
        model.lm_head.weight[[yes, no]] = model.lm_head.weight[yes].clone()
        model.lm_head.weight[[yes, no]] += 3.0 * model.trunk(torch.tensor([[1, 6]]))[0][0, -1]
    config = PPOConfig(
        init_checkpoint=NOWHERE, num_steps=64, max_turns=1, ent_coef=0.0, kl_coef=0.0, target_kl=0.0
    )
    sampling = Sampling(temperature=1.0, top_k=2, seed=1)
    players = Players(tokenizer, slots=16, sampling=sampling, max_new_tokens=1)
    descent = torch.optim.Adam(model.parameters(), lr=3e-3)
    task, means = next(iter(catalog.tasks("train", count=1))), []

    class Training:
        def descend(self, loss, number):
            descent.zero_grad()
            loss.backward()
            descent.step()

    training = Training()
    training.config, training.model, training.sampling = config, model, sampling
    for number in range(1, 21):
        engine = Engine.from_model(model, weights="fp32")
        episodes = list(players.play(engine, ((number * 64 + i, task) for i in range(64))))
        means.append(np.mean([episode.total for episode in episodes]))
        buffer = RolloutBuffer(episodes)
        judge(buffer, config)
        buffer.start_logp = buffer.logp.copy()
        ppo.update(training, buffer, number)
    assert 0.2 < means[0] < 0.8 and np.mean(means[-3:]) > 0.9, means


@pytest.fixture
def start(tokenizer, tmp_path):
    return checkpoint.save(tmp_path / "start", lively_model(len(tokenizer)), tokenizer=VOCAB)


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
def test_stopped_and_resumed_is_never_stopped_bit_for_bit(start, tmp_path, advantage):
    options = SMALL | {"advantage": advantage, "group_size": 2}
    whole = ppo.train(PPOConfig(init_checkpoint=start, checkpoints_dir=tmp_path / "whole", **options))
    half = PPOConfig(init_checkpoint=start, checkpoints_dir=tmp_path / "half", **options)
    # the same run, ended after its first round as a kill between two rounds would
    monkey = pytest.MonkeyPatch()
    from rusty_r2.train.ppo_run import Training

    finish = Training.finish

    def killed(self, number, facts):
        finish(self, number, facts)
        raise KeyboardInterrupt

    monkey.setattr(Training, "finish", killed)
    with pytest.raises(KeyboardInterrupt):
        ppo.train(half)
    monkey.undo()
    ppo.train(replace(half, resume="auto"))
    a, b = weights_of(whole / "step_000002"), weights_of(tmp_path / "half" / "step_000002")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], weights_of(start)[name]) for name in a)


def test_a_value_head_that_was_never_trained_begins_with_the_mean(tokenizer, tmp_path):
    """Else, with nothing expected, the first words of every reply are punished for being early."""
    model = lively_model(len(tokenizer))
    torch.nn.init.zeros_(model.value_head.weight)
    torch.nn.init.zeros_(model.value_head.bias)
    plain = checkpoint.save(tmp_path / "plain", model, tokenizer=VOCAB)
    from rusty_r2.train.ppo_run import Training

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


def test_what_decides_about_the_best_weights_is_neither_trained_on_nor_held_out(start, tmp_path):
    from rusty_r2.train.ppo_run import Training

    options = SMALL | {"valid_tasks": 5, "num_steps": 6}
    with Training(PPOConfig(init_checkpoint=start, checkpoints_dir=tmp_path / "run", **options)) as training:
        assert {task.split for task in training.validation} == {"train"}
        assert len(training.validation) == 5
        assert not {task.name for task in training.validation} & {task.name for task in training.heldout}
        drawn = [training.validation[0], *catalog.tasks("train", seed=77, count=3)]
        training.curriculum.next = iter(drawn).__next__
        assert training._tasks() == drawn[1:]
