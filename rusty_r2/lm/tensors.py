# SPDX-License-Identifier: AGPL-3.0-or-later
"""safetensors files with NumPy alone: a chat starts without torch, and one tensor is in memory at a time.

The format is eight bytes of length, a JSON header (name → dtype, shape, offsets), and the numbers.
Reading executes nothing from the file. bf16, which NumPy lacks, comes as its 16 bits in uint16.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rusty_r2.errors import CheckpointError

Array = NDArray[Any]

DTYPES = {
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I8": "|i1",
    "U8": "|u1",
    "I32": "<i4",
    "I64": "<i8",
    "F64": "<f8",
}
_NAMES = {np.dtype(code).str: name for name, code in DTYPES.items() if name != "BF16"}
_MAX_HEADER = 100_000_000


class TensorFile:
    """One safetensors file: `names`, `metadata`, and `read(name)`."""

    def __init__(self, path: Path, content: NDArray[np.uint8] | None = None) -> None:
        """`content`: the whole file where it is in memory already; `path` is then its name."""
        self.path, self._content = path, content
        try:
            self._length = path.stat().st_size if content is None else len(content)
            length = int.from_bytes(self._bytes(0, 8), "little")
            self.header = self._bytes(8, min(length, _MAX_HEADER))
            header = json.loads(self.header)
            self.metadata: dict[str, str] = header.pop("__metadata__", {}) or {}
            self._entries = {name: self._checked(name, entry, length) for name, entry in header.items()}
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is not a safetensors file: {error}") from error

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def size(self, name: str) -> tuple[int, ...]:
        return self._entries[name][1]

    def read(self, name: str) -> Array:
        """The tensor as stored; bf16 as uint16."""
        if name not in self._entries:
            raise CheckpointError(f"{self.path} holds no {name}")
        dtype, shape, start, _ = self._entries[name]
        if self._content is not None:
            return np.array(self.view(name))
        count = int(np.prod(shape, dtype=np.int64))
        return np.fromfile(self.path, dtype=DTYPES[dtype], count=count, offset=start).reshape(shape)

    def view(self, name: str) -> Array:
        """The tensor where it lies in `content`, to be changed there."""
        assert self._content is not None
        dtype, shape, start, end = self._entries[name]
        return self._content[start:end].view(np.dtype(DTYPES[dtype])).reshape(shape)

    def content(self) -> NDArray[np.uint8]:
        """The whole file."""
        return np.fromfile(self.path, np.uint8) if self._content is None else self._content

    def floats(self, name: str) -> NDArray[np.float32]:
        """The tensor as fp32."""
        found = self.read(name)
        return widen(found) if self._entries[name][0] == "BF16" else found.astype(np.float32, copy=False)

    def _bytes(self, start: int, count: int) -> bytes:
        if self._content is not None:
            return self._content[start : start + count].tobytes()
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(count)

    def _checked(self, name: str, entry: Any, header: int) -> tuple[str, tuple[int, ...], int, int]:
        dtype, shape = entry["dtype"], tuple(int(size) for size in entry["shape"])
        start, end = (int(offset) + 8 + header for offset in entry["data_offsets"])
        if dtype not in DTYPES:
            raise ValueError(f"{name} has the type {dtype}, which is not one of {', '.join(DTYPES)}")
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(DTYPES[dtype]).itemsize
        if min(shape, default=0) < 0 or end - start != size or end > self._length:
            raise ValueError(f"{name} does not fit its place; the file is cut off or damaged")
        return dtype, shape, start, end


def write(
    path: Path, tensors: Mapping[str, Array] | Iterable[tuple[str, Array]], metadata: dict[str, str]
) -> Path:
    """Write arrays; `TensorFile` and the safetensors library read them back. The file appears whole."""
    items = [(name, np.ascontiguousarray(array)) for name, array in dict(tensors).items()]
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, array in items:
        header[name] = {
            "dtype": _NAMES[array.dtype.str],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    words = json.dumps(header, separators=(",", ":")).encode()
    words += b" " * (-len(words) % 8)
    fresh = path.with_name(path.name + ".part")
    with fresh.open("wb") as file:
        file.write(len(words).to_bytes(8, "little") + words)
        for _, array in items:
            file.write(array.data if array.size else b"")
    return fresh.replace(path)


def widen(bits: Array) -> NDArray[np.float32]:
    """bf16 bits → fp32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """fp32 → bf16 bits, rounded to nearest even."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))
    return np.asarray(rounded >> 16, np.uint16)
