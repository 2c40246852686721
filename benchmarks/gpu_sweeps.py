# SPDX-License-Identifier: AGPL-3.0-or-later
"""What benchmarks/gpu.py is made of: its clock, its printing, and sweeps over each kernel's own dials.

A sweep says what a different block size or chunk would cost, and sets the fastest for the sections that
follow, so that the defaults in rusty_r2/lm can be chosen from one run. Calls are timed inside a CUDA graph,
so that what Python takes to launch them does not count. A graph holds one stream alone and gradients run on
the stream of their forward: what is differentiated inside one is made `beside()`, on the stream that records.
Nothing to run here: python benchmarks/gpu.py --only mix wkv
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

BEGAN = time.time()
DEVICE = "cpu" if "--rehearse" in sys.argv else "cuda"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are defined

from rusty_r2.lm import loss as loss_module  # noqa: E402
from rusty_r2.lm.kernels import triton_gather, triton_loss, triton_mix, triton_wkv  # noqa: E402
from rusty_r2.lm.rwkv import PRESETS  # noqa: E402

TABLE: list[str] = []
BF16 = torch.bfloat16


def say(section: str, **what: Any) -> None:
    rounded = {k: round(v, 4) if isinstance(v, float) and abs(v) > 1e-3 else v for k, v in what.items()}
    print(json.dumps({"section": section, "at": round(time.time() - BEGAN, 1), **rounded}), flush=True)


def sync() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


@lru_cache
def side() -> Any:
    return torch.cuda.Stream()


@contextlib.contextmanager
def beside() -> Iterator[None]:
    """On the stream that graphs are recorded from."""
    if DEVICE == "cpu":
        yield
        return
    side().wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side()):
        yield
    torch.cuda.current_stream().wait_stream(side())


def record(f: Callable[[], Any]) -> Any:
    """`f`'s launches as a graph. One that fails would leave the random numbers waiting for its end."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side()):
            f()
    except Exception:
        sync()
        chance = torch.cuda.default_generators[torch.cuda.current_device()]
        chance.graphsafe_set_state(torch.Generator(device=DEVICE).graphsafe_get_state())
        raise
    return graph


def timed(f: Callable[[], Any], *, calls: int = 10, plays: int = 5) -> float:
    """Median milliseconds of one call of f on the GPU, played from a graph."""
    before = time.perf_counter()
    with beside():  # a setting that cannot run fails here, where nothing is recorded
        f()
        sync()
        if DEVICE == "cpu":
            return (time.perf_counter() - before) * 1e3
        f()
    sync()
    graph = record(lambda: [f() for _ in range(calls)])
    times = []
    for _ in range(plays):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        sync()
        times.append(start.elapsed_time(stop) / calls)
    return statistics.median(times)


def some(*choices: Any) -> tuple[Any, ...]:
    """What a sweep tries: all of it, or the first when rehearsing."""
    return choices if DEVICE == "cuda" else choices[:1]


def relative(a: Tensor, b: Tensor) -> float:
    a, b = a.detach(), b.detach()
    return float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-30))


def sweep(name: str, owner: Any, dial: str, choices: Any, call: Callable[[], Any], megabytes: float) -> None:
    """Time `call` for each setting of `owner.dial` and leave it at the fastest that ran."""
    usual, found = getattr(owner, dial), []
    for choice in some(*dict.fromkeys([usual, *choices])):
        setattr(owner, dial, choice)
        try:
            found.append((timed(call), choice))
            say(name, dial=dial, setting=choice, ms=found[-1][0], gb_per_s=megabytes / found[-1][0])
        except Exception as problem:
            say(name, dial=dial, setting=choice, error=repr(problem)[:300])
    best = min(found, default=(float("nan"), usual))
    first = next((ms for ms, choice in found if choice == usual), float("nan"))
    setattr(owner, dial, best[1])
    floor = megabytes / 4230
    TABLE.append(
        f"{name:14} {dial:9} {first:7.4f} ms at {usual}, best {best[0]:7.4f} at {best[1]}; memory {floor:.4f}"
    )


def tokens_of(args: argparse.Namespace, width: int, count: int, **more: Any) -> list[Tensor]:
    return [
        torch.randn(args.batch, args.time, width, device=DEVICE, dtype=BF16, **more) for _ in range(count)
    ]


def mix(args: argparse.Namespace) -> None:
    """The two fused passes of a block: rows of a program, channels of a warp, rows loaded ahead."""
    C = PRESETS[args.preset].d_hidden
    x, add, gate = tokens_of(args, C, 3, requires_grad=True)
    norm = torch.nn.LayerNorm(C).to(DEVICE)
    mixes = tuple(torch.rand(C, device=DEVICE, requires_grad=True) for _ in range(3))
    size = x.numel() * 2 / 1e6
    ahead = list(product((2, 4, 8), (256, 512), (3, 4)))
    with torch.no_grad():
        sweep(
            "mix forward", triton_mix, "FORWARD", ahead,
            lambda: triton_mix.add_norm_mix(x, add, gate, norm, mixes), 7 * size,
        )  # fmt: skip
        ms = timed(lambda: triton_mix.add_norm_mix(x, add, None, norm, mixes[:2]))
        say("mix forward", kind="channel-mix", ms=ms, gb_per_s=5 * size / ms)
    for kind, inputs, amount in (
        ("mix backward", (add, gate, norm, mixes), 10), ("mix back ffn", (add, None, norm, mixes[:2]), 5),
    ):  # fmt: skip
        with beside():
            total, _, out = triton_mix.add_norm_mix(x, *inputs)
        ends = [total, *out]
        pull = [torch.randn_like(t) for t in ends]
        leaves = [t for t in (x, *inputs[:2], norm.weight, *inputs[3]) if t is not None]
        back = [(8, 128, 1), (16, 128, 1), (32, 128, 1), (64, 128, 1), (8, 256, 1), (32, 256, 1)]
        back += list(product((8, 16, 32, 64), (128, 256), (2, 3)))
        if kind == "mix back ffn":  # one setting serves both: look only
            back = [triton_mix.BACKWARD, (32, 128, 2), (32, 256, 2), (16, 256, 1)]
        kept = triton_mix.BACKWARD
        sweep(
            kind, triton_mix, "BACKWARD", back,
            lambda: torch.autograd.grad(ends, leaves, pull, retain_graph=True), amount * size,  # noqa: B023
        )  # fmt: skip
        triton_mix.BACKWARD = kept if kind == "mix back ffn" else triton_mix.BACKWARD


def wkv(args: argparse.Namespace) -> None:
    """Channels of a program, how many programs, tokens loaded ahead."""
    C = PRESETS[args.preset].d_hidden
    k, v, g = tokens_of(args, C, 3)
    w = -torch.exp(torch.linspace(-5, 3, C, device=DEVICE))
    u = torch.randn_like(w)
    size = k.numel() * 2 / 1e6
    usual = (triton_wkv.BLOCK, triton_wkv.STAGES, triton_wkv.PROGRAMS)
    rest = [*product((64, 128), (1, 3), (8192,)), (64, 2, 8192), (64, 3, 4096), (64, 3, 16384)]
    found: dict[tuple[int, int, int], float] = {}
    for dials in some(*dict.fromkeys([usual, *rest])):
        triton_wkv.BLOCK, triton_wkv.STAGES, triton_wkv.PROGRAMS = dials
        try:
            y, end, *kept = triton_wkv.forward(w, u, k, v, None, None, True)
            ahead = timed(lambda: triton_wkv.forward(w, u, k, v, None, None, True))
            rest_of = (y, end, kept, g, None)
            back = timed(lambda: triton_wkv.backward(w, u, k, v, None, None, *rest_of))  # noqa: B023
        except Exception as problem:
            say("wkv", block_stages_programs=dials, error=repr(problem)[:300])
            continue
        found[dials] = ahead + back
        say("wkv", block_stages_programs=dials, forward_ms=ahead, backward_ms=back, sum=ahead + back,
            forward_gb_per_s=8 * size / ahead, backward_gb_per_s=13 * size / back)  # fmt: skip
    best = min(found, key=lambda dials: found[dials], default=usual)
    triton_wkv.BLOCK, triton_wkv.STAGES, triton_wkv.PROGRAMS = best
    nothing = float("nan")
    TABLE.append(
        f"wkv            both      {found.get(usual, nothing):7.4f} ms at {usual}, "
        f"best {found.get(best, nothing):7.4f} at {best}; memory {21 * size / 4230:.4f}"
    )


def loss(args: argparse.Namespace) -> None:
    """The turn of logits into their gradient, and the whole head."""
    c = PRESETS[args.preset]
    tokens = args.batch * args.time
    many = 16384 if DEVICE == "cuda" else 4
    logits = torch.randn(many, c.vocab_size, device=DEVICE, dtype=BF16)
    targets = torch.randint(0, c.vocab_size, (tokens,), device=DEVICE)
    size = 2 * logits.numel() * 2 / 1e6

    def turn() -> Tensor:
        return triton_loss.turn(logits, targets[:many], True)

    blocks = list(product((2048, 4096, 8192), (4, 8, 16)))
    sweep("turn", triton_loss, "SWEPT", blocks, turn, size)
    hidden = torch.randn(tokens, c.d_hidden, device=DEVICE, dtype=BF16, requires_grad=True)
    weight = torch.randn(c.vocab_size, c.d_hidden, device=DEVICE, requires_grad=True)

    def head() -> Tensor:
        return loss_module.linear_cross_entropy(hidden, weight, targets)

    before, loss_module.CHUNK_CPU = loss_module.CHUNK_CPU, loss_module.CHUNK_GPU
    sweep("head + loss", loss_module, "CHUNK_GPU", [8192, 16384, 32768, 65536], head, 0.0)
    loss_module.CHUNK_CPU, loss_module.CHUNK_GPU = before, min(loss_module.CHUNK_GPU, 32768)


def embed(args: argparse.Namespace) -> None:
    """The gradient of the embedding: added in place, or sorted by PyTorch."""
    c = PRESETS[args.preset]
    ids = torch.randint(0, c.vocab_size, (args.batch, args.time), device=DEVICE)
    often = (torch.rand(args.batch, args.time, device=DEVICE) ** 8 * c.vocab_size).long()
    for width in (c.d_embed, c.d_hidden):
        table = torch.randn(c.vocab_size, width, device=DEVICE, dtype=BF16, requires_grad=True)
        for kind, which in (("uniform", ids), ("few words often", often)):
            pull = torch.randn(args.batch, args.time, width, device=DEVICE, dtype=BF16)
            with beside():
                ways = [
                    ("gather", triton_gather.gather(table, which)),
                    ("torch", torch.nn.functional.embedding(which, table)),
                ]
            for name, rows in ways:
                ms = timed(lambda: torch.autograd.grad(rows, table, pull, retain_graph=True))  # noqa: B023
                say("embedding", width=width, ids=kind, by=name, backward_ms=ms)
                TABLE.append(f"embedding gradient, {width} wide, {kind:16} {name:7} {ms:7.4f} ms")


def ffn(args: argparse.Namespace) -> None:
    """Channel-mix's products whole, or in pieces of tokens whose inner activations stay in the cache."""
    c = PRESETS[args.preset]
    tokens = args.batch * args.time
    new: dict[str, Any] = {"device": DEVICE, "dtype": BF16}
    x, g = torch.randn(tokens, c.d_hidden, **new), torch.randn(tokens, c.d_hidden, **new)
    key, value = torch.randn(c.width, c.d_hidden, **new), torch.randn(c.d_hidden, c.width, **new)
    s, gk = torch.empty(tokens, c.width, **new), torch.empty(tokens, c.width, **new)
    out, gx = torch.empty_like(x), torch.empty_like(g)

    def ahead(piece: int) -> None:
        for a in range(0, tokens, piece):
            at = slice(a, a + piece)
            torch.mm(x[at], key.t(), out=s[at])
            triton_mix.square(s[at], s[at])
            torch.mm(s[at], value.t(), out=out[at])

    def back(piece: int) -> None:
        for a in range(0, tokens, piece):
            at = slice(a, a + piece)
            torch.mm(g[at], value, out=gk[at])
            triton_mix.square_back(s[at], gk[at], gk[at])
            torch.mm(gk[at], key, out=gx[at])
        torch.mm(gk.t(), x)
        torch.mm(g.t(), s)

    for piece in some(tokens, 4096, 8192, 16384):
        a, b = timed(lambda: ahead(piece)), timed(lambda: back(piece))  # noqa: B023
        say("ffn", piece=piece, forward_ms=a, backward_ms=b)
        TABLE.append(f"ffn in pieces of {piece:6}: forward {a:.4f} ms, backward {b:.4f} ms")
