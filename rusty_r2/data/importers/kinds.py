# SPDX-License-Identifier: AGPL-3.0-or-later
"""What other programs recorded becomes traces.

    rusty trace import chats.jsonl session.jsonl spans.json        the kind is seen from the content

Each kind has a module: openai and sharegpt read one record at a time, claude, codex and otel a file as a
whole. A record that cannot be read is reported by its line and the rest is read. Ids follow from the content,
so a file imported twice adds nothing. Secrets are cut out by the store.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from rusty_r2.data.checkpoints import CheckpointLoader
from rusty_r2.data.importers import claude, codex, openai, otel, sharegpt
from rusty_r2.data.importers.lines import Numbered, Reading, records
from rusty_r2.errors import DataError, RustyError
from rusty_r2.trace import ExecutionTrace

Kind = Literal["auto", "traces", "openai", "sharegpt", "otel", "claude", "codex", "checkpoint"]
WHOLE: dict[str, tuple[Callable[[Any], bool], Callable[[list[Numbered], Reading], list[ExecutionTrace]]]] = {
    "otel": (otel.looks, otel.read),
    "codex": (codex.looks, codex.read),
    "claude": (claude.looks, claude.read),
}
SINGLE: dict[str, tuple[Callable[[Any], bool], Callable[[Any], list[ExecutionTrace]]]] = {
    "traces": (
        lambda record: isinstance(record, dict) and "user_query" in record,
        lambda r: [ExecutionTrace.from_dict(r)],
    ),
    "sharegpt": (sharegpt.looks, sharegpt.read),
    "openai": (openai.looks, openai.read),
}


def read(path: Path, kind: Kind = "auto") -> Reading:
    """The traces in a file of any kind we know, and one line for each part that is none."""
    reading = Reading(path)
    if path.suffix in (".pkl", ".pickle") or kind == "checkpoint":
        return _checkpoint(reading)
    found = records(reading)
    reading.kind = kind if kind != "auto" else _kind(found)
    if reading.kind == "checkpoint":
        return _checkpoint(reading)
    if not reading.kind:
        if found or not reading.problems:
            raise DataError(f"{path} holds no conversation of a kind we know: {', '.join([*WHOLE, *SINGLE])}")
        return reading
    if reading.kind in WHOLE:
        reading.traces = WHOLE[reading.kind][1](found, reading)
        return reading
    looks, convert = SINGLE[reading.kind]
    for number, record in found:
        try:
            if not looks(record):
                raise DataError(f"not a record of the kind {reading.kind}")
            reading.traces += convert(record)
        except (RustyError, AttributeError, TypeError, KeyError) as error:
            reading.problem(number, str(error))
    return reading


def _kind(found: list[Numbered]) -> str:
    """The kind the first records speak of."""
    for _, record in found[:20]:
        for name, (looks, _read) in {**WHOLE, **SINGLE}.items():
            if looks(record):
                return name
        if isinstance(record, dict) and {"session_data", "sessions_data"} & set(record):
            return "checkpoint"
    return ""


def _checkpoint(reading: Reading) -> Reading:
    loader = CheckpointLoader()
    reading.kind = "checkpoint"
    reading.traces = loader.extract_traces_from_checkpoint(loader.load_checkpoint(reading.path))
    return reading
