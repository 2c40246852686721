# SPDX-License-Identifier: AGPL-3.0-or-later
"""GRPO rows: a prompt, what was recorded as answers to it, and how each compares with the others.

    rusty data grpo --output grpo.jsonl           from the store; grpo.eval.jsonl holds the tasks kept out
    GRPODatasetBuilder().build_dataset(traces)    the same in code

A group is made of recorded traces with exactly the same prompt (and task); nothing is invented to fill it.
A trace that no reward applies to is left out of its group; a person's label counts as a reward of 1 or 0.
`rewards` are normalised within the group; `raw_rewards`, `advantages` (raw minus the group's mean), reward
parts and trace ids stand beside them. Larger groups become several rows of at most `num_completions`.
"""

from __future__ import annotations

import asyncio
import inspect
import statistics
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rusty_r2.data import rows
from rusty_r2.data.judged import ALIKE, Judged, SourceConfig, distinct, gather, judge, usable, write_rows
from rusty_r2.data.rows import Form, Report, Text
from rusty_r2.rewards.engine import RewardEngine, group_totals, normalised
from rusty_r2.trace import ExecutionTrace, by_person, new_id


@dataclass(frozen=True)
class GRPORowsConfig(SourceConfig):
    output: Path = Path("grpo.jsonl")
    """where the rows go"""
    num_completions: int = 4
    """most completions in a row; larger groups become several rows"""
    min_group_size: int = 2
    """fewest completions in a row"""
    include_singles: bool = False
    """keep requests with one answer too, as prompts with a reward of 0"""
    max_examples: int | None = None
    """at most so many rows"""


@dataclass
class GRPOExample:
    """One row: a group."""

    prompt: Text
    completions: list[Text]
    rewards: list[float]
    """normalised within the group: mean 0, deviation 1; zeros where all are equal"""
    raw_rewards: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    """raw rewards minus the group's mean"""
    parts: list[dict[str, float]] = field(default_factory=list)
    trace_ids: list[str] = field(default_factory=list)
    token_ids: list[list[list[int]]] = field(default_factory=list)
    """tokens of each completion's turns, where all of the group were recorded"""
    logprobs: list[list[list[float]]] = field(default_factory=list)
    """their log-probabilities under the policy that wrote them"""
    task: str = ""
    split: str = "train"

    def to_dict(self) -> dict[str, Any]:
        """The row as it is written; recorded tokens only where there are any."""
        data = asdict(self)
        for name in ("split", "task", *(() if self.logprobs else ("token_ids", "logprobs"))):
            del data[name]
        return data


class GRPODatasetBuilder:
    """Makes GRPO rows of traces; `report` tells what became of the last ones."""

    def __init__(
        self,
        reward_engine: RewardEngine | None = None,
        num_completions: int = 4,
        system_prompt: str = "",
        *,
        form: Form = "conversational",
        eval_share: float = 0.0,
        alike: float = ALIKE,
        seed: int = 0,
    ) -> None:
        self.reward_engine = reward_engine or RewardEngine()
        self.num_completions = max(1, num_completions)
        self.system_prompt = system_prompt
        self.form: Form = form
        self.eval_share = eval_share
        self.alike = alike
        self.seed = seed
        self.report = Report()

    def group_traces_by_query(self, traces: Iterable[ExecutionTrace]) -> dict[str, list[ExecutionTrace]]:
        """The traces of each request, under its exact words."""
        groups: dict[str, list[ExecutionTrace]] = {}
        for trace in sorted(traces, key=lambda trace: (trace.timestamp, trace.trace_id)):
            groups.setdefault(trace.user_query, []).append(trace)
        return groups

    def build_example_from_group(self, prompt: str, traces: Sequence[ExecutionTrace]) -> GRPOExample | None:
        """The row of one group; None where no trace of it has an answer. `prompt` is the request's text."""
        asked = [replace(trace, user_query=prompt) for trace in traces]
        kept = comparable(judge(asked, self.reward_engine), Report())
        return self._example(kept) if kept else None

    def build_dataset(
        self,
        traces: Iterable[ExecutionTrace],
        min_group_size: int = 2,
        max_examples: int | None = None,
        include_singles: bool = False,
    ) -> list[GRPOExample]:
        judged = judge(traces, self.reward_engine)
        return self.build_judged(judged, min_group_size, max_examples, include_singles)

    def build_judged(
        self,
        judged: Sequence[Judged],
        min_group_size: int = 2,
        max_examples: int | None = None,
        include_singles: bool = False,
    ) -> list[GRPOExample]:
        """The same from traces that were judged before."""
        self.report = report = Report()
        groups = self.groups(judged, report)
        examples = []
        for group in groups:
            if len(group) < (1 if include_singles else max(2, min_group_size)):
                report.left_out["no other answer to compare with"] += len(group)
                continue
            examples += [self._example(some) for some in _chunks(group, self.num_completions)]
        examples.sort(key=lambda example: rows.rank(self.seed, example.trace_ids[0]))
        if max_examples is not None and len(examples) > max_examples:
            cut = examples[max_examples:]
            report.left_out["over --max-examples"] += sum(len(example.completions) for example in cut)
            examples = examples[:max_examples]
        self._tell(examples)
        return examples

    def groups(self, judged: Sequence[Judged], report: Report) -> list[list[Judged]]:
        """Judged traces of one prompt together, duplicates gone, in a fixed order."""
        kept = comparable(judged, report)
        by_prompt: dict[str, list[Judged]] = {}
        for one in kept:
            prompt = rows.prompt_of(one.trace, "conversational", self.system_prompt)
            by_prompt.setdefault(rows.digest(one.trace.task_name, prompt), []).append(one)
        return [
            distinct(group, report, [round(one.value or 0.0, 6) for one in group], self.alike)
            for group in by_prompt.values()
        ]

    def build_synthetic_groups(
        self,
        traces: Iterable[ExecutionTrace],
        agent_generate_func: Callable[[str], Any],
        num_generations: int = 4,
    ) -> list[GRPOExample]:
        """Ask an agent the recorded requests again, and make groups of what it really answers.

        The function takes a request and returns a text or an awaitable of one, in a running loop too."""
        made = list(traces)
        for query, known in self.group_traces_by_query(made).items():
            for _ in range(max(0, num_generations - len(known))):
                said = _finish(agent_generate_func(query))
                made.append(replace(_as_new(known[0]), user_query=query, final_response=str(said)))
        return self.build_dataset(made)

    def save_dataset(
        self,
        examples: Iterable[GRPOExample],
        output_path: str | Path,
        format: str = "jsonl",  # noqa: A002
    ) -> Path:
        return rows.save((example.to_dict() for example in examples), output_path, format)

    def load_dataset(self, path: str | Path) -> list[GRPOExample]:
        known = GRPOExample.__dataclass_fields__
        return [GRPOExample(**{key: row[key] for key in row if key in known}) for row in rows.load(path)]

    def to_hf_dataset(self, examples: Iterable[GRPOExample]) -> Any:
        return rows.to_hf(example.to_dict() for example in examples)

    def get_statistics(self, examples: Sequence[GRPOExample]) -> dict[str, Any]:
        sizes = [len(example.completions) for example in examples]
        raw = [reward for example in examples for reward in example.raw_rewards]
        return {
            "total": len(examples),
            "completions": sum(sizes),
            "avg_group_size": statistics.fmean(sizes) if sizes else 0.0,
            "flat": sum(not any(example.rewards) for example in examples),
            "avg_reward": statistics.fmean(raw) if raw else 0.0,
            "tasks": len({example.task for example in examples}),
            "eval": sum(example.split == "eval" for example in examples),
        }

    def _example(self, group: Sequence[Judged]) -> GRPOExample:
        raw = raw_rewards(group)
        middle = statistics.fmean(raw)
        first = group[0].trace
        steps = [one.trace.steps for one in group]
        recorded = all(of and all(step.logprobs for step in of) for of in steps)
        return GRPOExample(
            prompt=rows.prompt_of(first, self.form, self.system_prompt),
            completions=[rows.completion_of(one.trace, self.form) for one in group],
            rewards=[round(value, 6) for value in normalised(raw)],
            raw_rewards=[round(value, 6) for value in raw],
            advantages=[round(value - middle, 6) for value in raw],
            parts=[one.parts for one in group],
            trace_ids=[one.trace.trace_id for one in group],
            token_ids=[[step.token_ids for step in of] for of in steps] if recorded else [],
            logprobs=[[step.logprobs for step in of] for of in steps] if recorded else [],
            task=rows.task_of(first),
            split=rows.split_of(first, self.eval_share, self.seed),
        )

    def _tell(self, examples: Sequence[GRPOExample]) -> None:
        told = self.get_statistics(examples)
        self.report.rows = len(examples)
        self.report.counts = {name: told[name] for name in ("completions", "avg_group_size", "tasks", "eval")}
        self.report.scores = [reward for example in examples for reward in example.raw_rewards]
        if told["flat"]:
            self.report.notes.append(
                f"{told['flat']:,} rows are flat (all rewards equal): they teach nothing"
            )


def comparable(judged: Iterable[Judged], report: Report) -> list[Judged]:
    """Those of the usable ones whose worth is known: nobody knows whether another is above a failed try."""
    kept = usable(judged, report)
    if unknown := sum(one.value is None for one in kept):
        report.left_out["no reward applies"] += unknown
    return [one for one in kept if one.value is not None]


def raw_rewards(group: Sequence[Judged]) -> list[float]:
    """What each trace of a group is worth: a person's word, or a total that can be compared."""
    totals = group_totals([one.score for one in group])
    return [
        float(bool(one.trace.label)) if by_person(one.trace) or total is None else total
        for one, total in zip(group, totals, strict=True)
    ]


def _chunks(group: Sequence[Judged], most: int) -> list[Sequence[Judged]]:
    """The group in parts of at most `most`, as even as can be."""
    count = -(-len(group) // most)
    edges = [round(part * len(group) / count) for part in range(count + 1)]
    return [group[edges[part] : edges[part + 1]] for part in range(count)]


def _as_new(trace: ExecutionTrace) -> ExecutionTrace:
    """An empty trace of the same conversation."""
    return ExecutionTrace(
        trace_id=new_id(),
        session_id=trace.session_id,
        agent_name=trace.agent_name,
        system_prompt=trace.system_prompt,
        history=trace.history,
        task_name=trace.task_name,
    )


def _finish(said: Any) -> Any:
    """The value of an awaitable, also where a loop is already running."""
    if not inspect.isawaitable(said):
        return said
    held: list[Any] = []

    async def wait() -> Any:
        return await said

    def run() -> None:
        try:
            held.append(asyncio.run(wait()))
        except BaseException as error:
            held.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(held[0], BaseException):
        raise held[0]
    return held[0]


def build(config: GRPORowsConfig) -> str:
    """Make GRPO rows of the traces in the store, or of a folder or file of traces."""
    traces, problems = gather(config)
    builder = make_builder(config)
    judged = judge(traces, builder.reward_engine, show=True)
    examples = builder.build_judged(
        judged, config.min_group_size, config.max_examples, config.include_singles
    )
    return write_rows(builder.report, examples, config.output, "grpo", problems)


def make_builder(config: GRPORowsConfig) -> GRPODatasetBuilder:
    return GRPODatasetBuilder(
        config.engine(),
        config.num_completions,
        config.system_prompt,
        form=config.form,
        eval_share=config.eval_share,
        alike=config.alike,
        seed=config.seed,
    )
