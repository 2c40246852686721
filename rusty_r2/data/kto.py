# SPDX-License-Identifier: AGPL-3.0-or-later
"""KTO rows: a prompt, a completion, and whether it was good.

    rusty data kto --output kto.jsonl            from the store; kto.eval.jsonl holds the tasks kept out
    KTODatasetBuilder().build_dataset(traces)    the same in code

A label comes from a person, else from the auto-labeler, else from the rewards and the threshold. The rows
are in an order that looks random, with no two of one prompt side by side (TRL pairs neighbours), and is the
same for the same traces. Balancing drops rows of the larger class; with one class there is nothing to
balance, and the report says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rusty_r2.data import rows
from rusty_r2.data.judged import ALIKE, Judged, SourceConfig, distinct, gather, judge, usable, write_rows
from rusty_r2.data.rows import Form, Report, Text
from rusty_r2.rewards.engine import RewardEngine
from rusty_r2.trace import ExecutionTrace, by_person


@dataclass(frozen=True)
class KTORowsConfig(SourceConfig):
    output: Path = Path("kto.jsonl")
    """where the rows go"""
    threshold: float = 0.6
    """reward from which an unlabelled trace counts as good"""
    balance: bool = True
    """as many good rows as bad ones"""
    labeled_only: bool = False
    """only traces that people or the auto-labeler labelled"""
    max_examples: int | None = None
    """at most so many rows"""


@dataclass
class KTOExample:
    """One row."""

    prompt: Text
    completion: Text
    label: bool
    trace_id: str = ""
    task: str = ""
    split: str = "train"
    labeled_by: str = ""
    score: float | None = None
    parts: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The row as it is written: TRL reads the first three, people the rest."""
        return {
            "prompt": self.prompt,
            "completion": self.completion,
            "label": self.label,
            "trace_id": self.trace_id,
            "labeled_by": self.labeled_by,
            "score": self.score,
        }


class KTODatasetBuilder:
    """Makes KTO rows of traces; `report` tells what became of the last ones."""

    def __init__(
        self,
        reward_engine: RewardEngine | None = None,
        reward_threshold: float = 0.6,
        system_prompt: str = "",
        *,
        form: Form = "conversational",
        eval_share: float = 0.0,
        alike: float = ALIKE,
        seed: int = 0,
    ) -> None:
        self.reward_engine = reward_engine or RewardEngine()
        self.reward_threshold = reward_threshold
        self.system_prompt = system_prompt
        self.form: Form = form
        self.eval_share = eval_share
        self.alike = alike
        self.seed = seed
        self.report = Report()

    def trace_to_example(self, trace: ExecutionTrace) -> KTOExample | None:
        """The row of one trace, or None where it gives none."""
        kept = usable(judge([trace], self.reward_engine), Report())
        return self._example(kept[0]) if kept else None

    def build_dataset(
        self, traces: Iterable[ExecutionTrace], balance: bool = True, max_examples: int | None = None
    ) -> list[KTOExample]:
        return self.build_judged(judge(traces, self.reward_engine), balance, max_examples)

    def build_judged(
        self, judged: Sequence[Judged], balance: bool = True, max_examples: int | None = None
    ) -> list[KTOExample]:
        """The same from traces that were judged before."""
        self.report = report = Report()
        kept = usable(judged, report)
        kept = distinct(kept, report, [self._label(one) for one in kept], self.alike)
        kept.sort(key=lambda one: rows.rank(self.seed, one.trace.trace_id))
        if balance:
            kept = self._balanced(kept)
        if max_examples is not None and len(kept) > max_examples:
            report.left_out["over --max-examples"] += len(kept) - max_examples
            kept = kept[:max_examples]
        made = [self._example(one) for one in kept]
        splits = ([example for example in made if example.split == split] for split in ("train", "eval"))
        examples = [
            example
            for some in splits
            for example in rows.apart(some, [rows.digest(example.prompt) for example in some])
        ]
        self._tell(examples, kept)
        return examples

    def build_from_collector(
        self, collector: Any, include_unlabeled: bool = True, **kw: Any
    ) -> list[KTOExample]:
        return self.build_dataset(collector.load_traces(labeled_only=not include_unlabeled), **kw)

    def build_from_checkpoints(self, loader: Any, **kw: Any) -> list[KTOExample]:
        return self.build_dataset(loader.load_all_traces(), **kw)

    def save_dataset(
        self,
        examples: Iterable[KTOExample],
        output_path: str | Path,
        format: str = "jsonl",  # noqa: A002
    ) -> Path:
        return rows.save((example.to_dict() for example in examples), output_path, format)

    def load_dataset(self, path: str | Path) -> list[KTOExample]:
        known = KTOExample.__dataclass_fields__
        return [KTOExample(**{key: row[key] for key in row if key in known}) for row in rows.load(path)]

    def to_hf_dataset(self, examples: Iterable[KTOExample]) -> Any:
        return rows.to_hf(example.to_dict() for example in examples)

    def get_statistics(self, examples: Sequence[KTOExample]) -> dict[str, Any]:
        good = sum(example.label for example in examples)
        by: dict[str, int] = {}
        for example in examples:
            by[example.labeled_by] = by.get(example.labeled_by, 0) + 1
        return {
            "total": len(examples),
            "positive": good,
            "negative": len(examples) - good,
            "balance": good / len(examples) if examples else 0.0,
            "labeled_by": by,
            "tasks": len({example.task for example in examples}),
            "eval": sum(example.split == "eval" for example in examples),
        }

    def _label(self, one: Judged) -> bool:
        if one.known_label is not None:
            return one.known_label
        return one.score.total is not None and one.score.total >= self.reward_threshold

    def _example(self, one: Judged) -> KTOExample:
        return KTOExample(
            prompt=rows.prompt_of(one.trace, self.form, self.system_prompt),
            completion=rows.completion_of(one.trace, self.form),
            label=self._label(one),
            trace_id=one.trace.trace_id,
            task=rows.task_of(one.trace),
            split=rows.split_of(one.trace, self.eval_share, self.seed),
            labeled_by=one.by,
            score=None if one.score.total is None else round(one.score.total, 6),
            parts=one.parts,
        )

    def _balanced(self, kept: list[Judged]) -> list[Judged]:
        """As many of each class, within each split; people's labels are the last to go."""
        wanted = set()
        for split in ("train", "eval"):
            here = [one for one in kept if rows.split_of(one.trace, self.eval_share, self.seed) == split]
            classes = [[one for one in here if self._label(one) is label] for label in (True, False)]
            size = min(map(len, classes)) or max(map(len, classes))
            for some in classes:
                some.sort(key=lambda one: not by_person(one.trace))
                wanted |= {one.trace.trace_id for one in some[:size]}
        if len(wanted) < len(kept):
            self.report.left_out["to balance good and bad"] += len(kept) - len(wanted)
        return [one for one in kept if one.trace.trace_id in wanted]

    def _tell(self, examples: Sequence[KTOExample], kept: Sequence[Judged]) -> None:
        told = self.get_statistics(examples)
        self.report.rows = len(examples)
        self.report.counts = {name: told[name] for name in ("positive", "negative", "tasks", "eval")}
        self.report.counts |= {
            f"labelled by {who}": count for who, count in sorted(told["labeled_by"].items())
        }
        self.report.scores = [one.value for one in kept if one.value is not None]
        if examples and not (told["positive"] and told["negative"]):
            word = "good" if told["positive"] else "bad"
            self.report.notes.append(
                f"every row is {word}: KTO needs both kinds, and no balancing can make them"
            )


def build(config: KTORowsConfig) -> str:
    """Make KTO rows of the traces in the store, or of a folder or file of traces."""
    traces, problems = gather(config)
    builder = make_builder(config)
    judged = judge(traces, builder.reward_engine, show=True)
    if config.labeled_only:
        judged = [one for one in judged if one.known_label is not None]
    examples = builder.build_judged(judged, config.balance, config.max_examples)
    return write_rows(builder.report, examples, config.output, "kto", problems)


def make_builder(config: KTORowsConfig) -> KTODatasetBuilder:
    return KTODatasetBuilder(
        config.engine(),
        config.threshold,
        config.system_prompt,
        form=config.form,
        eval_share=config.eval_share,
        alike=config.alike,
        seed=config.seed,
    )
