# SPDX-License-Identifier: AGPL-3.0-or-later
"""Plain values over a socket: typed, bounded, and never code.

`dumps` writes JSON in which every type outside JSON carries a one-letter tag; `loads` can only build exact
builtins, Decimal and Fraction (and hands any object of the other side to `handle` as a number). Nothing is
looked up by name, called or imported, so the bytes may come from an enemy. Sizes, depth and hash collisions
are bounded.

The same file runs in the supervisor and, shipped as text, in both sandboxes of a verdict: it needs only the
standard library and imports nothing of the package. What a value is worth is decided in verdict.py.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_BYTES = 2 << 20
MAX_DEPTH = 50
_SMALL = 1 << 53
_SUSPECT = 64
"""keys of a set or dict that may have the same hash"""
_HEAD = struct.Struct("<I")

Handle = Callable[[int, str, str], Any]
"""how the reading side stands in for an object of the other side: (number, kind, type name)"""


class WireError(Exception):
    """The value cannot cross, or the bytes are not a value."""


def dumps(value: Any, keep: Callable[[Any], Any] | None = None) -> bytes:
    """The bytes of a value; `keep` turns an object that is no plain data into a tagged dict, or refuses."""
    return text(pack(value, keep))


def loads(data: bytes, handle: Handle | None = None) -> Any:
    """Undo `dumps`; builds exact builtins only, whatever the bytes say."""
    return unpack(parse(data), handle)


def text(packed: Any) -> bytes:
    """JSON bytes of something already packed."""
    data = json.dumps(packed, ensure_ascii=False, separators=(",", ":"), check_circular=False)
    return data.encode("utf-8", "surrogatepass")


def parse(data: bytes) -> Any:
    """JSON from bytes that may be hostile: one kind of error, no quadratic integers."""
    try:
        return json.loads(data.decode("utf-8", "surrogatepass"), parse_int=_digits)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not a message: {type(error).__name__}") from None


def _digits(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("long integers travel as hexadecimal")
    return int(digits)


def pack(value: Any, keep: Callable[[Any], Any] | None = None, depth: int = 0) -> Any:
    """JSON-able form of a value. A subclass of a builtin is sent as what it holds, not as what it claims."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -_SMALL < value < _SMALL else {"i": format(value, "x")}
    if kind is float:
        return value
    if depth > MAX_DEPTH:
        raise WireError("nested too deep")
    if kind is list:
        return [pack(item, keep, depth + 1) for item in value]
    if kind is tuple:
        return {"t": [pack(item, keep, depth + 1) for item in value]}
    if kind is dict:
        return {"d": [[pack(k, keep, depth + 1), pack(v, keep, depth + 1)] for k, v in value.items()]}
    return _pack_rare(value, keep, depth)


def _pack_rare(value: Any, keep: Callable[[Any], Any] | None, depth: int) -> Any:
    if isinstance(value, (set, frozenset)):
        items = set.__iter__(value) if isinstance(value, set) else frozenset.__iter__(value)
        tag = "s" if isinstance(value, set) else "z"
        return {tag: [pack(item, keep, depth + 1) for item in items]}
    if isinstance(value, (bytes, bytearray)):
        return {"b" if isinstance(value, bytes) else "y": value.hex()}
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    if type(value) is range:
        return {"r": [pack(part) for part in (value.start, value.stop, value.step)]}
    if type(value) is Decimal:
        return {"D": str(value)}
    if type(value) is Fraction:
        return {"q": [pack(value.numerator), pack(value.denominator)]}
    if value is Ellipsis:
        return {"e": 0}
    for base in (int, float, str, list, tuple, dict):
        if issubclass(type(value), base) and not hasattr(type(value), "_value2member_map_"):
            return pack(_as_base(base, value), keep, depth)
    if keep is not None:
        return keep(value)
    raise WireError(f"{type(value).__name__} is not plain data")


def _as_base(base: Any, value: Any) -> Any:
    if base is dict:
        return dict(dict.items(value))
    if base is list or base is tuple:
        return base(base.__iter__(value))
    if base is int:
        return int.__int__(value)
    return float.__float__(value) if base is float else str.__str__(value) + ""


def unpack(packed: Any, handle: Handle | None = None, depth: int = 0) -> Any:
    """Undo `pack` on parsed JSON, trusting nothing about it."""
    kind = type(packed)
    if packed is None or kind is bool or kind is str or kind is int or kind is float:
        return packed
    if depth > MAX_DEPTH:
        raise WireError("nested too deep")
    if kind is list:
        return [unpack(item, handle, depth + 1) for item in packed]
    if kind is not dict or not packed:
        raise WireError("no such value")
    if "h" in packed:
        return _unpack_handle(packed, handle)
    if len(packed) != 1:
        raise WireError("no such value")
    tag, body = next(iter(packed.items()))
    if type(body) is list:
        return _unpack_many(tag, body, handle, depth)
    return _unpack_one(tag, body)


def _unpack_many(tag: str, body: list[Any], handle: Handle | None, depth: int) -> Any:
    if tag == "d":
        if not all(type(pair) is list and len(pair) == 2 for pair in body):
            raise WireError("no such value")
        keys = [unpack(pair[0], handle, depth + 1) for pair in body]
        _hashable(keys)
        return dict(zip(keys, (unpack(pair[1], handle, depth + 1) for pair in body), strict=True))
    items = [unpack(item, handle, depth + 1) for item in body]
    if tag == "t":
        return tuple(items)
    if tag in ("s", "z"):
        _hashable(items)
        return set(items) if tag == "s" else frozenset(items)
    if tag == "c" and len(items) == 2 and all(type(part) in (float, int) for part in items):
        return complex(items[0], items[1])
    if tag == "q" and len(items) == 2 and all(type(part) is int for part in items) and items[1]:
        if max(part.bit_length() for part in items) > 4096:  # reducing it would take the square of that
            raise WireError("too big a fraction")
        return Fraction(items[0], items[1])
    if tag == "r" and len(items) == 3 and all(type(part) is int for part in items) and items[2]:
        return range(*items)
    raise WireError("no such value")


def _unpack_one(tag: str, body: Any) -> Any:
    if tag == "e":
        return Ellipsis
    if type(body) is not str or tag not in ("i", "b", "y", "D"):
        raise WireError("no such value")
    try:
        if tag == "i":
            return int(body, 16)
        if tag == "D":
            return _decimal(body)
        return bytes.fromhex(body) if tag == "b" else bytearray.fromhex(body)
    except ValueError:
        raise WireError("no such value") from None


def _decimal(body: str) -> Decimal:
    if len(body) > 1000 or "snan" in body.lower():  # comparing a signalling NaN would raise
        raise ValueError
    try:
        return Decimal(body)
    except ArithmeticError:
        raise ValueError from None


def _unpack_handle(packed: dict[str, Any], handle: Handle | None) -> Any:
    number, kind, name = packed["h"], packed.get("k"), packed.get("n")
    if type(number) is not int or type(kind) is not str or type(name) is not str:
        raise WireError("no such value")
    if handle is None:
        raise WireError(f"{printable(name, 40)} is not plain data")
    return handle(number, kind, printable(name, 80))


def _hashable(items: list[Any]) -> None:
    """Refuse keys chosen to collide: a dict of them would cost the square of its size."""
    try:
        hashes = [hash(item) for item in items]
    except TypeError:
        raise WireError("a set or dict holds what cannot be hashed") from None
    # strings have salted hashes, so counting the hashes this way cannot be attacked in turn
    if len(items) > _SUSPECT and max(Counter(map(str, hashes)).values()) > _SUSPECT:
        raise WireError("a set or dict whose keys collide")


def printable(words: str, limit: int) -> str:
    """Text fit for a report: one line, nothing that steers a terminal, cut at `limit`."""
    cut = words[: limit + 1]
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cut)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def send(channel: socket.socket, data: bytes, deadline: float | None = None) -> None:
    """One frame: four bytes of length, then the payload."""
    if len(data) > MAX_BYTES:
        raise WireError("too big")
    _until(channel, deadline)
    channel.sendall(_HEAD.pack(len(data)) + data)


def receive(channel: socket.socket, deadline: float | None = None) -> bytes:
    """The next frame; EOFError where the other side is gone, TimeoutError past the deadline."""
    (size,) = _HEAD.unpack(_exactly(channel, _HEAD.size, deadline))
    if size > MAX_BYTES:
        raise WireError("too big")
    return _exactly(channel, size, deadline)


def _exactly(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        _until(channel, deadline)
        more = channel.recv(size - len(data))
        if not more:
            raise EOFError("the other side is gone")
        data += more
    return bytes(data)


def _until(channel: socket.socket, deadline: float | None) -> None:
    """Set the time left anew before each wait, so that bytes given out one by one buy nothing."""
    if deadline is None:
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("time is up")
    channel.settimeout(left)
