# SPDX-License-Identifier: AGPL-3.0-or-later
"""Everything an agent changes in a person's folder goes through here, so that all of it can be undone.

    journal = Journal(Path("project"))
    journal.begin("fix the test")            # one request is one unit of undoing
    journal.write("total.py", b"...")
    journal.undo()                           # as it was before that request

What stood at a path is moved aside before anything new is put there; it is never written over. The
journal lives in the data home (`undo/`), so a request can also be undone after the program ended. A path
that somebody changed since is left alone, and said, with where its old contents are kept. No link is
followed: not on the way, not at the end.
Which changes are allowed is for approval.py and workspace.py.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rusty_r2 import files
from rusty_r2.config import home
from rusty_r2.trace import now

KEPT = 50
"""requests that can be undone, for each folder"""


@dataclass
class Undone:
    what: str
    """the request whose changes were undone; "" where there was none"""
    restored: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """changed by somebody since, and so left as they are"""
    kept: dict[str, Path] = field(default_factory=dict)
    """of those left: where what stood there before the request lies"""


class Journal:
    def __init__(self, folder: Path, store: Path | None = None) -> None:
        self.folder = folder.resolve()
        name = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]
        self.store = (store or home() / "undo") / name
        self._what = ""
        self._group: Path | None = None

    def begin(self, what: str) -> None:
        """Changes from here on belong to `what`; nothing is written before there is one."""
        self._what, self._group = what, None

    def write(self, path: str, content: bytes, mode: int | None = None) -> None:
        """Make or replace one file, and the folders above it."""
        self._check_above(path, make=True)
        place = self.folder / path
        fresh = place.with_name(f".tmp-{os.urandom(6).hex()}")
        try:
            with open(fresh, "xb") as file:  # a disk that is full says so before anything is moved
                file.write(content)
            self._clear(path, hashlib.sha256(content).hexdigest(), keep_mode=mode is None)
            if mode is not None:
                fresh.chmod(stat.S_IMODE(mode) & 0o777)
            elif self._mode is not None:
                fresh.chmod(self._mode)
            self._own(fresh)
            fresh.replace(place)
        finally:
            fresh.unlink(missing_ok=True)

    def link(self, path: str, target: str) -> None:
        place = self._clear(path, f"link {target}")
        place.symlink_to(target)
        self._own(place)

    def make_folder(self, path: str) -> None:
        if not _is_folder(self.folder / path):
            self._own(self._clear(path, "folder"), make=True)

    def remove(self, path: str) -> None:
        """A file, a link, or a folder with all that is in it."""
        self._clear(path, None)

    def remember(self, path: str, before: bytes | None) -> None:
        """A change that was made already, by a command that ran in the folder itself."""
        entry = {"path": path, "after": self._seen(path)}
        blob = self._note(entry, has_before=before is not None)
        if before is not None:
            blob.write_bytes(before)

    def undo(self) -> Undone:
        """Take back the newest request that changed something."""
        # a kill came between making the newest and its first line: nothing was changed then
        groups = sorted(path.parent for path in self.store.glob("[0-9]*/entries.jsonl"))
        if not groups:
            return Undone("")
        group = groups[-1]
        head, *entries = [json.loads(line) for line in _lines(group / "entries.jsonl")]
        undone = Undone(head["what"])
        for entry in reversed(entries):
            done = self._restore(group, entry)
            (undone.restored if done else undone.left).append(entry["path"])
            if not done and "before" in entry:
                undone.kept[entry["path"]] = Path(entry["before"])
        if undone.kept:
            place = self.store / f"left-{_next(self.store, 'left-'):08d}"
            group.rename(place)
            undone.kept = {path: place / blob for path, blob in undone.kept.items()}
        else:
            shutil.rmtree(group)
        self._group = None
        return undone

    def _restore(self, group: Path, entry: dict[str, Any]) -> bool:
        path, before = self.folder / entry["path"], entry.get("before")
        try:
            self._check_above(entry["path"])
            # a kill came before it was moved aside, or in the middle of undoing: it is where it was
            if before is not None and not os.path.lexists(group / before):
                return True
            seen = self._seen(entry["path"])
            # nothing: a full disk or a kill came between moving aside and putting anew
            if seen not in (None, entry["after"]):
                return False
            if seen == "folder":
                path.rmdir()
            elif seen is not None:
                path.unlink()
            if before is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(group / before, path)
        except OSError:
            return False
        return True

    def _clear(self, path: str, after: str | None, *, keep_mode: bool = False) -> Path:
        """Move aside what stands at `path`; returns the free place."""
        place = self.folder / path
        self._check_above(path, make=after is not None)
        there = os.path.lexists(place)
        self._mode = stat.S_IMODE(place.stat().st_mode) if keep_mode and place.is_file() else None
        blob = self._note({"path": path, "after": after}, has_before=there)
        if there:
            shutil.move(place, blob)
        return place

    def _check_above(self, path: str, *, make: bool = False) -> None:
        """Every folder above `path` is a real one inside; missing ones are made, and noted."""
        parts = Path(path).parts
        if not parts or Path(path).is_absolute() or ".." in parts:
            raise OSError(f"{path!a} is not a path inside the folder")
        for depth in range(1, len(parts)):
            above = Path(*parts[:depth])
            if _is_folder(self.folder / above):
                continue
            if os.path.lexists(self.folder / above) and not make:
                raise OSError(f"{above} is not a folder")
            if (self.folder / above).is_symlink():
                raise OSError(f"{above} is a link")
            if make:
                self._own(self._clear(str(above), "folder"), make=True)

    def _note(self, entry: dict[str, Any], *, has_before: bool) -> Path:
        """Write down what is about to change; returns where the old thing goes."""
        group = self._opened()
        blob = f"was-{len(list(_lines(group / 'entries.jsonl'))):06d}"
        line = json.dumps(entry | ({"before": blob} if has_before else {}))
        with open(group / "entries.jsonl", "ab", buffering=0) as file:
            written = file.write(data := f"{line}\n".encode())
            if written < len(data):  # a full disk; half a line would spoil the next one
                file.truncate(file.tell() - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return group / blob

    def _opened(self) -> Path:
        if self._group is None:
            groups, left = sorted(self.store.glob("[0-9]*")), sorted(self.store.glob("left-*"))
            for old in (*groups[: max(0, len(groups) + 1 - KEPT)], *left[:-KEPT]):
                shutil.rmtree(old, ignore_errors=True)
            self._group = self.store / f"{_next(self.store):08d}"
            self._group.mkdir(parents=True, mode=0o700)
            head = {"what": self._what, "folder": str(self.folder), "at": now()}
            files.write(self._group / "entries.jsonl", json.dumps(head) + "\n")
        return self._group

    def _seen(self, path: str) -> str | None:
        """What stands at `path` now, in a word that can be compared."""
        place = self.folder / path
        try:
            status = place.lstat()
            if stat.S_ISLNK(status.st_mode):
                return f"link {place.readlink()}"
            if stat.S_ISDIR(status.st_mode):
                return "folder"
            return files.digest(place) if stat.S_ISREG(status.st_mode) else "other"
        except FileNotFoundError:
            return None

    def _own(self, place: Path, *, make: bool = False) -> None:
        """Root works for the folder's owner: what is new belongs to them."""
        if make:
            place.mkdir()
        if os.geteuid() == 0:
            owner = self.folder.stat()
            with contextlib.suppress(OSError):
                os.chown(place, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _next(store: Path, kind: str = "") -> int:
    """The number after the largest of the folders of this kind."""
    return max((int(path.name.removeprefix(kind)) for path in store.glob(f"{kind}[0-9]*")), default=0) + 1


def _lines(path: Path) -> Iterator[str]:
    with open(path, encoding="utf-8") as file:
        yield from (line for line in file if line.endswith("\n"))
