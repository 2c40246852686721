# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a pickle's data is made of while it is read (pickles.py), and how it becomes plain JSON data.

Dates, paths and containers of the standard library are built here from their parts; objects of all
other classes stay records of what the file says about them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import PurePosixPath
from typing import Any, NoReturn

from rusty_r2.errors import DataError

MAX_VALUES = 4_000_000
"""values of the data written out as a tree; a text counts once for each 64 characters"""
DEEPEST = 100


class PickleRefused(DataError):
    """The file is no pickle, or asks for more than data."""


@dataclass(frozen=True)
class Name:
    """A class or function the file names. It is never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass
class Record:
    """An object of a class that is not ours: what was said about it."""

    kind: Name
    args: list[Any]
    state: dict[str, Any] = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)
    pairs: list[tuple[Any, Any]] = field(default_factory=list)


def known(what: Name, args: list[Any]) -> Any:
    """Data of the standard library, built by us from its parts."""
    name = what.name
    if name == "getattr":
        return _member(args)
    if name == "encode":
        return _text(args[0]).encode("latin-1", "replace")
    if what.module == "datetime":
        return _time(name, args)
    if name in ("set", "frozenset", "list", "tuple", "deque"):
        return list(args[0]) if args and isinstance(args[0], (list, tuple)) else []
    if name in ("dict", "OrderedDict", "defaultdict", "Counter"):
        pairs = args[0] if args and isinstance(args[0], (list, dict)) else []
        return dict(pairs) if isinstance(pairs, dict) else {text_key(key): item for key, item in pairs}
    if name in ("bytes", "bytearray"):
        return args[0] if args and isinstance(args[0], (bytes, bytearray)) else b""
    if name in ("str", "int", "float", "bool", "Decimal", "Fraction"):
        return args[0] if args else ""
    if name.endswith("Path"):
        return str(PurePosixPath(*(_text(part) for part in args)))
    return Record(what, args)


def _member(args: list[Any]) -> str:
    """The name of an enum's member, which is all that Python 3.11.2 writes of it."""
    if len(args) != 2 or not isinstance(args[0], Name) or not args[0].name[:1].isupper():
        refuse("it asks for builtins.getattr, which is more than data")
    return _text(args[1])


def _time(name: str, args: list[Any]) -> Any:
    if name == "timedelta":
        numbers = [float(value) for value in args[:3]] + [0.0] * (3 - len(args))
        return timedelta(*numbers).total_seconds()
    if name == "timezone":
        return float(args[0]) if args else 0.0
    packed = args[0] if args else b""
    raw = packed if isinstance(packed, bytes) else _text(packed).encode("latin-1")
    if name == "date":
        return f"{raw[0] << 8 | raw[1]:04d}-{raw[2]:02d}-{raw[3]:02d}"
    if name == "time":
        return f"{raw[0] & 127:02d}:{raw[1]:02d}:{raw[2]:02d}"
    year, (month, day, hour, minute, second) = raw[0] << 8 | raw[1], raw[2:7]
    moment = datetime(year, month & 127, day, hour, minute, second, int.from_bytes(raw[7:10], "big"))
    if len(args) > 1 and isinstance(args[1], (int, float)):
        moment = moment.replace(tzinfo=timezone(timedelta(seconds=args[1])))
    return moment.isoformat()


def _text(value: Any) -> str:
    """A text that the file says is one; describing anything else could take for ever."""
    if not isinstance(value, str):
        refuse("it makes a text of something that is none")
    return value


def text_key(key: Any, depth: int = 3) -> str:
    """Keys are texts: JSON's rule, and no file can choose keys that fall into one bucket."""
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.decode("utf-8", "replace")
    if key is None or isinstance(key, (bool, float)):
        return str(key)
    if isinstance(key, int):
        return str(key) if key.bit_length() <= 4096 else hex(key)
    if isinstance(key, Record) and key.args and isinstance(key.args[0], (str, int)):
        return str(key.args[0])
    if isinstance(key, tuple) and depth:
        return ", ".join(text_key(part, depth - 1) for part in key[:16])
    return f"<{type(key).__name__}>"


def written_out(value: Any, depth: int = DEEPEST, left: list[int] | None = None) -> Any:
    left = left if left is not None else [MAX_VALUES]
    left[0] -= 1
    if left[0] < 0:
        refuse(f"written out it has more than {MAX_VALUES:,} values")
    if depth < 0:
        refuse(f"it nests deeper than {DEEPEST}, or holds itself")
    if isinstance(value, (str, bytes, bytearray)):
        left[0] -= len(value) >> 6
        return value if isinstance(value, str) else bytes(value).decode("utf-8", "replace")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= 4096 else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: written_out(item, depth - 1, left) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [written_out(item, depth - 1, left) for item in value]
    if isinstance(value, Record):
        return written_out(_attributes(value), depth - 1, left)
    if isinstance(value, Name):
        return str(value)
    raise PickleRefused("it ends inside a value")


def _attributes(record: Record) -> Any:
    """An object as its attributes; an enum's member, which has only a value, as that value."""
    more = {"__args__": record.args, "__items__": record.items}
    pairs = {text_key(key): value for key, value in record.pairs}
    said = {key: value for key, value in more.items() if value}
    if len(record.args) == 1 and not (record.state or record.items or pairs):
        return record.args[0]
    return {**pairs, **record.state, **said, "__class__": str(record.kind)}


def refuse(why: str) -> NoReturn:
    raise PickleRefused(why)
