# SPDX-License-Identifier: AGPL-3.0-or-later
"""DPO rows: two recorded answers to one prompt, the better and the worse.

    rusty data dpo --output dpo.jsonl

Pairs come from the groups that GRPO uses (grpo.py): best against worst, second best against second worst,
while the rewards lie at least `margin` apart. Both answers were really given; no loser is invented.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rusty_r2.data import rows
from rusty_r2.data.grpo import GRPODatasetBuilder, raw_rewards
from rusty_r2.data.judged import Judged, SourceConfig, gather, judge, write_rows
from rusty_r2.data.rows import Report, Text
from rusty_r2.trace import ExecutionTrace


@dataclass(frozen=True)
class DPORowsConfig(SourceConfig):
    output: Path = Path("dpo.jsonl")
    """where the rows go"""
    margin: float = 0.1
    """least distance between the two rewards"""
    max_pairs: int = 4
    """most pairs of one group"""
    max_examples: int | None = None
    """at most so many rows"""


@dataclass
class DPOExample:
    """One row."""

    prompt: Text
    chosen: Text
    rejected: Text
    scores: tuple[float, float] = (0.0, 0.0)
    trace_ids: tuple[str, str] = ("", "")
    split: str = "train"

    def to_dict(self) -> dict[str, Any]:
        said = {"prompt": self.prompt, "chosen": self.chosen, "rejected": self.rejected}
        return {**said, "scores": list(self.scores), "trace_ids": list(self.trace_ids)}


def dpo_rows(judged: Sequence[Judged], config: DPORowsConfig) -> tuple[list[DPOExample], Report]:
    """Pairs of every group, and what became of the rest."""
    report = Report()
    grouping = GRPODatasetBuilder(config.engine(), system_prompt=config.system_prompt, alike=config.alike)
    examples = []
    for group in grouping.groups(judged, report):
        pairs = _pairs(group, config)
        if len(group) > 2 * len(pairs):
            report.left_out["no clearly better or worse answer"] += len(group) - 2 * len(pairs)
        examples += pairs
    examples.sort(key=lambda example: rows.rank(config.seed, "".join(example.trace_ids)))
    if config.max_examples is not None and len(examples) > config.max_examples:
        report.left_out["over --max-examples"] += 2 * (len(examples) - config.max_examples)
        examples = examples[: config.max_examples]
    report.rows = len(examples)
    report.counts = {"eval": sum(example.split == "eval" for example in examples)}
    report.scores = [score for example in examples for score in example.scores]
    return examples, report


def _pairs(group: Sequence[Judged], config: DPORowsConfig) -> list[DPOExample]:
    worth = raw_rewards(group)
    order = sorted(range(len(group)), key=lambda at: (-worth[at], group[at].trace.trace_id))
    found: list[DPOExample] = []
    for best, worst in zip(order[: len(order) // 2], reversed(order), strict=False):
        if worth[best] - worth[worst] < max(config.margin, 1e-9) or len(found) >= config.max_pairs:
            break
        good, bad = group[best].trace, group[worst].trace
        found.append(
            DPOExample(
                rows.prompt_of(good, config.form, config.system_prompt),
                rows.completion_of(good, config.form),
                rows.completion_of(bad, config.form),
                (round(worth[best], 6), round(worth[worst], 6)),
                (good.trace_id, bad.trace_id),
                rows.split_of(good, config.eval_share, config.seed),
            )
        )
    return found


def build_dpo(traces: Iterable[ExecutionTrace], config: DPORowsConfig | None = None) -> list[DPOExample]:
    """DPO rows of traces, in code."""
    config = config or DPORowsConfig(eval_share=0.0)
    return dpo_rows(judge(traces, config.engine()), config)[0]


def build(config: DPORowsConfig) -> str:
    """Make DPO rows of the traces in the store, or of a folder or file of traces."""
    traces, problems = gather(config)
    examples, report = dpo_rows(judge(traces, config.engine(), show=True), config)
    return write_rows(report, examples, config.output, "dpo", problems)
