# SPDX-License-Identifier: AGPL-3.0-or-later
"""Traces with a judgement each: what every kind of row is made from.

`gather` finds the traces (the store, or a folder, `.jsonl` or `.parquet` of them; secrets are cut out
either way), `judge` scores them once, in threads, with a progress bar, and `distinct` drops what says the
same twice. A person's label beats the auto-labeler's, which beats a computed one. The order of the traces
given makes no difference to anything that follows.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rusty_r2.data import rows
from rusty_r2.data.dedup import Seen
from rusty_r2.data.rows import Form, Report, completion_of, digest, has_words, prompt_of
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.trace import ExecutionTrace, by_person

if TYPE_CHECKING:
    from rusty_r2.rewards.engine import RewardEngine, Score
    from rusty_r2.store import TraceStore

ALIKE = 0.8


@dataclass(frozen=True)
class SourceConfig:
    source: Path | None = None
    """a folder, .jsonl or .parquet of traces; the store where not given"""
    store: str = ""
    """path or URL of the trace store; the one in the data home where not given"""
    agent: str = ""
    """only traces of this agent"""
    reward: tuple[str, ...] = ()
    """rewards of your own beside the shipped ones: module:Class or FILE.py:Class"""
    system_prompt: str = ""
    """put this before every conversation instead of the recorded one"""
    form: Form = "conversational"
    """TRL's messages, or plain texts that begin with `User: `"""
    eval_share: float = 0.1
    """share of the tasks kept out of training, in a file of their own"""
    alike: float = ALIKE
    """share of equal MinHash bins from which rows count as near duplicates; above 1 keeps them"""
    seed: int = 0
    """decides splits and order; the same traces and seed give the same bytes"""
    workers: int = 0
    """traces judged at once; 0 suits the machine"""

    def __post_init__(self) -> None:
        if not 0 <= self.eval_share < 1:
            raise ConfigError(f"--eval-share is {self.eval_share}; it is a share between 0 and 1")
        if self.source is not None and self.store:
            raise ConfigError("--source and --store exclude each other")

    def engine(self) -> RewardEngine:
        from rusty_r2.rewards.audit import load_rewards
        from rusty_r2.rewards.engine import RewardEngine, default_rewards

        own = [reward for name in self.reward for reward in load_rewards(name)]
        return RewardEngine([*default_rewards(), *own], workers=self.workers)


@dataclass(frozen=True)
class Judged:
    """A trace and what it is worth."""

    trace: ExecutionTrace
    score: Score

    @property
    def known_label(self) -> bool | None:
        """What a person said, or else the auto-labeler."""
        return self.trace.label

    @property
    def by(self) -> str:
        """Who judged it: a person's name, the auto-labeler's, or `rewards`."""
        if self.trace.label is None:
            return "rewards"
        return self.trace.labeled_by or "person"

    @property
    def value(self) -> float | None:
        """Its worth between 0 and 1: a person's word, or the rewards' total."""
        return float(bool(self.trace.label)) if by_person(self.trace) else self.score.total

    @property
    def parts(self) -> dict[str, float]:
        said = {"person": float(bool(self.trace.label))} if by_person(self.trace) else {}
        return said | {name: round(value, 6) for name, value in self.score.parts.items()}


def gather(config: SourceConfig) -> tuple[list[ExecutionTrace], list[str]]:
    """The traces asked for, and one line for each thing that was no trace."""
    from rusty_r2 import archive
    from rusty_r2.store import TraceStore

    if config.source is None:
        with TraceStore(config.store or None) as store:
            traces, problems = _of_agent(store, config.agent), []
            where = store.where
    else:
        with (
            tempfile.TemporaryDirectory(prefix="rusty-rows-") as folder,
            TraceStore(f"{folder}/t.db") as store,
        ):
            problems = archive.load(store, config.source).problems
            traces = _of_agent(store, config.agent)
        where = str(config.source)
    if not traces:
        who = f" of the agent {config.agent}" if config.agent else ""
        raise DataError(f"{where} holds no traces{who}. Type: rusty trace list")
    return traces, problems


def _of_agent(store: TraceStore, agent: str) -> list[ExecutionTrace]:
    return store.find(agent=agent or None, limit=None, newest_first=False)


def judge(traces: Iterable[ExecutionTrace], engine: RewardEngine, *, show: bool = False) -> list[Judged]:
    """Score every trace once; each id counts once. Sorted by time and id."""
    once = {trace.trace_id: trace for trace in traces}
    ordered = sorted(once.values(), key=lambda trace: (trace.timestamp, trace.trace_id))
    with progress_bar(len(ordered), "judging", show=show) as advance:
        scores = engine.score_all(ordered, advance)
    if scores and all(score.masked for score in scores):
        raise DataError(f"no trace could be judged: {scores[0].masked}. Type: rusty doctor")
    return [Judged(trace, score) for trace, score in zip(ordered, scores, strict=True)]


@contextmanager
def progress_bar(total: int, what: str, *, show: bool) -> Iterator[Any]:
    """Yields a function to call once per thing done; a bar with rate and time left where a person watches."""
    if not (show and sys.stderr.isatty()):  # in a log there would be an empty line
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _has_half(trace: ExecutionTrace) -> bool:
    """Whether there is a lone surrogate in what a row would hold: no tokenizer reads that."""
    said = (trace.system_prompt, trace.user_query, trace.history, completion_of(trace))
    try:
        json.dumps(said, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return True
    return False


def usable(judged: Iterable[Judged], report: Report) -> list[Judged]:
    """Those a row can be made from; the rest is counted under its reason."""
    kept = []
    for one in judged:
        report.read += 1
        if not one.trace.user_query.strip():
            report.left_out["no request"] += 1
        elif not has_words(completion_of(one.trace)):
            report.left_out["no answer"] += 1
        elif _has_half(one.trace):
            report.left_out["half a character in it"] += 1
        elif one.trace.ended == "masked" or (one.score.masked and not by_person(one.trace)):
            report.left_out["the sandbox failed"] += 1
        elif one.trace.ended == "unasked" and not by_person(one.trace):
            report.left_out["nobody could be asked"] += 1
        elif one.value is None and one.known_label is None:
            report.left_out["no reward applies"] += 1
        else:
            kept.append(one)
    return kept


def distinct(judged: Sequence[Judged], report: Report, verdicts: Sequence[Any], alike: float) -> list[Judged]:
    """One of each: equal words are one row, nearly equal words with the same verdict too.

    People's labels come first. Equal words on which people disagree are left out altogether."""
    order = sorted(range(len(judged)), key=lambda at: not by_person(judged[at].trace))
    words = {at: words_of(judged[at].trace) for at in order}
    said: dict[str, set[Any]] = {}
    for at in order:
        if by_person(judged[at].trace):
            said.setdefault(words[at], set()).add(judged[at].trace.label)
    taken: set[str] = set()
    near: dict[Any, Seen] = {}
    kept = []
    for at in order:
        if len(said.get(words[at], ())) > 1:
            report.left_out["people disagree"] += 1
        elif words[at] in taken:
            report.left_out["duplicate"] += 1
        elif alike <= 1 and _nearly_seen(near, (verdicts[at], judged[at].trace.task_name), judged[at], alike):
            report.left_out["near duplicate"] += 1
        else:
            taken.add(words[at])
            kept.append(at)
    return [judged[at] for at in sorted(kept)]


def _nearly_seen(near: dict[Any, Seen], kind: Any, one: Judged, alike: float) -> bool:
    """Tasks of the gym are alike on purpose: only within one task, and one verdict, is alike too much."""
    return near.setdefault(kind, Seen(alike)).nearly(_word_ids(one.trace))


def words_of(trace: ExecutionTrace) -> str:
    """A name for what was asked and answered."""
    return digest(prompt_of(trace), completion_of(trace))


def _word_ids(trace: ExecutionTrace) -> Any:
    import numpy as np

    text = f"{trace.user_query}\n{completion_of(trace, 'plain')}"
    return np.array([zlib.crc32(word.encode("utf-8", "replace")) for word in text.split()], np.uint64)


def write_rows(
    report: Report, examples: Sequence[Any], output: Path, kind: str, problems: Sequence[str] = ()
) -> str:
    """Write the rows of both splits; returns what a person should read."""
    shown = [*problems[:10], *([f"… {len(problems) - 10} more"] if len(problems) > 10 else [])]
    lines = [*(f"passed over: {line}" for line in shown), report.table(f"{kind} rows")]
    kept = [one.to_dict() for one in examples if one.split == "train"]
    kept_out = [one.to_dict() for one in examples if one.split == "eval"]
    path = rows.save(kept, output)
    lines.append(f"{len(kept):,} to train on: {path}")
    if kept_out:
        lines.append(f"{len(kept_out):,} to compare with: {rows.save(kept_out, rows.eval_path(path))}")
    return "\n".join([*lines, f"next: rusty train {rows.TRAINED_BY[kind]} --data {path}"])
