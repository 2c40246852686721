# SPDX-License-Identifier: AGPL-3.0-or-later
"""From traces to every kind of row in one go.

    rusty data rows --source traces/ --output-dir rows   rows of every kind of a folder of traces
    DatasetPipeline("my_agent").build_kto_dataset("kto.jsonl")     the documented class, on the store

The traces are read and judged once, with a progress bar; the rows are made by kto.py, grpo.py, sft.py
and dpo.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from rusty_r2.data import dpo, grpo, kto, sft
from rusty_r2.data.checkpoints import CheckpointLoader
from rusty_r2.data.grpo import GRPODatasetBuilder, GRPOExample
from rusty_r2.data.judged import Judged, SourceConfig, gather, judge, write_rows
from rusty_r2.data.kto import KTODatasetBuilder, KTOExample
from rusty_r2.rewards.engine import RewardEngine
from rusty_r2.trace import ExecutionTrace

RowKind = Literal["kto", "grpo", "sft", "dpo"]


@dataclass(frozen=True)
class RowsConfig(SourceConfig):
    output_dir: Path = Path("rows")
    """folder for the files: kto.jsonl, grpo.jsonl, …"""
    kinds: tuple[RowKind, ...] = ("kto", "grpo", "sft", "dpo")
    """which rows to make"""
    balance: bool = True
    """KTO: as many good rows as bad ones"""


def build(config: RowsConfig) -> str:
    """Make rows of every kind from the traces in the store, or of a folder or file of traces."""
    traces, problems = gather(config)
    judged = judge(traces, config.engine(), show=True)
    told = [
        _write(kind, judged, config, problems if kind == config.kinds[0] else []) for kind in config.kinds
    ]
    return "\n".join(["\n".join(text.splitlines()[:-1]) for text in told] + [told[0].splitlines()[-1]])


def _write(kind: RowKind, judged: Sequence[Judged], config: RowsConfig, problems: Sequence[str]) -> str:
    shared = {f.name: getattr(config, f.name) for f in fields(SourceConfig)}
    output = config.output_dir / f"{kind}.jsonl"
    if kind == "kto":
        kto_builder = kto.make_builder(kto.KTORowsConfig(**shared))
        labelled = kto_builder.build_judged(judged, config.balance)
        return write_rows(kto_builder.report, labelled, output, kind, problems)
    if kind == "grpo":
        builder = grpo.make_builder(grpo.GRPORowsConfig(**shared))
        groups = builder.build_judged(judged)
        return write_rows(builder.report, groups, output, kind, problems)
    if kind == "sft":
        imitated, report = sft.sft_rows(judged, sft.SFTRowsConfig(**shared))
        return write_rows(report, imitated, output, kind, problems)
    pairs, report = dpo.dpo_rows(judged, dpo.DPORowsConfig(**shared))
    return write_rows(report, pairs, output, kind, problems)


class DatasetPipeline:
    """The documented door: traces of one agent, from the store and its checkpoints, to rows."""

    def __init__(
        self, agent_name: str, storage_path: str | Path | None = None, system_prompt: str = ""
    ) -> None:
        from rusty_r2.agent.collector import store_path
        from rusty_r2.store import TraceStore

        self.agent_name = agent_name
        self.system_prompt = system_prompt
        self.reward_engine = RewardEngine()
        self.store = TraceStore(store_path(storage_path))
        self.kto_builder = KTODatasetBuilder(self.reward_engine, system_prompt=system_prompt)
        self.grpo_builder = GRPODatasetBuilder(self.reward_engine, system_prompt=system_prompt)

    @property
    def loader(self) -> CheckpointLoader:
        """The checkpoints of this agent."""
        return CheckpointLoader(self.agent_name)

    def collect_all_traces(self, include_checkpoints: bool = True) -> list[ExecutionTrace]:
        """Traces of this agent or of none in particular, and those of its checkpoints; each once."""
        found = self.store.find(agent=self.agent_name, limit=None, newest_first=False)
        found += self.store.find(agent="", limit=None, newest_first=False)
        if include_checkpoints:
            found += [trace.redacted() for trace in self.loader.load_all_traces()]
        return list({trace.trace_id: trace for trace in reversed(found)}.values())[::-1]

    def build_kto_dataset(self, output_path: str | Path, **kw: Any) -> list[KTOExample]:
        """Write KTO rows; the words are those of `KTODatasetBuilder.build_dataset`."""
        examples = self.kto_builder.build_dataset(self.collect_all_traces(), **kw)
        self.kto_builder.save_dataset(examples, output_path)
        return examples

    def build_grpo_dataset(self, output_path: str | Path, **kw: Any) -> list[GRPOExample]:
        """Write GRPO rows; the words are those of `GRPODatasetBuilder.build_dataset`."""
        examples = self.grpo_builder.build_dataset(self.collect_all_traces(), **kw)
        self.grpo_builder.save_dataset(examples, output_path)
        return examples

    def get_unlabeled_for_review(self, limit: int = 50) -> list[ExecutionTrace]:
        """Traces of this agent that nobody labelled, newest first."""
        return self.store.find(agent=self.agent_name, labeled=False, limit=limit)

    def label_trace(self, trace_id: str, label: bool, notes: str = "") -> None:
        """A person's verdict."""
        self.store.label(trace_id, label, note=notes)

    def get_pipeline_statistics(self) -> dict[str, Any]:
        """What is in the store, and what the last rows were made of."""
        return {
            "agent_name": self.agent_name,
            "traces": self.store.statistics(agent=self.agent_name),
            "checkpoints": self.loader.get_training_statistics(),
            "kto": self.kto_builder.report.counts,
            "grpo": self.grpo_builder.report.counts,
        }
