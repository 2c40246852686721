# SPDX-License-Identifier: AGPL-3.0-or-later
"""ggml's own kernels: float32 rows in, the bytes of a quantised tensor out.

The kernels are `ggml_quantize_chunk` of the llama.cpp inside the pinned xllamacpp wheel, called by name
through ctypes; a wheel without that name is said so in one line. Rows are worked on in pieces by several
threads (ctypes lets go of the interpreter), so a large matrix never exists in float32 as a whole.
F16, BF16 and F32 need no kernel.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rusty_r2.errors import ConfigError, DataError, MissingExtra
from rusty_r2.export.types import BLOCKS
from rusty_r2.lm.tensors import narrow, widen

Array = NDArray[Any]
CODES = {
    "Q4_0": 2,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
}
"""ggml's numbers for the types that have a kernel"""
PIECE = 1 << 22
"""weights worked on at a time by one thread: 16 MB in float32"""
SYMBOLS = ("ggml_quantize_init", "ggml_quantize_chunk", "ggml_row_size")


@lru_cache(maxsize=4)
def kernels(folder: Path | None = None) -> ctypes.CDLL:
    """The library with the kernels: the wheel's, or libggml-base of a llama.cpp build in `folder`."""
    path = _wheel() if folder is None else _built(folder)
    library = ctypes.CDLL(str(path))
    missing = [name for name in SYMBOLS if not hasattr(library, name)]
    if missing:
        raise MissingExtra(
            f"{path.name} has no {missing[0]}, so nothing can be quantised with it. "
            "Type: pip install --force-reinstall 'rusty-r2[export]'"
        )
    library.ggml_quantize_init.argtypes = [ctypes.c_int]
    library.ggml_quantize_init.restype = None
    whole = ctypes.c_int64
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, whole, whole, whole, ctypes.c_void_p,
    ]  # fmt: skip
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_row_size.argtypes = [ctypes.c_int, whole]
    library.ggml_row_size.restype = ctypes.c_size_t
    _same_layout(library, path)
    return library


def _wheel() -> Path:
    spec = importlib.util.find_spec("xllamacpp")
    for place in (spec.submodule_search_locations if spec else None) or ():
        for path in sorted(Path(place).glob("xllamacpp*.so")):
            return path
    raise MissingExtra("xllamacpp is not installed. Type: pip install 'rusty-r2[export]'")


def _built(folder: Path) -> Path:
    for pattern in ("libggml-base.so*", "libggml-base.dylib", "libggml.so*"):
        for path in sorted(folder.rglob(pattern)):
            return path
    raise ConfigError(f"{folder} holds no libggml-base: build llama.cpp there, or leave llama_cpp_path away")


def _same_layout(library: ctypes.CDLL, path: Path) -> None:
    """A library that packs blocks otherwise than we count them would write beyond our memory."""
    for kind, code in CODES.items():
        weights, size = BLOCKS[kind]
        if library.ggml_row_size(code, weights) != size:
            raise MissingExtra(f"{path.name} packs {kind} otherwise. Type: pip install 'rusty-r2[export]'")


def pack(
    stored: Array,
    kind: str,
    *,
    library: ctypes.CDLL | None = None,
    threads: int = 1,
    done: Callable[[int], None] | None = None,
    name: str = "the tensor",
) -> Array:
    """`stored` (as read: float32, float16, or bf16 as uint16) in the bytes of `kind`.

    `done` is told how many weights are finished, piece by piece.
    """
    rows = stored.reshape(-1, stored.shape[-1]) if stored.ndim > 1 else stored.reshape(1, -1)
    weights, size = BLOCKS[kind]
    out = np.empty((rows.shape[0], rows.shape[1] // weights * size), np.uint8)
    step = max(1, PIECE // rows.shape[1])
    used = library or (kernels() if kind in CODES else None)

    def work(start: int) -> int:
        piece = floats(rows[start : start + step])
        if not np.isfinite(piece).all():
            raise DataError(f"{name} holds numbers that are not finite; a file of it would only say nonsense")
        _pack_piece(piece, kind, out[start : start + step], used, name)
        return piece.size

    with ThreadPoolExecutor(max_workers=max(1, threads)) as pool:
        for finished in pool.map(work, range(0, rows.shape[0], step)):
            if done is not None:
                done(finished)
    return out


def floats(stored: Array) -> NDArray[np.float32]:
    """As float32, contiguous."""
    wide = widen(stored) if stored.dtype == np.uint16 else stored
    return np.ascontiguousarray(wide, dtype=np.float32)


def _pack_piece(
    piece: NDArray[np.float32], kind: str, out: Array, library: ctypes.CDLL | None, name: str
) -> None:
    if kind == "F32":
        out[:] = piece.view(np.uint8)
    elif kind == "BF16":
        out[:] = narrow(piece).view(np.uint8)
    elif kind == "F16":
        out[:] = _halved(piece, name).view(np.uint8)
    else:
        assert library is not None
        code = CODES[kind]
        library.ggml_quantize_init(code)
        made = library.ggml_quantize_chunk(
            code, piece.ctypes.data, out.ctypes.data, 0, piece.shape[0], piece.shape[1], None
        )
        if made != out.nbytes:
            raise DataError(f"{name}: ggml wrote {made} bytes of {kind} where {out.nbytes} were expected")


def _halved(piece: NDArray[np.float32], name: str) -> NDArray[np.float16]:
    if piece.size and float(np.abs(piece).max()) > 65504:
        raise DataError(f"{name} holds numbers beyond half precision. Type: --quantization BF16")
    return piece.astype(np.float16)
