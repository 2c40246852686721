# SPDX-License-Identifier: AGPL-3.0-or-later
"""A later version of 8-bit weights as what changed in them: megabytes where the weights are dozens.

    patch.make(Path("rusty_r2/lm/shipped"), Path("small"), Path("rusty_r2/lm/shipped/model.int8.patch"))

A folder with model.int8.patch beside model.int8.safetensors means the patched weights, wherever it is
opened: `opened` makes them in memory, bit for bit those the patch was made from, or says in one line why it
cannot. The file is safetensors again: the SHA-256 of both versions, a deflated stream for every 8-bit
tensor, and one for all the fp32 numbers (scales and vectors).

A little training moves an eighth of the int8 values by one step. Five such differences make one byte (three
or two where they are larger), and Huffman's code of the bytes is near their entropy; the few differences
that do not fit are listed with their places. Weights that may only move by whole steps, say of four, make a
smaller patch: the step is written once. Floats are neighbours of what they were: the difference of
their bits, sign last, byte by byte.
"""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rusty_r2.errors import CheckpointError, ConfigError
from rusty_r2.lm.tensors import TensorFile, write

WEIGHTS = "model.int8.safetensors"
PATCH = "model.int8.patch"
FLOATS = "all floats"
"""the stream of what is not 8-bit"""
WAYS = ((3, 5), (5, 3), (15, 2), (255, 1))
"""how many values a difference may have, and how many of them make a byte"""

LARGEST = 32
"""step: a quarter of what an int8 value can be, and nothing near the weights is left"""

Bytes = NDArray[np.uint8]


def make(old: Path, new: Path, out: Path, *, step: int = 0) -> Path:
    """Write to `out` what turns the int8 weights of the folder `old` into those of `new`.

    With a `step` into weights near those: they keep the old scales, and move by whole steps of so much.
    """
    if not 0 <= step <= LARGEST:
        raise ConfigError(f"a step is 1 to {LARGEST}, or 0 for the exact weights, not {step}")
    base, wanted = _read(old / WEIGHTS), opened(new / WEIGHTS).content()
    before, after = TensorFile(old / WEIGHTS, base), TensorFile(new / WEIGHTS, wanted)
    if before.header != after.header:
        raise CheckpointError(f"{old} and {new} hold models of different shapes: there is no patch between")
    if step:
        wanted = _stepped(before, after, step)
        after = TensorFile(new / WEIGHTS, wanted)
    streams, floats = {}, []
    for name in before.names:
        was, now = before.read(name), after.read(name)
        if was.dtype == np.int8:
            streams[name] = _steps(now - was)
        elif was.dtype == np.float32:
            floats.append(now.view(np.int32).ravel() - was.view(np.int32).ravel())
        else:
            raise CheckpointError(f"{old / WEIGHTS}: {name} is {was.dtype}, neither int8 nor float32")
    streams[FLOATS] = _deflated(_by_byte(np.concatenate([*floats, np.zeros(0, np.int32)])))
    digests = {"format": "rusty-r2 patch", "old": _digest(base), "new": _digest(wanted)}
    write(out, {name: np.frombuffer(stream, np.uint8) for name, stream in streams.items()}, digests)
    apply(old / WEIGHTS, out)
    return out


def opened(weights: Path) -> TensorFile:
    """The weights in a file, after the patch beside it where there is one."""
    beside = weights.with_name(PATCH)
    if weights.name != WEIGHTS or not beside.is_file():
        return TensorFile(weights)
    return TensorFile(weights, apply(weights, beside))


def promised(folder: Path) -> str:
    """The SHA-256 of the weights that a folder's patch leads to; empty where others are read."""
    meant = (folder / WEIGHTS).is_file() and not (folder / "model.safetensors").is_file()
    return TensorFile(folder / PATCH).metadata.get("new", "") if meant and (folder / PATCH).is_file() else ""


def apply(weights: Path, patch: Path) -> Bytes:
    """The whole file of the new weights, in memory."""
    changes, content = TensorFile(patch), _read(weights)
    file = TensorFile(weights, content)
    try:
        _change(file, changes)
    except (zlib.error, ValueError, IndexError, CheckpointError) as error:
        raise _refusal(weights, changes, str(error)) from error
    if _digest(content) != changes.metadata.get("new"):
        raise _refusal(weights, changes, "the weights it makes are not those it names")
    return content


def _change(file: TensorFile, changes: TensorFile) -> None:
    floats = [name for name in file.names if file.view(name).dtype == np.float32]
    moved, at = _from_bytes(zlib.decompress(changes.read(FLOATS).data)), 0
    for name in floats:
        bits = file.view(name).view(np.int32)
        bits += moved[at : at + bits.size].reshape(bits.shape)
        at += bits.size
    for name in file.names:
        if name not in floats:
            _step(file.view(name), zlib.decompress(changes.read(name).data))


def _refusal(weights: Path, changes: TensorFile, why: str) -> CheckpointError:
    """The old weights are only looked at when the new ones did not come out right."""
    again = "pip install --force-reinstall rusty-r2"
    if _digest(_read(weights)) != changes.metadata.get("old"):
        seen = f"was made for other weights than {weights}. Delete it, or install both again: {again}"
    else:
        seen = f"is damaged: {why}. Install again: {again}"
    return CheckpointError(f"{changes.path} {seen}")


def _stepped(old: TensorFile, new: TensorFile, step: int) -> Bytes:
    """The file of the weights nearest to the new ones that are whole steps from the old."""
    content: Bytes = old.content().copy()
    file = TensorFile(old.path, content)
    for name in file.names:
        values, scale = file.view(name), f"{name}.scale"
        if values.dtype == np.int8:
            wanted = new.read(name) * (new.read(scale) / file.read(scale))[:, None]
            was = values.astype(np.int16)
            moved = np.rint((wanted - was) / step).astype(np.int16)
            values += (step * moved.clip(-((127 + was) // step), (127 - was) // step)).astype(np.int8)
        elif not name.endswith(".scale"):
            values[...] = new.read(name)
    return content


def _steps(change: NDArray[np.int8]) -> bytes:
    """In the way that is shortest; all differences are whole numbers of one unit."""
    unit = int(np.gcd.reduce(np.unique(change.astype(np.int16)))) or 1
    moved = change.ravel().astype(np.int16) // unit
    return min((_packed(moved, unit, way) for way in range(len(WAYS))), key=len)


def _packed(moved: NDArray[np.int16], unit: int, way: int) -> bytes:
    """The way, the unit of all, how many are far, their places and values, then the others packed."""
    base, together = WAYS[way]
    reach = base // 2
    far = np.abs(moved) > reach
    places = np.flatnonzero(far).astype("<u4")
    digits = (np.where(far, 0, moved) + reach).astype(np.uint8)
    digits = np.pad(digits, (0, -len(digits) % together)).reshape(-1, together)
    packed = (digits * base ** np.arange(together)).sum(axis=1).astype(np.uint8)
    head = np.array([way, unit, len(places)], "<u4").tobytes() + places.tobytes()
    return _deflated(head + moved[far].astype(np.int8).tobytes() + packed.tobytes())


def _step(values: NDArray[np.int8], stream: bytes) -> None:
    """Undo `_steps`: change the values in place."""
    way, unit, count = (int(number) for number in np.frombuffer(stream, "<u4", 3))
    base, together = WAYS[way]
    places = np.frombuffer(stream, "<u4", count, offset=12)
    far = np.frombuffer(stream, np.int8, count, offset=12 + 4 * count)
    packed = stream[12 + 5 * count :]
    flat = values.reshape(-1)
    flat[places] += (far.astype(np.int64) * unit).astype(np.int8)
    for place in range(together):
        digits = ((np.arange(256) // base**place % base - base // 2) * unit).astype(np.int8)
        some = flat[place::together]
        some += np.frombuffer(packed.translate(digits.tobytes()), np.int8, len(some))


def _by_byte(change: NDArray[np.int32]) -> bytes:
    """All lowest bytes, all second bytes, …; the sign is the lowest bit, so that near is small."""
    folded = (change << 1 ^ change >> 31).astype("<i4")
    return bytes(folded.view(np.uint8).reshape(-1, 4).T.tobytes())


def _from_bytes(stream: bytes) -> NDArray[np.int32]:
    """Undo `_by_byte`."""
    columns = np.frombuffer(stream, np.uint8).reshape(4, -1)
    folded = np.ascontiguousarray(columns.T).view("<u4").ravel()
    return np.asarray((folded >> 1).astype(np.int32) ^ -(folded & 1).astype(np.int32))


def _deflated(content: bytes) -> bytes:
    """Huffman's code alone, as differences have no repeats worth a search; runs where nothing changed."""
    found = []
    for strategy in (zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE):
        deflate = zlib.compressobj(9, zlib.DEFLATED, 15, 9, strategy)
        found.append(deflate.compress(content) + deflate.flush())
    return min(found, key=len)


def _read(path: Path) -> Bytes:
    try:
        return np.fromfile(path, np.uint8)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error


def _digest(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()
