# SPDX-License-Identifier: AGPL-3.0-or-later
"""A GGUF file without running it: is it whole, does it describe the model, are the weights the model's?

`Contents.read` refuses a file that is cut short. `header`, `words`, `types` and `weights` each answer with a
Finding: numbers that describe the model, its vocabulary and chat template, the type of every tensor, and
every tensor unpacked again and compared row by row with the one it was made of. What a running llama.cpp
makes of the file is for compare.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rusty_r2.agent.telling import counted
from rusty_r2.errors import CheckpointError, need
from rusty_r2.export import vocabulary
from rusty_r2.export.gguf import FILE_TYPES, describe, plan, speak
from rusty_r2.export.quantize import PIECE, floats
from rusty_r2.export.source import Source

OWN = ("general.name", "general.author.tool", "general.file_type")
"""fields in which a file may differ from the next one of the same model"""
SPEECH = (
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.pre",
    "tokenizer.chat_template",
)
"""fields that decide how text is read and conversations are put"""
ROW_ERROR = {
    "F32": 1e-6,
    "F16": 2e-3,
    "BF16": 5e-3,
    "Q8_0": 0.02,
    "Q6_K": 0.10,
    "Q5_1": 0.20,
    "Q5_0": 0.20,
    "Q5_K": 0.20,
    "Q4_0": 0.35,
    "Q4_K": 0.35,
    "Q3_K": 0.50,
    "Q2_K": 0.80,
}
"""root mean square error of any one row, relative to the row, that packing may cost; see docs/export.md"""


@dataclass(frozen=True)
class Finding:
    """One question and its answer."""

    name: str
    passed: bool
    said: str
    """what was seen, in a few words"""
    measured: dict[str, float]
    """the numbers behind it"""


class Contents:
    """What lies in a file."""

    def __init__(self, path: Path, reader: Any, quantization: str) -> None:
        self.path = path
        self.quantization = quantization
        """the type that the file says it is"""
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._fields = reader.fields

    @classmethod
    def read(cls, path: Path) -> Contents:
        """The file, or CheckpointError where it is none, cut short, or of a type that is not written here."""
        gguf = need("gguf", extra="export")
        try:
            reader = gguf.GGUFReader(path)
        except Exception as error:  # the library fails in whatever way the bytes make it
            problem = "cannot be read to its end: it is cut short, or no GGUF file"
            raise CheckpointError(f"{path} {problem} ({type(error).__name__})") from error
        numbers = {number: name for name, number in FILE_TYPES.items()}
        field = reader.get_field("general.file_type")
        number = None if field is None else int(field.contents())
        if number not in numbers:
            raise CheckpointError(f"{path} is of file type {number}; {', '.join(FILE_TYPES)} are known here")
        return cls(path, reader, numbers[number])

    def field(self, name: str) -> Any:
        found = self._fields.get(name)
        return None if found is None else found.contents()


def header(contents: Contents, source: Source) -> Finding:
    """Every number that describes the model and its special tokens is the model's."""
    told = _wanted(source, contents.quantization)
    wanted = {name: value for name, value in told.items() if name not in SPEECH}
    wrong = [name for name, value in wanted.items() if not _same(contents.field(name), value)]
    said = f"{len(wanted)} fields as the model has them"
    if wrong:
        name = wrong[0]
        said = f"{name} is {contents.field(name)!a:.40} where the model has {wanted[name]!a:.40}"
    return Finding("header", not wrong, said, {"fields": len(wanted), "wrong": len(wrong)})


def words(contents: Contents, source: Source) -> Finding:
    """Every word, every merge and the chat template are the model's, also those that no trial would meet."""
    told = _wanted(source, contents.quantization)
    wrong = [name for name in SPEECH if contents.field(name) != told.get(name)]
    counts = f"{len(told[SPEECH[0]]):,} words, {len(told[SPEECH[2]]):,} merges"
    said = f"{counts} and the chat template are the model's"
    if wrong:
        said = (
            f"{' and '.join(name.rpartition('.')[2] for name in wrong)} of the tokenizer are not the model's"
        )
    return Finding("words", not wrong, said, {"wrong": len(wrong)})


def types(contents: Contents, source: Source) -> Finding:
    """Every tensor is there, with its shape and the type that the file's name promises."""
    planned = plan(source, contents.quantization)
    wrong = []
    for p in planned:
        tensor = contents.tensors.get(p.entry.name)
        shape = None if tensor is None else tuple(int(n) for n in tensor.shape)[::-1]
        kind = None if tensor is None else tensor.tensor_type.name
        if (shape, kind) != (p.entry.shape, p.type):
            seen = "is missing" if tensor is None else f"is {kind} {shape}"
            wrong.append(f"{p.entry.name} {seen}, {contents.quantization} has {p.type} {p.entry.shape}")
    wrong += [
        f"{name} is not the model's" for name in contents.tensors.keys() - {p.entry.name for p in planned}
    ]
    bits = 8 * sum(int(tensor.n_bytes) for tensor in contents.tensors.values()) / source.parameters
    said = f"{len(planned)} tensors, {bits:.2f} bits a weight" if not wrong else wrong[0]
    return Finding("types", not wrong, said, {"tensors": len(planned), "wrong": len(wrong), "bits": bits})


def weights(contents: Contents, source: Source) -> Finding:
    """Every tensor, unpacked again, is the one of the folder within what its type costs."""
    worst, where, wrong = 0.0, "", 0
    for p in plan(source, contents.quantization):
        error = _row_error(source.read(p.entry), contents.tensors[p.entry.name])
        share = error / ROW_ERROR[p.type]
        wrong += not share <= 1
        if not share <= worst:
            worst, where = share, f"{p.entry.name} ({p.type}), worst row off by {error:.1%}"
    said = where or "every row to the bit"
    if wrong:
        said = f"{counted(wrong, 'tensor')} other than the model's: {where}"
    return Finding("weights", not wrong, said, {"worst_share_of_bound": worst, "wrong": wrong})


def _row_error(stored: NDArray[Any], tensor: Any) -> float:
    """The largest relative error of any row; rows of next to nothing count against a typical one."""
    gguf = need("gguf", extra="export")
    rows = stored.reshape(-1, stored.shape[-1]) if stored.ndim > 1 else stored.reshape(1, -1)
    packed = tensor.data.reshape(rows.shape[0], -1)
    step, worst = max(1, PIECE // rows.shape[1]), 0.0
    typical = 0.0
    for start in range(0, rows.shape[0], step):
        mine = floats(rows[start : start + step])
        theirs = gguf.quants.dequantize(packed[start : start + step], tensor.tensor_type).reshape(mine.shape)
        norms = np.linalg.norm(mine, axis=1)
        typical = typical or float(np.median(norms))
        off = np.linalg.norm(mine - theirs, axis=1) / np.maximum(norms, 0.05 * typical + 1e-12)
        found = float(off.max())
        worst = found if not found <= worst else worst
    return worst


def _wanted(source: Source, quantization: str) -> dict[str, Any]:
    """What our converter would write."""
    writer = need("gguf", extra="export").GGUFWriter(None, source.family)
    describe(writer, source, quantization)
    speak(writer, vocabulary.read(source.folder, source.words))
    return {name: field.value for name, field in writer.kv_data[0].items() if name not in OWN}


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return found is not None and np.float32(found) == np.float32(wanted)
    return bool(found == wanted)
