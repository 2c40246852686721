# SPDX-License-Identifier: AGPL-3.0-or-later
"""Traces as files: a folder a day, JSON lines, or Parquet; out of a store and into one.

    rl_traces/2026-11-15/TRACE_ID.json      one pretty JSON file a trace (the layout of the seeds)
    traces.jsonl                            one JSON object a line
    traces.parquet                          columns to query, and the whole trace as JSON beside them

The form follows the name: a folder, `.jsonl`, `.parquet`. Reading passes over what is no trace and
says which file or line it was; a trace that is in the store already is not added twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rusty_r2 import files
from rusty_r2.errors import StoreError, TraceError, need
from rusty_r2.store import TraceStore
from rusty_r2.tables import Filter, to_row
from rusty_r2.trace import ExecutionTrace, from_json

BATCH = 500


@dataclass
class Imported:
    """What came of an import."""

    added: int = 0
    known: int = 0
    problems: list[str] = field(default_factory=list)
    """one line a file or line that was no trace"""


def export(store: TraceStore, target: Path, wanted: Filter | None = None) -> int:
    """Write the traces that fit to `target`; returns how many."""
    traces = store.each(wanted, limit=None, newest_first=False)
    if target.suffix == ".jsonl":
        lines = [json.dumps(trace.to_dict(), ensure_ascii=False) + "\n" for trace in traces]
        files.write(target, "".join(lines).encode("utf-8", "surrogatepass"))
        return len(lines)
    if target.suffix == ".parquet":
        return _write_parquet(traces, target)
    if target.suffix:
        raise StoreError(f"{target}: the name must end in .jsonl or .parquet, or be a folder")
    count = 0
    for trace in traces:
        count += 1
        text = json.dumps(trace.to_dict(), indent=2, ensure_ascii=True)
        files.write(target / _day(trace) / f"{_file_name(trace)}.json", text + "\n")
    return count


def load(store: TraceStore, source: Path) -> Imported:
    """Add every trace found at `source` that the store does not know."""
    if not source.exists():
        raise StoreError(f"{source} does not exist")
    done = Imported()
    found = _read(source, done)
    while batch := list(islice(found, BATCH)):
        added = store.append_many(batch, known="skip")
        done.added += added
        done.known += len(batch) - added
    return done


def _read(source: Path, done: Imported) -> Iterator[ExecutionTrace]:
    if source.suffix == ".parquet":
        texts: Iterable[tuple[str, str]] = _parquet_bodies(source)
    elif source.is_dir():
        texts = ((str(path), path.read_text("utf-8", "replace")) for path in sorted(source.rglob("*.json")))
    else:
        texts = _lines(source)
    for where, text in texts:
        try:
            yield ExecutionTrace.from_dict(from_json(text))
        except (ValueError, TypeError, TraceError, RecursionError) as error:  # a cell may hold anything
            done.problems.append(f"{where}: {error}")


def _lines(source: Path) -> Iterator[tuple[str, str]]:
    with open(source, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"{source}:{number}", line


def _day(trace: ExecutionTrace) -> str:
    """The date it was made; a time from outside may hold anything."""
    day = trace.timestamp[:10]
    return day if re.fullmatch(r"\d{4}-\d\d-\d\d", day, re.ASCII) else "undated"


def _file_name(trace: ExecutionTrace) -> str:
    """The id, where it is a plain name; an id from outside may hold anything."""
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in trace.trace_id)[:80]
    return safe if safe == trace.trace_id else f"{safe}-{files.name_digest(trace.trace_id)}"


def _write_parquet(traces: Iterable[ExecutionTrace], target: Path) -> int:
    pyarrow = need("pyarrow", extra="data")
    parquet = need("pyarrow.parquet", extra="data")
    rows: list[dict[str, Any]] = [to_row(trace) for trace in traces]
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    files.write(target, sink.getvalue().to_pybytes())
    return len(rows)


def _parquet_bodies(source: Path) -> Iterator[tuple[str, str]]:
    parquet = need("pyarrow.parquet", extra="data")
    try:
        bodies = parquet.read_table(source, columns=["body"]).column("body").to_pylist()
    except Exception as error:  # pyarrow raises many kinds for a file that is not Parquet
        raise StoreError(f"{source} is no Parquet file of traces: {error}") from error
    for number, body in enumerate(bodies, 1):
        yield f"{source} row {number}", body
