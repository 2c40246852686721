# SPDX-License-Identifier: AGPL-3.0-or-later
"""Training speed on a processor: our step, Hugging Face's RWKV, and the model's matrix products alone.

    OMP_NUM_THREADS=1 python benchmarks/train_speed.py                 # (2, 1024) and (8, 256), two rounds
    OMP_NUM_THREADS=1 python benchmarks/train_speed.py --shapes 2x1024 --rounds 3

One thread, process CPU seconds (a busy machine does not change them much), the best round of each rival.
Every rival lives in its own process, as its users would run it, and they take turns. A step is forward,
loss, backward and AdamW on random tokens. The peer has no projection after its embedding, so beside it our
model has d_embed = d_hidden: slightly more work than theirs. The floor is the forward, input-gradient and
weight-gradient product of every weight matrix. Prints a table and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: set_num_threads does not hold its matmuls back

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rusty_r2.lm import native
from rusty_r2.lm.rwkv import PRESETS, TinyRWKVLM

C = PRESETS["tiny"]


def step_of(model: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def ours(ids: torch.Tensor, d_embed: int) -> Callable[[], None]:
    native.keep_memory()
    model = TinyRWKVLM.of(C, d_embed=d_embed)

    def loss() -> torch.Tensor:
        total, count, _ = model.loss(ids[:, :-1], ids[:, 1:])
        return total / count

    return step_of(model, loss)


def huggingface(ids: torch.Tensor) -> Callable[[], None]:
    from transformers import RwkvConfig, RwkvForCausalLM

    config = RwkvConfig(
        vocab_size=C.vocab_size, hidden_size=C.d_hidden, num_hidden_layers=C.n_layers,
        intermediate_size=C.width, context_length=4096, tie_word_embeddings=False, rescale_every=0,
    )  # fmt: skip
    model = RwkvForCausalLM(config).train()

    def loss() -> torch.Tensor:
        logits = model(ids[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.reshape(-1, C.vocab_size), ids[:, 1:].reshape(-1))

    return step_of(model, loss)


def floor(tokens: int, d_embed: int) -> Callable[[], None]:
    shapes = [(d_embed, C.d_hidden, 1), (C.d_hidden, C.d_hidden, 5 * C.n_layers)]
    shapes += [
        (C.d_hidden, C.width, C.n_layers),
        (C.width, C.d_hidden, C.n_layers),
        (C.d_hidden, C.vocab_size, 1),
    ]
    made = []
    for inputs, outputs, count in shapes:
        x, w, g = torch.randn(tokens, inputs), torch.randn(outputs, inputs), torch.randn(tokens, outputs)
        made.append((x, w, g, torch.empty_like(g), torch.empty_like(x), torch.empty_like(w), count))

    def products() -> None:
        for x, w, g, y, dx, dw, count in made:
            for _ in range(count):
                torch.mm(x, w.t(), out=y)
                torch.mm(g, w, out=dx)
                torch.mm(g.t(), x, out=dw)

    return products


RIVALS: dict[str, Callable[[torch.Tensor], Callable[[], None]]] = {
    "floor": lambda ids: floor(ids[:, 1:].numel(), C.d_embed),
    "ours": lambda ids: ours(ids, C.d_embed),
    "ours, d_embed = d_hidden": lambda ids: ours(ids, C.d_hidden),
    "huggingface": huggingface,
}


def compete(rival: str, shape: str) -> None:
    """One rival in its own process: a step for every line on stdin, its CPU seconds on stdout."""
    batch, length = map(int, shape.split("x"))
    torch.manual_seed(0)
    run = RIVALS[rival](torch.randint(0, C.vocab_size, (batch, length + 1)))
    for _ in sys.stdin:
        before = time.process_time()
        run()
        print(time.process_time() - before, flush=True)


def race(rivals: list[str], shape: str, rounds: int) -> dict[str, list[float]]:
    """Each rival's CPU seconds a step, taken in turns; the first turn warms up and does not count."""
    started = {
        name: subprocess.Popen(
            [sys.executable, __file__, "--compete", name, "--shapes", shape],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in rivals
    }  # fmt: skip
    seen: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds + 1):
        for name, process in started.items():
            assert process.stdin is not None and process.stdout is not None
            print(file=process.stdin, flush=True)
            seen[name].append(float(process.stdout.readline()))
    for process in started.values():
        process.communicate()
    return {name: times[1:] for name, times in seen.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="*", default=["2x1024", "8x256"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-peer", action="store_true", help="leave Hugging Face out: half the time")
    parser.add_argument("--compete", choices=RIVALS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compete:
        return compete(args.compete, args.shapes[0])
    results = []
    for shape in args.shapes:
        tokens = math.prod(map(int, shape.split("x")))
        seen = race(list(RIVALS)[: 2 if args.no_peer else 4], shape, args.rounds)
        best = {name: min(times) for name, times in seen.items()}
        for name, times in seen.items():
            spread = ", ".join(f"{t:.2f}" for t in times)
            print(f"{shape:>8} {name:26} {tokens / best[name]:7.1f} tokens/CPU-s   ({spread} CPU-s)")
        ratios: dict[str, Any] = {"shape": shape, "of_floor": round(best["floor"] / best["ours"], 3)}
        if not args.no_peer:
            ratios["times_huggingface"] = round(best["huggingface"] / best["ours, d_embed = d_hidden"], 2)
        results.append(ratios | {f"cpu_s {name}": round(t, 3) for name, t in best.items()})
        print(
            f"{shape:>8} of the floor {ratios['of_floor']}, Hugging Face x {ratios.get('times_huggingface')}"
        )
    print(json.dumps(results))
    return None


if __name__ == "__main__":
    main()
