# SPDX-License-Identifier: AGPL-3.0-or-later
"""Does PPO learn? Held-out pass rate before and after, three seeds, a table and a curve.

    OMP_NUM_THREADS=1 python benchmarks/ppo_learns.py --device cuda --folder /tmp/ppo

The warm start is what logs of a mediocre agent would give: in a quarter of its episodes the work is done, in
the others it says "Done." without doing anything, or only looks around. A model trained on that for a minute
says what is said most often, and most often that is wrong. PPO then plays the gym's training tasks with one
reply each and is paid for what works. Tasks of the evaluation have words, numbers and wordings that neither
the warm start nor PPO has seen.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

from rusty_r2.data import voice
from rusty_r2.data.episode import ask
from rusty_r2.data.played import asked
from rusty_r2.gym import catalog
from rusty_r2.gym.env import EnvConfig, opening
from rusty_r2.gym.families import FAMILIES
from rusty_r2.gym.proof import gold
from rusty_r2.protocol import Cmd, Msg

FILES = ["rename", "move", "remove", "create", "layout"]
TEXT = ["sort", "pick_lines", "columns", "replace", "config", "join", "summary"]
SHELL = [*FILES, *TEXT]
DONE, IDLE = 0.25, 0.4
"""how many episodes do the work, and how many say that it is done; the others look around"""


def mediocre(path: Path, count: int, seed: int) -> None:
    """Episodes of an agent that rarely works."""
    rng = random.Random(seed)
    levels = [1, 2]
    tasks = catalog.tasks("train", seed=5, count=3 * count, families=SHELL, difficulty=levels)
    single = [task for task in tasks if len(gold(task)) == 1][:count]
    with open(path, "w", encoding="utf-8") as file:
        for task in single:
            chance = rng.random()
            if chance < DONE:
                episode = asked(task, "mediocre", "AGPL-3.0-or-later")
            else:
                action = (
                    Msg(voice.done(rng)) if chance < DONE + IDLE else Cmd(rng.choice(("ls", "ls -la", "pwd")))
                )
                episode = ask(action.kind, "mediocre", opening(task, EnvConfig()), action)
            file.write(episode.to_json() + "\n")


def rusty(*words: str, wait: bool = True) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-m", "rusty_r2.cli", *words])
    if wait and process.wait():
        raise SystemExit(f"rusty {' '.join(words[:2])} ended with {process.returncode}")
    return process


def curve(run: Path) -> list[tuple[int, float, float, float]]:
    """Round, held-out pass rate, and its interval."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        (row["step"], row["eval/pass_rate"], row["eval/low"], row["eval/high"])
        for row in rows
        if "eval/pass_rate" in row
    ]


def picture(curves: dict[int, list[tuple[int, float, float, float]]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for seed, points in curves.items():
        rounds = [point[0] for point in points]
        axes.plot(rounds, [100 * point[1] for point in points], marker="o", label=f"seed {seed}")
        axes.fill_between(rounds, [100 * p[2] for p in points], [100 * p[3] for p in points], alpha=0.15)
    axes.set(xlabel="round of PPO", ylabel="held-out tasks passed, %", ylim=(0, 100))
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--init", type=Path, default=Path(__file__).parents[1] / "rusty_r2" / "lm" / "shipped"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/ppo_learns"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--warm-steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--together", action="store_true", help="all seeds at the same time")
    parser.add_argument("--only-table", action="store_true", help="the runs are there: draw them")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    warm = args.folder / "warm"
    start = warm / f"step_{args.warm_steps:06}"
    if not args.only_table:
        play(args, warm, start)
    curves = {seed: curve(args.folder / f"ppo-{seed}") for seed in args.seeds}
    print("| seed | before | after | rounds |\n|--:|--:|--:|--:|")
    for seed, points in curves.items():
        first, last = points[0], points[-1]
        cells = (f"{100 * p[1]:.1f}% ({100 * p[2]:.1f} to {100 * p[3]:.1f})" for p in (first, last))
        print(f"| {seed} | {' | '.join(cells)} | {last[0]} |")
    try:
        picture(curves, args.folder / "ppo_learns.png")
        print(args.folder / "ppo_learns.png")
    except ImportError:
        print("no picture: pip install 'rusty-r2[plots]', then --only-table")


def play(args: argparse.Namespace, warm: Path, start: Path) -> None:
    """The warm start once, then every seed."""
    assert set(SHELL) <= set(FAMILIES)
    mediocre(args.folder / "mediocre.jsonl", 12_000, 0)
    steps = str(args.warm_steps)
    rusty(
        *("train", "supervised", "--data-dir", str(args.folder / "mediocre.jsonl"), "--init", str(args.init)),
        *("--batch-size", "32", "--seq-len", "512", "--lr", "3e-4", "--max-steps", steps),
        *("--ckpt-interval", steps, "--sample-tokens", "0", "--device", args.device),
        *("--checkpoints-dir", str(warm)),
    )
    going = []
    for seed in args.seeds:
        going.append(
            rusty(
                *(
                    "train",
                    "ppo",
                    "--init-checkpoint",
                    str(start),
                    "--families",
                    *SHELL,
                    "--max-difficulty",
                    "2",
                ),
                *("--max-turns", "1", "--num-steps", "128", "--slots", "128", "--lr", "1e-4"),
                *(
                    "--total-timesteps",
                    str(128 * args.rounds),
                    "--eval-interval",
                    "10",
                    "--eval-tasks",
                    "240",
                ),
                *("--rollout-weights", "fp32" if args.device == "cpu" else "bf16", "--ckpt-interval", "1000"),
                *(
                    "--device",
                    args.device,
                    "--seed",
                    str(seed),
                    "--checkpoints-dir",
                    str(args.folder / f"ppo-{seed}"),
                ),
                wait=not args.together,
            )
        )
    for process in going:
        process.wait()


if __name__ == "__main__":
    main()
