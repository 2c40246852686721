# SPDX-License-Identifier: AGPL-3.0-or-later
"""One conformance suite for every kernel: y, state and all gradients against a float64 loop over tokens."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from rusty_r2.lm import native
from rusty_r2.lm.scan import EMPTY
from rusty_r2.lm.wkv import wkv

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNELS = [
    "scan",
    pytest.param("native", marks=pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")),
    pytest.param(
        "triton", marks=pytest.mark.skipif(not find_spec("triton"), reason="triton is not installed")
    ),
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def loop(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, state: Tensor | None = None, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, one token after the other, by autograd."""
    nothing = torch.zeros_like(k[:, 0])
    aa, bb, pp = (nothing, nothing, nothing + EMPTY) if state is None else state
    out = []
    for t in range(k.shape[1]):
        if reset is not None:
            gone = reset[:, t, None]
            aa, bb, pp = aa.masked_fill(gone, 0), bb.masked_fill(gone, 0), pp.masked_fill(gone, EMPTY)
        kk, vv = k[:, t], v[:, t]
        top = torch.maximum(pp, u + kk).detach()
        e1, e2 = torch.exp(pp - top), torch.exp(u + kk - top)
        out.append((e1 * aa + e2 * vv) / (e1 * bb + e2))
        top = torch.maximum(w + pp, kk).detach()
        e1, e2 = torch.exp(w + pp - top), torch.exp(kk - top)
        aa, bb, pp = e1 * aa + e2 * vv, e1 * bb + e2, top
    return torch.stack(out, 1), torch.stack([aa, bb, pp])


Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def case(B: int, T: int, C: int, *, scale: float = 1.0, decay: str = "init", seed: int = 0) -> Case:
    torch.manual_seed(seed)
    time_decay = {
        "init": torch.linspace(-5, 3, C),
        "strong": 3 + torch.rand(C),
        "none": torch.full((C,), -30.0),
    }[decay]
    start = torch.stack([torch.randn(B, C), torch.rand(B, C) + 0.5, torch.randn(B, C) * scale])
    return -torch.exp(time_decay), torch.randn(C), torch.randn(B, T, C) * scale, torch.randn(B, T, C), start


def placed(kernel: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Where the kernel runs: Triton's on the GPU where there is one."""
    return tuple(x.to(DEVICE if kernel == "triton" else "cpu") for x in tensors)


def run(
    f: Callable[..., tuple[Tensor, Tensor]], inputs: Case, gy: Tensor, *, carried: bool, reset: Tensor | None
) -> list[Tensor]:
    """y, the real means of the end state, and the gradients of everything that went in."""
    leaves = [x.detach().clone().requires_grad_() for x in (inputs if carried else inputs[:4])]
    y, end = f(*leaves, *([] if carried else [None]), reset)
    mean = end[0] / end[1]
    grads = torch.autograd.grad((y * gy).sum() + mean.sum(), leaves)
    return [y.detach(), mean.detach(), (end[1].log() + end[2]).detach(), *grads]


def compare(
    kernel: str, inputs: Case, *, carried: bool, reset: Tensor | None = None, tolerance: float
) -> None:
    gy = torch.randn(inputs[2].shape)
    wide: Case = tuple(x.double() for x in inputs)  # type: ignore[assignment]
    want = run(loop, wide, gy.double(), carried=carried, reset=reset)
    here: Case = placed(kernel, *inputs)  # type: ignore[assignment]
    flags = None if reset is None else placed(kernel, reset)[0]
    got = run(lambda *a: wkv(*a, kernel=kernel), here, placed(kernel, gy)[0], carried=carried, reset=flags)
    names = ["y", "mean", "weight", "gw", "gu", "gk", "gv", "gstate"]
    for name, a, b in zip(names, got, want, strict=False):
        error = ((a.cpu().double() - b).abs().max() / b.abs().max().clamp(min=1e-12)).item()
        assert error < tolerance, f"{name}: {error:.1e}"


@every_kernel
@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize(
    ("B", "T", "C"), [(2, 37, 40), (1, 1, 5), (2, 2, 130), (1, 70, 64)], ids=lambda x: str(x)
)
def test_shapes(kernel: str, B: int, T: int, C: int, carried: bool) -> None:
    compare(kernel, case(B, T, C), carried=carried, tolerance=5e-6)


@every_kernel
@pytest.mark.parametrize(
    ("scale", "decay", "tolerance"),
    [(30, "init", 3e-4), (300, "init", 3e-3), (1, "strong", 2e-5), (1, "none", 2e-5), (10, "strong", 5e-5)],
)
def test_hard_numbers(kernel: str, scale: float, decay: str, tolerance: float) -> None:
    compare(kernel, case(1, 70, 24, scale=scale, decay=decay), carried=True, tolerance=tolerance)


@every_kernel
@pytest.mark.parametrize("carried", [False, True])
def test_resets(kernel: str, carried: bool) -> None:
    torch.manual_seed(1)
    reset = torch.rand(2, 100) < 0.05
    reset[0, 0] = reset[1, -1] = reset[1, 49] = reset[1, 50] = True
    compare(kernel, case(2, 100, 33), carried=carried, reset=reset, tolerance=5e-6)


@every_kernel
def test_long(kernel: str) -> None:
    interpreted = (
        kernel == "triton" and DEVICE == "cpu"
    )  # too slow there; benchmarks/gpu.py has the full length
    compare(kernel, case(1, 300 if interpreted else 4096, 4, scale=2.0), carried=False, tolerance=1e-4)


@every_kernel
def test_a_reset_is_a_new_sequence(kernel: str) -> None:
    w, u, k, v, start = placed(kernel, *case(1, 40, 16))
    reset = torch.zeros(1, 40, dtype=torch.bool, device=k.device)
    reset[0, 25] = True
    y, end = wkv(w, u, k, v, start, reset, kernel=kernel)
    alone, end_alone = wkv(w, u, k[:, 25:], v[:, 25:], kernel=kernel)
    assert torch.allclose(y[:, 25:], alone, atol=1e-6) and torch.allclose(end, end_alone, atol=1e-6)


@pytest.mark.skipif(not find_spec("triton"), reason="triton is not installed")
@pytest.mark.parametrize("carried", [False, True])
def test_the_gate_of_a_block_can_be_in_the_kernel(carried: bool) -> None:
    from rusty_r2.lm.kernels.triton_wkv import gated

    w, u, k, v, start = placed("triton", *case(2, 70, 24))
    r, pull = torch.randn_like(k), torch.randn_like(k)
    reset = torch.rand(k.shape[:2], device=k.device) < 0.1
    inputs = [x.requires_grad_() for x in (w, u, k, v, r, start)[: 6 if carried else 5]]
    state = inputs[5] if carried else None
    ours, end = gated(*inputs[:5], state, reset)
    y, want_end = wkv(*inputs[:4], state, reset, kernel="scan")
    theirs = torch.sigmoid(r) * y
    assert torch.allclose(ours, theirs, atol=1e-5) and torch.allclose(end[2], want_end[2], atol=1e-5)
    got = torch.autograd.grad((ours * pull).sum() + (end[0] / end[1]).sum(), inputs)
    want = torch.autograd.grad((theirs * pull).sum() + (want_end[0] / want_end[1]).sum(), inputs)
    for a, b in zip(got, want, strict=True):
        assert (a - b).abs().max() <= 2e-5 * b.abs().max()


@every_kernel
@pytest.mark.parametrize("cut", [1, 17, 63])
def test_any_split_is_the_whole(kernel: str, cut: int) -> None:
    w, u, k, v, start = placed(kernel, *case(1, 64, 24))
    whole, end = wkv(w, u, k, v, start, kernel=kernel)
    left, middle = wkv(w, u, k[:, :cut], v[:, :cut], start, kernel=kernel)
    right, last = wkv(w, u, k[:, cut:], v[:, cut:], middle, kernel=kernel)
    assert torch.allclose(torch.cat([left, right], 1), whole, atol=2e-6)
    assert torch.allclose(last, end, atol=2e-6)


@pytest.mark.parametrize("kernel", KERNELS[:2])
@pytest.mark.parametrize("resets", [False, True])
def test_gradcheck_through_a_split(kernel: str, resets: bool) -> None:
    w, u, k, v, start = (x.double().requires_grad_() for x in case(2, 8, 6, scale=3.0))
    reset = torch.rand(2, 8) < 0.3 if resets else None

    def two(w: Tensor, u: Tensor, k: Tensor, v: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        halves = (None, None) if reset is None else (reset[:, :3], reset[:, 3:])
        y1, middle = wkv(w, u, k[:, :3], v[:, :3], start, halves[0], kernel=kernel)
        y2, end = wkv(w, u, k[:, 3:], v[:, 3:], middle, halves[1], kernel=kernel)
        return torch.cat([y1, y2], 1), end[0] / end[1]

    assert torch.autograd.gradcheck(two, (w, u, k, v, start), atol=1e-6, rtol=1e-4)


@every_kernel
def test_bfloat16_goes_in_and_out(kernel: str) -> None:
    w, u, k, v, _ = placed(kernel, *case(2, 50, 32))
    k, v = k.bfloat16().requires_grad_(), v.bfloat16().requires_grad_()
    want, _ = loop(*(x.cpu().double() for x in (w, u, k, v)))
    y, end = wkv(w, u, k, v, kernel=kernel)
    y.sum().backward()
    assert y.dtype == torch.bfloat16 and end.dtype == torch.float32
    assert k.grad is not None and k.grad.dtype == torch.bfloat16
    assert ((y.cpu().double() - want).abs().max() / want.abs().max()).item() < 8e-3


def test_the_operator_is_sound() -> None:
    if native.compiler() is None:
        pytest.skip("no C++ compiler")
    w, u, k, v, start = case(2, 6, 8)
    inputs = (w, u, k.requires_grad_(), v.requires_grad_(), start, None, True, "native")
    torch.library.opcheck(torch.ops.rusty.wkv.default, inputs)
