# SPDX-License-Identifier: AGPL-3.0-or-later
"""Every sample and verdict, one JSON line each: to look at, and to go on from where a run was stopped.

A file belongs to one measure, one mind (its weights included) and one way of asking; all of that is in its
name and its first line. Lines are appended as they come; a last line cut by a kill is dropped. Raising
--limit measures only what is not there yet.
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
        self._whole = 0
        if not self.path.is_file():
            return
        for number, line in enumerate(self.path.read_bytes().splitlines(keepends=True)):
            if not line.endswith(b"\n"):
                break
            self._whole += len(line)
            if number:
                row = json.loads(line)
                self.rows[row.pop("key")] = row

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._whole:
            with open(self.path, "r+b") as file:
                file.truncate(self._whole)
        self._file = open(self.path, "a", encoding="utf-8")
        if not self._whole:
            self._file.write(self._header + "\n")


def slug(text: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_.")[-60:] or "mind"
