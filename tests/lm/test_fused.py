# SPDX-License-Identifier: AGPL-3.0-or-later
"""The GPU's fused trunk and kernels give the plain path's numbers (here through Triton's interpreter)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

from rusty_r2.lm import fused
from rusty_r2.lm.rwkv import TinyRWKVLM, shifted

pytestmark = pytest.mark.skipif(not find_spec("triton"), reason="triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Not TensorFloat-32, which a training run before this may have chosen."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def plain(
    x: Tensor,
    add: Tensor | None,
    gate: Tensor | None,
    norm: nn.LayerNorm,
    mixes: tuple[Tensor, ...],
    last: Tensor | None,
    reset: Tensor | None,
) -> list[Tensor]:
    if add is not None:
        x = x + (add if gate is None else torch.sigmoid(gate) * add)
    h = norm(x)
    before = shifted(h, last, reset)
    return [x, h[:, -1], *([torch.lerp(before, h, m) for m in mixes] or [h])]


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize(("mixes", "add", "gate", "last"), [
    (3, True, True, True), (2, True, False, False), (0, True, True, False), (3, False, False, False),
    (0, False, False, False),
])  # fmt: skip
def test_add_norm_mix(
    mixes: int, add: bool, gate: bool, last: bool, resets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rusty_r2.lm.kernels import triton_mix
    from rusty_r2.lm.kernels.triton_mix import add_norm_mix

    torch.manual_seed(0)
    shape = (2, 37, 24)
    for dial in ("BACKWARD", "BACKWARD_UNGATED"):  # rows of a program end inside a sequence
        monkeypatch.setattr(triton_mix, dial, (16, 256, 2))
    norm = nn.LayerNorm(24).to(DEVICE)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x, a, g = (torch.randn(shape, device=DEVICE, requires_grad=True) for _ in range(3))
    ms = [torch.rand(24, device=DEVICE, requires_grad=True) for _ in range(mixes)]
    seen = torch.randn(2, 24, device=DEVICE, requires_grad=True)
    reset = (torch.rand(2, 37, device=DEVICE) < 0.2) if resets else None
    inputs = (x, a if add else None, g if gate else None, norm, tuple(ms), seen if last else None, reset)
    total, end, out = add_norm_mix(*inputs)
    got, want = [total, end, *out], plain(*inputs)
    if not mixes:  # then nobody asks for the last token's h
        del got[1], want[1]
    leaves = [x, norm.weight, norm.bias, *ms, *[a] * add, *[g] * gate, *[seen] * last]
    pull = [torch.randn_like(t) for t in want]
    ours = torch.autograd.grad(sum((t * p).sum() for t, p in zip(got, pull, strict=True)), leaves)
    theirs = torch.autograd.grad(sum((t * p).sum() for t, p in zip(want, pull, strict=True)), leaves)
    for one, other in zip([*got, *ours], [*want, *theirs], strict=True):
        assert torch.allclose(one, other, atol=2e-5, rtol=1e-4)


def test_squared_relu() -> None:
    from rusty_r2.lm.kernels.triton_mix import squared_relu

    k = torch.randn(3, 700, device=DEVICE, requires_grad=True)
    pull = torch.randn(3, 700, device=DEVICE)
    ours, theirs = squared_relu(k), torch.relu(k).square()
    assert torch.allclose(ours, theirs, atol=1e-6)
    got, want = (torch.autograd.grad(s, k, pull)[0] for s in (ours, theirs))
    assert torch.allclose(got, want, atol=1e-6)


def test_gather() -> None:
    from rusty_r2.lm.kernels.triton_gather import gather

    table = torch.randn(7, 20, device=DEVICE, requires_grad=True)
    ids = torch.randint(0, 7, (3, 11), device=DEVICE)
    ours, theirs = gather(table, ids), table[ids]
    pull = torch.randn_like(theirs)
    assert torch.equal(ours, theirs)
    got, want = (torch.autograd.grad(rows, table, pull)[0] for rows in (ours, theirs))
    assert torch.allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("words", [30, 50])  # fewer words than tokens, and more
@pytest.mark.parametrize("carried", [False, True])
def test_the_fused_trunk_is_the_trunk(carried: bool, words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = TinyRWKVLM(words, d_embed=8, d_hidden=24, n_layers=2).to(DEVICE)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    ids = torch.randint(0, words, (2, 21), device=DEVICE)
    reset = torch.rand(2, 21, device=DEVICE) < 0.1 if carried else None
    state = model.trunk(torch.randint(0, words, (2, 4), device=DEVICE))[1].detach() if carried else None
    parameters = [p for name, p in model.named_parameters() if "head" not in name]
    hidden, end = fused.trunk(model, ids, state, reset)
    monkeypatch.setenv("RUSTY_FUSED", "0")
    want, want_end = model.trunk(ids, state, reset=reset)
    assert torch.allclose(hidden, want, atol=1e-4) and torch.allclose(end, want_end, atol=1e-4)
    pull = torch.randn_like(want)
    ours = torch.autograd.grad((hidden * pull).sum() + end[:, :4].sum(), parameters)
    theirs = torch.autograd.grad((want * pull).sum() + want_end[:, :4].sum(), parameters)
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).abs().max() <= 1e-4 * b.abs().max() + 1e-5


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_autocast_casts_weights_once_and_leaves_frozen_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from rusty_r2.lm.kernels import triton_product

    if DEVICE == "cpu":  # Triton's interpreter cannot multiply matrices of bfloat16
        monkeypatch.setattr(triton_product, "suits", lambda *_: False)
    torch.manual_seed(0)
    model = TinyRWKVLM(40, d_embed=16, d_hidden=32, n_layers=1).to(DEVICE)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    frozen = model.blocks[0].ffn.key.weight.requires_grad_(False)
    ids = torch.randint(0, 40, (2, 17), device=DEVICE)
    parameters = [p for name, p in model.named_parameters() if "head" not in name and p is not frozen]
    with torch.autocast(DEVICE, torch.bfloat16):
        hidden, _ = fused.trunk(model, ids, None, None)
    monkeypatch.setenv("RUSTY_FUSED", "0")
    want, _ = model.trunk(ids)
    pull = torch.randn_like(want)
    ours = torch.autograd.grad((hidden * pull).sum(), parameters)
    theirs = torch.autograd.grad((want * pull).sum(), parameters)
    assert hidden.dtype == torch.bfloat16 and (hidden - want).abs().max() < 0.05 * want.abs().max()
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == torch.float32 and (a - b).norm() < 0.05 * b.norm()


def test_it_is_for_gpus() -> None:
    model = TinyRWKVLM(50, 8, 16, 1)
    assert not fused.suits(model, torch.zeros(1, 4, dtype=torch.long))
