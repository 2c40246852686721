# SPDX-License-Identifier: AGPL-3.0-or-later
"""TensorBoard event files without TensorBoard: numbers and texts over steps, in the format it reads.

A file is a row of records (length, masked CRC-32C, bytes, masked CRC-32C), each record one `Event`
message in protocol-buffer encoding. Numbers use `simple_value`; texts a string tensor of the text
plugin. Look at them with `tensorboard --logdir runs`; tests read them back with TensorBoard itself.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _bytes(field: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _number(tag: str, value: float) -> bytes:
    return _bytes(1, _bytes(1, tag) + _varint(2 << 3 | 5) + struct.pack("<f", value))


def _text(tag: str, text: str) -> bytes:
    tensor = (
        _varint(1 << 3) + _varint(7) + _bytes(2, _bytes(2, _varint(1 << 3) + _varint(1))) + _bytes(8, text)
    )
    return _bytes(1, _bytes(1, tag) + _bytes(8, tensor) + _bytes(9, _bytes(1, _bytes(1, "text"))))


class EventFile:
    """One event file, appended to; every call is on the disk when it returns."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 1000:016d}.{os.getpid()}.rusty"
        self._file = open(folder / name, "ab", buffering=0)
        self._write(_bytes(3, "brain.Event:2"))

    def numbers(self, step: int, facts: Mapping[str, float]) -> None:
        summary = b"".join(_number(tag, value) for tag, value in facts.items())
        self._write(_varint(2 << 3) + _varint(step) + _bytes(5, summary))

    def text(self, step: int, tag: str, text: str) -> None:
        self._write(_varint(2 << 3) + _varint(step) + _bytes(5, _text(tag, text)))

    def restart(self, step: int) -> None:
        """Tell readers that whatever was written from `step` on is void: the run resumes there."""
        session_start = _bytes(7, _varint(1 << 3) + _varint(1))
        self._write(_varint(2 << 3) + _varint(step) + session_start)

    def close(self) -> None:
        self._file.close()

    def _write(self, event: bytes) -> None:
        record = struct.pack("<Bd", 1 << 3 | 1, time.time()) + event
        length = struct.pack("<Q", len(record))
        self._file.write(length + _masked_crc(length) + record + _masked_crc(record))
