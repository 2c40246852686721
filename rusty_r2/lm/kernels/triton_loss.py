# SPDX-License-Identifier: AGPL-3.0-or-later
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
"""Rows of logits become the gradient of their cross-entropy, in place, on GPUs. Called by loss.py.

One program owns one row. It goes over the row twice: a running maximum and sum first, then the
gradient; the second reading finds the row in the cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _turn(LOGITS, TARGETS, NLL, V, stride, TRAIN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    here = LOGITS + row * stride
    target = tl.load(TARGETS + row)
    column = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        x = tl.load(here + start + column, mask=start + column < V, other=-1e38).to(tl.float32)
        higher = tl.maximum(top, x)
        total = total * tl.exp(top - higher) + tl.exp(x - higher)
        top = higher
    peak = tl.max(top, 0)
    whole = tl.sum(total * tl.exp(top - peak), 0)
    aim = tl.load(here + target, mask=(target >= 0) & (target < V), other=float("nan")).to(tl.float32)
    tl.store(NLL + row, tl.log(whole) + peak - aim)
    if TRAIN:
        inverse = 1.0 / whole
        for start in range(0, V, BLOCK):
            inside = start + column < V
            x = tl.load(here + start + column, mask=inside, other=-1e38).to(tl.float32)
            p = tl.exp(x - peak) * inverse
            p = tl.where(start + column == target, p - 1.0, p)
            tl.store(here + start + column, p, mask=inside)


def turn(logits: Tensor, targets: Tensor, train: bool) -> Tensor:
    """As loss.turn."""
    nll = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    rows, words = logits.shape
    block = min(BLOCK, triton.next_power_of_2(words))
    if rows:
        _turn[(rows,)](logits, targets.contiguous(), nll, words, logits.stride(0), train, block, num_warps=8)
    return nll
