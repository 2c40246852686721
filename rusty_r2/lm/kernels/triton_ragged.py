# SPDX-License-Identifier: AGPL-3.0-or-later
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
"""wkv over rows of different lengths that lie end to end, on GPUs. Called by ragged.py; no way back.

A program takes one row and some channels from its first token to its last. Nothing is padded, and a row's
numbers do not depend on its neighbours. All arithmetic is float32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
"""Channels of a program: one warp, two neighbours a thread."""
STAGES = 3
"""Tokens on their way from memory while one is worked on."""


@triton.jit
def _weights(a, b):
    """The weights of e^a and e^b under their maximum, and that maximum."""
    d = a - b
    e = tl.exp(-tl.abs(d))
    return tl.where(d >= 0, 1.0, e), tl.where(d >= 0, e, 1.0), tl.maximum(a, b)


@triton.jit
def _forward(W, U, K, V, FIRST, LAST, START, Y, END, B, C, BC: tl.constexpr, STAGES: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    w = tl.load(W + c, mask=inside, other=-1.0)
    u = tl.load(U + c, mask=inside, other=0.0)
    at = b * C + c
    aa = tl.load(START + at, mask=inside, other=0.0)
    bb = tl.load(START + B * C + at, mask=inside, other=0.0)
    pp = tl.load(START + 2 * B * C + at, mask=inside, other=0.0)
    for t in tl.range(tl.load(FIRST + b), tl.load(LAST + b) + 1, num_stages=STAGES):
        place = t * C + c
        k = tl.load(K + place, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(V + place, mask=inside, other=0.0).to(tl.float32)
        e1, e2, _ = _weights(pp, u + k)
        tl.store(Y + place, (e1 * aa + e2 * v) / (e1 * bb + e2), mask=inside)
        e1, e2, pp = _weights(w + pp, k)
        aa, bb = e1 * aa + e2 * v, e1 * bb + e2
    tl.store(END + at, aa, mask=inside)
    tl.store(END + B * C + at, bb, mask=inside)
    tl.store(END + 2 * B * C + at, pp, mask=inside)


def wkv(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, first: Tensor, last: Tensor, start: Tensor
) -> tuple[Tensor, Tensor]:
    """y [N,C] and the state after [3,B,C], from k, v [N,C], where each row begins and ends, and its state."""
    k, v, start = k.contiguous(), v.contiguous(), start.contiguous()
    y, end = torch.empty_like(k), torch.empty_like(start)
    rows, channels = start.shape[1:]
    grid = (rows, triton.cdiv(channels, BLOCK))
    _forward[grid](
        w, u, k, v, first, last, start, y, end, rows, channels, BLOCK, STAGES, num_warps=1
    )  # fmt: skip
    return y, end
