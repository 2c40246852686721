# SPDX-License-Identifier: AGPL-3.0-or-later
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
"""Rows of logits become the gradient of their cross-entropy, in place, on GPUs. Called by loss.py.

One program owns one row. `_turn_held` keeps the row in its registers: one reading, one exponential a word,
one writing. `_turn_swept`, for vocabularies too large for that, sweeps over the row twice with a running
maximum; the second sweep finds the row in the cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

HELD = (8192, 16)
"""Largest third of a row that is held in registers, and warps."""
SWEPT = (4096, 8)
"""Words of one sweep's step, and warps."""


@triton.jit
def _turn_held(LOGITS, TARGETS, NLL, V, stride, TRAIN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    here = LOGITS + row * stride
    target = tl.load(TARGETS + row)
    c0 = tl.arange(0, BLOCK)
    c1, c2 = BLOCK + c0, 2 * BLOCK + c0
    x0 = tl.load(here + c0, mask=c0 < V, other=-1e38).to(tl.float32)
    x1 = tl.load(here + c1, mask=c1 < V, other=-1e38).to(tl.float32)
    x2 = tl.load(here + c2, mask=c2 < V, other=-1e38).to(tl.float32)
    aim = tl.load(here + target, mask=(target >= 0) & (target < V), other=float("nan")).to(tl.float32)
    peak = tl.max(tl.maximum(tl.maximum(x0, x1), x2), 0)
    x0, x1, x2 = tl.exp(x0 - peak), tl.exp(x1 - peak), tl.exp(x2 - peak)
    whole = tl.sum(x0 + x1 + x2, 0)
    tl.store(NLL + row, tl.log(whole) + peak - aim)
    if TRAIN:
        share = 1.0 / whole
        tl.store(here + c0, tl.where(c0 == target, x0 * share - 1.0, x0 * share), mask=c0 < V)
        tl.store(here + c1, tl.where(c1 == target, x1 * share - 1.0, x1 * share), mask=c1 < V)
        tl.store(here + c2, tl.where(c2 == target, x2 * share - 1.0, x2 * share), mask=c2 < V)


@triton.jit
def _turn_swept(LOGITS, TARGETS, NLL, V, stride, TRAIN: tl.constexpr, BLOCK: tl.constexpr):
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
    third = triton.next_power_of_2(triton.cdiv(words, 3))
    if rows and third <= HELD[0]:
        _turn_held[(rows,)](
            logits, targets.contiguous(), nll, words, logits.stride(0), train, third, num_warps=HELD[1]
        )
    elif rows:
        block = min(SWEPT[0], triton.next_power_of_2(words))
        _turn_swept[(rows,)](
            logits, targets.contiguous(), nll, words, logits.stride(0), train, block, num_warps=SWEPT[1]
        )
    return nll
