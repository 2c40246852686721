# SPDX-License-Identifier: AGPL-3.0-or-later
"""Anything an agent passes around, as plain JSON data of bounded size. Never raises.

Traces keep words and numbers, while tools are called with anything at all: objects, cycles, endless
nesting, NaN, values whose `repr` fails. `plain` makes data of it and `text` makes words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from itertools import islice
from typing import Any

LONGEST = 200_000
"""characters of one text that are kept"""
DEEPEST = 32
MOST = 20_000
"""values kept of one argument or result"""


def plain(value: Any) -> Any:
    """`value` as JSON can hold it."""
    return _plain(value, DEEPEST, _Walk())


def text(value: Any) -> str:
    """`value` in words: a text as it is, data as JSON."""
    if value is None:
        return ""
    made = plain(value)
    return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False)


def count(value: Any) -> int:
    """A number of things; 0 for what is none."""
    number = amount(value)
    return int(number) if number < 2**53 else 0


def amount(value: Any) -> float:
    """A finite number that is not negative; 0.0 for what is none."""
    try:
        number = float(value) if not isinstance(value, bool) else 0.0
    except Exception:  # whatever an agent's own number class raises
        return 0.0
    return number if math.isfinite(number) and number > 0 else 0.0


def cut(words: str) -> str:
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}… [{len(words) - LONGEST} characters cut]"


@dataclass
class _Walk:
    left: int = MOST
    inside: set[int] = field(default_factory=set)
    """what we are in the middle of: meeting it again is a circle"""


def _plain(value: Any, depth: int, walk: _Walk) -> Any:
    if value is None or value is True or value is False:
        return value
    walk.left -= 1
    if walk.left < 0 or depth < 0 or id(value) in walk.inside:
        return "…"
    walk.inside.add(id(value))
    try:
        return _made(value, depth, walk)
    except Exception:  # an object that cannot even be described
        return f"<{type(value).__name__}>"
    finally:
        walk.inside.discard(id(value))


def _made(value: Any, depth: int, walk: _Walk) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value, depth - 1, walk)
    if isinstance(value, str):
        return cut(str(value))
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 4096 else hex(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, (bytes, bytearray)):
        return cut(bytes(value[: 4 * LONGEST]).decode("utf-8", "replace"))
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key], depth - 1, walk) for key in _few(value, walk)}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, depth - 1, walk) for item in _few(value, walk)]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name), depth - 1, walk) for f in fields(value)}
    return cut(str(value))


def _few(items: Iterable[Any], walk: _Walk) -> list[Any]:
    return list(islice(items, max(walk.left, 0) + 1))
