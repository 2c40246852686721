"""A nano model of our own, and minds that always or never know."""

import pytest

from rusty_r2.eval.mind import Played
from rusty_r2.gym.proof import gold
from rusty_r2.protocol import render


@pytest.fixture(scope="session")
def nano(tmp_path_factory):
    """An untrained checkpoint with the shipped tokenizer."""
    pytest.importorskip("llguidance", reason="pip install 'rusty-r2[train]'")
    torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")
    from rusty_r2.lm import checkpoint
    from rusty_r2.lm.rwkv import TinyRWKVLM
    from rusty_r2.lm.tokenizer import VOCAB

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("nano") / "model"
    checkpoint.save(folder, TinyRWKVLM(24_000, d_embed=16, d_hidden=32, n_layers=1), tokenizer=VOCAB)
    return folder


class Knowing:
    """Answers by a function, plays by gold or by a fixed reply."""

    ours = True
    digest = "0"

    def __init__(self, knows=None, play="gold", address="knowing"):
        self.knows, self.how, self.address = knows, play, address
        self.asked = []

    def answer(self, asks, speech):
        self.asked += [ask.request for ask in asks]
        for place in reversed(range(len(asks))):
            yield place, self.knows(asks[place])

    def play(self, tasks, speech, env, shots=()):
        from rusty_r2.gym.env import CodingEnv

        for number, task in tasks:
            self.asked.append(task.name)
            replies = [render(action) for action in gold(task)] if self.how == "gold" else [self.how]
            with CodingEnv([task], env) as place:
                place.reset(options={"task": task})
                for reply in replies:
                    *_, info = place.step(reply)
            yield Played(number, task, tuple(replies), len(replies), info["passed"], info["masked"])


@pytest.fixture
def knowing():
    return Knowing
