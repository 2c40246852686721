# SPDX-License-Identifier: AGPL-3.0-or-later
"""A reward learned from people's labels, that knows when it does not know.

    reward = LearnedReward()
    report = reward.learn_from_traces(traces)      # only labels that people gave
    print(report)                                  # accuracy on unseen requests, calibration
    reward.save("taste.npz")                       # LearnedReward("taste.npz") reads it back

Its score is a calibrated chance that a person would say "good". Below the confidence at which it was
right often enough on requests it had not seen, it abstains: the score is None, and the auto-labeler
(labeler.py) leaves the trace to a person. The arithmetic is in classifier.py; files are npz without pickle.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from rusty_r2 import files
from rusty_r2.config import home
from rusty_r2.errors import DataError
from rusty_r2.rewards import classifier
from rusty_r2.rewards.base import BaseReward, RewardResult, nothing
from rusty_r2.trace import ExecutionTrace, by_person

RIGHT = 0.9
"""share of the answers given that must be right; where that cannot be had, it abstains"""
FEWEST = 5
"""answers on which such a share may rest"""


@dataclass(frozen=True)
class LearningReport:
    """What was learned, judged on requests that were kept out."""

    learned: bool
    examples: int
    good: int
    why: str = ""
    """why nothing was learned"""
    accuracy: float = 0.0
    baseline: float = 0.0
    """accuracy of always saying what is more frequent"""
    calibration_error: float = 0.0
    """how far its stated chances lie from what came true, on average; small is good"""
    confidence: float = 1.01
    """below this it abstains"""
    coverage: float = 0.0
    """share of traces on which it does not abstain"""
    accuracy_covered: float = 0.0
    """accuracy on those"""

    def __str__(self) -> str:
        if not self.learned:
            return f"nothing learned: {self.why}"
        abstains = "always" if self.confidence > 1 else f"below {self.confidence:.2f}"
        return (
            f"{self.examples} labels ({self.good} good): accuracy {self.accuracy:.2f} on requests kept out "
            f"(always the same answer: {self.baseline:.2f}), calibration error {self.calibration_error:.2f}; "
            f"abstains {abstains}, answers {self.coverage:.0%} with accuracy {self.accuracy_covered:.2f}"
        )


def usual_path() -> Path:
    """Where what was learned is kept when nobody says where."""
    return home() / "models" / "learned_reward.npz"


class LearnedReward(BaseReward):
    """The chance that a person would call this good."""

    name = "learned"
    weight = 1.0
    is_binary = False

    def __init__(self, model_path: str | Path | None = None) -> None:
        self.model_path = Path(model_path) if model_path is not None else None
        self.weights: classifier.Array | None = None
        self.bias = 0.0
        self.scale = (1.0, 0.0)
        self.report = LearningReport(False, 0, 0, "no labels yet")
        if self.model_path is not None and self.model_path.exists():
            self._read(self.model_path)

    def learn_from_traces(self, traces: Iterable[ExecutionTrace], min_examples: int = 10) -> LearningReport:
        """Learn from the labels of people; labels of classifiers are passed over."""
        told = sorted((trace for trace in traces if by_person(trace)), key=lambda trace: trace.trace_id)
        good = np.array([float(bool(trace.label)) for trace in told])
        plus = int(good.sum())
        if len(told) < min_examples or plus in (0, len(told)):
            few = f"{len(told)} labels, {min_examples} are needed" if len(told) < min_examples else ""
            why = few or f"all {len(told)} labels say the same"
            self.report = LearningReport(False, len(told), plus, f"{why}. Type: rusty trace label")
            return self.report
        rows = classifier.rows_of(told)
        logits = classifier.cross_validate(
            rows, good, [trace.task_name or trace.user_query for trace in told]
        )
        seen = np.isfinite(logits)
        self.scale = classifier.scale(logits[seen], good[seen]) if seen.any() else (1.0, 0.0)
        self.weights, self.bias = classifier.fit(rows, good)
        self.report = self._judge(logits[seen], good[seen], len(told), plus)
        return self.report

    def _judge(
        self, logits: classifier.Array, good: classifier.Array, count: int, plus: int
    ) -> LearningReport:
        baseline = max(plus, count - plus) / count
        if not len(good):
            return LearningReport(True, count, plus, baseline=baseline)
        chance = classifier.sigmoid(self.scale[0] * logits + self.scale[1])
        right = (chance >= 0.5) == (good > 0.5)
        confidence, covered = _abstain_below(np.maximum(chance, 1 - chance), right)
        return LearningReport(
            True,
            count,
            plus,
            accuracy=float(right.mean()),
            baseline=baseline,
            calibration_error=classifier.calibration_error(chance, good),
            confidence=confidence,
            coverage=float(covered.mean()),
            accuracy_covered=float(right[covered].mean()) if covered.any() else 0.0,
        )

    def chance(self, trace: ExecutionTrace) -> float | None:
        """The chance that a person would say good; None before anything was learned."""
        if self.weights is None:
            return None
        logit = self.bias + sum(
            self.weights[key] * value for key, value in classifier.features(trace).items()
        )
        return float(classifier.sigmoid(np.array(self.scale[0] * logit + self.scale[1])))

    def doubt(self, trace: ExecutionTrace) -> float:
        """1 where it has no idea, 0 where it is sure: a person's label is worth most at the top."""
        chance = self.chance(trace)
        return 1.0 if chance is None else 1 - abs(2 * chance - 1)

    def compute(self, trace: ExecutionTrace) -> RewardResult:
        chance = self.chance(trace)
        if chance is None:
            return nothing(why="no labels learned yet")
        confidence = max(chance, 1 - chance)
        if confidence < self.report.confidence:
            return nothing(why="abstains", chance=chance)
        return RewardResult(chance, False, {"confidence": confidence})

    def save(self, path: str | Path | None = None) -> Path:
        """Write what was learned; the path given, the one it came from, or one in the data home."""
        if self.weights is None:
            raise DataError("nothing was learned yet. Type: rusty rewards learn")
        target = Path(path or self.model_path or usual_path())
        sink = io.BytesIO()
        about = {"format": 1, "bias": self.bias, "scale": self.scale, "report": asdict(self.report)}
        np.savez_compressed(sink, weights=self.weights.astype(np.float32), about=np.array(json.dumps(about)))
        return files.write(target, sink.getvalue())

    save_patterns = save

    def _read(self, path: Path) -> None:
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as held:
                about = json.loads(str(held["about"]))
                weights = held["weights"].astype(np.float64)
            _same_version(about["format"], weights)
            self.report = LearningReport(**about["report"])
            self.bias, self.scale = float(about["bias"]), (float(about["scale"][0]), float(about["scale"][1]))
            self.weights = weights
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise DataError(f"{path} holds no learned reward: {error}. Type: rusty rewards learn") from error


def _same_version(version: int, weights: classifier.Array) -> None:
    if version != 1 or weights.shape != (classifier.BUCKETS,) or not np.isfinite(weights).all():
        raise ValueError("it is of another version")


def _abstain_below(
    confidence: classifier.Array, right: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
) -> tuple[float, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    """The lowest confidence from which on enough answers were right, and which answers those are."""
    for bar in np.unique(confidence):
        covered = confidence >= bar
        if covered.sum() >= FEWEST and right[covered].mean() >= RIGHT:
            return float(bar), covered
    return 1.01, np.zeros(len(confidence), bool)
