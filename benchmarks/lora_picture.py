# SPDX-License-Identifier: AGPL-3.0-or-later
"""A picture of what the runs of lora_learns.py measured: how each method learned, and what it came to.

python benchmarks/lora_picture.py --folder runs/lora-learns --picture docs/pictures/lora_learns.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import tyro

from rusty_r2.run import metrics

matplotlib.use("Agg")
from matplotlib import pyplot

CURVES = (
    ("kto", "rewards/margins", "KTO: margin of good over bad"),
    ("online", "play/pass_rate", "online GRPO: replies that pass"),
    ("offline", "clip_ratio/region_mean", "offline GRPO: tokens clipped"),
)
"""method, number and title of each curve"""


def draw(folder: Path = Path("runs/lora-learns"), picture: Path = Path("lora_learns.png")) -> None:
    """Curves of the runs in `folder`, and what came of them on held-out tasks."""
    if not (folder / "results.jsonl").is_file():
        sys.exit(f"{folder} holds no results. Run benchmarks/lora_learns.py first")
    figure, places = pyplot.subplots(1, 4, figsize=(13, 3), dpi=80, constrained_layout=True)
    for place, (method, name, title) in zip(places, CURVES, strict=False):
        for run in sorted(folder.glob(f"{method}-seed*")):
            if run.is_dir():
                points = [(line["step"], line[name]) for line in metrics(run) if line.get(name) is not None]
                place.plot(*smooth(points), label=run.name.rpartition("-")[2])
        place.set(title=title, xlabel="step")
        place.legend(fontsize=7)
    results(folder, places[-1])
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture)
    print(picture)


def smooth(points: list[tuple[int, float]], width: int = 5) -> tuple[list[int], list[float]]:
    """Means of the last few values."""
    parts = [points[max(0, at + 1 - width) : at + 1] for at in range(len(points))]
    return [step for step, _ in points], [sum(value for _, value in part) / len(part) for part in parts]


def results(folder: Path, place: Any) -> None:
    """Held-out tasks solved after each run, with intervals; the warm start as a band."""
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    lines.sort(key=lambda line: (line["method"], line["seed"]))
    for at, line in enumerate(lines):
        value, low, high = (100 * number for number in line["sampled"]["passed"]["after"])
        place.errorbar(at, value, [[value - low], [high - value]], fmt="o", color="tab:blue", capsize=3)
    _, low, high = (100 * number for number in lines[0]["sampled"]["passed"]["before"])
    place.axhspan(low, high, color="tab:gray", alpha=0.3)
    place.set_xticks(range(len(lines)), [f"{line['method']} {line['seed']}" for line in lines], rotation=90)
    place.set(title="held-out tasks solved, %", ylim=(0, 100))


if __name__ == "__main__":
    tyro.cli(draw)
