# SPDX-License-Identifier: AGPL-3.0-or-later
"""The GPU kernels: are they right, how fast is a training step, and where does the time go?

    python benchmarks/gpu.py                      # everything, under four minutes on an H200
    python benchmarks/gpu.py --only check step    # some sections, in this order
    python benchmarks/gpu.py --batch 8 --time 256 --preset micro
    python benchmarks/gpu.py --rehearse           # toy sizes in Triton's interpreter: does every line run?

Prints one JSON object a line and, last, a short table. Each section stands alone: one that fails prints its
traceback and the next goes on. Sweeps (mix, wkv, product, loss) leave their fastest setting to the sections
after them, which compare it with what ships. Times are CUDA events after warm-up; tokens are random.
The floor is the model's matrix products alone (forward, input and weight gradients) in bfloat16.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gpu_checks as checks
import gpu_sweeps as sweeps
from gpu_sweeps import BEGAN, DEVICE, TABLE, beside, record, say, some, sync, timed

from rusty_r2.lm import fused
from rusty_r2.lm import loss as loss_module
from rusty_r2.lm.kernels import triton_loss, triton_mix, triton_product, triton_wkv
from rusty_r2.lm.rwkv import PRESETS, ModelConfig, TinyRWKVLM

DIALS: dict[str, tuple[Any, str]] = {
    "mix forward": (triton_mix, "FORWARD"), "mix backward": (triton_mix, "BACKWARD"),
    "wkv block": (triton_wkv, "BLOCK"), "wkv stages": (triton_wkv, "STAGES"),
    "wkv programs": (triton_wkv, "PROGRAMS"),
    "loss swept": (triton_loss, "SWEPT"), "loss chunk": (loss_module, "CHUNK_GPU"),
    "exponents": (triton_product, "EXPONENTS"), "squared": (triton_product, "SQUARED"),
    "squared back": (triton_product, "SQUARED_BACK"), "mix back ffn": (triton_mix, "BACKWARD_UNGATED"),
}  # fmt: skip
SHIPPED = {name: getattr(*dial) for name, dial in DIALS.items()}


def turn_to(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        setattr(*DIALS[name], value)


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


def measure(args: argparse.Namespace, name: str, step: Callable[[], Any], *, tokens: int = 0) -> None:
    """Steps in a row between two marks: what a training run would see."""
    before = time.time()
    for _ in some(1, 2, 3):
        step()
    sync()
    first = time.time() - before
    if DEVICE == "cpu":
        say("step", kind=name, first_s=first)
        return
    times, launch = [], 0.0
    for _ in range(3):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        before = time.time()
        for _ in range(12):
            step()
        launch = (time.time() - before) / 12 * 1e3
        stop.record()
        sync()
        times.append(start.elapsed_time(stop) / 12)
    rate = (tokens or args.batch * args.time) / min(times) * 1e3
    share = rate / args.floor if getattr(args, "floor", 0) else 0
    peak = torch.cuda.max_memory_allocated() / 1e9
    say("step", kind=name, ms=times, launch_ms=launch, tokens_per_s=rate, of_floor=share, first_s=first,
        peak_gb=peak)  # fmt: skip
    spread = " ".join(f"{ms:6.2f}" for ms in times)
    TABLE.append(f"{name:34} {spread} ms  {rate / 1e6:5.3f} M tokens/s, {share:.3f} of floor")


def attempt(args: argparse.Namespace, name: str, make: Callable[[], Callable[[], Any]]) -> None:
    try:
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        measure(args, name, make())
    except Exception:
        say("step", kind=name, error=traceback.format_exc()[-1500:])
        TABLE.append(f"{name:34} FAILED")


def steps(args: argparse.Namespace) -> None:
    """The whole training step, several ways; what the sweeps found best against what ships."""
    best = {name: getattr(*dial) for name, dial in DIALS.items()}
    ways = {"shipped": SHIPPED} if best == SHIPPED else {"shipped": SHIPPED, "best": best}
    say("step", **ways)
    for name, dials in ways.items():
        turn_to(dials)
        attempt(args, f"fused, dials {name}", lambda: stepper(args, new(args)))
        if DEVICE == "cuda":
            attempt(args, f"fused, dials {name}, in a CUDA graph", lambda: graphed(args, new(args)))
    os.environ["RUSTY_FUSED"] = "0"
    attempt(args, "plain eager", lambda: stepper(args, new(args)))
    os.environ["RUSTY_FUSED"] = "1"


@lru_cache
def first_model(preset: str) -> TinyRWKVLM:
    """Made once: a new model's orthogonal matrices take a processor seconds."""
    torch.manual_seed(0)
    return TinyRWKVLM.of(PRESETS[preset]).to(DEVICE)


def new(args: argparse.Namespace) -> TinyRWKVLM:
    return copy.deepcopy(first_model(args.preset))


def graphed(args: argparse.Namespace, model: TinyRWKVLM) -> Callable[[], None]:
    step = stepper(args, model, capturable=True)
    with beside():
        for _ in range(3):
            step()
    sync()
    replay: Callable[[], None] = record(step).replay
    return replay


def trainer(args: argparse.Namespace) -> None:
    """`rusty train supervised`'s own loop on random rows, with its clipping, counters and feeder thread."""
    from contextlib import closing

    from gpu_trainer import Noise, trainer_of

    from rusty_r2.train.batches import Feeder

    for recorded in (False, True):
        made = trainer_of(args.preset, args.batch, args.time, device=DEVICE, record=recorded)
        feeder = Feeder(
            Noise(PRESETS[args.preset].vocab_size, args.time), start=0, stop=100_000,
            which=range(args.batch), device=made.world.device,
        )  # fmt: skip
        with closing(feeder):
            batches = iter(feeder)
            attempt(
                args, f"the trainer, {'recorded' if recorded else 'step by step'}",
                lambda: lambda: made._learn(next(batches)),  # noqa: B023
            )  # fmt: skip
            say("trainer", record=recorded, loss=float(made.window[0] / made.window[1]))


def compiled(args: argparse.Namespace) -> None:
    """The plain trunk under torch.compile."""
    model = new(args)
    model.trunk = torch.compile(model.trunk)  # type: ignore[method-assign]
    attempt(args, "plain + torch.compile", lambda: stepper(args, model))


# ------------------------------------------------------------------ where it goes


GROUPS = {
    "products": ("nvjet", "gemm", "splitK", "cutlass"), "mix forward": ("_forward_mix",),
    "mix backward": ("_backward_mix",), "wkv": ("_piece_ends", "_carry", "_forward", "_backward"),
    "loss": ("_turn", "_aim", "_close", "_mend"), "own products": ("_product",),
    "embedding": ("_scatter", "gather"),
    "optimizer": ("multi_tensor", "adam"), "sums": ("reduce_kernel",), "copies": ("copy", "Memcpy"),
    "fills": ("Memset", "FillFunctor"),
}  # fmt: skip


def profile(args: argparse.Namespace) -> None:
    from torch.profiler import ProfilerActivity

    step = stepper(args, new(args))
    for _ in some(1, 2, 3):
        step()
    sync()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in some(1, 2, 3):
            step()
        sync()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)
    for row in rows[:40]:
        ms = row.self_device_time_total / 3e3
        say("profile", ms=ms, calls=row.count / 3, kernel=row.key[:100])
    groups: dict[str, list[float]] = {}
    for row in rows:
        name = next((name for name, marks in GROUPS.items() if any(m in row.key for m in marks)), "rest")
        group = groups.setdefault(name, [0.0, 0.0])
        group[0] += row.self_device_time_total / 3e3
        group[1] += row.count / 3
    TABLE.append(f"busy {sum(ms for ms, _ in groups.values()):.2f} ms a step:")
    for name, (ms, calls) in sorted(groups.items(), key=lambda item: -item[1][0]):
        TABLE.append(f"  {name:14} {ms:7.3f} ms in {calls:5.0f} calls")


SECTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    "check": checks.wkv_kernel, "trunk": checks.trunk, "floor": floor, "mix": sweeps.mix, "wkv": sweeps.wkv,
    "product": sweeps.product, "loss": sweeps.loss, "embed": sweeps.embed, "step": steps, "profile": profile,
    "trainer": trainer, "bnb": checks.engine, "compile": compiled,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="tiny", choices=PRESETS)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--time", type=int, default=1024)
    parser.add_argument("--only", nargs="*", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--rehearse", action="store_true", help="no GPU: toy sizes, times without meaning")
    parser.add_argument("--seconds", type=float, default=200, help="no section starts after this long")
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
