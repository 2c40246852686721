# SPDX-License-Identifier: AGPL-3.0-or-later
"""Every sample and verdict, one JSON line each: to look at, and to go on from where a run was stopped.

A file belongs to one measure, one mind (its weights included) and one way of asking; all of that is in its
name and its first line. Lines are appended as they come, also by two runs at once; a line cut by a kill is
passed over. Raising --limit measures only what is not there yet.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

Row = dict[str, Any]


class Kept:
    """The samples of one measure of one mind; `rows` by key."""

    def __init__(self, folder: Path, measure: str, asked: Mapping[str, Any]) -> None:
        told = json.dumps({"measure": measure, **asked}, sort_keys=True, default=str)
        mark = hashlib.blake2b(told.encode(), digest_size=4).hexdigest()
        self.path = folder / f"{measure}-{slug(str(asked.get('address', '')))}-{mark}.jsonl"
        self.rows: dict[str, Row] = {}
        self._file: TextIO | None = None
        self._header = told
        self._read()

    def add(self, key: str, row: Row) -> None:
        """Keep one sample and its verdict."""
        if self._file is None:
            self._open()
        assert self._file is not None
        self.rows[key] = row
        self._file.write(json.dumps({"key": key, **row}, ensure_ascii=False) + "\n")
        self._file.flush()

    def counts(self, key: str) -> bool:
        """Whether this was measured; what a failing sandbox spoilt was not, and is asked again."""
        return key in self.rows and not self.rows[key].get("masked")

    def __enter__(self) -> Kept:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self) -> None:
        """The rows of an earlier try, its whole lines only."""
        lines = self.path.read_bytes().split(b"\n") if self.path.is_file() else [b""]
        self._fresh, self._cut = lines == [b""], bool(lines[-1])
        for line in lines[:-1]:
            try:
                row = json.loads(line)
            except ValueError:  # cut by a kill
                continue
            if "key" in row:
                self.rows[row.pop("key")] = row

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # half a character of a reply is written as JSON's escape, which reads as the same half
        self._file = open(self.path, "a", encoding="utf-8", errors="backslashreplace")
        if self._fresh or self._cut:
            self._file.write(self._header + "\n" if self._fresh else "\n")


def slug(text: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_.")[-60:] or "mind"
