# SPDX-License-Identifier: AGPL-3.0-or-later
"""Whether a value, a file tree or an answer is what was asked for: pure functions over plain data.

They run in the supervisor on data that has crossed wire.py or was collected from a workspace, so every value
is an exact builtin. verdict.py calls them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rusty_r2.gym.wire import printable
from rusty_r2.task import Tree

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?!\w)")
_WORDS = 12


def same(got: Any, expected: Any, tolerance: float = 0.0) -> bool:
    """Strict equality of plain values: a bool is no number and a list no tuple; 2 and 2.0 are one number."""
    if type(got) in (int, float) and type(expected) in (int, float):
        return _near(got, expected, tolerance)
    if type(got) is not type(expected):
        return False
    if isinstance(expected, (list, tuple)):
        return len(got) == len(expected) and all(
            same(left, right, tolerance) for left, right in zip(got, expected, strict=True)
        )
    if isinstance(expected, dict):
        mine = {_key(key): value for key, value in got.items()}
        theirs = {_key(key): value for key, value in expected.items()}
        return mine.keys() == theirs.keys() and all(same(mine[key], theirs[key], tolerance) for key in theirs)
    if isinstance(expected, (set, frozenset)):
        return {_key(item) for item in got} == {_key(item) for item in expected}
    return bool(got == expected)


def _near(got: float, expected: float, tolerance: float) -> bool:
    if got == expected or (got != got and expected != expected):
        return True
    if not tolerance:
        return False
    try:
        return math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:
        return False


def _key(item: Any) -> Any:
    """A key that keeps True and 1 apart, as `same` does."""
    if isinstance(item, tuple):
        return ("tuple", *map(_key, item))
    if isinstance(item, frozenset):
        return frozenset(map(_key, item))
    return ("bool", item) if isinstance(item, bool) else item


def tree(
    check: Tree, before: Mapping[str, str], files: Mapping[str, str | bytes], message: str
) -> Iterator[str]:
    """One entry for each thing the check asks for: "" where it holds, else what is wrong."""
    after = {path: _bytes(content) for path, content in files.items()}
    for path, wanted in check.expect.items():
        if wanted is None:
            yield f"{path} is still there" if path in after else ""
        elif path not in after:
            yield f"{path} is missing"
        else:
            yield "" if after[path] == _bytes(wanted) else f"{path} does not hold what was asked for"
    if check.keep:
        yield _kept(check, before, after)
    if check.answer is not None:
        yield answer(message, check.answer, before)


def _kept(check: Tree, before: Mapping[str, str], after: Mapping[str, bytes]) -> str:
    for path, content in before.items():
        if path not in check.expect and after.get(path) != _bytes(content):
            return f"{path} was to stay as it was"
    for path in after:
        if path not in check.expect and path not in before:
            return f"{printable(path, 80)} was not asked for"
    return ""


def answer(message: str, wanted: str, files: Mapping[str, str]) -> str:
    """Empty where the last line of the message gives the answer, and gives only one.

    A message that names every possibility would hold the right one too, so the line may hold no other number
    where the answer is one, no other file where it is one, and few words.
    """
    lines = message.strip().splitlines()
    line = lines[-1] if lines else ""
    if not _holds(line, wanted):
        return "the last line of the message does not hold the answer"
    if _NUMBER.fullmatch(wanted):
        found = {number.rstrip(",") for number in _NUMBER.findall(line)}
        return "" if found == {wanted} else "the last line of the message must hold one number, the answer"
    if len(line.split()) > len(wanted.split()) + _WORDS:
        return "the last line of the message must be short: the answer and few words"
    names = {name for path in files for name in (path, path.rpartition("/")[2])}
    others = (name for name in names if name not in wanted and _holds(line.replace(wanted, " "), name))
    if wanted in names and next(others, ""):
        return "the last line of the message must name one file, the answer"
    return ""


def _holds(line: str, wanted: str) -> bool:
    line = re.sub(r"(?<![\w./])\./", "", line)  # as find and grep print it
    before, after = r"(?<![\w/])(?<!\w[.,\-])", r"(?![\w/])(?![.,\-]\w)"
    sign = r"(?<!-)" if wanted[:1].isdigit() else ""
    return re.search(before + sign + re.escape(wanted) + after, line) is not None


def _bytes(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")


def shown(value: Any, limit: int = 80) -> str:
    """A value for a report, however big it is."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (list, tuple, set, frozenset, dict)) and len(value) > 40:
        return f"a {type(value).__name__} of {len(value)} items"
    if isinstance(value, dict):
        inner = ", ".join(f"{shown(k, limit)}: {shown(v, limit)}" for k, v in value.items())
        return printable("{" + inner + "}", limit)
    if isinstance(value, (list, tuple, set, frozenset)):
        form = {"list": "[{}]", "tuple": "({})"}.get(type(value).__name__, "{{{}}}")
        comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
        return printable(form.format(", ".join(shown(item, limit) for item in value) + comma), limit)
    return printable(repr(value[: limit + 1] if isinstance(value, (str, bytes, bytearray)) else value), limit)
