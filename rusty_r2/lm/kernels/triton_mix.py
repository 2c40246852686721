# SPDX-License-Identifier: AGPL-3.0-or-later
# ruff: noqa: SIM102 (the outer condition is known when compiling, the inner one is not)
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
"""What lies between the matrix products of a block, each as one pass over memory, on GPUs in Triton.

`add_norm_mix`: x + add·sigmoid(gate), its LayerNorm h, and h mixed with the h of the token before (one
output per mix). A program walks over neighbouring rows (forwards, or backwards for the gradient) and
keeps what the next row needs in registers, so every row is read once.
`squared_relu`: relu(k)². Both take and give the dtype of their first tensor and compute in float32. fused.py
puts them together; TRITON_INTERPRET=1 runs them without a GPU.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

FORWARD = (4, 256, 4)
BACKWARD = (64, 256, 4)
BACKWARD_UNGATED = (128, 256, 5)
"""Rows a program walks over, channels of a warp, and rows loaded ahead (benchmarks/gpu.py sweeps them)."""


@triton.jit
def _row(X, ADD, GATE, at, inside, HAS_ADD: tl.constexpr, HAS_GATE: tl.constexpr):
    """One row of x + add*sigmoid(gate), rounded as it will be stored."""
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_ADD:
        more = tl.load(ADD + at, mask=inside, other=0.0).to(tl.float32)
        if HAS_GATE:
            more = more * tl.sigmoid(tl.load(GATE + at, mask=inside, other=0.0).to(tl.float32))
        x = (x + more).to(X.dtype.element_ty).to(tl.float32)
    return x


@triton.jit
def _moments(x, inside, C, eps):
    """x less its mean, the mean, and one over its standard deviation."""
    mean = tl.sum(x, 0) / C
    x = tl.where(inside, x - mean, 0.0)
    return x, mean, 1.0 / tl.sqrt(tl.sum(x * x, 0) / C + eps)


@triton.jit
def _mixes(M0, M1, M2, c, inside, MIXES: tl.constexpr):
    m0, m1, m2 = 0.0, 0.0, 0.0
    if MIXES > 0:
        m0 = tl.load(M0 + c, mask=inside, other=0.0).to(tl.float32)
        m1 = tl.load(M1 + c, mask=inside, other=0.0).to(tl.float32)
        if MIXES > 2:
            m2 = tl.load(M2 + c, mask=inside, other=0.0).to(tl.float32)
    return m0, m1, m2


@triton.jit
def _forward_mix(
    X, ADD, GATE, WEIGHT, BIAS, M0, M1, M2, LAST, RESET, SUM, OUT0, OUT1, OUT2, END, MEAN, RSTD,
    rows, T, C, eps,
    HAS_ADD: tl.constexpr, HAS_GATE: tl.constexpr, HAS_LAST: tl.constexpr, HAS_RESET: tl.constexpr,
    MIXES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * ROWS
    c = tl.arange(0, BLOCK)
    inside = c < C
    weight = tl.load(WEIGHT + c, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(BIAS + c, mask=inside, other=0.0).to(tl.float32)
    m0, m1, m2 = _mixes(M0, M1, M2, c, inside, MIXES)
    before = tl.zeros([BLOCK], tl.float32)
    if MIXES > 0:
        if first % T > 0:
            x = _row(X, ADD, GATE, (first - 1) * C + c, inside, HAS_ADD, HAS_GATE)
            x, mean, rstd = _moments(x, inside, C, eps)
            before = x * rstd * weight + bias
    for row in tl.range(first, tl.minimum(first + ROWS, rows), num_stages=STAGES):
        at = row * C + c
        x = _row(X, ADD, GATE, at, inside, HAS_ADD, HAS_GATE)
        if HAS_ADD:
            tl.store(SUM + at, x, mask=inside)
        x, mean, rstd = _moments(x, inside, C, eps)
        tl.store(MEAN + row, mean)
        tl.store(RSTD + row, rstd)
        h = x * rstd * weight + bias
        if MIXES == 0:
            tl.store(OUT0 + at, h, mask=inside)
        else:
            starts = row % T == 0
            before = tl.where(starts, 0.0, before)
            if HAS_LAST:
                came = tl.load(LAST + (row // T) * C + c, mask=c < tl.where(starts, C, 0), other=0.0)
                before += came.to(tl.float32)
            if HAS_RESET:
                before = before * (1.0 - tl.load(RESET + row).to(tl.float32))
            step = h - before
            tl.store(OUT0 + at, before + m0 * step, mask=inside)
            tl.store(OUT1 + at, before + m1 * step, mask=inside)
            if MIXES > 2:
                tl.store(OUT2 + at, before + m2 * step, mask=inside)
            tl.store(END + (row // T) * C + c, h, mask=c < tl.where(row % T == T - 1, C, 0))
            before = h


@triton.jit
def _backward_mix(
    SUM, ADD, GATE, WEIGHT, BIAS, M0, M1, M2, LAST, RESET, MEAN, RSTD, G_SUM, G0, G1, G2, G_END,
    G_X, G_ADD, G_GATE, PARTS, rows, T, C,
    HAS_G_SUM: tl.constexpr, HAS_GATE: tl.constexpr, HAS_LAST: tl.constexpr, HAS_RESET: tl.constexpr,
    HAS_G_END: tl.constexpr,
    MIXES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Rows from the last to the first; all loads of a row come before the first sum, so they overlap."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    stop = tl.minimum(first + ROWS, rows)
    c = tl.arange(0, BLOCK)
    inside = c < C
    weight = tl.load(WEIGHT + c, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(BIAS + c, mask=inside, other=0.0).to(tl.float32)
    m0, m1, m2 = _mixes(M0, M1, M2, c, inside, MIXES)
    zero = tl.zeros([BLOCK], tl.float32)
    g_weight, g_bias, g_m0, g_m1, g_m2, carried = zero, zero, zero, zero, zero, zero
    if MIXES > 0:
        if stop % T > 0:  # the row after this program's last belongs to the same sequence
            at = stop * C + c
            carried = (1.0 - m0) * tl.load(G0 + at, mask=inside, other=0.0).to(tl.float32)
            carried += (1.0 - m1) * tl.load(G1 + at, mask=inside, other=0.0).to(tl.float32)
            if MIXES > 2:
                carried += (1.0 - m2) * tl.load(G2 + at, mask=inside, other=0.0).to(tl.float32)
            if HAS_RESET:
                carried = carried * (1.0 - tl.load(RESET + stop).to(tl.float32))
    rstd = tl.load(RSTD + stop - 1)
    x = tl.load(SUM + (stop - 1) * C + c, mask=inside, other=0.0).to(tl.float32)
    x = tl.where(inside, (x - tl.load(MEAN + stop - 1)) * rstd, 0.0)
    for i in tl.range(first, stop, num_stages=STAGES):
        row = stop - 1 - (i - first)
        at = row * C + c
        starts = row % T == 0
        above = tl.maximum(row - 1, 0)
        g0 = tl.load(G0 + at, mask=inside, other=0.0).to(tl.float32)
        g_x = zero
        if HAS_G_SUM:
            g_x = tl.load(G_SUM + at, mask=inside, other=0.0).to(tl.float32)
        if HAS_GATE:
            add = tl.load(ADD + at, mask=inside, other=0.0).to(tl.float32)
            s = tl.sigmoid(tl.load(GATE + at, mask=inside, other=0.0).to(tl.float32))
        x_before = tl.load(SUM + above * C + c, mask=inside, other=0.0).to(tl.float32)
        rstd_before = tl.load(RSTD + above)
        x_before = tl.where(inside, (x_before - tl.load(MEAN + above)) * rstd_before, 0.0)
        g_h = g0
        if MIXES > 0:
            g1 = tl.load(G1 + at, mask=inside, other=0.0).to(tl.float32)
            before = tl.where(starts, 0.0, x_before * weight + bias)
            keep = tl.where(starts, 0.0, 1.0)
            if HAS_LAST:
                came = tl.load(LAST + (row // T) * C + c, mask=c < tl.where(starts, C, 0), other=0.0)
                before += came.to(tl.float32)
            if HAS_RESET:
                kept = 1.0 - tl.load(RESET + row).to(tl.float32)
                keep, before = keep * kept, before * kept
            step = x * weight + bias - before
            g_m0 += g0 * step
            g_m1 += g1 * step
            g_h = carried + m0 * g0 + m1 * g1
            carried = (1.0 - m0) * g0 + (1.0 - m1) * g1
            if MIXES > 2:
                g2 = tl.load(G2 + at, mask=inside, other=0.0).to(tl.float32)
                g_m2 += g2 * step
                g_h += m2 * g2
                carried += (1.0 - m2) * g2
            carried = carried * keep
            if HAS_G_END:
                g_h += tl.load(
                    G_END + (row // T) * C + c, mask=c < tl.where(row % T == T - 1, C, 0), other=0.0
                )
        g_weight += g_h * x
        g_bias += g_h
        g = g_h * weight
        g_x += (g - tl.sum(g, 0) / C - x * (tl.sum(g * x, 0) / C)) * rstd
        tl.store(G_X + at, g_x, mask=inside)
        if HAS_GATE:
            tl.store(G_ADD + at, g_x * s, mask=inside)
            tl.store(G_GATE + at, g_x * add * s * (1.0 - s), mask=inside)
        x, rstd = x_before, rstd_before
    at = tl.program_id(0).to(tl.int64) * (2 + MIXES) * C + c
    tl.store(PARTS + at, g_weight, mask=inside)
    tl.store(PARTS + at + C, g_bias, mask=inside)
    if MIXES > 0:
        tl.store(PARTS + at + 2 * C, g_m0, mask=inside)
        tl.store(PARTS + at + 3 * C, g_m1, mask=inside)
        if MIXES > 2:
            tl.store(PARTS + at + 4 * C, g_m2, mask=inside)


class _AddNormMix(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, add: Any, gate: Any, weight: Tensor, bias: Tensor, last: Any, reset: Any,
        eps: float, *mixes: Tensor,
    ) -> Any:  # fmt: skip
        B, T, C = x.shape
        rows, count = B * T, len(mixes)
        x = x.contiguous()
        add, gate, last = (None if t is None else t.contiguous() for t in (add, gate, last))
        total = x if add is None else torch.empty_like(x)
        out = [torch.empty_like(x) for _ in range(max(1, count))]
        end, mean, rstd = (x.new_empty(n, dtype=torch.float32) for n in ((B, C), (rows,), (rows,)))
        flags = None if reset is None else as_bytes(reset)
        if rows:
            lines, block, dials = _dials(FORWARD, rows, C)
            _forward_mix[(lines,)](
                x, _or(add, x), _or(gate, x), weight, bias, *mixes, *(x,) * (3 - count), _or(last, x),
                _or(flags, x), total, *out, *(x,) * (3 - len(out)), end, mean, rstd, rows, T, C, eps,
                add is not None, gate is not None, last is not None, flags is not None, count,
                FORWARD[0], block, **dials,
            )  # fmt: skip
        kept = add if gate is not None else None
        ctx.save_for_backward(total, kept, gate, weight, bias, last, flags, mean, rstd, *mixes)
        ctx.added = add is not None
        ctx.set_materialize_grads(False)
        return total, end, *out

    @staticmethod
    def backward(ctx: Any, g_sum: Any, g_end: Any, *g_out: Any) -> Any:
        total, add, gate, weight, bias, last, flags, mean, rstd, *mixes = ctx.saved_tensors
        B, T, C = total.shape
        rows, count = B * T, len(mixes)
        g_out = tuple(torch.zeros_like(total) if g is None else g.contiguous() for g in g_out)
        g_sum, g_end = (None if g is None else g.contiguous() for g in (g_sum, g_end))
        g_x = torch.empty_like(total)
        g_add, g_gate = (None, None) if gate is None else (torch.empty_like(total), torch.empty_like(total))
        chosen = BACKWARD_UNGATED if gate is None else BACKWARD
        lines, block, dials = _dials(chosen, rows, C)
        parts = torch.empty(lines, 2 + count, C, device=total.device, dtype=torch.float32)
        if rows:
            _backward_mix[(lines,)](
                total, _or(add, total), _or(gate, total), weight, bias, *mixes, *(total,) * (3 - count),
                _or(last, total), _or(flags, total), mean, rstd, _or(g_sum, total), *g_out,
                *(g_x,) * (3 - len(g_out)), _or(g_end, total), g_x, _or(g_add, total), _or(g_gate, total),
                parts, rows, T, C, g_sum is not None, gate is not None, last is not None,
                flags is not None, g_end is not None, count, chosen[0], block, **dials,
            )  # fmt: skip
        sums = parts.sum(0)
        g_mixes = [g.to(m.dtype) for g, m in zip(sums[2:], mixes, strict=True)]
        g_last = None
        if last is not None and ctx.needs_input_grad[5]:
            g_last = sum((1 - m.float()) * g[:, 0].float() for m, g in zip(mixes, g_out, strict=True))
            g_last = (g_last if flags is None else g_last * (1 - flags[:, :1].float())).to(last.dtype)
        g_add = g_x if ctx.added and g_add is None else g_add
        g_norm = sums[0].to(weight.dtype), sums[1].to(bias.dtype)
        return g_x, g_add, g_gate, *g_norm, g_last, None, None, *g_mixes


def add_norm_mix(
    x: Tensor, add: Tensor | None, gate: Tensor | None, norm: torch.nn.LayerNorm, mixes: tuple[Tensor, ...],
    last: Tensor | None = None, reset: Tensor | None = None,
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    """(x + add*sigmoid(gate) =: x, the last tokens' h in float32, [h] or per mix h mixed with the h before).

    h is the LayerNorm of that x; the last tokens' h is there only where there are mixes.
    """
    total, end, *out = _AddNormMix.apply(x, add, gate, norm.weight, norm.bias, last, reset, norm.eps, *mixes)
    return total, end, out


def as_bytes(reset: Tensor) -> Tensor:
    """Flags as the kernels read them; no copy where they are whole."""
    reset = reset.contiguous()
    return reset.view(torch.uint8) if reset.dtype == torch.bool else reset.to(torch.uint8)


def _dials(dials: tuple[int, int, int], rows: int, channels: int) -> tuple[int, int, dict[str, int]]:
    """How many programs, how many channels each, and the compiler's options."""
    block = triton.next_power_of_2(channels)
    warps = max(1, min(16, block // dials[1]))
    return triton.cdiv(rows, dials[0]), block, {"STAGES": dials[2], "num_warps": warps}


# ------------------------------------------------------------------ element by element


@triton.jit
def _squared(K, OUT, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    k = tl.maximum(tl.load(K + at, mask=inside, other=0.0).to(tl.float32), 0.0)
    tl.store(OUT + at, k * k, mask=inside)


@triton.jit
def _squared_back(S, G, GK, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    k = tl.sqrt(tl.load(S + at, mask=inside, other=0.0).to(tl.float32))
    tl.store(GK + at, 2.0 * k * tl.load(G + at, mask=inside, other=0.0).to(tl.float32), mask=inside)


BLOCK = 2048


def square(k: Tensor, out: Tensor) -> Tensor:
    """relu(k)², written to `out`, which may be k itself."""
    _squared[(triton.cdiv(k.numel(), BLOCK),)](k, out, k.numel(), BLOCK, num_warps=8)
    return out


def square_back(s: Tensor, g: Tensor, out: Tensor) -> Tensor:
    """The gradient of k from s = relu(k)² and its gradient g, written to `out`, which may be g itself."""
    _squared_back[(triton.cdiv(s.numel(), BLOCK),)](s, g, out, s.numel(), BLOCK, num_warps=8)
    return out


class _SquaredRelu(torch.autograd.Function):
    """Keeps only relu(k)², which the product after it keeps anyway."""

    @staticmethod
    def forward(ctx: Any, k: Tensor) -> Tensor:
        k = k.contiguous()
        s = square(k, torch.empty_like(k))
        ctx.save_for_backward(s)
        return s

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (s,) = ctx.saved_tensors
        return square_back(s, grads[0].contiguous(), torch.empty_like(s))


def squared_relu(k: Tensor) -> Tensor:
    """relu(k)**2."""
    return _SquaredRelu.apply(k)


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    """A kernel's pointer must point somewhere, also when it is not read."""
    return other if x is None else x
