# SPDX-License-Identifier: AGPL-3.0-or-later
"""How fast a GPU speaks and plays: steps as they are against recorded ones, a round of PPO, an evaluation.

    python benchmarks/gpu_decode.py --out figures          # needs a GPU, about a minute

Checks come first: a recorded step says what the step says, and what `Engine` says word by word. Then tokens
a second by rows, the reading of many prompts of different lengths, rounds of PPO from the shipped model with
the share of every part, and the held-out tasks. A section that fails says so and the others go on.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rusty_r2.lm import checkpoint
from rusty_r2.lm.decoding import PlainPen
from rusty_r2.lm.engine import Engine
from rusty_r2.lm.engine_torch import TorchModel
from rusty_r2.lm.sampling import Sampling
from rusty_r2.lm.scribe import Scribe

SHIPPED = Path(__file__).parents[1] / "rusty_r2" / "lm" / "shipped"
SPLIT = (
    *("time/round_s", "time/tasks_s", "time/play_s", "time/score_s", "time/update_s", "time/episodes_per_s"),
    *("time/tokens_per_s", "time/model_share", "time/sandbox_share", "time/host_share"),
    *("play/pass_rate", "play/replies", "play/tokens", "policy/first_ratio_error", "policy/kl"),
)


def prompts(rows: int, words: int, longest: int = 40) -> list[list[int]]:
    chance = np.random.default_rng(0)
    return [chance.integers(16, words, chance.integers(1, longest)).tolist() for _ in range(rows)]


def clock(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def scribe_of(model: TorchModel, rows: int, *, record: bool, limit: int = 64, how: Any = None) -> Scribe:
    scribe = Scribe(
        model, rows=rows, sampling=how or Sampling(1.0, seed=7), limit=limit, stops=[0], record=record
    )
    asked = prompts(rows, model.shape.words)
    scribe.read(range(rows), asked, seeds=range(rows), counts=[len(part) for part in asked])
    return scribe


def told(scribe: Scribe) -> dict[int, tuple[list[int], list[float]]]:
    said: dict[int, tuple[list[int], list[float]]] = {}
    while found := scribe.write():
        for row, words in found.items():
            tokens, logp = said.setdefault(row, ([], []))
            tokens += words.tokens
            logp += words.logp
    return said


def checks(model: TorchModel) -> dict[str, Any]:
    """Recorded against plain steps, and against the engine's own doors."""
    found: dict[str, Any] = {}
    for name, how in (("sampled", Sampling(1.0, seed=7)), ("greedy", Sampling(0.0))):
        recorded, plain = (
            told(scribe_of(model, 64, record=record, limit=32, how=how)) for record in (True, False)
        )
        found[f"recorded = plain, {name}"] = recorded == plain
        engine, asked = Engine(model, backend="torch"), prompts(64, model.shape.words)
        pen = PlainPen(engine, 64, how)
        same, worst, going = 0, 0.0, {row: asked[row] for row in range(64)}
        for place in range(8):
            rows = list(going)
            counts = [len(asked[row]) + place for row in rows]
            pen.read(rows, [going[row] for row in rows], seeds=rows, counts=counts)
            for row, words in pen.write().items():
                alike = recorded[row][0][place] == words.tokens[0]
                same += alike
                worst = max(worst, abs(recorded[row][1][place] - words.logp[0]) if alike else 0.0)
                going[row] = words.tokens
                if not alike or words.tokens[0] == 0:
                    del going[row]
        found[f"words as the engine's, {name}"] = f"{same} of {8 * 64}, log-probabilities within {worst:.1e}"
    return found


def speeds(model: TorchModel, rows: int) -> dict[str, float]:
    """Tokens a second: word by word as before, the same steps launched, and recorded."""
    asked, found = prompts(rows, model.shape.words), {}
    pen = PlainPen(Engine(model, backend="torch"), rows, Sampling(1.0, seed=7))
    which = list(range(rows))

    def word_by_word(steps: int) -> None:
        pending = asked
        for step in range(steps):
            pen.read(which, pending, seeds=which, counts=[step] * rows)
            said = pen.write()
            pending = [said[row].tokens for row in which]

    word_by_word(2)
    found["word by word"] = 8 * rows / clock(lambda: word_by_word(8))
    for name, record, steps in (("launched", False, 16), ("recorded", True, 128)):
        scribe = scribe_of(model, rows, record=record, limit=10**6)
        scribe.write()
        found[name] = steps * rows / clock(lambda s=scribe, n=steps: [s.write() for _ in range(n // s.steps)])
        torch.cuda.synchronize()
    long = prompts(rows, model.shape.words, 200)
    lengths = sum(map(len, long))
    found["reading"] = lengths / min(
        clock(lambda: scribe.read(which, long, seeds=which, counts=which)) for _ in range(3)
    )
    return found


def rounds(slots: int, count: int, **options: Any) -> list[dict[str, float]]:
    """Rounds of PPO from the shipped model."""
    from rusty_r2.train import ppo

    config = ppo.PPOConfig(
        init_checkpoint=SHIPPED,
        num_steps=3 * slots,
        total_timesteps=3 * slots * count,
        slots=slots,
        eval_tasks=options.pop("eval_tasks", 780),
        eval_interval=0,
        ckpt_interval=10**6,
        checkpoints_dir=Path(tempfile.mkdtemp()) / "ppo",
        device="cuda",
        **options,
    )
    folder = ppo.train(config)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--rows", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--weights", nargs="*", default=["fp32", "bf16"])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {}

    def section(name: str, work: Callable[[], Any]) -> None:
        began = time.perf_counter()
        try:
            figures[name] = work()
        except Exception as error:
            traceback.print_exc()
            figures[name] = f"failed: {type(error).__name__}: {error}"
        print(f"== {name} ({time.perf_counter() - began:.1f} s)", flush=True)
        shown = figures[name] if isinstance(figures[name], list) else [figures[name]]
        for row in shown:
            for key, value in row.items() if isinstance(row, dict) else [("", row)]:
                if len(shown) == 1 or key in SPLIT or key.startswith("eval/") or key == "time/eval_s":
                    print(f"  {key:28} {value:,.4g}" if isinstance(value, float) else f"  {key:28} {value}")
            print(flush=True)
        (args.out / "gpu_decode.json").write_text(json.dumps(figures, indent=1) + "\n")

    lm = checkpoint.load(SHIPPED)
    for weights in args.weights:
        model = TorchModel(lm, weights=weights, device="cuda")
        section(f"checks, {weights}", lambda model=model: checks(model))
        for rows in args.rows:
            section(f"tokens/s, {weights}, {rows} rows", lambda m=model, n=rows: speeds(m, n))
    section(f"{args.rounds} rounds of {args.slots} episodes", lambda: rounds(args.slots, args.rounds))


if __name__ == "__main__":
    main()
