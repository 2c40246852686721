# SPDX-License-Identifier: AGPL-3.0-or-later
"""What was trained, from what, how it scored, which one is in use, and how to get the one before back.

    $RUSTY_HOME/models/NAME/
      v0003/            one version: model.gguf or the files of a checkpoint, record.json, checksums.json
      current.json      the version in use and those before it; replaced in one step
      deployed.json     where it is served, and with which words
      history.jsonl     what happened: added, promoted, refused, rolled back, deployed, collected

Everything is plain text beside the weights. A version never changes once it is there; `promote` demands a
gate that was passed by exactly these bytes, `rollback` verifies the old ones before it points at them.
models.py is the commands; loop/ fills it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rusty_r2 import __version__, files
from rusty_r2.config import home
from rusty_r2.errors import RustyError
from rusty_r2.trace import now

Kind = Literal["gguf", "rwkv"]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
RECORD, CURRENT, DEPLOYED, HISTORY = "record.json", "current.json", "deployed.json", "history.jsonl"


class RegistryError(RustyError):
    """There is no such model, or it may not be put in use."""


@dataclass(frozen=True)
class Gate:
    """What was found out about an artefact before it may be used."""

    passed: bool
    sha256: str
    """of the artefact that was tried; another one has not passed"""
    worse: bool = False
    """it does worse than the one in use"""
    reasons: tuple[str, ...] = ()
    """what spoke against it"""


@dataclass(frozen=True)
class Version:
    """One artefact and where it comes from."""

    name: str
    number: int
    kind: Kind
    sha256: str
    size: int
    """bytes"""
    created: str
    file: str = ""
    """the file within the folder; a checkpoint is the folder itself"""
    lineage: dict[str, Any] = field(default_factory=dict)
    """from traces to file: base, traces, rows, run, export, each with its digest"""
    scores: dict[str, Any] = field(default_factory=dict)
    """how it did, and how the one before it did"""
    gate: Gate | None = None
    collected: bool = False
    """its weights are gone, its record stays"""
    version: str = __version__

    @property
    def label(self) -> str:
        return f"{self.name}@{self.number}"


@dataclass(frozen=True)
class Model:
    """A version that can be used: where its weights are, and the address that opens it."""

    version: Version
    path: Path

    @property
    def address(self) -> str:
        return f"gguf:{self.path}" if self.version.kind == "gguf" else str(self.path)


class Registry:
    """The models of one data home."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or home() / "models"
        self._here = threading.local()

    def names(self) -> list[str]:
        found = self.root.glob("*/") if self.root.is_dir() else ()
        return sorted(path.name for path in found if NAME.fullmatch(path.name) and _version_folders(path))

    def versions(self, name: str) -> list[Version]:
        """Every version, oldest first."""
        return [_read_version(path) for path in _version_folders(self._folder(name))]

    def version(self, name: str, number: int | None = None) -> Version:
        """This version, or the newest."""
        known = self.versions(name)
        if not known:
            raise RegistryError(f"there is no model {name!a}. Type: rusty models")
        if number is None:
            return known[-1]
        found = next((one for one in known if one.number == number), None)
        if found is None:
            raise RegistryError(f"{name} has no version {number}; it has 1 to {known[-1].number}")
        return found

    def add(
        self,
        name: str,
        artefact: Path,
        *,
        kind: Kind | None = None,
        gate: Gate | None = None,
        lineage: Mapping[str, Any] | None = None,
        scores: Mapping[str, Any] | None = None,
    ) -> Version:
        """Take an artefact in: a GGUF file, or the folder of a checkpoint. It is not in use yet."""
        chosen = kind or ("gguf" if artefact.is_file() else "rwkv")
        digest = artefact_digest(artefact)
        with self.locked(name, new=True) as folder:
            same = next((v for v in self.versions(name) if v.sha256 == digest and not v.collected), None)
            if same is not None and same.gate == gate:  # a loop that was killed here comes by again
                return same
            number = max((one.number for one in self.versions(name)), default=0) + 1
            file, told = "model.gguf" if artefact.is_file() else "", (dict(lineage or {}), dict(scores or {}))
            made = Version(name, number, chosen, digest, _size(artefact), now(), file, *told, gate)
            with files.whole_folder(folder / f"v{number:04d}") as inside:
                _take_in(artefact, inside)
                files.write(inside / RECORD, _json(asdict(made)))
            self.note(name, "added", number, gate=_told(gate))
        return made

    def promote(self, name: str, number: int | None = None) -> Version:
        """Put a version in use. RegistryError where its gate does not allow it."""
        with self.locked(name):
            wanted = self.allowed(name, number)
            current, before = self.pointer(name)
            if current != wanted.number:
                earlier = [n for n in [*before, *([current] if current else [])] if n != wanted.number]
                self._point(name, wanted.number, earlier)
                self.note(name, "promoted", wanted.number, before=current)
        return wanted

    def allowed(self, name: str, number: int | None = None) -> Version:
        """The version that `promote` would put in use; RegistryError where its gate does not allow it."""
        wanted = self.version(name, number)
        if problem := self.objection(wanted):
            self.note(name, "refused", wanted.number, why=problem)
            after = f"Train another: rusty loop --name {name}"
            raise RegistryError(f"{wanted.label} is not promoted: {problem}. {after}")
        return wanted

    def objection(self, version: Version) -> str:
        """Why a version may not be used; empty where it may."""
        if version.collected:
            return "its weights were collected. Train it again: rusty loop"
        gate = version.gate
        if gate is None:
            how = (
                "rusty export check --help" if version.kind == "gguf" else "rusty models add --help (--tasks)"
            )
            return f"it never went through the gate. Type: {how}"
        if gate.sha256 != version.sha256:
            return f"the gate tried another file (sha256 {gate.sha256[:12]}…). Check this one"
        if not gate.passed or gate.worse:
            return "; ".join(gate.reasons) or ("it is worse" if gate.worse else "it failed the gate")
        return self.damage(version)

    def damage(self, version: Version) -> str:
        """What is wrong with the stored bytes; empty where nothing is."""
        folder = self.folder_of(version)
        try:
            found = artefact_digest(folder / version.file if version.file else folder)
        except (OSError, RegistryError) as error:
            return f"its weights cannot be read: {error}"
        return "" if found == version.sha256 else f"{folder} is damaged (its checksum differs)"

    def rollback(self, name: str) -> Version:
        """Point at the version that was in use before."""
        with self.locked(name):
            before = self.previous(name)
            current, earlier = self.pointer(name)
            self._point(name, before.number, [n for n in earlier if n != before.number])
            self.note(name, "rolled back", before.number, from_=current)
        return before

    def previous(self, name: str) -> Version:
        """The version a rollback would go to, whole and verified."""
        self.version(name)
        current, earlier = self.pointer(name)
        if current is None:
            raise RegistryError(f"no version of {name} was ever promoted. Type: rusty models {name}")
        if not earlier:
            raise RegistryError(
                f"{name}@{current} is the first in use: nothing is before it. Type: rusty models {name}"
            )
        before = self.version(name, earlier[-1])
        problem = "its weights were collected" if before.collected else self.damage(before)
        if problem:
            raise RegistryError(f"{before.label} cannot come back: {problem}")
        return before

    def current(self, name: str) -> Version | None:
        """The version in use, if one is."""
        number, _ = self.pointer(name)
        return self.version(name, number) if number is not None else None

    def resolve(self, name: str) -> Model:
        """The model in use under `name`, or `name@3`: that version."""
        word, at, number = name.partition("@")
        if at and not number.isdecimal():
            raise RegistryError(
                f"{name!a}: after the @ comes the number of a version. Type: rusty models {word}"
            )
        found = self.version(word, int(number)) if at else self.current(word)
        if found is None:
            self.version(word)
            raise RegistryError(f"no version of {word} is in use. Type: rusty models {word}")
        if found.collected:
            raise RegistryError(f"the weights of {found.label} were collected. Type: rusty models {word}")
        folder = self.folder_of(found)
        return Model(found, folder / found.file if found.file else folder)

    def deployed(self, name: str) -> dict[str, Any]:
        return _read(self._folder(name) / DEPLOYED)

    def note_deployed(self, name: str, number: int, **where: Any) -> None:
        """Remember where a version is served."""
        files.write(self._folder(name) / DEPLOYED, _json({"version": number, "at": now(), **where}))
        self.note(name, "deployed", number, **where)

    def collect(self, name: str, *, keep: int = 1) -> list[Version]:
        """Versions whose weights nobody needs: not in use, and not among the `keep` before it."""
        current, earlier = self.pointer(name)
        needed = {current, *(earlier[-keep:] if keep else ())}
        newest = self.version(name).number
        waiting = {newest} if current is None or newest > current else set()
        kept = needed | {one for one in waiting if _may_come(self.version(name, one))}
        free = [one for one in self.versions(name) if one.collected or one.number not in kept]
        return [one for one in free if self.weight(one)]  # a kill may have left some of a collected one

    def weight(self, version: Version) -> int:
        """Bytes that a version takes, its record aside."""
        folder = self.folder_of(version)
        return _size(folder) - (folder / RECORD).stat().st_size

    def forget_weights(self, version: Version) -> int:
        """Remove the weights of a version and keep its record; returns the bytes freed."""
        with self.locked(version.name):
            if self.pointer(version.name)[0] == version.number:  # since somebody looked what could go
                raise RegistryError(f"{version.label} is in use. Type: rusty models {version.name}")
            folder, freed = self.folder_of(version), self.weight(version)
            files.write(folder / RECORD, _json(asdict(replace(version, collected=True))))
            for path in folder.iterdir():
                if path.name != RECORD:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            self.note(version.name, "collected", version.number, freed=freed)
        return freed

    def history(self, name: str) -> list[dict[str, Any]]:
        path = self._folder(name) / HISTORY
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
        told = []
        for line in lines:
            with contextlib.suppress(ValueError):  # cut short by a full disk or a kill
                told.append(json.loads(line))
        return [one for one in told if isinstance(one, dict)]

    def note(self, name: str, what: str, number: int, **facts: Any) -> None:
        """One line of history, appended and flushed."""
        line = {"at": now(), "what": what, "version": number, **{k.rstrip("_"): v for k, v in facts.items()}}
        with open(self._folder(name) / HISTORY, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def folder_of(self, version: Version) -> Path:
        return self._folder(version.name) / f"v{version.number:04d}"

    @contextlib.contextmanager
    def locked(self, name: str, *, new: bool = False) -> Iterator[Path]:
        """One at a time, also between processes; whoever has it may take it again. `new` makes the folder."""
        folder, held = self._folder(name), self._here.__dict__
        if name in held:
            yield folder
            return
        if new:
            folder.mkdir(parents=True, exist_ok=True)
        else:
            self.version(name)
        with open(folder / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            held[name] = True
            try:
                yield folder
            finally:
                del held[name]

    def _folder(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise RegistryError(f"{name!a} is no name for a model: letters, digits, . _ -")
        return self.root / name

    def pointer(self, name: str) -> tuple[int | None, list[int]]:
        """The number of the version in use, and of those before it."""
        found = _read(self._folder(name) / CURRENT)
        return found.get("version"), list(found.get("before", []))

    def _point(self, name: str, number: int, before: list[int]) -> None:
        said = {"version": number, "before": before, "since": now()}
        files.write(self._folder(name) / CURRENT, _json(said))


def artefact_digest(path: Path) -> str:
    """SHA-256 of a file; of a folder: of the names and digests of what it holds, our own notes aside."""
    if path.is_file():
        return files.digest(path)
    inside = sorted(p for p in path.rglob("*") if p.is_file() and p.name not in (RECORD, files.CHECKSUMS))
    if not any(p.suffix == ".safetensors" for p in inside):
        raise RegistryError(f"{path} is neither a GGUF file nor a folder with weights. Type: ls {path}")
    sums = {p.relative_to(path).as_posix(): files.digest(p) for p in inside}
    return hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()


def _take_in(artefact: Path, inside: Path) -> None:
    if artefact.is_file():
        shutil.copyfile(artefact, inside / "model.gguf")
        return
    for path in sorted(artefact.rglob("*")):
        target = inside / path.relative_to(artefact)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif path.name not in (RECORD, files.CHECKSUMS):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _size(path: Path) -> int:
    return sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file())


def _may_come(version: Version) -> bool:
    """A newest version that was not refused may still be promoted."""
    return version.gate is None or (version.gate.passed and not version.gate.worse)


def _told(gate: Gate | None) -> str:
    if gate is None:
        return "not tried"
    return "passed" if gate.passed and not gate.worse else "; ".join(gate.reasons) or "failed"


def _version_folders(folder: Path) -> list[Path]:
    """Oldest first; a copy that somebody laid beside them is none."""
    found = [path for path in folder.glob("v[0-9]*") if path.name[1:].isdecimal() and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name[1:]))


def _read_version(folder: Path) -> Version:
    found = _read(folder / RECORD)
    try:
        gate = found.pop("gate", None)
        made = Gate(**{**gate, "reasons": tuple(gate["reasons"])}) if gate else None
        return Version(**found, gate=made)
    except (TypeError, KeyError) as error:
        raise RegistryError(f"{folder / RECORD} cannot be understood: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RegistryError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise RegistryError(f"{path} must hold a table")
    return found


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
