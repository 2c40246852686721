# SPDX-License-Identifier: AGPL-3.0-or-later
"""Is a file of rows what a trainer needs? Every fault is named by line and field.

    rusty data validate kto.jsonl
    kto.jsonl:12: label: must be true or false, not the text "True"

The kind of row is read off the first line's fields, or given: kto, grpo, dpo, sft, prompts, traces.
Faults make it fail; what is merely unwise (one class only, flat groups) is said and lets it pass.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rusty_r2.data.rows import TRAINED_BY
from rusty_r2.errors import DataError, TraceError
from rusty_r2.trace import ExecutionTrace

Kind = Literal["auto", "kto", "grpo", "dpo", "sft", "prompts", "traces"]
Fault = tuple[str, str]
"""a field, and what is wrong with it"""
ROLES = ("system", "user", "assistant", "tool", "observation")
SHOWN = 20
"""faults that are listed"""


@dataclass(frozen=True)
class ValidateConfig:
    file: Annotated[Path, tyro.conf.Positional]
    """a .jsonl or .json file of rows"""
    kind: Kind = "auto"
    """what the rows should be; read off the first one where not given"""


@dataclass
class Validation:
    """What was found in a file."""

    kind: str
    rows: int = 0
    faults: list[str] = field(default_factory=list)
    """file:line: field: what is wrong"""
    notes: list[str] = field(default_factory=list)


def validate(config: ValidateConfig) -> str:
    """Check a file of rows; names the line and the field of what is wrong."""
    found = check_file(config.file, config.kind)
    if found.faults:
        more = [f"… and {len(found.faults) - SHOWN} more"] if len(found.faults) > SHOWN else []
        print("\n".join([*found.faults[:SHOWN], *more]))
        count = f"{len(found.faults)} fault{'s' * (len(found.faults) > 1)}"
        raise DataError(f"{config.file}: {count} in {found.rows} {found.kind} rows")
    lines = [f"{found.rows:,} {found.kind} rows, no faults", *(f"note: {note}" for note in found.notes)]
    method = TRAINED_BY.get(found.kind)
    after = f"rusty train {method} --data" if method else "rusty data kto --source"
    return "\n".join([*lines, str(config.file), f"next: {after} {config.file}"])


def check_file(path: Path, kind: str = "auto") -> Validation:
    """Every fault of a file of rows."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        made_by = kind if kind in TRAINED_BY else "rows"
        raise DataError(f"{path}: {error.strerror}. Make rows of traces: rusty data {made_by}") from error
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: the file is not UTF-8") from error
    found = Validation(kind)
    labels: Counter[bool] = Counter()
    flat = 0
    for place, row in _rows(path, text, found):
        if found.kind == "auto":
            found.kind = kind_of(row)
        if found.kind == "auto":
            found.faults.append(f"{place}: fields: {sorted(row)[:8]} are no row we know")
            break
        found.rows += 1
        found.faults += [f"{place}: {name}: {what}" for name, what in CHECKS[found.kind](row)]
        labels[row.get("label") is True] += found.kind == "kto"
        flat += found.kind == "grpo" and isinstance(row.get("rewards"), list) and not any(row["rewards"])
    if not found.rows and not found.faults:
        found.faults.append(f"{path}: the file holds no rows")
    _advise(found, labels, flat)
    return found


def _advise(found: Validation, labels: Counter[bool], flat: int) -> None:
    if found.kind == "kto" and found.rows and min(labels[True], labels[False]) == 0:
        found.notes.append(f"every label is {str(bool(labels[True])).lower()}: KTO needs both kinds")
    if flat:
        found.notes.append(f"{flat:,} groups are flat: they teach nothing")


def _rows(path: Path, text: str, found: Validation) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, row in _values(path, text, found):
        if isinstance(row, dict):
            yield place, row
        else:
            found.faults.append(f"{place}: a row is an object, not {_name(row)}")


def _values(path: Path, text: str, found: Validation) -> Iterator[tuple[str, Any]]:
    """What the lines hold, or the members of one list."""
    listed = text.lstrip().startswith("[")
    lines = [(f"{path}:{number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    for place, line in [(str(path), text)] if listed else lines:
        try:
            value = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            found.faults.append(f"{place}: no JSON: {error}")
            continue
        if listed:
            yield from ((f"{path} row {number}", row) for number, row in enumerate(value, 1))
        else:
            yield place, value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON; trainers need finite numbers")


def kind_of(row: dict[str, Any]) -> str:
    """What a row is, by its fields."""
    if "trace_id" in row and "user_query" in row:
        return "traces"
    marks = (
        ("completions", "grpo"),
        ("chosen", "dpo"),
        ("label", "kto"),
        ("messages", "sft"),
        ("completion", "sft"),
    )
    return next((kind for mark, kind in marks if mark in row), "prompts" if "prompt" in row else "auto")


# ── one kind of row each ────────────────────────────────────────────────────────────────────────


def _kto(row: dict[str, Any]) -> Iterator[Fault]:
    yield from _texts(row, "prompt", "completion")
    label = row.get("label")
    if not isinstance(label, bool):
        yield "label", f"must be true or false, not {_name(label) if 'label' in row else 'missing'}"


def _grpo(row: dict[str, Any]) -> Iterator[Fault]:
    yield from _texts(row, "prompt")
    completions = row.get("completions")
    if not isinstance(completions, list) or not completions:
        yield "completions", "must be a list with at least one completion"
        return
    for number, one in enumerate(completions):
        yield from _text(f"completions[{number}]", one, last="assistant")
        if isinstance(one, str) is not isinstance(row.get("prompt"), str):
            yield f"completions[{number}]", "must have the form of the prompt: both messages, or both text"
    for name in ("rewards", "raw_rewards", "advantages"):
        if name in row or name == "rewards":
            yield from _numbers(name, row.get(name), len(completions))
    for name in ("parts", "trace_ids", "token_ids", "logprobs"):
        if name in row and (not isinstance(row[name], list) or len(row[name]) != len(completions)):
            yield name, f"must be a list of {len(completions)}, one for each completion"


def _dpo(row: dict[str, Any]) -> Iterator[Fault]:
    yield from _texts(row, *(("prompt",) if "prompt" in row else ()), "chosen", "rejected")
    if "chosen" in row and row.get("chosen") == row.get("rejected"):
        yield "rejected", "is the same as chosen"


def _sft(row: dict[str, Any]) -> Iterator[Fault]:
    if "messages" in row:
        yield from _text("messages", row["messages"], last="assistant")
    else:
        yield from _texts(row, "prompt", "completion")


def _prompts(row: dict[str, Any]) -> Iterator[Fault]:
    yield from _texts(row, "prompt")


def _trace(row: dict[str, Any]) -> Iterator[Fault]:
    try:
        ExecutionTrace.from_dict(row)
    except TraceError as error:
        yield "trace", str(error)


CHECKS: dict[str, Callable[[dict[str, Any]], Iterator[Fault]]] = {
    "kto": _kto,
    "grpo": _grpo,
    "dpo": _dpo,
    "sft": _sft,
    "prompts": _prompts,
    "traces": _trace,
}


def _texts(row: dict[str, Any], *names: str) -> Iterator[Fault]:
    for name in names:
        if name not in row:
            yield name, "is missing"
        else:
            yield from _text(name, row[name], last="" if name == "prompt" else "assistant")
    if len({isinstance(row[name], str) for name in names if name in row}) > 1:
        yield " and ".join(names), "must have one form: all messages, or all text"


def _text(name: str, value: Any, last: str = "") -> Iterator[Fault]:
    """Faults of a prompt or a completion, in either form."""
    if isinstance(value, str):
        if not value.strip():
            yield name, "is empty"
        yield from _half(name, value)
        return
    if not isinstance(value, list) or not value:
        yield name, f"must be a text or a list of messages, not {_name(value)}"
        return
    for number, turn in enumerate(value):
        where = f"{name}[{number}]"
        if not isinstance(turn, dict):
            yield where, f"must be an object with role and content, not {_name(turn)}"
        elif turn.get("role") not in ROLES:
            yield f"{where}.role", f"must be one of {', '.join(ROLES)}, not {_name(turn.get('role'))}"
        elif not isinstance(turn.get("content"), str):
            yield f"{where}.content", f"must be a text, not {_name(turn.get('content'))}"
        else:
            yield from _half(f"{where}.content", turn["content"])
    end = value[-1]
    if last and isinstance(end, dict) and end.get("role") in ROLES and end["role"] != last:
        yield f"{name}[{len(value) - 1}].role", f"the last turn must be the {last}'s, not the {end['role']}'s"
    if last and not any(isinstance(turn, dict) and str(turn.get("content") or "").strip() for turn in value):
        yield name, "is empty"


def _half(name: str, text: str) -> Iterator[Fault]:
    try:
        text.encode()
    except UnicodeEncodeError:
        yield name, "holds half a character (a lone surrogate), which no tokenizer reads"


def _numbers(name: str, value: Any, count: int) -> Iterator[Fault]:
    if not isinstance(value, list) or len(value) != count:
        held = f"{len(value)}" if isinstance(value, list) else _name(value)
        yield name, f"must be a list of {count} numbers, one for each completion, not {held}"
        return
    for number, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, (int, float)) or not math.isfinite(item):
            yield f"{name}[{number}]", f"must be a finite number, not {_name(item)}"


def _name(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {dict: "an object", list: "a list", bool: "true or false"}
    if isinstance(value, str):
        return f"the text {json.dumps(value[:40])}"
    return kinds.get(type(value), f"the number {value!r:.40}")
