# SPDX-License-Identifier: AGPL-3.0-or-later
"""The first three stages: traces are collected, judged, and become rows.

`collect` freezes the traces of this round in a file (of the store, or of a file or folder of them), after
letting the present mind play some tasks of the gym where asked to. `reward` keeps what each was worth and
why, `rows` makes what a method trains on; what was left out is counted under its reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rusty_r2 import files
from rusty_r2.data import rows
from rusty_r2.data.episode import Episode
from rusty_r2.data.judged import Judged, SourceConfig, gather, judge
from rusty_r2.errors import DataError, ProtocolError
from rusty_r2.loop.stages import Made
from rusty_r2.protocol import parse
from rusty_r2.trace import ExecutionTrace

TRACES, JUDGED = "traces.jsonl", "judged.jsonl"


def play(folder: Path, address: str, count: int, store: str, agent: str, seed: int) -> int:
    """Let a mind play training tasks of the gym; the traces go to the store. Goes on after a kill."""
    from rusty_r2.agent.address import MindOptions, open_policy
    from rusty_r2.agent.rollout import begin, rollout
    from rusty_r2.gym import catalog
    from rusty_r2.gym.env import CodingEnv
    from rusty_r2.store import TraceStore

    kept = folder / "played.txt"
    known = set(kept.read_text().split("\n")) if kept.exists() else set()
    wanted = [task for task in catalog.tasks("train", seed=seed, count=count) if task.name not in known]
    if not wanted:
        return count
    policy = open_policy(address, MindOptions(temperature=0.8, seed=seed, max_new_tokens=128))
    with TraceStore(store or None) as traces, CodingEnv() as place:
        for task in wanted:
            trace = rollout(policy, place, begin(policy, place, task=task), max_turns=4)
            traces.append(replace(trace, agent_name=agent or trace.agent_name))
            with open(kept, "a", encoding="utf-8") as file:
                file.write(task.name + "\n")
    return count


def collect(folder: Path, source: SourceConfig, *, least: int) -> Made:
    """Freeze the traces of this round."""
    from rusty_r2.store import without_password

    traces, problems = gather(source)
    if len(traces) < least:
        raise DataError(
            f"{len(traces)} traces are too few to learn from; {least} are needed. Type: rusty trace list"
        )
    lines = [json.dumps(trace.to_dict(), ensure_ascii=False) + "\n" for trace in traces]
    path = files.write(folder / TRACES, "".join(lines).encode("utf-8", "surrogatepass"))
    labels = Counter(_label(trace) for trace in traces)
    facts = {
        "traces": len(traces),
        "from": str(source.source or without_password(source.store) or "the store"),
        "labels": dict(labels),
        "agents": dict(Counter(trace.agent_name or "-" for trace in traces)),
        "models": dict(Counter(trace.model or "-" for trace in traces)),
        "no traces": problems[:20],
    }
    return Made(facts, (path,))


def _label(trace: ExecutionTrace) -> str:
    return "unlabelled" if trace.label is None else "good" if trace.label else "bad"


def reward(folder: Path, traces: Path, source: SourceConfig) -> Made:
    """Judge every trace once, and keep the parts."""
    found = read_traces(traces)
    judged = judge(found, source.engine(), show=True)
    path = files.write(folder / JUDGED, "".join(_judgement(one) + "\n" for one in judged))
    totals = [one.score.total for one in judged if one.score.total is not None]
    reasons = Counter(one.score.veto or one.score.masked for one in judged)
    parts = sorted({name for one in judged for name in one.score.parts})
    means = {
        name: _mean([one.score.parts[name] for one in judged if name in one.score.parts]) for name in parts
    }
    facts = {
        "judged": len(judged),
        "mean": _mean(totals),
        "parts": means,
        "by": dict(Counter(one.by for one in judged)),
        "refused": {why: count for why, count in reasons.items() if why},
        "scores": [round(total, 3) for total in totals],
    }
    return Made(facts, (path,))


@dataclass(frozen=True)
class RowsAsked:
    """What rows to make."""

    method: str
    source: SourceConfig
    balance: bool = True
    max_rows: int | None = None


def make_rows(folder: Path, traces: Path, judged: Path, asked: RowsAsked) -> Made:
    """Rows for the method, training and held out apart."""
    known = read_judged(traces, judged)
    examples, report = _rows(known, asked)
    if not examples:
        why = (
            ", ".join(f"{count} {reason}" for reason, count in report.left_out.most_common()) or "none given"
        )
        raise DataError(f"no rows came of {report.read} traces: {why}. Type: rusty trace list")
    path = rows.save(
        (one.to_dict() for one in examples if one.split == "train"), folder / f"{asked.method}.jsonl"
    )
    held = [one.to_dict() for one in examples if one.split == "eval"]
    outputs = [path, *([rows.save(held, rows.eval_path(path))] if held else [])]
    facts = {
        "rows": len(examples) - len(held),
        "held out": len(held),
        "counts": report.counts,
        "left out": dict(report.left_out),
        "notes": report.notes,
        "traces in": len({t for one in examples for t in _trace_ids(one)}),
    }
    return Made(facts, tuple(outputs))


def _rows(known: Sequence[Judged], asked: RowsAsked) -> tuple[list[Any], rows.Report]:
    from rusty_r2.data import dpo, grpo, kto, sft

    shared = {name: getattr(asked.source, name) for name in SourceConfig.__dataclass_fields__}
    if asked.method == "kto":
        builder = kto.make_builder(kto.KTORowsConfig(**shared))
        return list(builder.build_judged(known, asked.balance, asked.max_rows)), builder.report
    if asked.method == "grpo":
        groups = grpo.make_builder(grpo.GRPORowsConfig(**shared))
        return list(groups.build_judged(known, max_examples=asked.max_rows)), groups.report
    if asked.method == "dpo":
        pairs, report = dpo.dpo_rows(known, dpo.DPORowsConfig(**shared, max_examples=asked.max_rows))
        return list(pairs), report
    imitated, report = sft.sft_rows(known, sft.SFTRowsConfig(**shared, max_examples=asked.max_rows))
    return list(imitated), report


def make_episodes(folder: Path, traces: Path, judged: Path, asked: RowsAsked, *, needed: bool = True) -> Made:
    """Good traces as episodes for our own model; only what speaks the protocol can be one.

    PPO learns in the gym and does without (`needed` False)."""
    from rusty_r2.data import sft

    shared = {name: getattr(asked.source, name) for name in SourceConfig.__dataclass_fields__}
    wanted = sft.SFTRowsConfig(**shared, max_examples=asked.max_rows)
    good, report = sft.sft_rows(read_judged(traces, judged), wanted)
    by_id = {trace.trace_id: trace for trace in read_traces(traces)}
    episodes = []
    for row in good:
        made = _episode(by_id[row.trace_id], row.split)
        if made is None:
            report.left_out["not in the protocol"] += 1
        else:
            episodes.append(made)
    kept = sum(one.split == "train" for one in episodes)
    if needed and not kept:
        away = f"all {len(episodes)} are held out by --eval-share" if episodes else "none"
        raise DataError(
            f"good traces that speak the protocol: {away}; nothing to train our own model on. "
            "Type: rusty trace list"
        )
    path = files.write(folder / "episodes.jsonl", "".join(one.to_json() + "\n" for one in episodes))
    facts = {
        "rows": kept,
        "held out": len(episodes) - kept,
        "left out": dict(report.left_out),
        "counts": {},
        "notes": [],
    }
    return Made(facts, (path,))


def _episode(trace: ExecutionTrace, split: str) -> Episode | None:
    from rusty_r2.agent.prompt import conversation

    turns = []
    for turn in conversation(trace):
        if turn.role == "assistant":
            try:
                parse(turn.text)
            except ProtocolError:
                return None
        turns.append((turn.role, turn.text))
    if not any(role == "assistant" for role, _ in turns):
        return None
    return Episode("STEPS", "use", tuple(turns), split="train" if split == "train" else "dev")


def read_traces(path: Path) -> list[ExecutionTrace]:
    with open(path, encoding="utf-8", errors="surrogatepass") as file:
        return [ExecutionTrace.from_dict(json.loads(line)) for line in file]


def read_judged(traces: Path, judged: Path) -> list[Judged]:
    """The traces with the judgement that the stage before gave them."""
    from rusty_r2.rewards.base import RewardResult
    from rusty_r2.rewards.engine import Score

    by_id = {trace.trace_id: trace for trace in read_traces(traces)}
    found = []
    for line in judged.read_text(encoding="utf-8").splitlines():
        said = json.loads(line)
        results = {name: RewardResult(score) for name, score in said["parts"].items()}
        score = Score(results, said["weights"], said["veto"], said["masked"])
        found.append(Judged(by_id[said["trace_id"]], score))
    return found


def _judgement(one: Judged) -> str:
    said = {
        "trace_id": one.trace.trace_id,
        "total": one.score.total,
        "parts": one.score.parts,
        "weights": one.score.weights,
        "veto": one.score.veto,
        "masked": one.score.masked,
        "by": one.by,
    }
    return json.dumps(said)


def _trace_ids(example: Any) -> list[str]:
    one = getattr(example, "trace_id", None)
    return [one] if one else list(getattr(example, "trace_ids", ()))


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None
