# SPDX-License-Identifier: AGPL-3.0-or-later
"""Text from outside, one document at a time: folders, JSONL and Hugging Face datasets.

    for document in documents(Path("notes")):       # .txt .md .py …, .jsonl(.xz|.gz), save_to_disk folders
        document.text, document.source, document.licence, document.path

The tokenizer learns its words from these and data/corpus.py makes shards of them. The order is fixed
(sorted paths, then lines). Files that are not text are passed over; a JSONL line that is not JSON is an
error with its file and line. Records that name a split other than train are passed over: they are for
measuring. What else to keep, weigh or drop is the caller's affair.
"""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from rusty_r2.errors import DataError, need

Item = TypeVar("Item")
_SUFFIXES = (
    "txt md rst tex adoc org texi html css csv log toml cfg ini yaml yml sql "
    "py pyi sh bash c h cpp hpp cc js ts rs go java pl rb lua awk sed"
)
TEXT_SUFFIXES = frozenset(f".{word}" for word in _SUFFIXES.split())
MAX_FILE = 8_000_000
"""bytes; a longer plain file is data or generated, not prose or code"""

PAIRS = (
    ("question", "answer"),
    ("problem", "solution"),
    ("instruction", "output"),
    ("prompt", "completion"),
    ("prompt", "response"),
)
SINGLES = ("text", "code", "content")
LISTS = ("turns", "messages", "conversations")


@dataclass(frozen=True)
class Document:
    text: str
    source: str
    licence: str = "unknown"
    path: str = ""


def documents(root: Path, *, licence: str = "unknown") -> Iterator[Document]:
    """Every document below `root` (a file, a folder, or a folder written by `save_to_disk`)."""
    if not root.exists():
        raise DataError(f"{root} does not exist. Give a file or a folder of text, JSONL or datasets")
    for path in files_below(root):
        if path.is_dir():
            yield from _dataset(path, licence)
        elif is_jsonl(path):
            yield from _jsonl(path, licence)
        else:
            text = read_text(path)
            if text is not None and text.strip():
                place = path.name if path == root else path.relative_to(root).as_posix()
                yield Document(text, root.name, licence, place)


def files_below(root: Path) -> Iterator[Path]:
    """Text and JSONL files below `root` in a fixed order; a dataset folder stands for its contents."""
    if root.is_file() or _is_dataset(root):
        yield root
        return
    for path in sorted(root.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir() and not path.is_symlink():
            yield from files_below(path)
        elif path.is_file() and (path.suffix.lower() in TEXT_SUFFIXES or is_jsonl(path)):
            yield path


def is_jsonl(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.xz", ".jsonl.gz"))


def read_text(path: Path) -> str | None:
    """The file's text with its line ends as they are, or None where it is not UTF-8 text."""
    try:
        if path.stat().st_size > MAX_FILE:
            return None
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file, compressed or not."""
    for number, record in json_lines(path):
        if not isinstance(record, dict):
            raise DataError(f"{path}:{number}: an object was expected, not {type(record).__name__}")
        yield record


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """What the lines of a JSONL file hold, compressed or not, with their numbers."""
    number = 0
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _value(line, f"{path}:{number}")
    except (UnicodeDecodeError, EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read after line {number}: {error}") from error


def _value(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not a JSON line ({error})") from error


def parcels(items: Iterable[Item], most: float, size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """The items in turn, as many together as reach this size."""
    parcel: list[Item] = []
    full = 0
    for item in items:
        parcel.append(item)
        full += size(item)
        if full >= most:
            yield parcel
            parcel, full = [], 0
    if parcel:
        yield parcel


def text_of(record: Mapping[str, Any]) -> str:
    """The text of a record whose field names nobody promised; empty where there is none."""
    for first, second in PAIRS:
        if _said(record, first) and _said(record, second):
            return f"{record[first]}\n{record[second]}"
    for name in SINGLES:
        if _said(record, name):
            return str(record[name])
    for name in LISTS:
        if isinstance(record.get(name), list):
            return "\n".join(filter(None, (_turn(turn) for turn in record[name])))
    if isinstance(record.get("translation"), dict):
        return "\n".join(str(value) for value in record["translation"].values())
    for name in ("question", "answer"):
        if _said(record, name):
            return str(record[name])
    return next((value for value in record.values() if isinstance(value, str) and len(value) > 10), "")


def _said(record: Mapping[str, Any], name: str) -> bool:
    return isinstance(record.get(name), str) and bool(record[name].strip())


def _turn(turn: Any) -> str:
    if isinstance(turn, dict):
        return str(turn.get("content") or turn.get("text") or turn.get("value") or "")
    if isinstance(turn, (list, tuple)) and len(turn) > 1:
        return str(turn[1])
    return str(turn)


def _jsonl(path: Path, licence: str) -> Iterator[Document]:
    name = path.name.partition(".jsonl")[0]
    for record in records(path):
        text = text_of(record)
        if text.strip() and str(record.get("split") or "train") == "train":
            yield Document(
                text,
                str(record.get("source") or name),
                str(record.get("licence") or record.get("license") or licence),
                str(record.get("path") or record.get("id") or ""),
            )


def _open(path: Path) -> IO[str]:
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _is_dataset(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))


def _dataset(path: Path, licence: str) -> Iterator[Document]:
    datasets = need("datasets", extra="data")
    loaded = datasets.load_from_disk(str(path))
    if (path / "licence.json").is_file():  # as data/download.py leaves it
        licence = str(json.loads((path / "licence.json").read_text(encoding="utf-8")).get("licence", licence))
    parts = loaded.items() if hasattr(loaded, "items") else [("train", loaded)]
    for split, rows in parts:
        if split in ("test", "validation"):
            continue
        for row in rows:
            text = text_of(row)
            if text.strip():
                yield Document(text, path.name, str(row.get("license") or licence), split)
