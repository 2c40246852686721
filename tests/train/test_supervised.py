"""Supervised training: it learns, and what is only arrangement changes nothing."""

import io
import math
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")

import numpy as np  # noqa: E402

from rusty_r2.data.shards import Rows  # noqa: E402
from rusty_r2.lm.rwkv import PRESETS, TinyRWKVLM  # noqa: E402
from rusty_r2.train.distributed import World  # noqa: E402
from rusty_r2.train.loop import Trainer  # noqa: E402
from rusty_r2.train.optim import Descent, groups, optimizer  # noqa: E402
from rusty_r2.train.progress import Progress  # noqa: E402
from rusty_r2.train.supervised import SupervisedConfig  # noqa: E402


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
    folder = {"checkpoints_dir": tmp_path / "run"}
    return SupervisedConfig(data_dir=shards, tokenizer_path=words, **(small | folder | changes))


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
