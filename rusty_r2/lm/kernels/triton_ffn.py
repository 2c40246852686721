# SPDX-License-Identifier: AGPL-3.0-or-later
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
"""Channel-mix's two products on GPUs with the squared ReLU inside them, so its input is never written.

s = relu(x·Kᵀ)² is stored by the first product, and relu(x·Kᵀ) = √s is all the way back needs of it:
the gradient 2·√s·(g·V) is made where g·V is. The other products are the library's own. Called by fused.py.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = (128, 256, 64, 8, 3)
"""Rows, columns and depth of a tile, warps, and stages of the pipeline of loads."""


@triton.jit
def _product(
    A, B, S, OUT, M, N, K, stride_k, stride_n,
    BACK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """OUT[M,N] = relu(A·B)², or with BACK 2·√S·(A·B); K is a multiple of BK and N of BN."""
    program = tl.program_id(0).to(tl.int64)
    columns = N // BN
    m = (program // columns) * BM + tl.arange(0, BM)
    n = (program % columns) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a = A + (m % M)[:, None] * K + k[None, :]
    b = B + k[:, None] * stride_k + n[None, :] * stride_n
    total = tl.zeros([BM, BN], tl.float32)
    for _ in range(0, K, BK):
        total = tl.dot(tl.load(a), tl.load(b), total)
        a += BK
        b += BK * stride_k
    at = m[:, None] * N + n[None, :]
    inside = (m < M)[:, None]
    if BACK:
        total = total * 2.0 * tl.sqrt(tl.load(S + at, mask=inside, other=0.0).to(tl.float32))
    else:
        total = tl.maximum(total, 0.0)
        total = total * total
    tl.store(OUT + at, total.to(OUT.dtype.element_ty), mask=inside)


def _run(a: Tensor, b: Tensor, s: Tensor, out: Tensor, stride_k: int, stride_n: int, back: bool) -> None:
    (M, K), N = a.shape, out.shape[1]
    rows, columns, depth, warps, stages = TILE
    rows, columns, depth = rows, min(columns, N), min(depth, K)
    _product[(triton.cdiv(M, rows) * (N // columns),)](
        a, b, s, out, M, N, K, stride_k, stride_n, back, rows, columns, depth,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


class _SquaredFFN(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
        shape, x = x.shape, x.flatten(0, -2).contiguous()
        wide, narrow = key.to(x.dtype).contiguous(), value.to(x.dtype).contiguous()
        s = x.new_empty(len(x), len(key))
        _run(x, wide, s, s, 1, wide.stride(0), False)
        ctx.save_for_backward(x, wide, narrow, s)
        ctx.dtypes = key.dtype, value.dtype
        return torch.mm(s, narrow.t()).view(*shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, wide, narrow, s = ctx.saved_tensors
        g = grads[0].flatten(0, -2).contiguous()
        gk = torch.empty_like(s)
        _run(g, narrow, s, gk, narrow.stride(0), 1, True)
        g_key, g_value = torch.mm(gk.t(), x), torch.mm(g.t(), s)
        shape = (*grads[0].shape[:-1], x.shape[1])
        return torch.mm(gk, wide).view(shape), g_key.to(ctx.dtypes[0]), g_value.to(ctx.dtypes[1])


def fits(x: Tensor, key: torch.nn.Module, value: torch.nn.Module) -> bool:
    """Plain Linears with whole tiles; adapters and odd sizes take the ordinary way."""
    if type(key) is not torch.nn.Linear or type(value) is not torch.nn.Linear:
        return False
    wide, narrow = key.out_features, key.in_features
    return x.dtype in (torch.bfloat16, torch.float16) and wide % TILE[1] == 0 and narrow % TILE[2] == 0


def squared_ffn(x: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """relu(x·keyᵀ)² · valueᵀ."""
    return _SquaredFFN.apply(x, key, value)
