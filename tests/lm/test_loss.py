# SPDX-License-Identifier: AGPL-3.0-or-later
"""Chunked cross-entropy is cross-entropy: value and gradients, on every path."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rusty_r2.lm import loss, native
from rusty_r2.lm.loss import linear_cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(not find_spec("triton"), reason="triton is not installed")


def example(rows: int, words: int, width: int = 24, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(rows)
    hidden, weight = torch.randn(rows, width, dtype=dtype), torch.randn(words, width, dtype=dtype)
    return [hidden.requires_grad_(), weight.requires_grad_(), torch.randint(0, words, (rows,))]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(("rows", "chunk"), [(1, 0), (7, 3), (300, 0), (64, 64)])
def test_it_is_cross_entropy(monkeypatch: pytest.MonkeyPatch, rows: int, chunk: int, plain: bool) -> None:
    if plain:
        monkeypatch.setattr(loss, "_library", lambda: None)
    hidden, weight, targets = example(rows, 1500)
    ours = linear_cross_entropy(hidden, weight, targets, chunk=chunk)
    got = torch.autograd.grad(ours * 0.7, (hidden, weight))
    plain_loss = F.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    want = torch.autograd.grad(plain_loss * 0.7, (hidden, weight))
    assert ours.item() == pytest.approx(plain_loss.item(), rel=1e-6)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, want, strict=True))


def test_float64_is_exact_and_gradients_serve_once() -> None:
    hidden, weight, targets = example(5, 9, 4, torch.float64)
    ours = linear_cross_entropy(hidden, weight, targets, chunk=2)
    theirs = F.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    got = torch.autograd.grad(ours, (hidden, weight), retain_graph=True)
    want = torch.autograd.grad(theirs, (hidden, weight))
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(got, want, strict=True))
    with pytest.raises(RuntimeError, match="one backward only"):
        ours.backward()


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    hidden, weight, targets = example(6, 9)
    linear_cross_entropy(hidden.detach(), weight, targets).backward()
    assert weight.grad is not None and hidden.grad is None
    with torch.no_grad():
        assert not linear_cross_entropy(hidden, weight, targets).requires_grad


def test_no_rows_is_zero() -> None:
    hidden, weight, targets = example(0, 9)
    total = linear_cross_entropy(hidden, weight, targets)
    total.backward()
    assert total.item() == 0 and weight.grad is not None and not weight.grad.any()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_autocast_computes_in_its_dtype() -> None:
    hidden, weight, targets = example(40, 200)
    with torch.autocast("cpu", torch.bfloat16):
        total = linear_cross_entropy(hidden, weight, targets)
    total.backward()
    want = F.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    assert total.dtype == torch.float32 and total.item() == pytest.approx(want.item(), rel=1e-2)
    assert hidden.grad is not None and hidden.grad.dtype == torch.float32


@needs_triton
@pytest.mark.parametrize(("rows", "words"), [(22, 90), (40, 64)])
def test_a_gpu_learns_without_a_pass_over_the_logits(
    rows: int, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU in bfloat16 as it is used; Triton's interpreter multiplies float32 alone, exactly."""
    from rusty_r2.lm.kernels import triton_loss, triton_product

    if DEVICE == "cpu":
        monkeypatch.setattr(triton_product, "EXPONENTS", (16, 32, 16, 4, 3, 1, True))
    dtype, tolerance = (torch.float32, 1e-5) if DEVICE == "cpu" else (torch.bfloat16, 2e-2)
    hidden, weight, targets = (x.detach().to(DEVICE) for x in example(rows, words))
    hidden, weight = hidden.to(dtype), weight.to(dtype)
    logits = hidden @ weight.t()
    targets[3], targets[5] = logits[3].argmin(), logits[5].argmax()
    hidden[3] *= 110 / (logits[3].max() - logits[3].min())  # a loss far above any that a model has
    wide = [x.double().requires_grad_() for x in (hidden, weight)]
    want = F.cross_entropy(wide[0] @ wide[1].t(), targets, reduction="sum")
    want.backward()
    got = torch.empty_like(hidden), torch.empty_like(weight, dtype=torch.float32)
    total = triton_loss.learn(hidden, weight, targets, *got, 16, loss._add_product)
    assert total.item() == pytest.approx(want.item(), rel=1e-6)
    for a, b in zip(got, wide, strict=True):
        assert b.grad is not None and (a - b.grad).norm() <= tolerance * b.grad.norm()


@needs_triton
def test_a_broken_row_breaks_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    from rusty_r2.lm.kernels import triton_loss, triton_product

    if DEVICE == "cpu":
        monkeypatch.setattr(triton_product, "EXPONENTS", (16, 32, 16, 4, 3, 1, True))
    dtype = torch.float32 if DEVICE == "cpu" else torch.bfloat16
    hidden, weight, targets = (x.detach().to(DEVICE) for x in example(16, 64))
    hidden, weight = hidden.to(dtype), weight.to(dtype)
    losses = []
    for changed in ((0, 1.0), (0, 1e4), (0, float("nan"))):
        hidden[changed[0]] *= changed[1]
        losses.append(triton_loss.learn(hidden, weight, targets, None, None, 16, loss._add_product).item())
    assert losses[0] < losses[1] < 1e4  # far beyond what can be told apart, it stays a number
    assert losses[2] != losses[2]


TURNS = [
    "plain",
    pytest.param("native", marks=pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")),
    pytest.param("triton", marks=needs_triton),
]


def turn(kind: str, logits: Tensor, targets: Tensor, train: bool, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    if kind == "triton":
        from rusty_r2.lm.kernels import triton_loss

        there = logits.to(DEVICE)
        nll = triton_loss.turn(there, targets.to(DEVICE), train)
        logits.copy_(there)
        return nll.cpu()
    if kind == "plain":
        monkeypatch.setattr(loss, "_library", lambda: None)
    return loss.turn(logits, targets, train)


@pytest.mark.parametrize("kind", TURNS)
@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("words", [5, 1024, 2500])
def test_logits_become_their_gradient(
    kind: str, scale: float, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(6, words) * scale, torch.randint(0, words, (6,))
    wide = logits.double().requires_grad_()
    want = F.cross_entropy(wide, targets, reduction="none")
    want.sum().backward()
    untouched = logits.clone()
    assert torch.allclose(
        turn(kind, untouched, targets, False, monkeypatch).double(), want, rtol=1e-5, atol=1e-5
    )
    assert torch.equal(untouched, logits)
    assert torch.allclose(turn(kind, logits, targets, True, monkeypatch).double(), want, rtol=1e-5, atol=1e-5)
    assert wide.grad is not None and torch.allclose(logits.double(), wide.grad, atol=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's numpy
@pytest.mark.parametrize("kind", TURNS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_logit_is_not_hidden(kind: str, bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(3, 50)
    logits[1, 7] = bad
    nll = turn(kind, logits, torch.tensor([1, 2, 3]), True, monkeypatch)
    assert nll.isfinite().tolist() == [True, False, True]
