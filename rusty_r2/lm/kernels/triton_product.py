# SPDX-License-Identifier: AGPL-3.0-or-later
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
"""Matrix products that go through a function before they reach memory, on GPUs in Triton.

`exponents`: e^(a @ bᵀ - shift) and the sums of its rows, for cross-entropy (triton_loss.py).
`squared`: relu(a @ bᵀ)², and `squared_back`: (a @ b) times that square's slope, for channel-mix (fused.py).
Each saves a whole pass over the product's result. Operands are bfloat16 or float16, sums float32. Tiles come
and go through tensor descriptors, so rows must lie a multiple of 16 bytes apart (`suits`).
TRITON_INTERPRET=1 runs them without a GPU.
"""

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
TOP: tl.constexpr = tl.constexpr(115.0)
"""The largest exponent of two that is taken: sums of many stay far from float32's end."""

EXPONENTS = (128, 256, 64, 8, 3, 1, False)
SQUARED = (128, 256, 64, 8, 3, 1, False)
SQUARED_BACK = (128, 256, 64, 8, 3, 1, True)
"""Rows and columns of a tile, its depth, warps, tiles loaded ahead, programs of a multiprocessor (each takes
several tiles; 0: a program a tile), whether a tile leaves in two halves. (benchmarks/gpu.py sweeps them.)"""

GROUP = 8
"""Tiles of rows that share their columns' weights in the cache."""


@triton.jit
def _product(
    A, B, OUT, SAVED, AIMS, PARTS, M, N, K, lift,
    KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    FLAT: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    high, wide = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), high * wide, tl.num_programs(0), flatten=FLAT):
        first = tile // (GROUP * wide) * GROUP
        size = tl.minimum(high - first, GROUP)
        within = tile % (GROUP * wide)
        m, n = (first + within % size) * BM, within // size * BN
        total = tl.zeros([BM, BN], tl.float32)
        for k in range(0, K, BK):
            a = A.load([m, k])
            if KIND == "squared back":
                total = tl.dot(a, B.load([k, n]), total)
            else:
                total = tl.dot(a, B.load([n, k]).T, total)
        if HALVES:
            left, right = tl.split(tl.permute(tl.reshape(total, (BM, 2, BN // 2)), (0, 2, 1)))
            _finish(left, OUT, SAVED, AIMS, PARTS, m, n, M, N, lift, KIND, BM, BN // 2)
            _finish(right, OUT, SAVED, AIMS, PARTS, m, n + BN // 2, M, N, lift, KIND, BM, BN // 2)
        else:
            _finish(total, OUT, SAVED, AIMS, PARTS, m, n, M, N, lift, KIND, BM, BN)


@triton.jit
def _finish(
    x, OUT, SAVED, AIMS, PARTS, m, n, M, N, lift, KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """What becomes of a tile of the product before it is stored."""
    if KIND == "exponents":
        row, column = m + tl.arange(0, BM), n + tl.arange(0, BN)
        shift = tl.load(AIMS + row, mask=row < M, other=0.0) * LOG2E + lift
        power = tl.minimum(x * LOG2E - shift[:, None], TOP, propagate_nan=tl.PropagateNan.ALL)
        x = tl.where(column[None, :] < N, tl.exp2(power), 0.0)
        tl.store(PARTS + (n // BN) * M + row, tl.sum(x, 1), mask=row < M)
    elif KIND == "squared":
        x = tl.maximum(x, 0.0)
        x = x * x
    else:
        x = x * (2.0 * tl.sqrt(SAVED.load([m, n]).to(tl.float32)))
    OUT.store([m, n], x.to(OUT.dtype))


def suits(*matrices: Tensor) -> bool:
    """Whether these can be operands: two bytes a number, rows of a multiple of 16 bytes, and none empty."""
    return all(
        x.dtype in (torch.bfloat16, torch.float16) and x.stride(-1) == 1 and x.stride(-2) % 8 == 0
        and x.numel() > 0 and x.data_ptr() % 16 == 0
        for x in matrices
    )  # fmt: skip


def exponents(a: Tensor, b: Tensor, aims: Tensor, lift: float, out: Tensor) -> Tensor:
    """out = e^(a @ bᵀ - aims - lift), with `aims` a number a row; gives the sums of its rows in float32."""
    columns = triton.cdiv(len(b), EXPONENTS[1]) * (2 if EXPONENTS[-1] else 1)
    parts = torch.empty(columns, len(a), device=a.device, dtype=torch.float32)
    launch("exponents", EXPONENTS, a, b, out, out, aims, parts, lift * LOG2E.value)
    return parts.sum(0)


def squared(a: Tensor, b: Tensor) -> Tensor:
    """relu(a @ bᵀ)²."""
    out = a.new_empty(len(a), len(b))
    launch("squared", SQUARED, a, b, out, out, a, a, 0.0)
    return out


def squared_back(a: Tensor, b: Tensor, s: Tensor) -> Tensor:
    """(a @ b)·2·sqrt(s): the gradient of k where that of s = relu(k)² is a product."""
    out = torch.empty_like(s)
    launch("squared back", SQUARED_BACK, a, b, out, s, a, a, 0.0)
    return out


def launch(
    kind: str, dials: Any, a: Tensor, b: Tensor, out: Tensor, saved: Tensor, aims: Tensor, parts: Tensor,
    lift: float,
) -> None:  # fmt: skip
    """One of the above with these dials."""
    bm, bn, bk, warps, stages, each, halves = dials
    (m, n), k = out.shape, a.shape[1]
    count = triton.cdiv(m, bm) * triton.cdiv(n, bn)
    if each:
        count = min(count, each * (_processors(a.device.index) if a.is_cuda else 2))
    tall = [bk, bn] if kind == "squared back" else [bn, bk]
    tile = [bm, bn // 2 if halves else bn]
    operands = (
        TensorDescriptor.from_tensor(a, [bm, bk]), TensorDescriptor.from_tensor(b, tall),
        TensorDescriptor.from_tensor(out, tile), TensorDescriptor.from_tensor(saved, tile),
    )  # fmt: skip
    _product[(count,)](
        *operands, aims, parts, m, n, k, lift, kind, bm, bn, bk, GROUP, each > 0, halves,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


@lru_cache
def _processors(device: int | None) -> int:
    return torch.cuda.get_device_properties(device or 0).multi_processor_count
