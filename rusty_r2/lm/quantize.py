# SPDX-License-Identifier: AGPL-3.0-or-later
"""Weights made small: fp32, bf16, fp16, int8 or int4, in memory and on disk.

    quantize.save(Path("checkpoints/step_001000"), Path("small"), weights="int8")

int8: one scale a row, W ≈ scale · q. int4: W ≈ scale · m · q with q in −8…7 and a whole number m in
−15…15 for every 32 inputs, chosen by least squared error; m · q is an int8 again, so both run on the
same exact integer arithmetic (lm/engine_linear.h). The embedding, of which a step reads one row, is int8 in
both; vectors stay fp32.

A quantised folder holds model.int8.safetensors (or .int4) beside config.json and the tokenizer:
NAME (int8, or two nibbles a byte), NAME.scale, and NAME.times for int4. NumPy is all it takes to load.
With model.int8.patch beside it, it means a later version of those weights (lm/patch.py).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from rusty_r2.errors import CheckpointError, ConfigError
from rusty_r2.lm import patch
from rusty_r2.lm.tensors import Array, narrow, widen, write

Weights = Literal["fp32", "bf16", "fp16", "int8", "int4"]
FORMATS: tuple[str, ...] = get_args(Weights)
GROUP = 32
"""inputs that share a multiplier in int4"""
EMBEDDING = "token_embedding.weight"
_BESIDE = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)


@dataclass(frozen=True)
class Matrix:
    """One matrix [out, in] in one format."""

    weights: Weights
    data: Array
    """fp32, fp16, bf16 bits, or int8 (int4: one int8 a weight, −8…7)"""
    scale: NDArray[np.float32] | None = None
    """[out], of int8 and int4"""
    times: NDArray[np.int8] | None = None
    """[out, in/32], of int4"""

    def whole(self) -> NDArray[np.int8]:
        """The int8 that a row's scale multiplies."""
        if self.times is None:
            return self.data
        wide = np.repeat(self.times, GROUP, axis=1)[:, : self.data.shape[1]]
        return np.asarray(self.data * wide, dtype=np.int8)

    def dense(self) -> NDArray[np.float32]:
        """The matrix as fp32."""
        if self.scale is not None:
            return self.whole().astype(np.float32) * self.scale[:, None]
        return widen(self.data) if self.weights == "bf16" else self.data.astype(np.float32, copy=False)


def kept_as(name: str, weights: str) -> str:
    """The format of one matrix in a model of this format: the embedding of int4 is int8."""
    return "int8" if weights == "int4" and name == EMBEDDING else weights


def pack(w: NDArray[np.float32], weights: str) -> Matrix:
    """A matrix in the format asked for."""
    if weights == "int8":
        scale = np.maximum(np.abs(w).max(axis=1), 1e-30).astype(np.float32) / np.float32(127)
        return Matrix("int8", np.rint(w / scale[:, None]).astype(np.int8), scale)
    if weights == "int4":
        return _int4(w)
    if weights == "bf16":
        return Matrix("bf16", narrow(w))
    if weights == "fp16":
        if np.abs(w).max(initial=0) > np.finfo(np.float16).max:
            raise ConfigError("a weight is too large for fp16. Type: --quantization none, or use bf16")
        return Matrix("fp16", w.astype(np.float16))
    if weights == "fp32":
        return Matrix("fp32", w)
    raise ConfigError(f"weights {weights!a} is not one of {', '.join(FORMATS)}")


def _int4(w: NDArray[np.float32]) -> Matrix:
    rows, columns = w.shape
    scale = np.maximum(np.abs(w).max(axis=1), 1e-30).astype(np.float32) / np.float32(120)
    q = np.empty((rows, columns), np.int8)
    times = np.empty((rows, -(-columns // GROUP)), np.int8)
    for at in range(0, rows, 512):  # a few rows at a time: the search holds several copies of them
        part = slice(at, at + 512)
        q[part], times[part] = _nibbles(w[part] / scale[part, None])
    return Matrix("int4", q, scale, times)


def _nibbles(w: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """q and m with m · q nearest to w, whose largest is 120."""
    rows, columns = w.shape
    groups = np.pad(w, ((0, 0), (0, -columns % GROUP))).reshape(rows, -1, GROUP)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(-1)[..., None], -1)[..., 0]
    base, sign = np.abs(largest) / 8, np.where(largest > 0, -1, 1)
    best = np.full(base.shape, np.inf, np.float32)
    q, times = np.zeros(groups.shape, np.int8), np.ones(base.shape, np.int8)
    for step in (0, -1, 1, 2, -2, -3):
        for side in (1, -1) if step >= 0 else (1,):
            m = (np.clip(np.rint(base) + step, 1, 15) * sign * side).astype(np.float32)
            tried = np.clip(np.rint(groups / m[..., None]), -8, 7)
            error = np.square(groups - tried * m[..., None]).sum(-1)
            better = error < best
            best = np.where(better, error, best)
            times = np.where(better, m, times).astype(np.int8)
            q[better] = tried[better].astype(np.int8)
    return q.reshape(rows, -1)[:, :columns], times


class Source(Protocol):
    """Where an engine takes its weights from."""

    config: dict[str, Any]
    stored: str

    @property
    def names(self) -> list[str]: ...
    def size(self, name: str) -> tuple[int, ...]: ...
    def matrix(self, name: str, weights: str) -> Matrix: ...
    def vector(self, name: str) -> NDArray[np.float32]: ...


class Arrays:
    """Weights that are in memory already: the state dict of a model, as arrays."""

    stored = "fp32"

    def __init__(self, arrays: Mapping[str, Array], config: dict[str, Any]) -> None:
        self.arrays, self.config = dict(arrays), config

    @property
    def names(self) -> list[str]:
        return list(self.arrays)

    def size(self, name: str) -> tuple[int, ...]:
        return tuple(self.arrays[name].shape)

    def matrix(self, name: str, weights: str) -> Matrix:
        return pack(self.vector(name), weights)

    def vector(self, name: str) -> NDArray[np.float32]:
        if name not in self.arrays:
            raise CheckpointError(f"the model holds no {name}")
        return np.ascontiguousarray(self.arrays[name], dtype=np.float32)


class Folder:
    """A checkpoint folder, plain or quantised; one tensor is read at a time."""

    def __init__(self, folder: Path) -> None:
        found = weights_file(folder)
        self.folder, self.file, self.stored = folder, patch.opened(found), _format_of(found)
        self.config = _config(folder)

    @property
    def names(self) -> list[str]:
        return [name for name in self.file.names if not name.endswith((".scale", ".times"))]

    def size(self, name: str) -> tuple[int, ...]:
        size = self.file.size(name)
        return (size[0], 2 * size[1]) if f"{name}.times" in self.file.names else size

    def matrix(self, name: str, weights: str) -> Matrix:
        found = self._stored(name)
        return found if found.weights == weights else pack(found.dense(), weights)

    def vector(self, name: str) -> NDArray[np.float32]:
        found = self._stored(name) if f"{name}.scale" in self.file.names else None
        return self.file.floats(name) if found is None else found.dense()

    def _stored(self, name: str) -> Matrix:
        if f"{name}.scale" not in self.file.names:
            return Matrix("fp32", self.file.floats(name))
        data, scale = self.file.read(name), self.file.read(f"{name}.scale")
        if f"{name}.times" not in self.file.names:
            return Matrix("int8", data, scale)
        times = self.file.read(f"{name}.times")
        pairs = np.stack([data & 15, data >> 4], axis=-1).astype(np.int8) - np.int8(8)
        return Matrix("int4", np.ascontiguousarray(pairs.reshape(len(data), -1)), scale, times)


def weights_file(folder: Path) -> Path:
    """The weights in a folder: the plain ones, else the quantised."""
    places = [
        folder / "model.safetensors",
        folder / "model.int8.safetensors",
        folder / "model.int4.safetensors",
    ]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise CheckpointError(
            f"{folder} holds no model.safetensors. Train one: rusty train supervised --help"
        )
    return found


def _format_of(path: Path) -> str:
    kind = path.name.split(".")[1]
    return kind if kind in FORMATS else "fp32"


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is not a table of settings")
    return found


def arrays(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Every weight of a folder as fp32, whatever it is stored in: how a small model is trained further."""
    source = Folder(folder)
    return {name: source.vector(name) for name in source.names}


def save(folder_in: Path, folder_out: Path, *, weights: str = "int8") -> Path:
    """A folder with the same model in int8 or int4, and the files beside it."""
    if weights not in ("int8", "int4"):
        raise ConfigError(f"weights {weights!a}: a quantised folder holds int8 or int4")
    source = Folder(folder_in)
    folder_out.mkdir(parents=True, exist_ok=True)
    stored: dict[str, Array] = {}
    for name in source.names:
        stored |= _stored_form(name, source, weights)
    path = write(
        folder_out / f"model.{weights}.safetensors", stored, {"format": "rusty-r2", "weights": weights}
    )
    if path.name == patch.WEIGHTS:
        path.with_name(patch.PATCH).unlink(missing_ok=True)  # it belonged to the weights that were here
    if folder_out.resolve() != folder_in.resolve():
        for beside in _BESIDE:
            if (folder_in / beside).is_file():
                shutil.copyfile(folder_in / beside, folder_out / beside)
    return path.parent


def _stored_form(name: str, source: Source, weights: str) -> dict[str, Array]:
    plain = source.vector(name)
    if plain.ndim < 2 or min(plain.shape) < 8:
        return {name: plain}
    odd = plain.shape[1] % 2 != 0  # two nibbles make a byte
    matrix = pack(plain, "int8" if odd else kept_as(name, weights))
    assert matrix.scale is not None
    if matrix.times is None:
        return {name: matrix.data, f"{name}.scale": matrix.scale}
    biased = (matrix.data + 8).astype(np.uint8)
    return {
        name: biased[:, ::2] | biased[:, 1::2] << 4,
        f"{name}.scale": matrix.scale,
        f"{name}.times": matrix.times,
    }
