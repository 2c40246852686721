# SPDX-License-Identifier: AGPL-3.0-or-later
"""The model in C++ (engine.cpp): every weight format, one call a step, all of its memory outside Python.

`NativeModel(source, weights, threads)` packs the weights one matrix at a time; `available()` says whether
this machine can. lm/engine.py is the door; lm/engine_numpy.py gives the same answers without a compiler.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rusty_r2.errors import CheckpointError, RustyError
from rusty_r2.lm import native
from rusty_r2.lm.quantize import EMBEDDING, FORMATS, Source, kept_as
from rusty_r2.lm.sampling import NO_CHOICE, Floats, Mask, Sampling
from rusty_r2.lm.shape import LAYER_MATRICES, LAYER_VECTORS, TOP_MATRICES, TOP_VECTORS, Shape

Ints = NDArray[np.int32]
FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd")
_SOURCE = Path(__file__).with_name("engine.cpp")
_P, _I = ctypes.c_void_p, ctypes.c_int


class _Rules(ctypes.Structure):
    _fields_ = (
        ("temperature", ctypes.c_float),
        ("top_p", ctypes.c_float),
        ("penalty", ctypes.c_float),
        ("top_k", ctypes.c_int32),
    )


@lru_cache
def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    library.rusty_simd.restype = ctypes.c_char_p
    library.rusty_new.restype, library.rusty_new.argtypes = _P, [_I] * 6
    library.rusty_free.restype, library.rusty_free.argtypes = None, [_P]
    library.rusty_vector.restype, library.rusty_vector.argtypes = None, [_P, _I, _I, _P, _I]
    library.rusty_matrix.argtypes = [_P, _I, _I, _I, _I, _I, _P, _P, _P]
    library.rusty_embedding.argtypes = [_P, _I, _P, _P]
    library.rusty_read.restype, library.rusty_read.argtypes = None, [_P, _I, _P, _P, _P, _I, _P, _P, _P]
    library.rusty_pick.argtypes = [_P, _I, *[_P] * 10]
    library.rusty_logits.restype, library.rusty_logits.argtypes = None, [_P, _I, _P, _P]
    library.rusty_step.argtypes = [_P, _I, *[_P] * 14]
    return library


def library(*, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL | None:
    """The compiled engine, or None without a compiler (or with RUSTY_NATIVE=0)."""
    found = native.library(_SOURCE, flags=flags)
    return None if found is None else _typed(found)


def simd() -> str:
    """Which instructions the compiled engine uses, for people."""
    found = library()
    return "none" if found is None else found.rusty_simd().decode()


def _address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.__array_interface__["data"][0]


class NativeModel:
    """Weights in C++; states are fp32 arrays [layer, 5, row, channel] that the caller owns."""

    def __init__(
        self, source: Source, weights: str, *, threads: int, compiled: ctypes.CDLL | None = None
    ) -> None:
        found = compiled or library()
        if found is None:
            raise CheckpointError("the C++ engine cannot be compiled here. Type: rusty doctor")
        self.shape, self.weights, self._c = Shape.of(source), weights, found
        s = self.shape
        self._model = _P(found.rusty_new(s.words, s.embed, s.hidden, s.inner, s.layers, threads))
        weakref.finalize(self, found.rusty_free, self._model)
        self._load(source)

    def _load(self, source: Source) -> None:
        embedding = source.matrix(EMBEDDING, kept_as(EMBEDDING, self.weights))
        self._embed(embedding.weights, np.ascontiguousarray(embedding.data), embedding.scale)
        del embedding
        for number, name in enumerate(TOP_VECTORS):
            self._vector(-1, number, source.vector(name))
        for number, name in enumerate(TOP_MATRICES):
            self._matrix(-1, number, source, name)
        for layer in range(self.shape.layers):
            for number, name in enumerate(LAYER_VECTORS):
                found = source.vector(f"blocks.{layer}.{name}").reshape(-1)
                self._vector(layer, number, -np.exp(found) if name.endswith("time_decay") else found)
            for number, name in enumerate(LAYER_MATRICES):
                self._matrix(layer, number, source, f"blocks.{layer}.{name}")

    def _vector(self, layer: int, number: int, vector: Floats) -> None:
        flat = np.ascontiguousarray(vector.reshape(-1), np.float32)
        self._c.rusty_vector(self._model, layer, number, _address(flat), flat.size)

    def _embed(self, weights: str, data: NDArray[Any], scale: Floats | None) -> None:
        if not self._c.rusty_embedding(self._model, FORMATS.index(weights), _address(data), _address(scale)):
            raise MemoryError("no memory for the embedding")

    def _matrix(self, layer: int, number: int, source: Source, name: str) -> None:
        matrix = source.matrix(name, kept_as(name, self.weights))
        data = np.ascontiguousarray(matrix.data)
        out, inputs = data.shape
        given = _address(data), _address(matrix.times), _address(matrix.scale)
        kind = FORMATS.index(matrix.weights)
        if not self._c.rusty_matrix(self._model, layer, number, kind, out, inputs, *given):
            raise MemoryError(f"no memory for {name}")

    def read(self, tokens: Ints, rows: Ints, slots: Ints, state: Floats, count: int) -> tuple[Floats, Floats]:
        hidden, values = np.zeros((count, self.shape.hidden), np.float32), np.zeros(count, np.float32)
        where = _address(tokens), _address(rows), _address(slots), state.shape[2]
        self._c.rusty_read(
            self._model, len(tokens), *where, _address(state), _address(hidden), _address(values)
        )
        return hidden, values

    def logits(self, hidden: Floats) -> Floats:
        found = np.empty((len(hidden), self.shape.words), np.float32)
        self._c.rusty_logits(self._model, len(hidden), _address(hidden), _address(found))
        return found

    def pick(
        self,
        hidden: Floats,
        sampling: Sampling,
        uniforms: NDArray[np.float64],
        mask: Mask | None = None,
        history: Sequence[Sequence[int]] | None = None,
        given: Ints | None = None,
        keep: bool = False,
    ) -> tuple[Ints, Floats, Mask | None]:
        rows = len(hidden)
        tokens, logp = np.empty(rows, np.int32), np.empty(rows, np.float32)
        kept = np.empty((rows, (self.shape.words + 31) // 32), np.uint32) if keep else None
        seen_from, seen = _ragged(history, sampling)
        asked = _address(uniforms), _address(mask), _address(seen_from), _address(seen), _address(given)
        lost = self._c.rusty_pick(
            *(self._model, rows, _address(hidden), ctypes.byref(_rules(sampling)), *asked),
            *(_address(tokens), _address(logp), _address(kept)),
        )
        if lost:
            raise RustyError(NO_CHOICE)
        return tokens, logp, kept

    def step(
        self,
        tokens: Ints,
        state: Floats,
        sampling: Sampling,
        uniforms: NDArray[np.float64],
        mask: Mask | None = None,
        history: Sequence[Sequence[int]] | None = None,
        keep: bool = False,
    ) -> tuple[Ints, Floats, Floats, Mask | None]:
        rows = len(tokens)
        order = _counting(rows)
        hidden, values = np.empty((rows, self.shape.hidden), np.float32), np.empty(rows, np.float32)
        following, logp = np.empty(rows, np.int32), np.empty(rows, np.float32)
        kept = np.empty((rows, (self.shape.words + 31) // 32), np.uint32) if keep else None
        seen_from, seen = _ragged(history, sampling)
        lost = self._c.rusty_step(
            *(self._model, rows, _address(tokens), _address(order), _address(order), _address(state)),
            *(_address(hidden), _address(values), ctypes.byref(_rules(sampling)), _address(uniforms)),
            *(_address(mask), _address(seen_from), _address(seen)),
            *(_address(following), _address(logp), _address(kept)),
        )
        if lost:
            raise RustyError(NO_CHOICE)
        return following, logp, values, kept


@lru_cache(maxsize=64)
def _counting(rows: int) -> Ints:
    return np.arange(rows, dtype=np.int32)


@lru_cache(maxsize=64)
def _rules(sampling: Sampling) -> _Rules:
    return _Rules(sampling.temperature, sampling.top_p, sampling.repetition_penalty, sampling.top_k)


def _ragged(history: Sequence[Sequence[int]] | None, sampling: Sampling) -> tuple[Ints | None, Ints | None]:
    """Sorted distinct ids of all rows in one array, and where each row begins."""
    if history is None or sampling.repetition_penalty == 1:
        return None, None
    ids = [np.unique(np.asarray(row, np.int32)) for row in history]
    begins = np.cumsum([0, *(len(row) for row in ids)]).astype(np.int32)
    return begins, np.concatenate([*ids, np.zeros(1, np.int32)])
