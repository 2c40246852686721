# SPDX-License-Identifier: AGPL-3.0-or-later
"""A small classifier for traces: hashed words, actions and outcomes, logistic regression, numpy only.

`features` turns a trace into a sparse row of length 1; `fit` finds the weights by accelerated gradient
descent with a fixed step (the loss is convex and smooth, so it converges from any start, the same
on every run); `cross_validate` judges by requests never seen: traces of one request stay in one fold.
What the numbers are used for is in learned.py.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rusty_r2.rewards.reading import MAX_READ, answer, blocks, calls
from rusty_r2.trace import ExecutionTrace

BUCKETS = 1 << 14
RIDGE = 1e-2
STEPS = 300
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Sparse rows: entry i stands in row `row[i]`, bucket `bucket[i]`."""

    row: NDArray[np.int64]
    bucket: NDArray[np.int64]
    value: Array
    count: int

    def take(self, wanted: NDArray[np.int64]) -> Rows:
        """Some of the rows, in the order asked for."""
        place = np.full(self.count, -1, np.int64)
        place[wanted] = np.arange(len(wanted))
        keep = place[self.row] >= 0
        return Rows(place[self.row[keep]], self.bucket[keep], self.value[keep], len(wanted))

    def times(self, weights: Array) -> Array:
        """One number a row."""
        return np.bincount(self.row, self.value * weights[self.bucket], self.count).astype(np.float64)

    def gather(self, of_rows: Array) -> Array:
        """One number a bucket."""
        return np.bincount(self.bucket, self.value * of_rows[self.row], BUCKETS).astype(np.float64)


def features(trace: ExecutionTrace) -> dict[int, float]:
    """Words of request and answer, actions and how they ended, sizes; scaled to length 1."""
    said, done = answer(trace)[:MAX_READ], calls(trace)
    counts: Counter[str] = Counter()
    for where, text in (("q", trace.user_query[:MAX_READ]), ("r", said)):
        words = re.findall(r"\w+|[^\w\s]", text.casefold())[:2000]
        counts.update(f"{where}:{word}" for word in words)
        counts.update(f"{where}:{a} {b}" for a, b in pairwise(words))
    for call in done:
        counts[f"did:{call.name}:{call.ok}"] += 3
        counts[f"word:{call.text.split(maxsplit=1)[0] if call.text.split() else ''}:{call.ok}"] += 1
    counts.update(f"thought:{step.step_type}" for step in trace.reasoning_steps)
    counts.update(f"code:{block.language}" for block in blocks(said))
    failed = sum(not call.ok for call in done)
    for name, amount in (("said", len(said)), ("calls", len(done)), ("failed", failed)):
        counts[f"{name}:{int(math.log2(amount + 1))}"] += 3
    counts[f"ended:{trace.ended}:{bool(trace.tasks_failed)}"] += 3
    found: dict[int, float] = {}
    for name, amount in counts.items():
        place = zlib.crc32(name.encode("utf-8", "replace"))
        sign = 1.0 if place & 1 << 31 else -1.0
        found[place % BUCKETS] = found.get(place % BUCKETS, 0.0) + sign * (1 + math.log(amount))
    length = math.sqrt(sum(value * value for value in found.values())) or 1.0
    return {bucket: value / length for bucket, value in found.items()}


def rows_of(traces: Sequence[ExecutionTrace]) -> Rows:
    made = [features(trace) for trace in traces]
    sizes = [len(one) for one in made]
    bucket = np.array([key for one in made for key in one], np.int64)
    value = np.array([number for one in made for number in one.values()], np.float64)
    return Rows(np.repeat(np.arange(len(made)), sizes), bucket, value, len(made))


def fit(rows: Rows, good: Array) -> tuple[Array, float]:
    """Weights and bias of the ridge-penalised logistic regression."""
    weights = ahead = np.zeros(BUCKETS)
    bias = bias_ahead = 0.0
    step = 1.0 / (0.25 * 2.0 + RIDGE)  # rows have length 1, the bias adds another 1
    for turn in range(STEPS):
        error = sigmoid(rows.times(ahead) + bias_ahead) - good
        new = ahead - step * (rows.gather(error) / rows.count + RIDGE / rows.count * ahead)
        new_bias = bias_ahead - step * float(error.mean())
        push = turn / (turn + 3)
        ahead, bias_ahead = new + push * (new - weights), new_bias + push * (new_bias - bias)
        weights, bias = new, new_bias
    return weights, bias


def sigmoid(logits: Array) -> Array:
    made: Array = 1.0 / (1.0 + np.exp(-np.clip(logits, -40, 40)))
    return made


def cross_validate(rows: Rows, good: Array, groups: Sequence[str], folds: int = 5) -> Array:
    """Logits of every row from weights that saw no row of its group; NaN where no fold could say."""
    fold = np.array([zlib.crc32(group.encode("utf-8", "replace")) % 10_007 for group in groups])
    order = np.array(sorted(set(fold.tolist())))
    fold = np.searchsorted(order, fold) % folds
    logits = np.full(rows.count, np.nan)
    for number in range(folds):
        inside, outside = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        if len(inside) and len(outside) and 0 < good[outside].mean() < 1:
            weights, bias = fit(rows.take(outside), good[outside])
            logits[inside] = rows.take(inside).times(weights) + bias
    return logits


def scale(logits: Array, good: Array) -> tuple[float, float]:
    """Platt's two numbers: sigmoid(a * logit + b) is the share of good ones among such logits."""
    # Platt's soft targets keep a perfect split from becoming certainty
    count = len(good)
    plus = good.sum()
    target = np.where(good > 0.5, (plus + 1) / (plus + 2), 1 / (count - plus + 2))
    a, b = 1.0, 0.0
    for _ in range(100):
        p = sigmoid(a * logits + b)
        error, spread = p - target, np.maximum(p * (1 - p), 1e-6)
        slope = np.array([(error * logits).sum() + 1e-3 * (a - 1), error.sum()])
        ab = (spread * logits).sum()
        curve = np.array([[(spread * logits**2).sum() + 1e-3, ab], [ab, spread.sum() + 1e-9]])
        move = np.linalg.solve(curve, slope)
        a, b = a - float(np.clip(move[0], -1, 1)), b - float(np.clip(move[1], -1, 1))
    return max(a, 1e-3), b


def calibration_error(chance: Array, good: Array, bins: int = 10) -> float:
    """Expected calibration error: how far the stated chance lies from the share that came true."""
    place = np.minimum((chance * bins).astype(int), bins - 1)
    return float(
        sum(
            np.mean(place == one) * abs(chance[place == one].mean() - good[place == one].mean())
            for one in range(bins)
            if np.any(place == one)
        )
    )
