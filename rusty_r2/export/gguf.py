# SPDX-License-Identifier: AGPL-3.0-or-later
"""`rusty export gguf`: a merged Hugging Face model becomes one GGUF file.

    rusty export gguf runs/kto-3 --quantization Q4_K_M
    written = write_gguf(Path("merged"), Path("out.gguf"), "Q8_0")

Our own converter on the official `gguf` writer: names and shapes are planned and the disk is asked for room
before a byte is written; then one tensor at a time is read, packed and written, so memory stays near the
largest tensor as it is stored. The file is written beside and renamed: it is whole or not there, and nothing
of an earlier export is ever read. Whether it says what the model says is for check.py to prove.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from rusty_r2 import __version__, files, machine
from rusty_r2.errors import ConfigError, need
from rusty_r2.export import vocabulary
from rusty_r2.export.quantize import CODES, kernels, pack
from rusty_r2.export.source import Entry, Source
from rusty_r2.export.types import (
    BLOCKS,
    MOSTLY,
    NAMES,
    Depth,
    by_ram,
    default_type,
    stored_bytes,
    tensor_type,
)
from rusty_r2.export.vocabulary import Vocabulary

Quantization = Literal["auto", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "F16", "BF16", "F32"]
FILE_TYPES = {
    "F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7,
    "Q2_K": 10, "Q3_K_M": 12, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18,
}  # fmt: skip
"""general.file_type, by which programs name a file's type"""


@dataclass(frozen=True)
class ExportConfig:
    """What to export, and how."""

    model: Annotated[str, tyro.conf.Positional]
    """a run, the folder of a merged model, or smollm2"""
    quantization: Quantization = "auto"
    """auto: Q8_0 up to 0.5B weights, Q6_K up to 1.5B, Q4_K_M above; smaller where memory is short"""
    output: Path | None = None
    """the file to write; default exports/NAME-TYPE.gguf"""
    threads: int = 0
    """threads that quantise; 0: every core this process may use"""


@dataclass(frozen=True)
class Planned:
    """One tensor and the type it will have."""

    entry: Entry
    type: str
    fallback: bool

    @property
    def size(self) -> int:
        return stored_bytes(self.entry.shape, self.type)


@dataclass(frozen=True)
class Written:
    """What was made."""

    path: Path
    quantization: str
    size: int
    """bytes"""
    sha256: str
    parameters: int
    bits_per_weight: float
    """of all weights, as they really lie in the file"""
    types: dict[str, int]
    """tensors of each type"""
    fallbacks: int
    """matrices whose rows do not allow the type that was meant"""
    matrices: int
    seconds: float

    def summary(self) -> str:
        """In a few lines."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.types.items()))
        lines = [
            f"{self.quantization}: {self.parameters / 1e6:,.1f} M weights in {self.size / 1e6:,.1f} MB, "
            f"{self.bits_per_weight:.2f} bits a weight, {self.seconds:.1f} s",
            f"tensors: {kinds}",
        ]
        if self.fallbacks:
            lines.append(
                f"{self.fallbacks} of {self.matrices} matrices are of a larger type: "
                "their rows do not divide by the block that was meant"
            )
        return "\n".join(lines)


def export(config: ExportConfig) -> str:
    """Write the file; the last lines are its path and what comes next."""
    source = Source.open(config.model)
    chosen = config.quantization if config.quantization != "auto" else suitable(source)
    out = config.output or Path("exports") / f"{source.name}-{chosen}.gguf"
    if out.suffix != ".gguf":
        raise ConfigError(f"{out} must end in .gguf. Type: --output {out.with_suffix('.gguf')}")
    written = _write(source, out, chosen, threads=config.threads, library=None)
    said = (
        ""
        if vocabulary.chat_template(source.folder)
        else "the model has no chat template, so the file has none\n"
    )
    following = f"next: rusty export check {out} --against {config.model}"
    return f"{written.summary()}\n{said}{out}\n{following}"


def write_gguf(folder: Path | str, out: Path, quantization: str = "Q4_K_M", *, threads: int = 0) -> Written:
    """The model of `folder` (a run, a merged model's folder, or smollm2) as the file `out`."""
    return _write(Source.open(folder), Path(out), quantization, threads=threads, library=None)


class GGUFExporter:
    """The export as an object; making one reads and does nothing."""

    def __init__(
        self,
        model_path: str | Path,
        llama_cpp_path: str | Path | None = None,
        output_dir: str | Path | None = None,
    ) -> None:
        """`llama_cpp_path`: a llama.cpp build whose libggml-base quantises instead of the wheel's."""
        self.model_path = model_path
        self.llama_cpp_path = None if llama_cpp_path is None else Path(llama_cpp_path)
        self.output_dir = Path("exports") if output_dir is None else Path(output_dir)

    def convert(self, quantization: str = "Q4_K_M", output_name: str | None = None) -> str:
        """Write the file and return its path."""
        source = Source.open(self.model_path)
        name = output_name or f"{source.name}-{quantization}"
        library = None if self.llama_cpp_path is None else kernels(self.llama_cpp_path)
        out = self.output_dir / (name if name.endswith(".gguf") else f"{name}.gguf")
        return str(_write(source, out, quantization, threads=0, library=library).path)

    def get_recommended_quantization(self, available_ram_gb: float = 8.0) -> str:
        """The document's table: what suits a large model in so much memory."""
        return by_ram(available_ram_gb)


def suitable(source: Source) -> str:
    """The default type; a model whose rows allow no K type gets Q8_0, and is called Q8_0."""
    chosen = default_type(source.parameters, machine.memory_gb()[0])
    return chosen if chosen not in MOSTLY or _possible(plan(source, chosen), chosen) else "Q8_0"


def plan(source: Source, quantization: str) -> list[Planned]:
    """Every tensor with its type."""
    depth = Depth(source.layers, source.heads // source.key_heads, source.tied)
    chosen = [(entry, tensor_type(entry.name, entry.shape, quantization, depth)) for entry in source.tensors]
    return [Planned(entry, choice.type, choice.fallback) for entry, choice in chosen]


def _possible(planned: list[Planned], quantization: str) -> bool:
    """At least one matrix has the type that the file is called after, or it would not deserve the name."""
    kind = MOSTLY.get(quantization, quantization)
    return any(p.type == kind and not p.fallback for p in planned if len(p.entry.shape) > 1)


def _impossible(source: Source, quantization: str) -> str:
    kind = MOSTLY.get(quantization, quantization)
    larger = NAMES[NAMES.index(quantization) + 1 :]
    instead = next(name for name in larger if _possible(plan(source, name), name))
    return (
        f"{source.name} cannot be {quantization}: not one of its matrices would be {kind}, because rows "
        f"of {source.width} do not divide by {BLOCKS[kind][0]}. Type: --quantization {instead}"
    )


def _write(
    source: Source, out: Path, quantization: str, *, threads: int, library: ctypes.CDLL | None
) -> Written:
    start = time.monotonic()
    if quantization not in NAMES:
        raise ConfigError(f"{quantization!a} is no type. Choose one of {', '.join(NAMES)}")
    planned = plan(source, quantization)
    if not _possible(planned, quantization):
        raise ConfigError(_impossible(source, quantization))
    words = vocabulary.read(source.folder, source.words)
    if library is None and any(p.type in CODES for p in planned):
        library = kernels()
    _enough_room(out, sum(p.size for p in planned))
    threads = threads or machine.cpu().threads
    with _whole_file(out) as beside, _bar(planned) as done:
        _fill(beside, source, planned, quantization, words, threads, library, done)
    out.with_suffix(".check.json").unlink(missing_ok=True)  # it spoke of the file that was here before
    return _told(out, quantization, source, planned, time.monotonic() - start)


def _told(out: Path, quantization: str, source: Source, planned: list[Planned], seconds: float) -> Written:
    return Written(
        path=out,
        quantization=quantization,
        size=out.stat().st_size,
        sha256=files.digest(out),
        parameters=source.parameters,
        bits_per_weight=8 * sum(p.size for p in planned) / source.parameters,
        types=dict(Counter(p.type for p in planned)),
        fallbacks=sum(p.fallback for p in planned),
        matrices=sum(len(p.entry.shape) > 1 for p in planned),
        seconds=seconds,
    )


def _fill(
    path: Path,
    source: Source,
    planned: list[Planned],
    quantization: str,
    words: Vocabulary,
    threads: int,
    library: ctypes.CDLL | None,
    done: Callable[[int], None],
) -> None:
    gguf = need("gguf", extra="export")
    writer = gguf.GGUFWriter(path, source.family)
    try:
        describe(writer, source, quantization)
        speak(writer, words)
        for p in planned:
            kind = gguf.GGMLQuantizationType[p.type]
            writer.add_tensor_info(p.entry.name, p.entry.shape, np.dtype(np.float32), p.size, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for p in planned:
            stored = source.read(p.entry)
            data = pack(stored, p.type, library=library, threads=threads, done=done, name=p.entry.name)
            writer.write_tensor_data(data)
    finally:
        writer.close()


def describe(writer: Any, source: Source, quantization: str) -> None:
    """What llama.cpp must know to build the model."""
    gguf, config, rope = need("gguf", extra="export"), source.config, source.rope
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(source.name)
    writer.add_string("general.author.tool", f"rusty-r2 {__version__}")
    writer.add_file_type(FILE_TYPES[quantization])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(source.layers)
    writer.add_context_length(int(config["max_position_embeddings"]))
    writer.add_embedding_length(source.width)
    writer.add_feed_forward_length(int(config["intermediate_size"]))
    writer.add_head_count(source.heads)
    writer.add_head_count_kv(source.key_heads)
    writer.add_key_length(source.head_width)
    writer.add_value_length(source.head_width)
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    writer.add_vocab_size(source.words)
    writer.add_rope_dimension_count(source.head_width)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(float(rope["factor"]))
    if rope["rope_type"] == "yarn":
        before = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(int(before))


def speak(writer: Any, words: Vocabulary) -> None:
    """The tokenizer and the chat template."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words.pre)
    writer.add_token_list(words.tokens)
    writer.add_token_types(words.kinds)
    writer.add_token_merges(words.merges)
    for name, number in words.special.items():
        getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(words.add_bos)
    writer.add_add_eos_token(words.add_eos)
    if words.template:
        writer.add_chat_template(words.template)


@contextlib.contextmanager
def _whole_file(final: Path) -> Iterator[Path]:
    """Write the file that is yielded; on a clean exit it becomes `final` in one step."""
    final.parent.mkdir(parents=True, exist_ok=True)
    for left in final.parent.glob(f".tmp-*-{final.name}"):  # of a process that was killed
        process = left.name.split("-")[1]
        if not (process.isdecimal() and files.alive(int(process))):
            left.unlink(missing_ok=True)
    beside = final.with_name(f".tmp-{os.getpid()}-{final.name}")
    try:
        yield beside
        files.sync(beside)
        beside.replace(final)
        files.sync(final.parent)
    finally:
        beside.unlink(missing_ok=True)


def _enough_room(out: Path, needed: int) -> None:
    place = next(folder for folder in (out.absolute().parent, *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if free < needed * 1.02 + 16e6:
        raise ConfigError(
            f"{place} has {free / 1e6:,.0f} MB free and the file needs {needed / 1e6:,.0f}. "
            "Free some, or name another disk: --output FILE"
        )


@contextlib.contextmanager
def _bar(planned: list[Planned]) -> Iterator[Callable[[int], None]]:
    """A bar in megabytes of the file, where somebody is looking."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    weights = sum(int(np.prod(p.entry.shape)) for p in planned)
    size = sum(p.size for p in planned)
    columns = ("writing", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    shown = sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True) as bars:
        task = bars.add_task("writing", total=size)
        yield lambda finished: bars.advance(task, finished * size / weights)
