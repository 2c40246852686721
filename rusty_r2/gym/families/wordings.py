# SPDX-License-Identifier: AGPL-3.0-or-later
"""The sentences in which families ask, read once from wordings.toml; Draw.say chooses which one is said."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@cache
def wordings() -> dict[str, tuple[str, ...]]:
    """Every list of wordings by its name, such as "rename.file"."""
    tables = tomllib.loads((Path(__file__).parent / "wordings.toml").read_text(encoding="utf-8"))
    return {
        f"{family}.{name}": tuple(lines.splitlines())
        for family, lists in tables.items()
        for name, lines in lists.items()
    }


def of(name: str) -> tuple[str, ...]:
    return wordings()[name]


def then(said: str, more: str) -> str:
    """Two sentences, with a full stop between them where the first was left without."""
    return f"{said}{'' if said.endswith(('.', '?', '!')) else '.'} {more}"
