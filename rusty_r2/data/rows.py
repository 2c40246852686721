# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a row is: the words of a trace as a prompt and a completion, exactly as they were.

Two forms. `conversational` is TRL's: lists of {"role", "content"}, with the system prompt and the
history before the request; a run of our own protocol is a completion of several turns, in which
what the gym answered has the role `tool` (train on the assistant's turns only). `plain` is one text
each, `User: …`. Nothing is lower-cased or cut. Splits go by task, by a hash that is the same
on every machine, so that no task is in both. Which rows are made is for kto.py, grpo.py, sft.py, dpo.py.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from rusty_r2 import files
from rusty_r2.errors import ConfigError, DataError, need
from rusty_r2.trace import ExecutionTrace

TRAINED_BY = {"kto": "kto", "grpo": "replay", "dpo": "dpo", "sft": "sft"}
"""rows of a kind, and the method that learns from them"""
Form = Literal["conversational", "plain"]
Message = dict[str, Any]
Text = str | list[Message]
"""a prompt or a completion, in either form"""
Key = TypeVar("Key")


def prompt_of(trace: ExecutionTrace, form: Form = "conversational", system_prompt: str = "") -> Text:
    """Everything before the answer. A system prompt given here comes instead of the trace's own."""
    history = [_message(turn) for turn in trace.history]
    own = bool(history) and history[0]["role"] == "system"
    system = system_prompt or ("" if own else trace.system_prompt)
    if system and own:
        history = history[1:]
    turns = [*history, {"role": "user", "content": trace.user_query}]
    if form == "plain":
        said = "\n\n".join(f"{turn['role'].capitalize()}: {turn['content']}" for turn in turns)
        return f"{system}\n\n{said}" if system else said
    return [{"role": "system", "content": system}, *turns] if system else turns


def completion_of(trace: ExecutionTrace, form: Form = "conversational") -> Text:
    """The agent's side: its answer, or all its turns with what the gym said in between."""
    if not trace.steps:
        said = trace.final_response
        return said if form == "plain" else [{"role": "assistant", "content": said}]
    turns: list[Message] = []
    for step in trace.steps:
        turns += [
            {"role": "assistant", "content": str(step.reply)},
            {"role": "tool", "content": str(step.observation)},
        ]
    turns.pop()  # nobody answers the last observation
    if form == "plain":
        return "\n".join(f"{'Observation: ' * (turn['role'] == 'tool')}{turn['content']}" for turn in turns)
    return turns


def _message(turn: Any) -> Message:
    if not isinstance(turn, Mapping):
        return {"role": "user", "content": str(turn)}
    content = turn.get("content")
    if isinstance(content, list):  # parts, as some chat logs have them
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return {"role": str(turn.get("role") or "user"), "content": content if isinstance(content, str) else ""}


def has_words(text: Text) -> bool:
    """Whether there is anything to learn from."""
    said = [text] if isinstance(text, str) else [turn["content"] for turn in text if turn["role"] != "tool"]
    return any(part.strip() for part in said)


def task_of(trace: ExecutionTrace) -> str:
    """The name under which traces belong together: the gym's task, or the request itself."""
    return trace.task_name or " ".join(trace.user_query.split()).casefold()


def digest(*parts: Any) -> str:
    """A name for some plain data, the same on every machine."""
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def rank(seed: int, name: str) -> float:
    """A number from 0 to 1 that looks random and belongs to the name."""
    return int(digest(seed, name)[:13], 16) / 16**13


def split_of(trace: ExecutionTrace, share: float, seed: int) -> str:
    """`eval` for this share of the tasks, `train` for the rest."""
    return "eval" if share > 0 and rank(seed, f"split {task_of(trace)}") < share else "train"


@dataclass
class Report:
    """What went in, what came out, and why the rest did not."""

    read: int = 0
    rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    counts: dict[str, float] = field(default_factory=dict)
    """what the rows hold: good and bad, groups, splits"""
    scores: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """what a person should know before training on it"""

    def table(self, title: str = "rows") -> str:
        lines = [f"{self.read:,} traces -> {self.rows:,} {title}"]
        lines += [f"  {name:<32}{value:>10,.6g}" for name, value in self.counts.items()]
        if self.left_out:
            lines.append("  left out:")
            lines += [f"    {why:<30}{count:>10,}" for why, count in self.left_out.most_common()]
        if self.scores:
            lines += ["  rewards:", *_histogram(self.scores)]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def _histogram(scores: Sequence[float], bins: int = 10) -> list[str]:
    counts = Counter(min(int(score * bins), bins - 1) for score in scores)
    most = max(counts.values())
    return [
        f"    {place / bins:.1f} {'█' * round(40 * counts[place] / most):<40}{counts[place]:>10,}"
        for place in range(bins)
        if counts[place]
    ]


def apart(rows: Sequence[Key], prompts: Sequence[str]) -> list[Key]:
    """The rows in much the same order, but no two neighbours with one prompt where that can be helped."""
    held: list[tuple[Key, str]] = []  # all of one prompt: the one placed last
    placed: list[tuple[Key, str]] = []
    for pair in zip(rows, prompts, strict=True):
        while held and placed[-1][1] != held[0][1]:
            placed.append(held.pop(0))
        (held if placed and placed[-1][1] == pair[1] else placed).append(pair)
    spread: list[tuple[Key, str]] = []
    for pair in placed:  # what is left goes into the gaps before
        if held and held[0][1] not in (pair[1], spread[-1][1] if spread else None):
            spread.append(held.pop(0))
        spread.append(pair)
    return [row for row, _ in (*spread, *held)]


# ── files ───────────────────────────────────────────────────────────────────────────────────────


def save(
    rows: Iterable[Mapping[str, Any]],
    path: str | Path,
    format: str = "jsonl",  # noqa: A002
) -> Path:
    """Write rows: one JSON object a line, or one JSON list, or Parquet."""
    found = list(rows)
    if format == "jsonl":
        text = "".join(_line(row) + "\n" for row in found)
    elif format == "json":
        text = "[\n" + ",\n".join(map(_line, found)) + "\n]\n"
    elif format == "parquet":
        to_hf(found).to_parquet(str(path))
        return Path(path)
    else:
        raise ConfigError(f"there is no format {format!a}; say jsonl, json or parquet")
    return files.write(Path(path), text)


def _line(row: Mapping[str, Any]) -> str:
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character has no UTF-8: written as \ud83d it comes back as it was
        return json.dumps(row, ensure_ascii=True, allow_nan=False)
    return text


def load(path: str | Path) -> list[dict[str, Any]]:
    """Read rows back; a line that is no object is named."""
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{source}: {error}") from error
    try:
        if text.lstrip().startswith("["):
            rows = json.loads(text)
        else:
            rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise DataError(f"{source}: {error}. Type: rusty data validate {source}") from error
    if not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{source} does not hold rows. Type: rusty data validate {source}")
    return list(rows)


def to_hf(rows: Iterable[Mapping[str, Any]]) -> Any:
    """The rows as a `datasets.Dataset`."""
    return need("datasets", extra="data").Dataset.from_list([dict(row) for row in rows])


def eval_path(path: Path) -> Path:
    """Where the rows that are kept out of training go: `kto.jsonl` -> `kto.eval.jsonl`."""
    return path.with_name(f"{path.stem}.eval{path.suffix}")
