# SPDX-License-Identifier: AGPL-3.0-or-later
# ruff: noqa: SIM102 (the outer condition is known when compiling, the inner one is not)
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-any-return"
"""The weighted average of wkv.py on GPUs, in Triton.

A program sweeps one piece of time for one block of channels. Time is cut into pieces so that there are
enough programs to keep the memory busy: a first pass finds what each piece adds to an empty state, a
small one carries the states over the borders, and the main pass starts every piece from the right state.
The way back does the same in reverse. Of each step it keeps log D (the denominator) in float32 and
dy/dw in k's own precision; k, v, y and their gradients may be bfloat16, all arithmetic is float32.
TRITON_INTERPRET=1 runs these kernels without a GPU (the tests do).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rusty_r2.lm.kernels.triton_mix import as_bytes

EMPTY: tl.constexpr = tl.constexpr(-1e38)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
"""Exponents are kept for powers of two, which a GPU has an instruction for; outside they are natural."""
BLOCK = 128
"""Channels of a program: one warp, two neighbours a thread."""
STAGES = 4
"""Tokens on their way from memory while one is worked on."""
PROGRAMS = 4096
"""Programs wanted at once: a warp each, some thirty for every multiprocessor of a large GPU."""


@triton.jit
def _merge(a, b):
    """The weights of 2^a and 2^b under their maximum, and that maximum."""
    d = a - b
    e = tl.exp2(-tl.abs(d))
    return tl.where(d >= 0, 1.0, e), tl.where(d >= 0, e, 1.0), tl.maximum(a, b)


@triton.jit
def _piece_ends(
    W, K, V, RESET, ENDS, T, C, L, N, HAS_RESET: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """What each piece makes of an empty state: aa, bb, pp, d(aa)/dw, d(bb)/dw, and 1 if nothing was reset."""
    piece = tl.program_id(0).to(tl.int64)
    b, n = piece // N, piece % N
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    w = tl.load(W + c, mask=inside, other=-1.0) * LOG2E
    aa = tl.zeros([BC], tl.float32)
    bb, da, db = aa, aa, aa
    pp = aa + EMPTY
    alive = aa + 1.0
    for t in tl.range(n * L, tl.minimum(n * L + L, T), num_stages=STAGES):
        if HAS_RESET:
            gone = tl.load(RESET + b * T + t) != 0
            alive = tl.where(gone, 0.0, alive)
            pp = tl.where(gone, EMPTY, pp)
        at = (b * T + t) * C + c
        k = tl.load(K + at, mask=inside, other=0.0).to(tl.float32) * LOG2E
        v = tl.load(V + at, mask=inside, other=0.0).to(tl.float32)
        e1, e2, pp = _merge(w + pp, k)
        da, db = e1 * (aa + da), e1 * (bb + db)
        aa, bb = e1 * aa + e2 * v, e1 * bb + e2
    at = piece * 6 * C + c
    tl.store(ENDS + at, aa, mask=inside)
    tl.store(ENDS + at + C, bb, mask=inside)
    tl.store(ENDS + at + 2 * C, pp, mask=inside)
    tl.store(ENDS + at + 3 * C, da, mask=inside)
    tl.store(ENDS + at + 4 * C, db, mask=inside)
    tl.store(ENDS + at + 5 * C, alive, mask=inside)


@triton.jit
def _carry(W, START, ENDS, STARTS, B, C, L, N, HAS_START: tl.constexpr, BC: tl.constexpr):
    """The state before each piece, from the first state and what each piece adds."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    w = tl.load(W + c, mask=inside, other=-1.0) * LOG2E
    aa = tl.zeros([BC], tl.float32)
    bb, da, db = aa, aa, aa
    pp = aa + EMPTY
    if HAS_START:
        aa = tl.load(START + b * C + c, mask=inside, other=0.0)
        bb = tl.load(START + (B + b) * C + c, mask=inside, other=0.0)
        pp = tl.maximum(tl.load(START + (2 * B + b) * C + c, mask=inside, other=EMPTY) * LOG2E, EMPTY)
    for n in range(N):
        at = (b * N + n) * 5 * C + c
        tl.store(STARTS + at, aa, mask=inside)
        tl.store(STARTS + at + C, bb, mask=inside)
        tl.store(STARTS + at + 2 * C, pp, mask=inside)
        tl.store(STARTS + at + 3 * C, da, mask=inside)
        tl.store(STARTS + at + 4 * C, db, mask=inside)
        if n + 1 < N:
            at = (b * N + n) * 6 * C + c
            alive = tl.load(ENDS + at + 5 * C, mask=inside, other=1.0)
            e1, e2, pp = _merge(
                tl.where(alive > 0, pp + L * w, EMPTY), tl.load(ENDS + at + 2 * C, mask=inside, other=0.0)
            )
            e1 = e1 * alive
            da = e1 * (da + L * aa) + e2 * tl.load(ENDS + at + 3 * C, mask=inside, other=0.0)
            db = e1 * (db + L * bb) + e2 * tl.load(ENDS + at + 4 * C, mask=inside, other=0.0)
            aa = e1 * aa + e2 * tl.load(ENDS + at, mask=inside, other=0.0)
            bb = e1 * bb + e2 * tl.load(ENDS + at + C, mask=inside, other=0.0)


@triton.jit
def _forward(
    W, U, K, V, R, RESET, STARTS, Y, OUT, LOG_D, SLOPE, END, END_SLOPE, B, T, C, L, N,
    HAS_RESET: tl.constexpr, GATED: tl.constexpr, TRAIN: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0).to(tl.int64)
    b, n = piece // N, piece % N
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    w = tl.load(W + c, mask=inside, other=-1.0) * LOG2E
    u = tl.load(U + c, mask=inside, other=0.0) * LOG2E
    at = piece * 5 * C + c
    aa = tl.load(STARTS + at, mask=inside, other=0.0)
    bb = tl.load(STARTS + at + C, mask=inside, other=0.0)
    pp = tl.load(STARTS + at + 2 * C, mask=inside, other=EMPTY)
    da = tl.load(STARTS + at + 3 * C, mask=inside, other=0.0)
    db = tl.load(STARTS + at + 4 * C, mask=inside, other=0.0)
    for t in tl.range(n * L, tl.minimum(n * L + L, T), num_stages=STAGES):
        if HAS_RESET:
            pp = tl.where(tl.load(RESET + b * T + t) != 0, EMPTY, pp)
        at = (b * T + t) * C + c
        k = tl.load(K + at, mask=inside, other=0.0).to(tl.float32) * LOG2E
        v = tl.load(V + at, mask=inside, other=0.0).to(tl.float32)
        e1, e2, top = _merge(pp, u + k)
        d = e1 * bb + e2
        share = 1.0 / d
        y = (e1 * aa + e2 * v) * share
        if GATED:
            gate = tl.sigmoid(tl.load(R + at, mask=inside, other=0.0).to(tl.float32))
            tl.store(OUT + at, gate * y, mask=inside)
        if TRAIN or not GATED:
            tl.store(Y + at, y, mask=inside)
        if TRAIN:
            tl.store(LOG_D + at, top + tl.log2(d), mask=inside)
            tl.store(SLOPE + at, (da - db * y) * (e1 * share), mask=inside)
        e1, e2, pp = _merge(w + pp, k)
        da, db = e1 * (aa + da), e1 * (bb + db)
        aa, bb = e1 * aa + e2 * v, e1 * bb + e2
    if n == N - 1:
        tl.store(END + b * C + c, aa, mask=inside)
        tl.store(END + (B + b) * C + c, bb, mask=inside)
        tl.store(END + (2 * B + b) * C + c, pp / LOG2E, mask=inside)
        if TRAIN:
            tl.store(END_SLOPE + b * C + c, da, mask=inside)
            tl.store(END_SLOPE + (B + b) * C + c, db, mask=inside)


@triton.jit
def _piece_ends_back(
    W, R, Y, LOG_D, GY, RESET, ENDS, T, C, L, N,
    HAS_RESET: tl.constexpr, GATED: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What each piece, read backwards, adds to GA and GB, under one exponent; 1 if nothing was reset."""
    piece = tl.program_id(0).to(tl.int64)
    b, n = piece // N, piece % N
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    w = tl.load(W + c, mask=inside, other=-1.0) * LOG2E
    ga = tl.zeros([BC], tl.float32)
    gb = ga
    pp = ga + EMPTY
    alive = ga + 1.0
    stop = tl.minimum(n * L + L, T)
    for i in tl.range(n * L, stop, num_stages=STAGES):
        t = stop - 1 - (i - n * L)
        at = (b * T + t) * C + c
        y = tl.load(Y + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(GY + at, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            g = g * tl.sigmoid(tl.load(R + at, mask=inside, other=0.0).to(tl.float32))
        e1, e2, pp = _merge(w + pp, -tl.load(LOG_D + at, mask=inside, other=0.0))
        ga, gb = e1 * ga + e2 * g, e1 * gb - e2 * g * y
        if HAS_RESET:
            gone = tl.load(RESET + b * T + t) != 0
            alive = tl.where(gone, 0.0, alive)
            pp = tl.where(gone, EMPTY, pp)
    at = piece * 4 * C + c
    tl.store(ENDS + at, ga, mask=inside)
    tl.store(ENDS + at + C, gb, mask=inside)
    tl.store(ENDS + at + 2 * C, pp, mask=inside)
    tl.store(ENDS + at + 3 * C, alive, mask=inside)


@triton.jit
def _carry_back(W, END, G_END, ENDS, STARTS, B, T, C, L, N, HAS_G_END: tl.constexpr, BC: tl.constexpr):
    """GA, GB as they come into each piece from later ones."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    w = tl.load(W + c, mask=inside, other=-1.0) * LOG2E
    ga = tl.zeros([BC], tl.float32)
    gb = ga
    pp = ga + EMPTY
    if HAS_G_END:
        ga = tl.load(G_END + b * C + c, mask=inside, other=0.0)
        gb = tl.load(G_END + (B + b) * C + c, mask=inside, other=0.0)
        pp = -tl.load(END + (2 * B + b) * C + c, mask=inside, other=0.0) * LOG2E
    for i in range(N):
        n = N - 1 - i
        at = (b * N + n) * 3 * C + c
        tl.store(STARTS + at, ga, mask=inside)
        tl.store(STARTS + at + C, gb, mask=inside)
        tl.store(STARTS + at + 2 * C, pp, mask=inside)
        if n > 0:
            at = (b * N + n) * 4 * C + c
            alive = tl.load(ENDS + at + 3 * C, mask=inside, other=1.0)
            steps = tl.minimum(n * L + L, T) - n * L
            e1, e2, pp = _merge(
                tl.where(alive > 0, pp + steps * w, EMPTY), tl.load(ENDS + at + 2 * C, mask=inside, other=0.0)
            )
            e1 = e1 * alive
            ga = e1 * ga + e2 * tl.load(ENDS + at, mask=inside, other=0.0)
            gb = e1 * gb + e2 * tl.load(ENDS + at + C, mask=inside, other=0.0)


@triton.jit
def _backward(
    W, U, K, V, R, Y, LOG_D, SLOPE, GY, RESET, STARTS, START, G_END, END_SLOPE,
    GW, GU, GK, GV, GR, G_START, B, T, C, L, N,
    HAS_RESET: tl.constexpr, GATED: tl.constexpr, HAS_START: tl.constexpr, HAS_G_END: tl.constexpr,
    BC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0).to(tl.int64)
    b, n = piece // N, piece % N
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    w = tl.load(W + c, mask=inside, other=-1.0) * LOG2E
    u = tl.load(U + c, mask=inside, other=0.0) * LOG2E
    at = piece * 3 * C + c
    ga = tl.load(STARTS + at, mask=inside, other=0.0)
    gb = tl.load(STARTS + at + C, mask=inside, other=0.0)
    pp = tl.load(STARTS + at + 2 * C, mask=inside, other=EMPTY)
    gw = tl.zeros([BC], tl.float32)
    gu = gw
    if HAS_G_END:
        if n == N - 1:
            gw += ga * tl.load(END_SLOPE + b * C + c, mask=inside, other=0.0)
            gw += gb * tl.load(END_SLOPE + (B + b) * C + c, mask=inside, other=0.0)
    stop = tl.minimum(n * L + L, T)
    for i in tl.range(n * L, stop, num_stages=STAGES):
        t = stop - 1 - (i - n * L)
        at = (b * T + t) * C + c
        k = tl.load(K + at, mask=inside, other=0.0).to(tl.float32) * LOG2E
        v = tl.load(V + at, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(Y + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(GY + at, mask=inside, other=0.0).to(tl.float32)
        log_d = tl.load(LOG_D + at, mask=inside, other=0.0)
        slope = tl.load(SLOPE + at, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            gate = tl.sigmoid(tl.load(R + at, mask=inside, other=0.0).to(tl.float32))
            tl.store(GR + at, g * y * gate * (1.0 - gate), mask=inside)
            g = g * gate
        own = g * tl.exp2(tl.minimum(u + k - log_d, 0.0))
        later = tl.exp2(tl.minimum(k + pp, 0.0))
        lift = own * (v - y)
        tl.store(GK + at, lift + later * (ga * v + gb), mask=inside)
        tl.store(GV + at, own + later * ga, mask=inside)
        gu += lift
        gw += g * slope
        e1, e2, pp = _merge(w + pp, -log_d)
        ga, gb = e1 * ga + e2 * g, e1 * gb - e2 * g * y
        if HAS_RESET:
            pp = tl.where(tl.load(RESET + b * T + t) != 0, EMPTY, pp)
    tl.store(GW + piece * C + c, gw, mask=inside)
    tl.store(GU + piece * C + c, gu, mask=inside)
    if HAS_START:
        if n == 0:
            p0 = tl.load(START + (2 * B + b) * C + c, mask=inside, other=EMPTY)
            reach = tl.exp2(p0 * LOG2E + pp)
            g0, g1 = reach * ga, reach * gb
            a0 = tl.load(START + b * C + c, mask=inside, other=0.0)
            b0 = tl.load(START + (B + b) * C + c, mask=inside, other=0.0)
            tl.store(G_START + b * C + c, g0, mask=inside)
            tl.store(G_START + (B + b) * C + c, g1, mask=inside)
            tl.store(G_START + (2 * B + b) * C + c, g0 * a0 + g1 * b0, mask=inside)


def pieces(batch: int, time: int, channels: int) -> tuple[int, int]:
    """(how many pieces, how long each): enough programs for a large GPU, none shorter than 32 tokens."""
    wanted = max(1, min(-(-time // 32), PROGRAMS // max(1, batch * triton.cdiv(channels, BLOCK))))
    length = -(-time // wanted)
    return -(-time // length), length


def forward(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, start: Tensor | None, reset: Tensor | None, train: bool,
    r: Tensor | None = None, out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y, end state, log D, dy/dw, nothing, d(end state)/dw; with `r`: sigmoid(r)·y in `out`, too."""
    B, T, C = k.shape
    count, length = pieces(B, T, C)
    blocks = triton.cdiv(C, BLOCK)
    flags = None if reset is None else as_bytes(reset)
    starts = w.new_empty(B, count, 5, C)
    ends = w.new_empty(B, count, 6, C) if count > 1 else starts
    y, end = torch.empty_like(k), w.new_empty(3, B, C)
    log_d = w.new_empty((B, T, C) if train else (0,))
    slope = k.new_empty((B, T, C) if train else (0,))
    end_slope = w.new_empty((2, B, C) if train else (0,))
    cut = (T, C, length, count)
    if count > 1:
        _piece_ends[(B * count, blocks)](
            w, k, v, _or(flags, w), ends, *cut, flags is not None, BLOCK, STAGES, num_warps=1
        )
    _carry[(B, blocks)](
        w, _or(start, w), ends, starts, B, C, length, count, start is not None, BLOCK, num_warps=1
    )
    _forward[(B * count, blocks)](
        w, u, k, v, _or(r, k), _or(flags, w), starts, y, _or(out, k), log_d, slope, end, end_slope, B, *cut,
        flags is not None, r is not None, train, BLOCK, STAGES, num_warps=1,
    )  # fmt: skip
    return y, end, log_d, slope, k.new_empty(0), end_slope


def backward(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, start: Tensor | None, reset: Tensor | None, y: Tensor,
    end: Tensor, kept: list[Tensor], gy: Tensor, g_end: Tensor | None, r: Tensor | None = None,
    gr: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of w, u, k, v and the start; with `r`, gy is sigmoid(r)·y's, and r's gradient goes to gr."""
    B, T, C = k.shape
    count, length = pieces(B, T, C)
    blocks = triton.cdiv(C, BLOCK)
    flags = None if reset is None else as_bytes(reset)
    log_d, slope, _, end_slope = kept
    starts = w.new_empty(B, count, 3, C)
    ends = w.new_empty(B, count, 4, C) if count > 1 else starts
    gk, gv = torch.empty_like(k), torch.empty_like(v)
    g_wu = w.new_empty(2, B * count, C)
    g_start = w.new_empty(0) if start is None else torch.empty_like(start)
    cut = (T, C, length, count)
    if count > 1:
        _piece_ends_back[(B * count, blocks)](
            w, _or(r, k), y, log_d, gy, _or(flags, w), ends, *cut, flags is not None, r is not None, BLOCK,
            STAGES, num_warps=1,
        )  # fmt: skip
    _carry_back[(B, blocks)](
        w, end, _or(g_end, w), ends, starts, B, *cut, g_end is not None, BLOCK, num_warps=1
    )
    _backward[(B * count, blocks)](
        w, u, k, v, _or(r, k), y, log_d, slope, gy, _or(flags, w), starts, _or(start, w), _or(g_end, w),
        end_slope, *g_wu, gk, gv, _or(gr, k), g_start, B, *cut,
        flags is not None, r is not None, start is not None, g_end is not None, BLOCK, STAGES, num_warps=1,
    )  # fmt: skip
    return *g_wu.sum(1), gk, gv, g_start


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, w: Tensor, u: Tensor, k: Tensor, v: Tensor, r: Tensor, start: Any, reset: Any, train: bool
    ) -> Any:
        out = torch.empty_like(k)
        y, end, *kept = forward(w, u, k, v, start, reset, train, r, out)
        ctx.save_for_backward(w, u, k, v, r, start, reset, y, end, *kept)
        ctx.set_materialize_grads(False)
        return out, end

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        w, u, k, v, r, start, reset, y, end, *kept = ctx.saved_tensors
        g, g_end = (None if g is None else g.contiguous() for g in grads)
        g, gr = torch.zeros_like(y) if g is None else g, torch.empty_like(r)
        *made, g_start = backward(w, u, k, v, start, reset, y, end, kept, g, g_end, r, gr)
        return *made, gr, None if start is None else g_start, None, None


def gated(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, r: Tensor, state: Tensor | None, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(sigmoid(r)·y, state) with y and state as wkv.wkv gives them."""
    start = None if state is None else state.float()
    inputs = [x if x is None else x.contiguous() for x in (w, u, k, v, r, start)]
    train = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    return _Gated.apply(*inputs, reset, train)


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    """A kernel's pointer must point somewhere, also when it is not read."""
    return other if x is None else x
