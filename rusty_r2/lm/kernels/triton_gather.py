# SPDX-License-Identifier: AGPL-3.0-or-later
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
"""Rows of a table by number on GPUs, with a way back that sorts nothing. Called by fused.py.

PyTorch's own gradient of an embedding sorts the ids first; this one adds every row where it belongs, in
float32. The additions of one word come in any order, so the last bits differ from run to run.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

ROWS = 4
"""Rows of a program."""


@triton.jit
def _scatter(IDS, G, OUT, rows, C, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * ROWS
    c = tl.arange(0, BLOCK)
    for row in range(first, tl.minimum(first + ROWS, rows)):
        g = tl.load(G + row * C + c, mask=c < C, other=0.0).to(tl.float32)
        tl.atomic_add(OUT + tl.load(IDS + row) * C + c, g, mask=c < C, sem="relaxed")


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape = table.shape
        return F.embedding(ids, table)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (ids,) = ctx.saved_tensors
        g, (words, width), count = grads[0].contiguous(), ctx.shape, ids.numel()
        total = torch.zeros(words, width, device=g.device, dtype=torch.float32)
        if count:
            block = triton.next_power_of_2(width)
            warps = max(1, min(8, block // 128))
            grid = (triton.cdiv(count, ROWS),)
            _scatter[grid](ids.contiguous(), g, total, count, width, ROWS, block, num_warps=warps)
        return total.to(g.dtype), None


def gather(table: Tensor, ids: Tensor) -> Tensor:
    """table[ids]."""
    return _Gather.apply(table, ids)
