# SPDX-License-Identifier: AGPL-3.0-or-later
"""Files of JSON, whole or line by line, with the number of each line; what is wrong is said and skipped."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rusty_r2.agent.plain import plain
from rusty_r2.errors import DataError
from rusty_r2.trace import ExecutionTrace, from_json

Numbered = tuple[int, Any]
LARGE = 10_000
"""characters of a part we do not know from which only its name and size are kept"""


@dataclass
class Reading:
    """What came of reading a file."""

    path: Path
    kind: str = ""
    traces: list[ExecutionTrace] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """FILE:LINE: what was wrong there"""

    def problem(self, number: int, why: str) -> None:
        self.problems.append(f"{self.path}:{number}: {why}")


def records(reading: Reading) -> list[Numbered]:
    """Every value in the file with its line; of a list, every item with its place."""
    try:
        text = reading.path.read_text("utf-8", "replace").removeprefix("\ufeff")
    except OSError as error:
        raise DataError(f"{reading.path} cannot be read: {error.strerror}") from error
    whole = _whole(text) if reading.path.suffix != ".jsonl" else None
    if isinstance(whole, list) and not (whole and isinstance(whole[0], dict) and "role" in whole[0]):
        return list(enumerate(whole, 1))
    if whole is not None:
        return [(1, whole)]
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                found.append((number, from_json(line)))
            except (ValueError, RecursionError) as error:
                reading.problem(number, f"not JSON: {error}")
    return found


def major(version: Any) -> int | None:
    """The first figure of a version; None where there is no version."""
    found = re.match(r"v?(\d{1,6})", str(version)) if version is not None else None
    return int(found[1]) if found else None


def small(part: Any) -> Any:
    """A part we do not know, kept as it came unless it is large."""
    made = plain(part)
    size = len(json.dumps(made))
    if size <= LARGE:
        return made
    kind = made.get("type") if isinstance(made, dict) else None
    return {"type": kind, "characters": size}


def _whole(text: str) -> Any:
    try:
        return from_json(text)
    except (ValueError, RecursionError):
        return None
