# SPDX-License-Identifier: AGPL-3.0-or-later
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
"""Cross-entropy of rows of logits and its gradient on GPUs. Called by loss.py.

`turn`: logits become their gradient in place, any float type. One program owns one row and sweeps over it
twice, with a running maximum; the second sweep finds the row in the cache. (Holding the row in registers for
a single sweep was slower on an H200: 2.8 ms instead of 2.3.)

`learn`: for bfloat16, whose exponents reach as far as float32's. Not the row's maximum is taken away before
the exponential but its target's logit, which is one dot product, and LIFT more; so the exponentials come
straight out of the product that makes the logits, and no pass over them follows. The gradient of the
logits is e/sum, and -1 at the target: the sum divides the other operand or the result of the products that
follow, the target's column is left out of e and added as one row of weights. Exact up to a loss of 139 nats
a token; where it is higher, all words that far above the target count as equals.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from rusty_r2.lm.kernels import triton_product

SWEPT = (4096, 8)
"""Words of one sweep's step, and warps."""
LIFT: tl.constexpr = tl.constexpr(60.0)
"""How far above its target's logit a row's exponents have their zero, in nats."""


@triton.jit
def _turn(LOGITS, TARGETS, NLL, V, stride, TRAIN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    here = LOGITS + row * stride
    target = tl.load(TARGETS + row)
    aim = tl.load(here + target, mask=(target >= 0) & (target < V), other=float("nan")).to(tl.float32)
    column = tl.arange(0, BLOCK)
    peak = float("-inf")
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        x = tl.load(here + start + column, mask=start + column < V, other=-1e38).to(tl.float32)
        higher = tl.maximum(peak, tl.max(x, 0))
        total = total * tl.exp(peak - higher) + tl.exp(x - higher)
        peak = higher
    whole = tl.sum(total, 0)
    tl.store(NLL + row, tl.log(whole) + peak - aim)
    if TRAIN:
        share = 1.0 / whole
        for start in range(0, V, BLOCK):
            inside = start + column < V
            x = tl.load(here + start + column, mask=inside, other=-1e38).to(tl.float32)
            p = tl.exp(x - peak) * share
            tl.store(here + start + column, tl.where(start + column == target, p - 1.0, p), mask=inside)


def turn(logits: Tensor, targets: Tensor, train: bool) -> Tensor:
    """As loss.turn."""
    nll = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    rows, words = logits.shape
    block = min(SWEPT[0], triton.next_power_of_2(words))
    if rows:
        _turn[(rows,)](
            logits, targets.contiguous(), nll, words, logits.stride(0), train, block, num_warps=SWEPT[1]
        )
    return nll


# ------------------------------------------------------------------ without a pass over the logits


@triton.jit
def _aim(X, W, TARGETS, AIMS, V, C, BLOCK: tl.constexpr):
    """The target's logit of each row."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    target = tl.load(TARGETS + row)
    x = tl.load(X + row * C + c, mask=c < C, other=0.0).to(tl.float32)
    known = (target >= 0) & (target < V)
    w = tl.load(W + target * C + c, mask=c < tl.where(known, C, 0), other=0.0).to(tl.float32)
    tl.store(AIMS + row, tl.sum(x * w, 0))


@triton.jit
def _close(E, X, TARGETS, SUMS, NLL, SCALED, GW, V, C, stride, HAS_GW: tl.constexpr, BLOCK: tl.constexpr):
    """A row's loss; its target out of the exponentials and into GW; x over the row's sum."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    target = tl.load(TARGETS + row)
    known = (target >= 0) & (target < V)
    whole = tl.load(SUMS + row)
    tl.store(NLL + row, tl.where(known, tl.log(whole) + LIFT, float("nan")))
    tl.store(E + row * stride + target, 0.0, mask=known)
    if HAS_GW:
        x = tl.load(X + row * C + c, mask=c < C, other=0.0).to(tl.float32)
        tl.store(SCALED + row * C + c, x / whole, mask=c < C)
        missed = tl.exp(-LIFT) / whole - 1.0
        tl.atomic_add(GW + target * C + c, missed * x, mask=c < tl.where(known, C, 0), sem="relaxed")


@triton.jit
def _mend(G, W, TARGETS, SUMS, V, C, BLOCK: tl.constexpr):
    """G over the row's sum, and the target's part, which the product left out."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    target = tl.load(TARGETS + row)
    whole = tl.load(SUMS + row)
    g = tl.load(G + row * C + c, mask=c < C, other=0.0).to(tl.float32)
    known = (target >= 0) & (target < V)
    w = tl.load(W + target * C + c, mask=c < tl.where(known, C, 0), other=0.0).to(tl.float32)
    tl.store(G + row * C + c, g / whole + (tl.exp(-LIFT) / whole - 1.0) * w, mask=c < C)


def learn(
    hidden: Tensor, table: Tensor, targets: Tensor, g_hidden: Tensor | None, g_weight: Tensor | None,
    rows: int, add_product: Callable[..., None],
) -> Tensor:  # fmt: skip
    """The summed loss, `rows` rows at a time; writes the gradients of `hidden` and of `table`."""
    (count, width), words = hidden.shape, len(table)
    hidden, table, targets = hidden.contiguous(), table.contiguous(), targets.contiguous()
    aims, nll = (torch.empty(count, device=hidden.device, dtype=torch.float32) for _ in range(2))
    buffer = hidden.new_empty(min(rows, count), -(-words // 8) * 8)[:, :words]
    scaled = hidden.new_empty(min(rows, count) if g_weight is not None else 0, width)
    block = triton.next_power_of_2(width)
    one = {"num_warps": max(1, min(8, block // 256))}
    if g_weight is not None:
        g_weight.zero_()
    for start in range(0, count, rows):
        at = slice(start, start + rows)
        x, target, aim, many = hidden[at], targets[at], aims[at], min(rows, count - start)
        e = buffer[:many]
        _aim[(many,)](x, table, target, aim, words, width, block, **one)
        sums = triton_product.exponents(x, table, aim, LIFT.value, e)
        _close[(many,)](
            e, x, target, sums, nll[at], scaled, x if g_weight is None else g_weight, words, width,
            e.stride(0), g_weight is not None, block, **one,
        )  # fmt: skip
        if g_hidden is not None:
            torch.mm(e, table, out=g_hidden[at])
            _mend[(many,)](g_hidden[at], table, target, sums, words, width, block, **one)
        if g_weight is not None:
            add_product(g_weight, e.t(), scaled[:many], first=False)
    return nll.sum()
