# SPDX-License-Identifier: AGPL-3.0-or-later
"""Files that are whole or not there: write beside, flush to the disk, rename into place.

`write` does it for one file, `whole_folder` for a folder with a checksum of everything in it, and
`verify` tells whether such a folder is still what was written. A process killed at any moment
leaves at most a `.tmp-…` name behind, which nothing here ever reads; the next try for the same folder takes
it away.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

CHECKSUMS = "checksums.json"


def write(path: Path, content: str | bytes) -> Path:
    """Write one file atomically and durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex[:8]}")
    try:
        with open(beside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        if isinstance(error, OSError):  # a full disk names no file, or the one beside
            error.filename, error.filename2 = str(path), None
        raise
    sync(path.parent)
    return path


@contextlib.contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """Fill the folder that is yielded; on a clean exit it becomes `final`, checksummed, in one step."""
    final.parent.mkdir(parents=True, exist_ok=True)
    mark = f"{final.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    beside, old = final.with_name(f".tmp-{mark}"), final.with_name(f".tmp-old-{mark}")
    beside.mkdir()
    try:
        yield beside
        found = sorted(path for path in beside.rglob("*") if path.is_file())
        sums = {path.relative_to(beside).as_posix(): digest(path) for path in found}
        write(beside / CHECKSUMS, json.dumps(sums, indent=1) + "\n")
        for path in (*found, *(p for p in beside.rglob("*") if p.is_dir())):
            sync(path)
        if final.exists():  # a rename cannot replace a full folder: put the old one aside first
            final.rename(old)
            beside.rename(final)
            shutil.rmtree(old, ignore_errors=True)
        else:
            beside.rename(final)
        sync(final.parent)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    _sweep(final)


def _sweep(final: Path) -> None:
    """Take away what processes that were killed over this very folder left beside it."""
    mark = re.compile(rf"\.tmp-(?:old-)?{re.escape(final.name)}-(\d+)-[0-9a-f]{{8}}")
    for path in final.parent.glob(".tmp-*"):
        found = mark.fullmatch(path.name)
        if found and not alive(int(found[1])):
            shutil.rmtree(path, ignore_errors=True)


def alive(process: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def may_replace(folder: Path, *, also: Iterable[str] = ()) -> bool:
    """Whether `whole_folder` may take this place: nothing is there, or only what it once wrote itself.

    `also` are names of files that may have been put beside those."""
    if not os.path.lexists(folder):
        return True
    try:
        found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
        known = set(json.loads((folder / CHECKSUMS).read_text())) if found else set()
    except (OSError, ValueError, TypeError):
        return False
    return folder.is_dir() and found <= known | {CHECKSUMS, *also}


def verify(folder: Path) -> str:
    """Empty where every file is what its checksum says; else what is wrong, in words."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_text())
    except (OSError, ValueError):
        return f"{folder} has no readable {CHECKSUMS}"
    for name, expected in sums.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        if digest(path) != expected:
            return f"{path} is damaged (its checksum differs)"
    return ""


def digest(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    seen = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            seen.update(block)
    return seen.hexdigest()


def sync(path: Path) -> None:
    """Ask the disk to keep what was written; a file system that cannot (some network ones) is forgiven."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def name_digest(name: str) -> str:
    """Eight letters that tell two names apart that look alike as file names."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
