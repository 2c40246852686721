# SPDX-License-Identifier: AGPL-3.0-or-later
"""The part of benchmarks/gpu.py that asks whether the kernels are right.

wkv against a float64 loop, the fused trunk against the plain one, and the engine's small weights against
float32. Nothing to run here: python benchmarks/gpu.py --only check trunk bnb
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from pathlib import Path

import torch
from gpu_sweeps import DEVICE, TABLE, relative, say, some, sync
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rusty_r2.lm.rwkv import PRESETS, TinyRWKVLM
from rusty_r2.lm.scan import EMPTY
from rusty_r2.lm.wkv import wkv


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


def wkv_kernel(args: argparse.Namespace) -> None:
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


def trunk(args: argparse.Namespace) -> None:
    """Fused against plain: float32, then the loss's gradients in bfloat16 against float32."""
    torch.manual_seed(0)
    model = moved(TinyRWKVLM.of(PRESETS[args.preset], vocab_size=3000)).to(DEVICE)
    length = 150 if DEVICE == "cuda" else 20
    ids = torch.randint(0, 3000, (4, length), device=DEVICE)
    reset = torch.rand(4, length, device=DEVICE) < 0.03
    torch.backends.cuda.matmul.allow_tf32 = False

    def result(kind: str, autocast: bool) -> list[Tensor]:
        os.environ["RUSTY_FUSED"] = "0" if kind == "plain" else "1"
        state = model.initial_state(4)
        model.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            total, _, end = model.loss(ids, ids.roll(-1, 1), state=state, reset=reset)
        total.backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return [total.detach(), end.detach()[:, :4], *grads]

    want = result("plain", False)
    for kind, autocast, limit in (
        ("fused", False, 1e-4), ("plain", True, 5e-2), ("fused", True, 5e-2),
    ):  # fmt: skip
        errors = [relative(a, b) for a, b in zip(result(kind, autocast), want, strict=True)]
        worst = max(errors[2:])
        TABLE.append(
            f"{kind} trunk in {'bf16' if autocast else 'fp32'} against plain fp32: loss {errors[0]:.1e}, "
            f"state {errors[1]:.1e}, worst gradient {worst:.1e} {'ok' if worst < limit else 'WRONG'}"
        )
        name = [n for n, p in model.named_parameters() if p.grad is not None][errors[2:].index(worst)]
        say("check trunk", kind=kind, bf16=autocast, loss=errors[0], end=errors[1], gradient=worst, of=name,
            mean=sum(errors[2:]) / len(errors[2:]), ok=worst < limit)  # fmt: skip
    os.environ["RUSTY_FUSED"] = "1"


def engine(args: argparse.Namespace) -> None:
    """8-bit and 4-bit weights on the GPU through bitsandbytes, and bf16 beside them."""
    import numpy as np

    from rusty_r2.lm.engine import Engine
    from rusty_r2.lm.engine_torch import TorchModel
    from rusty_r2.lm.sampling import Sampling

    rows, length = (64, 128) if DEVICE == "cuda" else (2, 5)
    model = moved(TinyRWKVLM.of(PRESETS[args.preset]))
    ids = np.random.default_rng(0).integers(10, model.config.vocab_size, (rows, length)).tolist()
    seeds = list(range(rows))
    want = None
    for weights in ("fp32", "bf16", "int8", "int4"):
        try:
            if DEVICE == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            speaker = Engine(TorchModel(model, weights=weights, device=DEVICE), backend="torch")
            state = speaker.new_state(rows)
            output = speaker.prefill(ids, state)
            logits = torch.from_numpy(output.logits)
            want = logits if want is None else want
            same = float((logits.argmax(-1) == want.argmax(-1)).float().mean())
            tokens = speaker.pick(output, Sampling(1.0), seeds=seeds, counts=[0] * rows).tokens
            before = time.time()
            for step in some(*range(1, 33)):
                tokens = speaker.sample(
                    tokens, state, Sampling(1.0), seeds=seeds, counts=[step] * rows
                ).tokens
            sync()
            rate = rows * 32 / (time.time() - before)
            error = relative(logits, want)
            weight = sum(p.numel() * p.element_size() for p in speaker.model.lm.parameters()) / 1e6
            say("bnb", weights=weights, agrees=same, error=error, tokens_per_s=rate, weights_mb=weight)
            TABLE.append(
                f"engine on the GPU, {weights}: next token agrees {same:.3f}, logits differ {error:.4f}, "
                f"{rows} rows {rate:.0f} tokens/s, weights {weight:.0f} MB"
            )
        except Exception:
            say("bnb", weights=weights, error=traceback.format_exc()[-1200:])
            TABLE.append(f"engine on the GPU, {weights}: FAILED")
