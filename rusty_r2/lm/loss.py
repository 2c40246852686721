# SPDX-License-Identifier: AGPL-3.0-or-later
"""Cross-entropy over a large vocabulary, a chunk of tokens at a time.

`linear_cross_entropy` is F.cross_entropy(hidden @ weight.T, targets, reduction="sum") without the
logits of the whole batch ever existing: per chunk the logits are made, turned into their own gradient
in place and multiplied out, so that the way back has nothing left to do but to scale.
On a GPU the turn is one Triton kernel, or in bfloat16 part of the product itself (kernels/triton_loss.py), on
a processor one C++ sweep; elsewhere a few PyTorch operations. Under autocast the products run in its dtype.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rusty_r2.errors import DataError
from rusty_r2.lm import native

_SOURCE = Path(__file__).parent / "kernels" / "softmax.cpp"

CHUNK_GPU = 32768
CHUNK_CPU = 512
"""Tokens whose logits exist at once."""


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, *, chunk: int = 0) -> Tensor:
    """Sum of -log softmax(hidden @ weight.T)[target] over rows; hidden [N,C], weight [V,C], targets [N]."""
    if targets.device.type == "cpu" and targets.numel():
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= len(weight):
            raise DataError(f"targets {low}..{high} are not among the model's {len(weight)} words")
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    rows = chunk or (CHUNK_GPU if hidden.is_cuda else CHUNK_CPU)
    learns = torch.is_grad_enabled()
    with torch.autocast(hidden.device.type, enabled=False):
        return _LinearCrossEntropy.apply(hidden, weight, targets, rows, learns)  # type: ignore[no-any-return]


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, rows: int, learns: bool) -> Tensor:
        table = weight.to(hidden.dtype)
        wants_hidden, wants_weight = (learns and wanted for wanted in ctx.needs_input_grad[:2])
        train = wants_hidden or wants_weight
        total = hidden.new_zeros((), dtype=torch.float64 if hidden.dtype == torch.float64 else torch.float32)
        g_hidden = torch.empty_like(hidden) if wants_hidden else None
        g_weight = torch.empty_like(weight, dtype=total.dtype) if wants_weight else None
        if g_weight is not None and not len(hidden):
            g_weight.zero_()
        if train and _reaches(hidden, table):
            from rusty_r2.lm.kernels.triton_loss import learn

            total = learn(hidden, table, targets, g_hidden, g_weight, rows, _add_product)
        else:
            buffer = hidden.new_empty(min(rows, len(hidden)), len(weight))
            for start in range(0, len(hidden), rows):
                part = hidden[start : start + rows]
                logits = torch.mm(part, table.t(), out=buffer[: len(part)])
                total += turn(logits, targets[start : start + rows], train).sum()
                if g_hidden is not None:
                    torch.mm(logits, table, out=g_hidden[start : start + rows])
                if g_weight is not None:
                    _add_product(g_weight, logits.t(), part, first=start == 0)
        ctx.made = (g_hidden, None if g_weight is None else g_weight.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if ctx.made is None:
            raise RuntimeError("linear_cross_entropy keeps its gradients for one backward only")
        made, ctx.made = ctx.made, None
        for g in made:
            if g is not None:  # (mul_ by a number on the device is slower)
                torch._foreach_mul_([g], grads[0].to(g.dtype))
        return *made, None, None, None


def _reaches(hidden: Tensor, table: Tensor) -> bool:
    """Whether the way without a pass over the logits can be taken."""
    if not (hidden.is_cuda and hidden.dtype == torch.bfloat16 and find_spec("triton")):
        return False
    from rusty_r2.lm.kernels.triton_product import suits

    return suits(hidden, table)


def turn(logits: Tensor, targets: Tensor, train: bool) -> Any:
    """Each row's -log softmax[target]; with `train` the logits become their own gradient, in place."""
    if logits.is_cuda and find_spec("triton") is not None:
        from rusty_r2.lm.kernels.triton_loss import turn as triton_turn

        return triton_turn(logits, targets, train)
    library = _library()
    if library is not None and logits.device.type == "cpu" and logits.dtype == torch.float32:
        nll = torch.empty(len(logits))
        pointers = (x.data_ptr() for x in (logits, targets.contiguous(), nll))
        library.softmax_turn(*logits.shape, int(train), *pointers)
        return nll
    real = torch.float64 if logits.dtype == torch.float64 else torch.float32
    log_p = torch.log_softmax(logits, 1, dtype=real)
    column = targets[:, None]
    nll = -log_p.gather(1, column).squeeze(1)
    if train:
        logits.copy_(log_p.exp_().scatter_add_(1, column, -torch.ones_like(column, dtype=real)))
    return nll


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """total += a @ b, or total = a @ b for the first, summed in total's own precision."""
    beta = 0 if first else 1
    if a.dtype == total.dtype:
        total.addmm_(a, b, beta=beta)
    elif a.is_cuda:
        torch.addmm(total, a, b, beta=beta, out_dtype=total.dtype, out=total)
    else:
        product = torch.mm(a, b)
        total.copy_(product) if first else total.add_(product)


@lru_cache
def _library() -> ctypes.CDLL | None:
    found = native.library(
        _SOURCE, flags=("-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros")
    )
    if found is not None:
        found.softmax_turn.argtypes = [ctypes.c_int64] * 2 + [ctypes.c_int] + [ctypes.c_void_p] * 3
    return found
