"""Groups, schedules, clipping, and steps that are not finite."""

import math

import pytest

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from rusty_r2.errors import CheckpointError, ConfigError  # noqa: E402
from rusty_r2.train.optim import GROW_AFTER, Descent, groups, learning_rate, optimizer  # noqa: E402


class Mind(nn.Module):
    """The kinds of parameters an RWKV has."""

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(4, 8, bias=False)
        self.ln = nn.LayerNorm(4)
        self.time_decay = nn.Parameter(torch.linspace(-1, 1, 4))
        self.time_first = nn.Parameter(torch.ones(4))
        self.time_mix_k = nn.Parameter(torch.ones(1, 1, 4))


def mind():
    torch.manual_seed(1)
    return Mind()


def descent_on(model, *, kind="adamw", decay=0.0, **options):
    return Descent(optimizer(kind, groups(model, weight_decay=decay)), **options)


def set_gradients(model, value):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_decay_is_for_matrices_and_the_clocks_learn_faster():
    model = mind()
    found = {
        id(parameter): (group["lr_scale"], group["weight_decay"])
        for group in groups(model, weight_decay=0.1)
        for parameter in group["params"]
    }
    assert {name: found[id(parameter)] for name, parameter in model.named_parameters()} == {
        "key.weight": (1.0, 0.1),
        "ln.weight": (1.0, 0.0),
        "ln.bias": (1.0, 0.0),
        "time_decay": (2.0, 0.0),
        "time_first": (3.0, 0.0),
        "time_mix_k": (1.0, 0.0),
    }
    assert {group["lr_scale"] for group in groups(model, weight_decay=0.1, layer_lr=False)} == {1.0}


def test_a_first_step_moves_each_parameter_by_its_own_rate():
    model = mind()
    before = weights(model)
    descent = descent_on(model, clip=0.0)
    set_gradients(model, 0.5)
    descent.step(0.01, divisor=torch.tensor(1.0))
    moved = {name: float((before[name] - value).abs().max()) for name, value in weights(model).items()}
    assert moved["key.weight"] == pytest.approx(0.01, rel=1e-3)
    assert moved["time_decay"] == pytest.approx(0.02, rel=1e-3)
    assert moved["time_first"] == pytest.approx(0.03, rel=1e-3)


@given(st.integers(1, 500), st.floats(0, 0.5), st.floats(0, 1), st.sampled_from(["cosine", "linear", "wsd"]))
def test_schedules_rise_to_the_peak_and_end_at_the_floor(total, warmup_pct, floor, shape):
    warmup = int(total * warmup_pct)
    rates = [
        learning_rate(step, peak=1.0, total=total, warmup=warmup, floor=floor, shape=shape)
        for step in range(total + 1)
    ]
    assert rates[:warmup] == pytest.approx([(step + 1) / warmup for step in range(warmup)])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert max(rates) == pytest.approx(1.0) and rates[-1] == pytest.approx(floor)


def test_cosine_is_half_way_down_half_way_through():
    rate = learning_rate(60, peak=2.0, total=110, warmup=10)
    assert rate == pytest.approx(1.0)
    assert learning_rate(35, peak=2.0, total=110, warmup=10) == pytest.approx(1 + math.cos(math.pi / 4))
    with pytest.raises(ConfigError, match="--schedule cosine"):
        learning_rate(1, peak=1, total=2, warmup=0, shape="zigzag")


def test_a_gradient_shorter_than_the_clip_is_taken_as_it_is():
    model = mind()
    set_gradients(model, 1e-3)
    descent = descent_on(model, clip=1.0)
    descent.step(0.0, divisor=torch.tensor(1.0))
    assert float(descent.inner.state[model.time_first]["exp_avg"][0]) == pytest.approx(1e-4)


def test_the_divisor_and_the_clip_scale_the_gradient_and_the_norm_is_the_unclipped_one():
    model, twin = mind(), mind()
    a, b = descent_on(model, clip=0.0), descent_on(twin, clip=1.0)
    set_gradients(model, 1.0)
    count = sum(p.numel() for p in model.parameters())
    norm = a.step(0.0, divisor=torch.tensor(4.0))
    assert float(norm) == pytest.approx(math.sqrt(count) / 4)
    assert float(a.inner.state[model.time_first]["exp_avg"][0]) == pytest.approx(0.1 / 4)
    set_gradients(twin, 1.0)
    assert float(b.step(0.0, divisor=torch.tensor(0.25))) == pytest.approx(4 * math.sqrt(count))
    clipped = b.inner.state[twin.time_first]["exp_avg"][0] / 0.1
    assert float(clipped) * math.sqrt(count) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["adamw", "adamw8bit"])
def test_a_step_that_is_not_finite_changes_nothing_but_the_counters(kind, poison):
    if kind == "adamw8bit":
        pytest.importorskip("bitsandbytes", reason="pip install bitsandbytes")
    model = mind()
    descent = descent_on(model, kind=kind, decay=0.1)
    set_gradients(model, 0.1)
    descent.step(0.01, divisor=torch.tensor(1.0))
    before, state = weights(model), descent.tensors(model)
    set_gradients(model, 0.1)
    model.ln.bias.grad[2] = poison
    descent.step(0.01, divisor=torch.tensor(1.0))
    assert descent.gradients() == []
    assert same(before, weights(model))
    after = descent.tensors(model)
    assert {name for name in state if not torch.equal(state[name], after[name])} == {
        "descent/skipped",
        "descent/skipped_in_a_row",
    }
    assert (float(descent.skipped), float(descent.skipped_in_a_row)) == (1, 1)
    set_gradients(model, 0.1)
    descent.step(0.01, divisor=torch.tensor(1.0))
    assert (float(descent.skipped), float(descent.skipped_in_a_row)) == (1, 0)
    assert not same(before, weights(model))


def test_fp16_finds_its_loss_scale_and_learns_as_if_there_were_none():
    model, twin = mind(), mind()
    plain, half = descent_on(model), descent_on(twin, half=True)
    x = torch.randn(3, 4)
    for descent, who in ((plain, model), (half, twin)):
        descent.backward(who.key(x).square().mean())
        who.ln.weight.grad = torch.zeros(4)
        descent.step(0.01, divisor=torch.tensor(1.0))
    assert torch.allclose(model.key.weight, twin.key.weight, atol=1e-7)
    set_gradients(twin, float("inf"))
    half.step(0.01, divisor=torch.tensor(1.0))
    assert float(half.scale) == 2.0**15
    half._finite_in_a_row.fill_(GROW_AFTER - 1)
    set_gradients(twin, 1.0)
    half.step(0.01, divisor=torch.tensor(1.0))
    assert float(half.scale) == 2.0**16 and float(half._finite_in_a_row) == 0


@pytest.mark.parametrize("kind", ["adamw", "adamw8bit"])
def test_stop_and_restore_is_never_stopped(kind):
    if kind == "adamw8bit":
        pytest.importorskip("bitsandbytes", reason="pip install bitsandbytes")

    def wide():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(64, 80), nn.Linear(80, 64))

    def go(model, descent, steps):
        for step in steps:
            x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step))
            descent.backward((model(x) - x).square().mean())
            descent.step(0.01, divisor=torch.tensor(1.0))

    straight = wide()
    go(straight, descent_on(straight, kind=kind), range(6))
    first = wide()
    descent = descent_on(first, kind=kind)
    go(first, descent, range(3))
    kept = descent.tensors(first)
    second = wide()
    second.load_state_dict(first.state_dict())
    again = descent_on(second, kind=kind)
    again.restore(second, kept)
    go(second, again, range(3, 6))
    assert same(weights(straight), weights(second))


def test_state_of_another_model_is_refused():
    kept = descent_on(mind()).tensors(mind()) | {"exp_avg/blocks.9.key": torch.zeros(1)}
    model = mind()
    with pytest.raises(CheckpointError, match="blocks.9.key"):
        descent_on(model).restore(model, kept)


def test_an_unknown_optimizer_is_one_line():
    with pytest.raises(ConfigError, match="--optimizer adamw"):
        optimizer("sgd", groups(mind(), weight_decay=0.0))
