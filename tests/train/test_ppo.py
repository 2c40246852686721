"""PPO is right (its formulas against their definitions, its first ratio against 1) and it learns."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")

from rusty_r2.agent import players as rollouts  # noqa: E402
from rusty_r2.agent.players import Players  # noqa: E402
from rusty_r2.gym import catalog  # noqa: E402
from rusty_r2.gym.env import EnvConfig  # noqa: E402
from rusty_r2.lm.engine import Engine  # noqa: E402
from rusty_r2.lm.sampling import Sampling  # noqa: E402
from rusty_r2.lm.tokenizer import VOCAB  # noqa: E402
from rusty_r2.train import ppo  # noqa: E402
from rusty_r2.train.buffer import Batch, Choices, RolloutBuffer  # noqa: E402
from rusty_r2.train.ppo import PPOConfig, gae, group_advantages, judge, ppo_loss, to_come  # noqa: E402
from rusty_r2.train.ppo_replay import Replay  # noqa: E402

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
    draws["weight"] = 2 * torch.rand(n, generator=chance)
    old = Batch(ids=torch.zeros(1, 1), acted=torch.zeros(1, 1), kept=None, **draws)
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
        ratio, a = np.exp(logp - was), a * float(old.weight[i])
        expected += -min(ratio * a, min(max(ratio, 1 - eps), 1 + eps) * a)
        near = v_was + min(max(v - v_was, -eps), eps)
        expected += config.vf_coef * 0.5 * max((v - target) ** 2, (near - target) ** 2)
        expected -= config.ent_coef * h
        expected += config.kl_coef * (np.exp(start - logp) - (start - logp) - 1)
    assert float(loss.detach()) == pytest.approx(expected / len(new.logp), rel=1e-4)
    loss.backward()
    assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in new)
    assert float(facts["policy/clipped"]) > 0


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
def test_the_first_ratio_is_one_for_every_token_in_every_mode(lively, tokenizer, mode):
    sampling, constrained = MODES[mode]
    grammar = None
    if constrained:
        from rusty_r2.lm.grammar import ActionGrammar

        grammar = ActionGrammar(tokenizer)
    episodes = played(lively, tokenizer, sampling=sampling, grammar=grammar)
    assert all(len(episode.replies) == 2 for episode in episodes if not episode.passed and not episode.masked)
    buffer = RolloutBuffer(episodes)
    batch = buffer.batch(range(len(buffer)))
    with torch.no_grad():
        choices = batch.choices(lively, sampling)
    assert float(((choices.logp - batch.logp).exp() - 1).abs().max()) < 1e-5
    assert float((choices.value - batch.value).abs().max()) < 1e-5
    assert (choices.entropy >= 0).all() and (choices.logp <= 0).all()


def test_what_episodes_begin_with_is_read_once_and_learned_from_as_if_read_by_each(lively, tokenizer):
    sampling = Sampling(temperature=1.0, seed=5)
    buffer = RolloutBuffer(played(lively, tokenizer, count=3, max_new_tokens=4))
    batch = buffer.batch(range(3))
    rows = [episode.ids for episode in buffer.episodes]
    assert batch.shared > 100 and all(row[: batch.shared] == rows[0][: batch.shared] for row in rows)
    assert not batch.acted[:, : batch.shared + 1].any() and buffer.batch([0]).shared == 0
    found = []
    for way in (batch, replace(batch, shared=0)):
        lively.zero_grad()
        choices = way.choices(lively, sampling)
        (choices.logp.sum() + choices.value.square().sum()).backward()
        gradients = [p.grad.clone() for p in lively.parameters() if p.grad is not None]
        found.append([choices.logp.detach(), choices.value.detach(), *gradients])
    for once, each in zip(*found, strict=True):
        assert (once - each).abs().max() <= 1e-4 * each.abs().max() + 1e-6


@pytest.mark.parametrize("grid", [(1, 1), (4, 32)])
def test_rows_in_parts_are_rows_together(lively, tokenizer, grid, monkeypatch):
    from rusty_r2.train import buffer as tensors

    monkeypatch.setattr(tensors, "PART", 2)
    monkeypatch.setitem(tensors.GRID, "cpu", grid)
    sampling = Sampling(temperature=1.0, top_k=9, seed=5)
    buffer = RolloutBuffer(played(lively, tokenizer, sampling=sampling, count=9, max_new_tokens=4))
    batch = buffer.batch(range(9))
    sizes = [batch.ids[rows, batch.shared + 1 : columns].shape for rows, columns in batch.parts]
    assert len(sizes) > 1 and sizes[0][1] <= sizes[-1][1]
    assert all(rows % grid[0] == 0 and columns % grid[1] == 0 for rows, columns in sizes)
    together = replace(batch, parts=(), shared=0)
    with torch.no_grad():
        for one, other in zip(
            batch.choices(lively, sampling), together.choices(lively, sampling), strict=True
        ):
            assert torch.allclose(one, other, atol=1e-5)
        assert torch.allclose(batch.choices(lively, sampling).logp, batch.logp, atol=1e-5)
    assert batch.logp.tolist() == buffer.logp[batch.places].tolist()
    alone = [buffer.batch([row]) for row in range(9)]
    assert sorted(batch.places.tolist()) == [place for one in alone for place in one.places.tolist()]


def test_an_episode_is_the_conversation_and_only_its_own_tokens_act(lively, tokenizer):
    from rusty_r2.agent.prompt import SYSTEM
    from rusty_r2.lm.chat import encode_turn, open_chat, open_reply

    for episode in played(lively, tokenizer):
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


def test_what_an_episode_says_does_not_depend_on_who_else_plays(lively, tokenizer):
    many = played(lively, tokenizer, count=6)
    again = played(lively, tokenizer, count=3)
    assert [episode.ids for episode in many[:3]] == [episode.ids for episode in again]
    assert [episode.logp for episode in many[:3]] == [episode.logp for episode in again]


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
    ],
)
def test_a_scribe_plays_the_episodes_that_are_played_word_by_word(lively, tokenizer, device):
    from rusty_r2.lm.engine_torch import TorchModel
    from rusty_r2.lm.scribe import Scribe

    sampling = Sampling(temperature=1.0, seed=5)
    expected = played(lively, tokenizer, count=5)
    players = Players(tokenizer, slots=4, sampling=sampling, max_new_tokens=14, env=EnvConfig(max_turns=2))
    engine = Engine(TorchModel(lively, weights="fp32", device=device), backend="torch")
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
        choices = batch.choices(lively, sampling)
    assert float(((choices.logp - batch.logp).exp() - 1).abs().max()) < 1e-4
    assert float((choices.value - batch.value).abs().max()) < 1e-4


def test_a_masked_episode_is_left_out(lively, tokenizer):
    episodes = played(lively, tokenizer, count=3)
    episodes[1].masked = True
    assert [episode.number for episode in RolloutBuffer(episodes).episodes] == [0, 2]
    assert rollouts.facts(episodes)["play/masked"] == 1


def test_who_is_left_alone_of_a_group_teaches_nothing(lively, tokenizer):
    """With the others masked there is nobody to compare with, and 0 is no advantage."""
    episodes = played(lively, tokenizer, count=4)
    episodes[1].masked = True
    last = max(place for place, own in enumerate(episodes[2].acted) if own)
    episodes[2].reward[last] += 1
    buffer = RolloutBuffer(episodes)
    config = PPOConfig(init_checkpoint=NOWHERE, advantage="group", group_size=2, num_steps=8, max_turns=2)
    judge(buffer, config)
    alone, *pair = buffer.spans()
    assert not buffer.advantage[alone].any() and buffer.target[alone].any()
    assert all(buffer.advantage[span].all() for span in pair)


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


def practise(model, tokenizer, rounds, rows=None, **options):
    """The mean reward of each round. The whole machinery runs: engine, buffer, advantages, update."""
    plain = {"num_steps": 64, "max_turns": 1, "kl_coef": 0.0, "target_kl": 0.0}
    config = PPOConfig(init_checkpoint=NOWHERE, **plain | options)
    sampling = Sampling(temperature=1.0, top_k=2, seed=1)
    players = Players(tokenizer, slots=16, sampling=sampling, max_new_tokens=1)
    descent = torch.optim.Adam(model.parameters(), lr=3e-3)
    task, means = next(iter(catalog.tasks("train", count=1))), []

    class Training:
        def learn(self, loss):
            loss.backward()

        def descend(self, number):
            descent.step()
            descent.zero_grad()

    training = Training()
    training.config, training.model, training.sampling, training.replay = config, model, sampling, rows
    for number in range(1, rounds + 1):
        engine = Engine.from_model(model, weights="fp32")
        episodes = list(players.play(engine, ((number * 64 + i, task) for i in range(config.num_steps))))
        means.append(np.mean([episode.total for episode in episodes]))
        buffer = RolloutBuffer(episodes)
        judge(buffer, config)
        buffer.start_logp = buffer.logp.copy()
        ppo.update(training, buffer, number)
    return means


@pytest.fixture
def undecided(lively, tokenizer, monkeypatch):
    """A model that says yes or no, by chance, in a gym where yes is right."""
    monkeypatch.setattr(rollouts, "open_envs", Bandit)
    yes, no = tokenizer.encode("yes")[0], tokenizer.encode("no")[0]
    with torch.no_grad():  # the two words are far above all others, and equal
        lively.lm_head.weight[[yes, no]] = lively.lm_head.weight[yes].clone()
        lively.lm_head.weight[[yes, no]] += 3.0 * lively.trunk(torch.tensor([[1, 6]]))[0][0, -1]
    return lively


FEW = {"num_steps": 16, "num_minibatches": 1}


def test_it_learns_a_two_choice_toy_from_chance_to_above_nine_tenths(undecided, tokenizer):
    means = practise(undecided, tokenizer, 10, **FEW)
    assert 0.2 < means[0] < 0.8 and np.mean(means[-3:]) > 0.9, means


def test_what_is_replayed_is_not_forgotten(undecided, tokenizer, drills):
    """No is right in what is replayed, yes in the gym: with replay both are known, without only the last."""
    options = {"replay": drills, "replay_rows": 4, "replay_coef": 0.3}
    replay = Replay(PPOConfig(init_checkpoint=NOWHERE, **options), VOCAB, "cpu")
    row = replay.data.train.rows(0, range(1))
    with torch.no_grad():  # there, too, it is yes or no
        words = [tokenizer.encode(word)[0] for word in ("yes", "no")]
        hidden = undecided.trunk(torch.from_numpy(row.ids))[0][0, row.mask[0].argmax()]
        undecided.lm_head.weight[words] += hidden
    before, alone = replay.held_out(undecided)["eval/replay"], copy.deepcopy(undecided)
    assert before == pytest.approx(np.log(2), abs=0.05)
    practise(alone, tokenizer, 5, **FEW)
    earned = practise(undecided, tokenizer, 8, replay, **FEW, **options)
    with_it, without = (replay.held_out(model)["eval/replay"] for model in (undecided, alone))
    assert with_it < 1.2 * before and without > 3 * before and np.mean(earned[-3:]) > 0.7, earned
