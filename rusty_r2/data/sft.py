# SPDX-License-Identifier: AGPL-3.0-or-later
"""SFT rows: the prompts and completions of good traces, to imitate.

    rusty data sft --output sft.jsonl

Good means that a person said so, or, where nobody did, that the rewards reach the threshold, which is
higher than KTO's: a warm start should imitate only what is surely good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rusty_r2.data import rows
from rusty_r2.data.judged import Judged, SourceConfig, distinct, gather, judge, usable, write_rows
from rusty_r2.data.rows import Report, Text
from rusty_r2.trace import ExecutionTrace


@dataclass(frozen=True)
class SFTRowsConfig(SourceConfig):
    output: Path = Path("sft.jsonl")
    """where the rows go"""
    threshold: float = 0.8
    """reward from which an unlabelled trace is worth imitating"""
    max_examples: int | None = None
    """at most so many rows"""


@dataclass
class SFTExample:
    """One row."""

    prompt: Text
    completion: Text
    trace_id: str = ""
    score: float | None = None
    split: str = "train"

    def to_dict(self) -> dict[str, Any]:
        said = {"prompt": self.prompt, "completion": self.completion}
        return {**said, "trace_id": self.trace_id, "score": self.score}


def sft_rows(judged: Sequence[Judged], config: SFTRowsConfig) -> tuple[list[SFTExample], Report]:
    """Rows of the good ones, and what became of the rest."""
    report = Report()
    kept = []
    for one in usable(judged, report):
        total = one.score.total
        if (
            one.known_label
            if one.known_label is not None
            else total is not None and total >= config.threshold
        ):
            kept.append(one)
        else:
            report.left_out["not good enough"] += 1
    kept = distinct(kept, report, [True] * len(kept), config.alike)
    kept.sort(key=lambda one: rows.rank(config.seed, one.trace.trace_id))
    if config.max_examples is not None and len(kept) > config.max_examples:
        report.left_out["over --max-examples"] += len(kept) - config.max_examples
        kept = kept[: config.max_examples]
    examples = [_example(one, config) for one in kept]
    report.rows = len(examples)
    report.counts = {"eval": sum(example.split == "eval" for example in examples)}
    report.scores = [one.value for one in kept if one.value is not None]
    return examples, report


def _example(one: Judged, config: SFTRowsConfig) -> SFTExample:
    return SFTExample(
        rows.prompt_of(one.trace, config.form, config.system_prompt),
        rows.completion_of(one.trace, config.form),
        one.trace.trace_id,
        None if one.score.total is None else round(one.score.total, 6),
        rows.split_of(one.trace, config.eval_share, config.seed),
    )


def build_sft(traces: Iterable[ExecutionTrace], config: SFTRowsConfig | None = None) -> list[SFTExample]:
    """SFT rows of traces, in code."""
    config = config or SFTRowsConfig(eval_share=0.0)
    return sft_rows(judge(traces, config.engine()), config)[0]


def build(config: SFTRowsConfig) -> str:
    """Make SFT rows of the good traces in the store, or of a folder or file of traces."""
    traces, problems = gather(config)
    examples, report = sft_rows(judge(traces, config.engine(), show=True), config)
    return write_rows(report, examples, config.output, "sft", problems)
