# SPDX-License-Identifier: AGPL-3.0-or-later
"""What an edit changes, line by line, at a price that no file can drive up.

Lines carry the marks of `diff -u`. How they are coloured is for screen.py.
"""

from __future__ import annotations

import difflib

LARGEST = 200_000
"""bytes; above this the two versions are named, not compared"""
MOST_LINES = 5_000


def diff(path: str, before: bytes | None, after: bytes | None) -> list[str]:
    """The lines of a unified diff; None stands for a file that is not there."""
    old, new = _text(before), _text(after)
    if before == after:
        return [f"--- {path}", f"+++ {path}", "@@ the contents are the same @@"]
    if old is None or new is None:
        return [f"--- {path}", f"+++ {path}", f"@@ {_size(before)} becomes {_size(after)} @@"]
    names = (path if before is not None else "(nothing)", path if after is not None else "(nothing)")
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), *names, lineterm="", n=2)
    empty = "an empty file" if before is None or after is None else "only line ends changed"
    return list(lines) or [f"--- {names[0]}", f"+++ {names[1]}", f"@@ {empty} @@"]


def _text(content: bytes | None) -> str | None:
    if content is None:
        return ""
    if len(content) > LARGEST or content.count(b"\n") > MOST_LINES or b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _size(content: bytes | None) -> str:
    return "nothing" if content is None else f"{len(content):,} bytes"
