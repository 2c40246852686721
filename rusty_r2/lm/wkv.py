# SPDX-License-Identifier: AGPL-3.0-or-later
"""RWKV-4's weighted average of the past, behind one function with several kernels.

    A_t = e^w A_{t-1} + e^{k_t} v_t      B_t = e^w B_{t-1} + e^{k_t}
    y_t = (A_{t-1} + e^{u+k_t} v_t) / (B_{t-1} + e^{u+k_t})

w < 0 is the log decay and u the bonus of the present token, both per channel. The sums are kept as
A = aa e^pp and B = bb e^pp (state = aa, bb, pp stacked, [3,B,C]), so no k is too large. With D_t the
denominator and GA, GB the gradients of A, B, the way back is one reverse recurrence:

    GA_{t-1} = e^w GA_t + gy_t/D_t       GB_{t-1} = e^w GB_t - gy_t y_t/D_t
    gv_t = gy_t e^{u+k_t}/D_t + e^{k_t} GA_t
    gk_t = gy_t e^{u+k_t}/D_t (v_t - y_t) + e^{k_t} (GA_t v_t + GB_t)

`wkv` takes the kernel that suits the tensors: Triton on a GPU, C++ on a processor with a compiler,
else `scan.py`, which is plain PyTorch and runs anywhere. RUSTY_WKV=scan (or native, triton) insists.
Triton and C++ are one torch operator, so torch.compile passes over them without a break.
The gradient of a final state treats pp as a constant: what follows depends on A and B alone.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rusty_r2.errors import ConfigError
from rusty_r2.lm import native, scan

_SOURCE = Path(__file__).parent / "kernels" / "wkv.cpp"
_FLAGS = (
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-ffinite-math-only",
    "-fassociative-math",
)


def wkv(
    w: Tensor,
    u: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None = None,
    reset: Tensor | None = None,
    *,
    kernel: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(y [B,T,C], state [3,B,C]) from w, u [C], k, v [B,T,C]; `reset` [B,T]: forget before this token."""
    kind = kernel or os.environ.get("RUSTY_WKV") or best(k)
    if kind == "scan":
        return scan.wkv(w, u, k, v, state, reset)
    if kind not in ("native", "triton"):
        raise ConfigError(f"RUSTY_WKV={kind} is not a kernel; known are native, triton and scan")
    real = torch.float64 if k.dtype == torch.float64 else torch.float32
    train = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (w, u, k, v, state))
    start = None if state is None else state.to(real)
    y, end, *_ = _forward(w.to(real), u.to(real), k, v, start, reset, train, kind)
    return y, end


def best(k: Tensor) -> str:
    """The fastest kernel there is for this tensor."""
    if k.is_cuda:
        return "triton" if has_triton() and k.dtype != torch.float64 else "scan"
    return "native" if k.device.type == "cpu" and _library() is not None else "scan"


@lru_cache
def has_triton() -> bool:
    return find_spec("triton") is not None


# ------------------------------------------------------------------ one operator for C++ and Triton


@torch.library.custom_op("rusty::wkv", mutates_args=())
def _forward(
    w: Tensor,
    u: Tensor,
    k: Tensor,
    v: Tensor,
    start: Tensor | None,
    reset: Tensor | None,
    train: bool,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """y, end state, and four tensors of the kernel's own that its way back needs."""
    w, u, k, v = w.contiguous(), u.contiguous(), k.contiguous(), v.contiguous()
    start = None if start is None else start.contiguous()
    if kind == "triton":
        from rusty_r2.lm.kernels.triton_wkv import forward

        return forward(w, u, k, v, start, reset, train)
    return _native_forward(w, u, k, v, start, reset, train)


@_forward.register_fake
def _(
    w: Tensor,
    u: Tensor,
    k: Tensor,
    v: Tensor,
    start: Tensor | None,
    reset: Tensor | None,
    train: bool,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, time, channels = k.shape
    full = (batch, time, channels) if train else (0,)
    first = k.new_empty(full, dtype=w.dtype)
    kept = (
        (first, k.new_empty(full), k.new_empty(0))
        if kind == "triton"
        else (first, first.clone(), first.clone())
    )
    slope = w.new_empty((2, batch, channels) if train else (0,))
    return torch.empty_like(k), w.new_empty(3, batch, channels), *kept, slope


@torch.library.custom_op("rusty::wkv_backward", mutates_args=())
def _backward(
    w: Tensor,
    u: Tensor,
    k: Tensor,
    v: Tensor,
    start: Tensor | None,
    reset: Tensor | None,
    y: Tensor,
    end: Tensor,
    kept: list[Tensor],
    gy: Tensor,
    g_end: Tensor | None,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of w, u, k, v and of the starting state."""
    w, u, k, v, gy = (x.contiguous() for x in (w, u, k, v, gy))
    start, g_end = (None if x is None else x.contiguous() for x in (start, g_end))
    if kind == "triton":
        from rusty_r2.lm.kernels.triton_wkv import backward

        gw, gu, gk, gv, g_start = backward(w, u, k, v, start, reset, y, end, kept, gy, g_end)
        return gw.clone(), gu.clone(), gk, gv, g_start  # an operator's results share no memory
    return _native_backward(w, u, k, v, start, reset, y, end, kept, gy, g_end)


@_backward.register_fake
def _(
    w: Tensor,
    u: Tensor,
    k: Tensor,
    v: Tensor,
    start: Tensor | None,
    reset: Tensor | None,
    y: Tensor,
    end: Tensor,
    kept: list[Tensor],
    gy: Tensor,
    g_end: Tensor | None,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    g_start = w.new_empty(0) if start is None else torch.empty_like(start)
    return torch.empty_like(w), torch.empty_like(u), torch.empty_like(k), torch.empty_like(v), g_start


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    *tensors, _, ctx.kind = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, gy: Tensor | None, g_end: Tensor | None, *_: Any) -> tuple[Any, ...]:
    w, u, k, v, start, reset, y, end, *kept = ctx.saved_tensors
    gy = torch.zeros_like(y) if gy is None else gy
    made = torch.ops.rusty.wkv_backward(w, u, k, v, start, reset, y, end, kept, gy, g_end, ctx.kind)
    *grads, g_start = made
    return *grads, None if start is None else g_start, None, None, None


_forward.register_autograd(_gradients, setup_context=_remember)


# ------------------------------------------------------------------ the C++ form


@lru_cache
def _library() -> ctypes.CDLL | None:
    found = native.library(_SOURCE, flags=_FLAGS)
    if found is None:
        return None
    size, pointer = ctypes.c_int64, ctypes.c_void_p
    for real in ("f32", "f64"):
        getattr(found, f"wkv_forward_{real}").argtypes = [size] * 3 + [ctypes.c_int] + [pointer] * 12
        getattr(found, f"wkv_backward_{real}").argtypes = [size] * 3 + [pointer] * 19
    return found


def _call(name: str, real: torch.dtype, sizes: tuple[int, ...], *tensors: Tensor | None) -> None:
    found = _library()
    if found is None:
        raise ConfigError(
            "RUSTY_WKV=native needs a C++ compiler (c++, g++ or clang++) and RUSTY_NATIVE unset"
        )
    function = getattr(found, f"{name}_{'f64' if real == torch.float64 else 'f32'}")
    function(*sizes, *(None if x is None else x.data_ptr() for x in tensors))


def _bytes(reset: Tensor | None) -> Tensor | None:
    return None if reset is None else reset.to(torch.uint8).contiguous()


def _native_forward(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, start: Tensor | None, reset: Tensor | None, train: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, time, channels = k.shape
    dtype, k, v, flags = k.dtype, k.to(w.dtype), v.to(w.dtype), _bytes(reset)
    y, end = torch.empty_like(k), w.new_empty(3, batch, channels)
    inverse, top, slope = (torch.empty_like(k) if train else w.new_empty(0) for _ in range(3))
    end_slope = w.new_empty((2, batch, channels) if train else (0,))
    outputs = (y, inverse, top, slope, end, end_slope)
    _call("wkv_forward", w.dtype, (batch, time, channels, int(train)), w, u, k, v, start, flags, *outputs)
    return y.to(dtype), end, inverse, top, slope, end_slope


def _native_backward(
    w: Tensor,
    u: Tensor,
    k: Tensor,
    v: Tensor,
    start: Tensor | None,
    reset: Tensor | None,
    y: Tensor,
    end: Tensor,
    kept: list[Tensor],
    gy: Tensor,
    g_end: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, time, channels = k.shape
    dtype, flags = k.dtype, _bytes(reset)
    k, v, y, gy = (x.to(w.dtype) for x in (k, v, y, gy))
    inverse, top, slope, end_slope = kept
    gk, gv = torch.empty_like(k), torch.empty_like(k)
    gw, gu = w.new_empty(batch, channels), w.new_empty(batch, channels)
    g_start = None if start is None else torch.empty_like(start)
    inputs = (w, u, k, v, y, inverse, top, slope, gy, start, end, end_slope, g_end, flags)
    _call("wkv_backward", w.dtype, (batch, time, channels), *inputs, gw, gu, gk, gv, g_start)
    return gw.sum(0), gu.sum(0), gk.to(dtype), gv.to(dtype), w.new_empty(0) if g_start is None else g_start
