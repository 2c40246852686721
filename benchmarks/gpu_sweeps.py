# SPDX-License-Identifier: AGPL-3.0-or-later
"""What benchmarks/gpu.py is made of: its clock, its printing, and sweeps over each kernel's own dials.

A sweep says what a different block size or chunk would cost, so that the defaults in rusty_r2/lm/kernels
can be chosen from one run. Nothing to run here: python benchmarks/gpu.py --only wkv mix loss ffn
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rusty_r2.lm.loss import linear_cross_entropy
from rusty_r2.lm.rwkv import PRESETS

BEGAN = time.time()
DEVICE = "cpu" if "--rehearse" in sys.argv else "cuda"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are defined


def say(section: str, **what: Any) -> None:
    print(json.dumps({"section": section, "at": round(time.time() - BEGAN, 1), **what}), flush=True)


def sync() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(f: Callable[[], Any], *, warm: int = 3, runs: int = 10) -> float:
    """Median milliseconds of f on the GPU."""
    if DEVICE == "cpu":
        before = time.perf_counter()
        f()
        return (time.perf_counter() - before) * 1e3
    for _ in range(warm):
        f()
    sync()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]
    marks[0].record()
    for mark in marks[1:]:
        f()
        mark.record()
    sync()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))


def some(*choices: Any) -> tuple[Any, ...]:
    """What a sweep tries: all of it, or the first when rehearsing."""
    return choices if DEVICE == "cuda" else choices[:1]


def relative(a: Tensor, b: Tensor) -> float:
    a, b = a.detach(), b.detach()
    return float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-30))


def wkv(args: argparse.Namespace) -> None:
    """How many programs, and how many channels each."""
    from rusty_r2.lm.kernels import triton_wkv

    c = PRESETS[args.preset]
    k, v, g = (
        torch.randn(args.batch, args.time, c.d_hidden, device=DEVICE, dtype=torch.bfloat16) for _ in range(3)
    )
    w = -torch.exp(torch.linspace(-5, 3, c.d_hidden, device=DEVICE))
    u = torch.randn_like(w)
    usual = triton_wkv.PROGRAMS, triton_wkv.BLOCK
    for block in some(32, 64, 128):
        for programs in some(1, 4096, 8192, 16384, 32768):
            triton_wkv.PROGRAMS, triton_wkv.BLOCK = programs, block
            y, end, *kept = triton_wkv.forward(w, u, k, v, None, None, True)
            ahead = timed(lambda: triton_wkv.forward(w, u, k, v, None, None, True))
            rest = (y, end, kept, g, None)
            back = timed(lambda: triton_wkv.backward(w, u, k, v, None, None, *rest))  # noqa: B023
            cut = triton_wkv.pieces(args.batch, args.time, c.d_hidden)
            say("sweep wkv", block=block, programs=programs, pieces=cut, forward_ms=ahead, backward_ms=back)
    triton_wkv.PROGRAMS, triton_wkv.BLOCK = usual


def mix(args: argparse.Namespace) -> None:
    """Rows of a program and warps, for the largest fused pass, and what the memory allows."""
    from rusty_r2.lm.kernels import triton_mix

    C = PRESETS[args.preset].d_hidden
    new: dict[str, Any] = {"device": DEVICE, "dtype": torch.bfloat16, "requires_grad": True}
    x, add, gate = (torch.randn(args.batch, args.time, C, **new) for _ in range(3))
    norm = torch.nn.LayerNorm(C).to(DEVICE)
    mixes = tuple(torch.rand(C, device=DEVICE, requires_grad=True) for _ in range(3))
    amount = 2**30 if DEVICE == "cuda" else 2**20
    big, other = (torch.empty(amount, device=DEVICE, dtype=torch.uint8) for _ in range(2))
    speed = 2 * amount / timed(lambda: other.copy_(big)) / 1e6
    say("sweep mix", copy_gb_per_s=speed)
    usual = triton_mix.ROWS, triton_mix._warps
    size = x.numel() * 2 / 1e6
    for rows in some(8, 16, 32, 64):
        for warps in some(1, 2, 4):
            triton_mix.ROWS = rows
            triton_mix._warps = lambda channels: warps  # noqa: B023
            ahead = timed(lambda: triton_mix.add_norm_mix(x, add, gate, norm, mixes))
            total, out = triton_mix.add_norm_mix(x, add, gate, norm, mixes)
            pull = [torch.randn_like(total), *(torch.randn_like(t) for t in out)]
            leaves = [x, add, gate, norm.weight, *mixes]
            ends = [total, *out]
            back = timed(lambda: torch.autograd.grad(ends, leaves, pull, retain_graph=True))  # noqa: B023
            say("sweep mix", rows=rows, warps=warps, forward_ms=ahead, backward_ms=back,
                forward_gb_per_s=7 * size / ahead, backward_gb_per_s=10 * size / back)  # fmt: skip
    triton_mix.ROWS, triton_mix._warps = usual


def loss(args: argparse.Namespace) -> None:
    """Tokens of a chunk, columns of a sweep, and how the head's gradient is summed."""
    from rusty_r2.lm.kernels import triton_loss

    c = PRESETS[args.preset]
    tokens = args.batch * args.time
    hidden = torch.randn(tokens, c.d_hidden, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(c.vocab_size, c.d_hidden, device=DEVICE, requires_grad=True)
    targets = torch.randint(0, c.vocab_size, (tokens,), device=DEVICE)
    for chunk in some(2048, 4096, 8192, 16384, 32768):
        ms = timed(lambda: linear_cross_entropy(hidden, weight, targets, chunk=chunk), runs=5)  # noqa: B023
        say("sweep loss", chunk=chunk, ms=ms)
    many = 16384 if DEVICE == "cuda" else 4
    logits = torch.randn(many, c.vocab_size, device=DEVICE, dtype=torch.bfloat16)
    usual = triton_loss.BLOCK
    for block in some(2048, 4096, 8192, 16384, 32768):
        triton_loss.BLOCK = block
        ms = timed(lambda: triton_loss.turn(logits, targets[:many], True), runs=5)
        say("sweep loss", block=block, rows=many, ms=ms, gb_per_s=2 * logits.numel() * 2 / ms / 1e6)
    triton_loss.BLOCK = usual
    total = torch.zeros_like(weight)
    part = hidden.detach()[:many]
    want = total + torch.mm(logits.t(), part, out_dtype=torch.float32)
    separate = timed(lambda: total.add_(torch.mm(logits.t(), part, out_dtype=torch.float32)), runs=5)
    total.zero_()
    torch.addmm(total, logits.t(), part, out_dtype=torch.float32, out=total)
    error = relative(total, want)
    inside = timed(lambda: torch.addmm(total, logits.t(), part, out_dtype=torch.float32, out=total), runs=5)
    say("sweep loss", addmm_in_place_error=error, separate_ms=separate, in_place_ms=inside)


def ffn(args: argparse.Namespace) -> None:
    """Tiles of our own products against the library's product and a separate squared ReLU."""
    from rusty_r2.lm.kernels import triton_ffn, triton_mix

    c = PRESETS[args.preset]
    tokens = args.batch * args.time
    new: dict[str, Any] = {"device": DEVICE, "dtype": torch.bfloat16}
    x, key = torch.randn(tokens, c.d_hidden, **new), torch.randn(c.width, c.d_hidden, **new) * 0.05
    value, g = torch.randn(c.d_hidden, c.width, **new) * 0.05, torch.randn(tokens, c.d_hidden, **new)
    s = torch.empty(tokens, c.width, **new)
    k = torch.mm(x, key.t())
    say("sweep ffn", library_ms=timed(lambda: torch.mm(x, key.t(), out=k)),
        library_and_square_ms=timed(lambda: triton_mix.squared_relu(torch.mm(x, key.t()))),
        library_back_ms=timed(lambda: torch.mm(g, value, out=s)))  # fmt: skip
    usual = triton_ffn.TILE
    tiles = (
        (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (128, 128, 64, 4, 3), (128, 128, 64, 8, 3),
        (128, 128, 64, 4, 4), (256, 128, 64, 8, 3), (128, 128, 32, 4, 4), (64, 256, 64, 4, 3),
        (256, 128, 64, 8, 4),
    )  # fmt: skip
    for tile in some(*tiles):
        triton_ffn.TILE = tile
        try:
            ahead = timed(lambda: triton_ffn._run(x, key, s, s, 1, key.stride(0), False))
            error = relative(s, torch.relu(k.float()).square())
            out = torch.empty_like(s)
            back = timed(lambda: triton_ffn._run(g, value, s, out, value.stride(0), 1, True))  # noqa: B023
            say("sweep ffn", tile=tile, forward_ms=ahead, backward_ms=back, error=error)
        except Exception as problem:
            say("sweep ffn", tile=tile, error=repr(problem)[:300])
    triton_ffn.TILE = usual
