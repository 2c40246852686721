# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a GGUF file says about itself, read with the standard library alone.

    facts = read_header(Path("model.gguf"))
    facts["general.architecture"], facts["tokenizer.chat_template"]

Only the metadata is read, never a tensor; whether those are right is for check.py. A file that is cut
off within the metadata, or is no GGUF at all, is one clear line.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from rusty_r2.errors import ConfigError

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF's number for a type, and struct's letter for it"""
STRING, ARRAY = 8, 9
LONGEST = 1 << 30
"""more bytes or items than any honest field has: a broken length is not believed"""


def read_header(path: Path) -> dict[str, Any]:
    """Every metadata field of the file, by its name."""
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"GGUF":
                raise ConfigError(f"{path} is not a GGUF file. Make one: rusty export gguf --help")
            version, _, fields = struct.unpack("<IQQ", _take(file, 20))
            if version not in (2, 3) or fields > LONGEST:
                raise ConfigError(f"{path} is GGUF version {version}; 2 and 3 are understood")
            return dict(_field(file) for _ in range(fields))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (struct.error, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is cut off or damaged within its header. Export it again") from error


def _field(file: BinaryIO) -> tuple[str, Any]:
    name = _text(file)
    (kind,) = struct.unpack("<I", _take(file, 4))
    return name, _value(file, kind)


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == STRING:
        return _text(file)
    if kind == ARRAY:
        inner, count = struct.unpack("<IQ", _take(file, 12))
        if inner in SCALARS:
            letter = SCALARS[inner]
            size = struct.calcsize(f"<{letter}")
            return list(struct.unpack(f"<{count}{letter}", _take(file, count * size)))
        return [_value(file, inner) for _ in range(_believed(count))]
    if kind not in SCALARS:
        raise EOFError(f"type {kind}")
    letter = SCALARS[kind]
    return struct.unpack(f"<{letter}", _take(file, struct.calcsize(f"<{letter}")))[0]


def _text(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", _take(file, 8))
    return _take(file, length).decode("utf-8")


def _take(file: BinaryIO, size: int) -> bytes:
    data = file.read(_believed(size))
    if len(data) < size:
        raise EOFError(f"{size} bytes wanted, {len(data)} there")
    return data


def _believed(count: int) -> int:
    if count > LONGEST:
        raise EOFError(f"a length of {count}")
    return count
