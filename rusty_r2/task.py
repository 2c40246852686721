# SPDX-License-Identifier: AGPL-3.0-or-later
"""A task: a prompt, files to start from, a check that decides, and a gold solution that proves it.

Two folder layouts are read by `Task.load`:

    NAME/prompt.txt template.py tests.py [solution.py]             the small one: fix template.py
    NAME/task.toml instruction.md environment/ tests/ solution/    the rich one

`check` is data, never a verdict: gym/verdict.py carries it out where the candidate cannot reach.
Files are text, by relative POSIX path. Generated tasks (gym/families) are the same dataclass.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from rusty_r2.errors import TaskError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Case:
    """One call and the value it must return."""

    args: tuple[Any, ...]
    expected: Any = None
    raises: str = ""
    """name of the builtin exception the call must raise instead of returning"""


@dataclass(frozen=True)
class Calls:
    """Call a function with plain values; expected values never enter its process."""

    kind: ClassVar[str] = "calls"
    path: str
    function: str
    cases: tuple[Case, ...]
    tolerance: float = 0.0
    """absolute and relative room for floats; 0 compares exactly"""


@dataclass(frozen=True)
class Code:
    """Tests written as code, run in a sandbox of their own that calls into the candidate's."""

    kind: ClassVar[str] = "code"
    path: str
    """the candidate's file, imported by the tests under its module name"""
    source: str
    style: str = "unittest"
    """unittest, pytest or assert"""
    entry: str = ""
    """assert style: the function handed to `check(candidate)`, or imported before plain asserts run"""


@dataclass(frozen=True)
class Tree:
    """The state the workspace must be in at the end."""

    kind: ClassVar[str] = "tree"
    expect: Mapping[str, str | None] = field(default_factory=dict)
    """path to its whole text; None = the path must not exist"""
    keep: bool = True
    """files not named in `expect` must be as they were, and no new ones may appear"""
    answer: str | None = None
    """where given, the last line of the final message must hold this text as a word, and no rival"""


Check = Calls | Code | Tree
CHECKS: dict[str, type[Check]] = {kind.kind: kind for kind in (Calls, Code, Tree)}


@dataclass(frozen=True)
class Task:
    name: str
    prompt: str
    check: Check
    files: Mapping[str, str] = field(default_factory=dict)
    """what stands in the workspace at the start"""
    solution: Mapping[str, str | None] = field(default_factory=dict)
    """gold: files to write (None deletes) on top of `files`"""
    commands: tuple[str, ...] = ()
    """gold: shell commands that reach the goal, for terminal tasks"""
    message: str = ""
    """gold: what to say at the end, where the check asks for an answer"""
    family: str = ""
    difficulty: int = 1
    """1 is the easiest"""
    split: str = "train"
    """train or heldout"""
    limits: Mapping[str, float] = field(default_factory=dict)
    """sandbox limits that differ from the default, by name"""
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt.strip():
            raise TaskError(f"task {self.name}: the prompt is empty")
        for path in (
            *self.files,
            *self.solution,
            *([] if isinstance(self.check, Tree) else [self.check.path]),
        ):
            clean_path(path)
        numbers = [self.difficulty, *self.limits.values()]
        if self.split not in ("train", "heldout") or not all(isinstance(n, (int, float)) for n in numbers):
            raise TaskError(f"task {self.name}: split is train or heldout, difficulty and limits are numbers")

    @classmethod
    def load(cls, folder: Path) -> Task:
        """Read a task folder of either layout."""
        if (folder / "task.toml").is_file():
            return _load_rich(folder)
        if (folder / "prompt.txt").is_file():
            return _load_small(folder)
        raise TaskError(f"{folder} holds neither task.toml nor prompt.txt. See docs/gym.md for both layouts")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"check": {"kind": self.check.kind} | asdict(self.check)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Task:
        """Undo `to_dict`, also after JSON made lists of the tuples."""
        known = {f.name for f in fields(cls)}
        unknown = set(data) - known
        if unknown:
            raise TaskError(
                f"task {data.get('name')}: unknown field {sorted(unknown)[0]}; known are {sorted(known)}"
            )
        try:
            lists = {name: tuple(data[name]) for name in ("commands", "tags") if name in data}
            return cls(**{**data, **lists, "check": _check_from(data["check"])})
        except (KeyError, TypeError, AttributeError) as error:
            raise TaskError(f"task {data.get('name')}: {error}") from error


def clean_path(path: str) -> str:
    """A relative path that stays below the workspace, or a TaskError."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\0" in path or str(pure) in ("", "."):
        raise TaskError(f"{path!a} is not a path below the workspace")
    return str(pure)


def index(root: Path) -> Iterator[Path]:
    """Every task folder below `root`, in a fixed order."""
    if not root.is_dir():
        raise TaskError(f"{root} is not a folder. Type: rusty gym list")
    for marker in sorted(root.rglob("*")):
        if marker.name in ("task.toml", "prompt.txt") and marker.is_file():
            yield marker.parent


def _load_small(folder: Path) -> Task:
    files = {"template.py": _text(folder / "template.py")}
    gold = folder / "solution.py"
    return Task(
        name=folder.name,
        prompt=_text(folder / "prompt.txt"),
        files=files,
        check=Code(path="template.py", source=_text(folder / "tests.py")),
        solution={"template.py": _text(gold)} if gold.is_file() else {},
        family=folder.name,
    )


def _load_rich(folder: Path) -> Task:
    path = folder / "task.toml"
    try:
        settings = tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{path}: {error}") from error
    given = {"name": folder.name, "family": folder.name} | settings
    solution: dict[str, str | None] = {**_tree(folder / "solution")}
    try:
        check = _rich_check(dict(given.pop("check", {})), folder / "tests")
        solution |= dict.fromkeys(given.pop("solution_absent", []))
    except (ValueError, TypeError, RecursionError) as error:
        raise TaskError(f"{path}: {error}") from error
    return Task.from_dict(
        given
        | {
            "prompt": _text(folder / "instruction.md"),
            "files": _tree(folder / "environment"),
            "solution": solution,
            "check": check,
        }
    )


def _rich_check(check: dict[str, Any], tests: Path) -> dict[str, Any]:
    """The check with what stands in files of its own."""
    if check.get("kind") == "code":
        check["source"] = _text(tests / check.pop("file", "tests.py"))
    elif check.get("kind") == "calls":
        check["cases"] = json.loads(_text(tests / check.pop("file", "cases.json")))
    elif check.get("kind") == "tree":
        check["expect"] = _tree(tests / "expect") | dict.fromkeys(check.pop("absent", []))
    return check


def _check_from(data: Any) -> Check:
    if isinstance(data, (Calls, Code, Tree)):
        return data
    given = dict(data)
    kind = given.pop("kind", None)
    if kind not in CHECKS:
        raise TaskError(f"check kind {kind!a} is unknown; say one of {sorted(CHECKS)}")
    if kind == "calls":
        cases = (case if isinstance(case, Case) else Case(**case) for case in given["cases"])
        given["cases"] = tuple(replace(case, args=tuple(case.args)) for case in cases)
    return CHECKS[kind](**given)


def _tree(folder: Path) -> dict[str, str]:
    there = folder.rglob("*") if folder.is_dir() else ()
    found = sorted(path for path in there if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): _text(path) for path in found}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise TaskError(f"{path} is missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: {error}") from error
