# SPDX-License-Identifier: AGPL-3.0-or-later
"""The sentences in which families ask, read once; Draw.say chooses which one is said.

wordings.toml has those of both splits, practice.toml more that only training hears.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rusty_r2.gym.families.base import Wordings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@cache
def wordings() -> dict[str, Wordings]:
    """Every list of wordings by its name, such as "rename.file"."""
    more = dict(_lists("practice.toml"))
    return {name: Wordings(lines, more.get(name, ())) for name, lines in _lists("wordings.toml")}


def _lists(file: str) -> Iterator[tuple[str, list[str]]]:
    tables = tomllib.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))
    for family, lists in tables.items():
        for name, lines in lists.items():
            yield f"{family}.{name}", lines.splitlines()


def of(name: str) -> Wordings:
    return wordings()[name]


def then(said: str, more: str) -> str:
    """Two sentences, with a full stop between them where the first was left without."""
    return f"{said}{'' if said.endswith(('.', '?', '!')) else '.'} {more}"
