# SPDX-License-Identifier: AGPL-3.0-or-later
"""The GPU kernels: are they right, how fast is a training step, and where does the time go?

    python benchmarks/gpu.py                      # everything, about five minutes on an H200
    python benchmarks/gpu.py --only check step    # some sections
    python benchmarks/gpu.py --batch 8 --time 256 --preset micro
    python benchmarks/gpu.py --rehearse           # toy sizes in Triton's interpreter: does every line run?

Prints one JSON object a line and, last, a short table. Each section stands alone: one that fails prints its
traceback and the next goes on. Times are CUDA events, the median after warm-up; tokens are random.
The floor is the model's matrix products alone (forward, input and weight gradients) in bfloat16.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gpu_sweeps as sweeps
from gpu_sweeps import BEGAN, DEVICE, relative, say, some, sync, timed

from rusty_r2.lm import fused
from rusty_r2.lm.rwkv import PRESETS, ModelConfig, TinyRWKVLM
from rusty_r2.lm.wkv import EMPTY, wkv

TABLE: list[str] = []


# ------------------------------------------------------------------ are they right


def loop(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, state: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    aa, bb, pp = state
    out = []
    for t in range(k.shape[1]):
        if reset is not None:
            gone = reset[:, t, None]
            aa, bb, pp = aa.masked_fill(gone, 0), bb.masked_fill(gone, 0), pp.masked_fill(gone, EMPTY)
        top = torch.maximum(pp, u + k[:, t]).detach()
        e1, e2 = torch.exp(pp - top), torch.exp(u + k[:, t] - top)
        out.append((e1 * aa + e2 * v[:, t]) / (e1 * bb + e2))
        top = torch.maximum(w + pp, k[:, t]).detach()
        e1, e2 = torch.exp(w + pp - top), torch.exp(k[:, t] - top)
        aa, bb, pp = e1 * aa + e2 * v[:, t], e1 * bb + e2, top
    return torch.stack(out, 1), torch.stack([aa, bb, pp])


def check_wkv(args: argparse.Namespace) -> None:
    """Forward, end state and all gradients against a float64 loop."""
    cases = [
        ("normal", 4, 200, 512, 1.0, "init", False), ("resets", 4, 333, 96, 1.0, "init", True),
        ("k x 30", 2, 256, 64, 30.0, "init", False), ("k x 300", 2, 256, 64, 300.0, "init", False),
        ("strong decay", 2, 256, 64, 1.0, "strong", False), ("no decay", 2, 256, 64, 1.0, "none", False),
        ("T = 4096", 1, 4096, 64, 2.0, "init", True), ("one token", 3, 1, 40, 1.0, "init", False),
    ]  # fmt: skip
    if DEVICE == "cpu":
        cases = [("rehearsal", 2, 40, 24, 1.0, "init", True)]
    worst = 0.0
    for name, B, T, C, scale, decay, resets in cases:
        spread = {
            "init": torch.linspace(-5, 3, C),
            "strong": 3 + torch.rand(C),
            "none": torch.full((C,), -30.0),
        }
        start = torch.stack([torch.randn(B, C), torch.rand(B, C) + 0.5, torch.randn(B, C)])
        k, v = torch.randn(B, T, C) * scale, torch.randn(B, T, C)
        inputs = [x.to(DEVICE) for x in (-torch.exp(spread[decay]), torch.randn(C), k, v, start)]
        reset = (torch.rand(B, T) < 0.05).to(DEVICE) if resets else None
        gy = torch.randn(B, T, C).to(DEVICE)
        wide = [x.double().requires_grad_() for x in inputs]
        y, end = loop(*wide, reset)
        want = [y, end[0] / end[1], *torch.autograd.grad((y * gy).sum() + (end[0] / end[1]).sum(), wide)]
        for dtype in (torch.float32, torch.bfloat16):
            here = [x.clone() for x in inputs]
            here[2], here[3] = here[2].to(dtype), here[3].to(dtype)
            if dtype == torch.bfloat16 and scale > 1:
                continue
            leaves = [x.requires_grad_() for x in here]
            y, end = wkv(*leaves, reset, kernel="triton")
            total = (y * gy).sum() + (end[0] / end[1]).sum()
            got = [y, end[0] / end[1], *torch.autograd.grad(total, leaves)]
            errors = [relative(a, b) for a, b in zip(got, want, strict=True)]
            names = ("y", "end", "gw", "gu", "gk", "gv", "gstart")
            limit = 2e-2 if dtype == torch.bfloat16 else 2e-3 if scale > 100 else 2e-4
            ok = all(e < limit for e in errors)
            worst = max(worst, *errors) if dtype == torch.float32 and scale < 100 else worst
            say("check wkv", case=name, dtype=str(dtype), ok=ok, **dict(zip(names, errors, strict=True)))
    TABLE.append(f"wkv against float64 loop: worst relative error {worst:.1e}")


def moved(model: TinyRWKVLM) -> TinyRWKVLM:
    """Away from the zeros of a new model."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.02 if p.ndim == 2 else 0.05))
    return model


def check_trunk(args: argparse.Namespace) -> None:
    """Fused against plain: float32, then the loss's gradients in bfloat16 against float32."""
    torch.manual_seed(0)
    model = moved(TinyRWKVLM.of(PRESETS[args.preset], vocab_size=3000)).to(DEVICE)
    length = 150 if DEVICE == "cuda" else 20
    ids = torch.randint(0, 3000, (4, length), device=DEVICE)
    reset = torch.rand(4, length, device=DEVICE) < 0.03
    torch.backends.cuda.matmul.allow_tf32 = False

    def result(kind: str, autocast: bool) -> list[Tensor]:
        os.environ["RUSTY_FUSED"] = "0" if kind == "plain" else "1"
        fused.PRODUCTS = kind == "products"
        state = model.initial_state(4)
        model.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            total, _, end = model.loss(ids, ids.roll(-1, 1), state=state, reset=reset)
        total.backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return [total.detach(), end.detach()[:, :4], *grads]

    want = result("plain", False)
    for kind, autocast, limit in (
        ("fused", False, 1e-4), ("plain", True, 5e-2), ("fused", True, 5e-2), ("products", True, 5e-2),
    ):  # fmt: skip
        errors = [relative(a, b) for a, b in zip(result(kind, autocast), want, strict=True)]
        worst = max(errors[2:])
        name = [n for n, p in model.named_parameters() if p.grad is not None][errors[2:].index(worst)]
        say("check trunk", kind=kind, bf16=autocast, loss=errors[0], end=errors[1], gradient=worst, of=name,
            mean=sum(errors[2:]) / len(errors[2:]), ok=worst < limit)  # fmt: skip
    fused.PRODUCTS = False
    os.environ["RUSTY_FUSED"] = "1"


# ------------------------------------------------------------------ how fast


def products(args: argparse.Namespace) -> list[tuple[str, int, int, int]]:
    c = PRESETS[args.preset]
    return [
        ("projection", c.d_embed, c.d_hidden, 1),
        ("square", c.d_hidden, c.d_hidden, 5 * c.n_layers),
        ("ffn key", c.d_hidden, c.width, c.n_layers),
        ("ffn value", c.width, c.d_hidden, c.n_layers),
        ("head", c.d_hidden, c.vocab_size, 1),
    ]


def floor(args: argparse.Namespace) -> None:
    """The matrix products of one step and nothing else."""
    tokens, total, flops = args.batch * args.time, 0.0, 0.0
    new: dict[str, Any] = {"device": DEVICE, "dtype": torch.bfloat16}
    for name, inputs, outputs, count in products(args):
        x, w, g = (torch.randn(s, **new) for s in ((tokens, inputs), (outputs, inputs), (tokens, outputs)))
        y, dx, dw = torch.empty_like(g), torch.empty_like(x), torch.empty_like(w)
        ms = [
            timed(lambda: torch.mm(x, w.t(), out=y)),  # noqa: B023
            timed(lambda: torch.mm(g, w, out=dx)),  # noqa: B023
            timed(lambda: torch.mm(g.t(), x, out=dw)),  # noqa: B023
        ]
        work = 2e-9 * tokens * inputs * outputs
        say("floor", product=name, count=count, ms=ms, tflops=[round(work / t, 1) for t in ms])
        total, flops = total + count * sum(ms), flops + 3 * count * work
    args.floor = tokens / total * 1e3
    say("floor", ms=total, tokens_per_s=args.floor, tflops=flops / total)
    TABLE.append(f"matmul floor: {total:.2f} ms, {args.floor / 1e6:.2f} M tokens/s")


def stepper(args: argparse.Namespace, model: TinyRWKVLM, **options: Any) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, **options)
    ids = torch.randint(0, model.config.vocab_size, (args.batch, args.time + 1), device=DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16):
            total, count, _ = model.loss(ids[:, :-1], ids[:, 1:])
        (total / count).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure(args: argparse.Namespace, name: str, step: Callable[[], None]) -> None:
    before = time.time()
    step()
    sync()
    first = time.time() - before
    if DEVICE == "cpu":
        say("step", kind=name, first_s=first)
        return
    ms = timed(step, warm=3, runs=10)
    again = timed(step, warm=0, runs=10)
    sync()
    before = time.time()
    for _ in range(5):
        step()
    launch = (time.time() - before) / 5 * 1e3
    sync()
    rate = args.batch * args.time / min(ms, again) * 1e3
    share = rate / args.floor if getattr(args, "floor", 0) else 0
    peak = torch.cuda.max_memory_allocated() / 1e9
    say("step", kind=name, ms=ms, again=again, launch_ms=launch, tokens_per_s=rate, of_floor=share,
        first_s=first, peak_gb=peak)  # fmt: skip
    TABLE.append(
        f"{name:32} {ms:7.2f} ms (again {again:.2f})  {rate / 1e6:5.2f} M tokens/s, {share:.2f} of floor"
    )


def steps(args: argparse.Namespace) -> None:
    """The whole training step, several ways."""
    from rusty_r2.lm.kernels import triton_wkv

    torch.manual_seed(0)
    model = TinyRWKVLM.of(PRESETS[args.preset]).to(DEVICE)
    step = stepper(args, model)
    usual = triton_wkv.PROGRAMS

    def attempt(name: str, run: Callable[[], None]) -> None:
        try:
            measure(args, name, run)
        except Exception:
            say("step", kind=name, error=traceback.format_exc()[-1500:])

    attempt("fused", step)
    fused.PRODUCTS = True
    attempt("fused + own ffn products", step)
    fused.PRODUCTS = False
    triton_wkv.PROGRAMS = 1
    attempt("fused, wkv not cut in time", step)
    triton_wkv.PROGRAMS = usual
    os.environ["RUSTY_FUSED"] = "0"
    attempt("plain eager", step)
    os.environ["RUSTY_FUSED"] = "1"
    attempt("fused in a CUDA graph", graphed(args))


def graphed(args: argparse.Namespace) -> Callable[[], None]:
    model = TinyRWKVLM.of(PRESETS[args.preset]).to(DEVICE)
    step = stepper(args, model, capturable=True)
    made: list[torch.cuda.CUDAGraph] = []

    def run() -> None:
        if not made:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            made.append(graph)
        made[0].replay()

    return run


def compiled(args: argparse.Namespace) -> None:
    """The plain trunk under torch.compile."""
    model = TinyRWKVLM.of(PRESETS[args.preset]).to(DEVICE)
    model.trunk = torch.compile(model.trunk)  # type: ignore[method-assign]
    measure(args, "plain + torch.compile", stepper(args, model))


# ------------------------------------------------------------------ where it goes


def profile(args: argparse.Namespace) -> None:
    from torch.profiler import ProfilerActivity

    for kind in ("fused", "fused + own ffn products"):
        fused.PRODUCTS = kind != "fused"
        step = stepper(args, TinyRWKVLM.of(PRESETS[args.preset]).to(DEVICE))
        for _ in some(1, 2, 3):
            step()
        sync()
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in some(1, 2, 3):
                step()
            sync()
        rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)
        whole = sum(row.self_device_time_total for row in rows)
        say("profile", kind=kind, busy_ms=whole / 3e3)
        for row in rows[:32]:
            say(
                "profile",
                ms=round(row.self_device_time_total / 3e3, 3),
                calls=row.count / 3,
                kernel=row.key[:90],
            )
    fused.PRODUCTS = False


SECTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    "check": check_wkv, "trunk": check_trunk, "floor": floor, "step": steps, "profile": profile,
    "loss": sweeps.loss, "wkv": sweeps.wkv, "mix": sweeps.mix, "ffn": sweeps.ffn, "compile": compiled,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="tiny", choices=PRESETS)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--time", type=int, default=1024)
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--rehearse", action="store_true", help="no GPU: toy sizes, times without meaning")
    parser.add_argument("--seconds", type=float, default=420, help="no section starts after this long")
    args = parser.parse_args()
    if args.rehearse:
        args.batch, args.time = 2, 40
        PRESETS[args.preset] = ModelConfig(vocab_size=300, d_embed=32, d_hidden=64, n_layers=1)
        os.environ["RUSTY_WKV"] = "triton"
        fused.suits = lambda model, ids: os.environ.get("RUSTY_FUSED") != "0"  # type: ignore[assignment]
    elif not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py needs a CUDA GPU; benchmarks/train_speed.py measures processors")
    name = "none" if args.rehearse else torch.cuda.get_device_name()
    say("machine", gpu=name, torch=torch.__version__, **vars(args))
    for name in args.only:
        if time.time() - BEGAN > args.seconds:
            say(name, skipped="out of time")
            continue
        try:
            if DEVICE == "cuda":
                torch.cuda.empty_cache()
            SECTIONS[name](args)
        except Exception:
            say(name, error=traceback.format_exc()[-2500:])
    print("\n" + "\n".join(TABLE), flush=True)


if __name__ == "__main__":
    main()
