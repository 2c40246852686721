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
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import product as pairs
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
from rusty_r2.lm.kernels import triton_gather, triton_loss, triton_mix, triton_product, triton_wkv  # noqa: E402
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
    ahead = list(pairs((2, 4, 8), (256, 512), (3, 4, 5)))
    with torch.no_grad():
        sweep(
            "mix forward", triton_mix, "FORWARD", ahead,
            lambda: triton_mix.add_norm_mix(x, add, gate, norm, mixes), 7 * size,
        )  # fmt: skip
        ms = timed(lambda: triton_mix.add_norm_mix(x, add, None, norm, mixes[:2]))
        say("mix forward", kind="channel-mix", ms=ms, gb_per_s=5 * size / ms)
    for kind, dial, inputs, amount in (
        ("mix backward", "BACKWARD", (add, gate, norm, mixes), 10),
        ("mix back ffn", "BACKWARD_UNGATED", (add, None, norm, mixes[:2]), 5),
    ):  # fmt: skip
        with beside():
            total, _, out = triton_mix.add_norm_mix(x, *inputs)
        ends = [total, *out]
        pull = [torch.randn_like(t) for t in ends]
        leaves = [t for t in (x, *inputs[:2], norm.weight, *inputs[3]) if t is not None]
        back = list(pairs((32, 64, 128), (256,), (3, 4, 5)))
        sweep(
            kind, triton_mix, dial, back,
            lambda: torch.autograd.grad(ends, leaves, pull, retain_graph=True), amount * size,  # noqa: B023
        )  # fmt: skip


def wkv(args: argparse.Namespace) -> None:
    """Channels of a program, how many programs, tokens loaded ahead."""
    C = PRESETS[args.preset].d_hidden
    k, v, r, g = tokens_of(args, C, 4)
    w = -torch.exp(torch.linspace(-5, 3, C, device=DEVICE))
    u = torch.randn_like(w)
    size = k.numel() * 2 / 1e6
    usual = (triton_wkv.BLOCK, triton_wkv.STAGES, triton_wkv.PROGRAMS)
    rest = [(128, 6, 4096), (128, 4, 2048), (128, 8, 2048), (128, 3, 4096), (64, 4, 4096), (128, 4, 8192)]
    out, gr = torch.empty_like(k), torch.empty_like(k)
    found: dict[tuple[int, int, int], float] = {}
    for dials in some(*dict.fromkeys([usual, *rest])):
        triton_wkv.BLOCK, triton_wkv.STAGES, triton_wkv.PROGRAMS = dials
        try:
            y, end, *kept = triton_wkv.forward(w, u, k, v, None, None, True, r, out)
            ahead = timed(lambda: triton_wkv.forward(w, u, k, v, None, None, True, r, out))
            rest_of = (y, end, kept, g, None, r, gr)
            back = timed(lambda: triton_wkv.backward(w, u, k, v, None, None, *rest_of))  # noqa: B023
        except Exception as problem:
            say("wkv", block_stages_programs=dials, error=repr(problem)[:300])
            continue
        found[dials] = ahead + back
        say("wkv", block_stages_programs=dials, forward_ms=ahead, backward_ms=back, sum=ahead + back,
            forward_gb_per_s=10 * size / ahead, backward_gb_per_s=16 * size / back)  # fmt: skip
    best = min(found, key=lambda dials: found[dials], default=usual)
    triton_wkv.BLOCK, triton_wkv.STAGES, triton_wkv.PROGRAMS = best
    nothing = float("nan")
    TABLE.append(
        f"wkv            both      {found.get(usual, nothing):7.4f} ms at {usual}, "
        f"best {found.get(best, nothing):7.4f} at {best}; memory {26 * size / 4230:.4f}"
    )


def product(args: argparse.Namespace) -> None:
    """Products with a function at their end, in several tile shapes, against cuBLAS with a pass after it."""
    c = PRESETS[args.preset]
    tokens, part = args.batch * args.time, min(args.batch * args.time, 32768)
    new: dict[str, Any] = {"device": DEVICE, "dtype": BF16}
    x, g, key = (torch.randn(n, c.d_hidden, **new) for n in (tokens, tokens, c.width))
    value, table = torch.randn(c.d_hidden, c.width, **new), torch.randn(c.vocab_size, c.d_hidden, **new)
    s, gk = torch.randn(tokens, c.width, **new).square_(), torch.empty(tokens, c.width, **new)
    e = torch.empty(part, -(-c.vocab_size // 8) * 8, **new)[:, : c.vocab_size]
    aims, targets = torch.randn(part, device=DEVICE), torch.zeros(part, device=DEVICE, dtype=torch.long)
    parts = torch.empty(c.vocab_size // 16, part, device=DEVICE)
    table.mul_(0.05)
    cublas: dict[str, Callable[[], Tensor]] = {
        "squared": lambda: torch.mm(x, key.t(), out=s), "squared back": lambda: torch.mm(g, value, out=gk),
        "exponents": lambda: torch.mm(x[:part], table.t(), out=e),
    }  # fmt: skip
    passes: dict[str, Callable[[], Any]] = {
        "squared": lambda: triton_mix.square(s, s), "squared back": lambda: triton_mix.square_back(s, gk, gk),
        "exponents": lambda: triton_loss.turn(e, targets, True),
    }  # fmt: skip
    operands: dict[str, tuple[Any, ...]] = {
        "squared": (x, key, s, s, x, x, 0.0), "squared back": (g, value, gk, s, g, g, 0.0),
        "exponents": (x[:part], table, e, e, aims, parts, 80.0),
    }  # fmt: skip
    shapes = some(
        (128, 256, 64, 8, 3, 1, False), (128, 256, 64, 8, 4, 1, True), (128, 256, 64, 8, 3, 1, True),
        (256, 128, 64, 8, 4, 1, True), (256, 128, 64, 8, 3, 1, True), (128, 256, 64, 8, 2, 1, False),
        (128, 256, 128, 8, 2, 1, True),
    )  # fmt: skip

    def first(job: tuple[str, Any]) -> None:
        with contextlib.suppress(Exception):
            triton_product.launch(job[0], job[1], *operands[job[0]])

    with ThreadPoolExecutor(12 if DEVICE == "cuda" else 1) as pool:  # compile side by side
        list(pool.map(first, [(kind, shape) for kind in operands for shape in shapes]))
    sync()
    for kind, tensors in operands.items():
        one = timed(cublas[kind])
        two = one + timed(passes[kind])
        say("product", kind=kind, cublas_ms=one, with_pass_ms=two)
        found = []
        for shape in shapes:
            try:
                ms = timed(lambda: triton_product.launch(kind, shape, *tensors))  # noqa: B023
                found.append((ms, shape))
                say("product", kind=kind, shape=shape, ms=ms)
            except Exception as problem:
                say("product", kind=kind, shape=shape, error=repr(problem)[:300])
        dial = kind.upper().replace(" ", "_")
        best = min(found, default=(float("nan"), getattr(triton_product, dial)))
        setattr(triton_product, dial, best[1])
        TABLE.append(
            f"{kind:13} cuBLAS {one:.4f} ms, with its pass {two:.4f}; fused {best[0]:.4f} at {best[1]}"
        )


def loss(args: argparse.Namespace) -> None:
    """The whole head, forward and gradients, in chunks of several sizes."""
    c = PRESETS[args.preset]
    tokens = args.batch * args.time
    targets = torch.randint(0, c.vocab_size, (tokens,), device=DEVICE)
    hidden = torch.randn(tokens, c.d_hidden, device=DEVICE, dtype=BF16, requires_grad=True)
    weight = (torch.randn(c.vocab_size, c.d_hidden, device=DEVICE) * 0.05).requires_grad_()

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
