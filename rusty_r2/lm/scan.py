# SPDX-License-Identifier: AGPL-3.0-or-later
"""The weighted average of wkv.py in plain PyTorch: any device, any dtype, no compiler.

A scan in two levels takes 2*sqrt(T) steps instead of T: time is cut into pieces, all pieces are swept
at once from an empty state, then the states at the pieces' borders are carried through, and each
position adds what came in over its border. The way back is the same scan on reversed time, with the
gradients of wkv.py's docstring. About twenty times faster than a loop over tokens at T = 1,024.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

EMPTY = -1e38
"""pp of a state that has seen nothing"""


class Sums(NamedTuple):
    """Two sums under one exponent: a*e^p and b*e^p."""

    a: Tensor
    b: Tensor
    p: Tensor

    def after(self, decay: Tensor, a: Tensor, b: Tensor, p: Tensor) -> Sums:
        """These sums decayed by e^decay, plus (a, b) e^p."""
        old = decay + self.p
        top = torch.maximum(old, p)
        e1, e2 = (old - top).exp_(), (p - top).exp_()
        return Sums((self.a * e1).addcmul_(e2, a), (self.b * e1).addcmul_(e2, b), top)

    def emptied(self, where: Tensor) -> Sums:
        """Nothing left where `where` is true."""
        a, b = self.a.masked_fill(where, 0.0), self.b.masked_fill(where, 0.0)
        return Sums(a, b, self.p.masked_fill(where, EMPTY))


def nothing(like: Tensor) -> Sums:
    zero = torch.zeros_like(like)
    return Sums(zero, zero, torch.full_like(like, EMPTY))


def before(w: Tensor, items: Sums, start: Sums | None, reset: Tensor | None) -> tuple[Sums, Sums]:
    """For each t the decayed sums of all items before t ([B,T,C]), and the sums after the last ([B,C])."""
    batch, time, channels = items.p.shape
    length = max(1, math.isqrt(time))
    pad = -time % length
    pieces = (time + pad) // length
    a, b = (F.pad(x, (0, 0, pad, 0)).view(batch, pieces, length, channels) for x in items[:2])
    p = F.pad(items.p, (0, 0, pad, 0), value=EMPTY).view(batch, pieces, length, channels)
    flags = None if reset is None else F.pad(reset, (pad, 0)).view(batch, pieces, length, 1)

    local = nothing(p[:, :, 0])
    seen = []
    for i in range(length):
        local = local if flags is None else local.emptied(flags[:, :, i])
        seen.append(local)
        local = local.after(w, a[:, :, i], b[:, :, i], p[:, :, i])
    inside = Sums(*(torch.stack(x, 2) for x in zip(*seen, strict=True)))

    border = nothing(p[:, 0, 0]) if start is None else start
    borders = []
    for n in range(pieces):
        borders.append(border)
        left = border if flags is None else border.emptied(flags[:, n].any(1))
        steps = length - pad if n == 0 else length
        border = left.after(steps * w, *(x[:, n] for x in local))
    came = Sums(*(torch.stack(x, 1)[:, :, None] for x in zip(*borders, strict=True)))

    age = torch.arange(length, device=w.device, dtype=w.dtype).repeat(pieces, 1)
    age[0] -= pad
    decay = age.clamp_(min=0)[None, :, :, None] * w
    came = Sums(came.a, came.b, came.p + decay)
    if flags is not None:
        came = Sums(came.a, came.b, came.p.masked_fill(flags.cumsum(2) > 0, EMPTY))
    top = torch.maximum(came.p, inside.p)
    e0, e1 = (came.p - top).exp_(), (inside.p - top).exp_()
    whole = Sums((inside.a * e1).addcmul_(e0, came.a), (inside.b * e1).addcmul_(e0, came.b), top)
    flat = (x.reshape(batch, time + pad, channels)[:, pad:] for x in whole)
    return Sums(*flat), border


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, w: Tensor, u: Tensor, k: Tensor, v: Tensor, start: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        first = None if start is None else Sums(*start)
        past, end = before(w, Sums(v, torch.ones_like(v), k), first, reset)
        top = torch.maximum(u + k, past.p)
        e1, e2 = (past.p - top).exp_(), (u + k - top).exp_()
        inverse = 1 / (e1 * past.b + e2)
        y = (e1 * past.a + e2 * v) * inverse
        ended = torch.stack(end)
        ctx.save_for_backward(w, u, k, v, start, reset, *past, top, inverse, y, ended)
        ctx.set_materialize_grads(False)
        return y, ended

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        w, u, k, v, start, reset, a, b, p, top, inverse, y, ended = ctx.saved_tensors
        gy = torch.zeros_like(y) if grads[0] is None else grads[0]
        g_end = None if grads[1] is None else Sums(grads[1][0], grads[1][1], -ended[2])
        scaled = gy * inverse
        turned = Sums(*(x.flip(1) for x in (scaled, -scaled * y, -top)))
        # a reset before t cuts the way back after t: in reversed time it comes one position later
        cut = None if reset is None else F.pad(reset.flip(1), (1, -1))
        later, first = before(w, turned, g_end, cut)
        later = Sums(*(x.flip(1) for x in later))
        own = scaled * (u + k - top).exp_()
        weight = (k + later.p).clamp_(max=0).exp_()
        lift = own * (v - y)
        gk = lift + weight * (later.a * v + later.b)
        gv = own + weight * later.a
        kept = (w + later.p + p).clamp_(max=0).exp_() * (later.a * a + later.b * b)
        g_start = None
        if start is not None:
            first = first if reset is None else first.emptied(reset[:, :1])
            reach = (start[2] + first.p).clamp_(max=0).exp_()
            ga, gb = reach * first.a, reach * first.b
            g_start = torch.stack([ga, gb, ga * start[0] + gb * start[1]])
        return kept.sum((0, 1)), lift.sum((0, 1)), gk, gv, g_start, None


def wkv(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, state: Tensor | None = None, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As wkv.wkv."""
    real = torch.float64 if k.dtype == torch.float64 else torch.float32
    start = None if state is None else state.to(real)
    y, end = _Scan.apply(w.to(real), u.to(real), k.to(real), v.to(real), start, reset)
    return y.to(k.dtype), end
