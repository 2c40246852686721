# SPDX-License-Identifier: AGPL-3.0-or-later
"""What in a person's folder is not an agent's business: what it may not change, not read, need not keep.

Where commands run in the folder itself, the sandbox protects the same paths.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection
from pathlib import Path

from rusty_r2.agent.diff import LARGEST
from rusty_r2.errors import TaskError
from rusty_r2.gym.sandbox import DEFAULT_PROTECTED, Change
from rusty_r2.task import clean_path

PROTECTED = (
    *DEFAULT_PROTECTED,
    *(
        ".netrc",
        ".aws",
        ".gnupg",
        ".kube",
        ".docker",
        ".git-credentials",
        ".pgpass",
        ".bash_login",
        ".zshenv",
    ),
    *(".config/autostart", ".config/systemd", ".config/fish", ".config/git", ".local/bin"),
    *(".vimrc", ".tmux.conf", ".inputrc", ".xprofile", ".xinitrc", ".gdbinit", ".emacs.d"),
)
SECRETS = (".env*", ".netrc", ".npmrc", ".pypirc", ".pgpass", ".git-credentials")
"""files that hold passwords and keys: in the folder, and one level below it"""
SECRET_FOLDERS = (".ssh", ".aws", ".gnupg", ".kube", ".docker")
CACHES = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}


def is_protected(path: str) -> bool:
    """Whether other programs of the person run or trust what is at `path`, at any depth."""
    parts = posixpath.normpath(path).split("/")
    if parts[-1].startswith(".env"):
        return True
    tails = ["/".join(parts[at:]) for at in range(len(parts))]
    return any(tail == kept or tail.startswith(f"{kept}/") for tail in tails for kept in PROTECTED)


def secrets(folder: Path) -> list[str]:
    """Files of secrets in the folder and one level below it."""
    found = [path for name in SECRETS for depth in ("", "*/") for path in folder.glob(depth + name)]
    found += [path for name in SECRET_FOLDERS for path in (folder / name).rglob("*")]
    return sorted(str(path.relative_to(folder)) for path in found if path.is_file())


def matters(change: Change, hidden: Collection[str] = ()) -> bool:
    """Caches are made again by whoever needs them; they are neither shown nor carried over.

    An empty file at a `hidden` path is the one that stands in the view for a secret."""
    if change.path in hidden and change.kind == "modified" and not change.size:
        return False
    return change.kind != "protected" and not CACHES & set(change.path.split("/"))


def on_disk(folder: Path, path: str) -> bytes:
    """What a file of the folder holds; OSError where a link or a pipe stands there."""
    place = folder / path
    if place.is_symlink() or place.resolve() != place:
        raise OSError(f"{path} goes through a link")
    if place.exists() and not (place.is_file() or place.is_dir()):
        raise OSError(f"{path} is not a file")  # a pipe would be waited for
    return place.read_bytes()


def may_show(folder: Path, name: str) -> bool:
    """Whether a word of a request is a file of the folder that can be shown with it."""
    place = folder / name
    looks_like_a_file = "." in name or "/" in name or name[:1].isupper()
    try:
        ours = looks_like_a_file and clean_path(name) == name and not is_protected(name)
        return (
            ours
            and place.resolve() == place
            and place.is_file()
            and place.stat().st_size < LARGEST
            and os.access(place, os.R_OK)
        )
    except (TaskError, OSError, ValueError):
        return False
