# SPDX-License-Identifier: AGPL-3.0-or-later
"""Writes docs/cli.md from the command table and the option dataclasses: `python tools/cli_docs.py`.

A test compares the page with what this would write, so it cannot go stale.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, Field, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from rusty_r2.cli import COMMANDS, is_positional, options_of
from rusty_r2.config import plain

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"


def page() -> str:
    parts = [
        "# Commands\n\nWritten by `python tools/cli_docs.py`. Every option takes `-` or `_` between words.\n"
    ]
    for name, (_, about) in COMMANDS.items():
        _, config = options_of(name)
        parts.append(f"## rusty {name}\n\n{about[0].upper()}{about[1:]}.\n")
        rows = [_row(config, field) for field in fields(config) if field.init]
        if rows:
            parts.append("| option | default | what it is |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _row(config: type[Any], field: Field[Any]) -> str:
    about = " ".join(_docstrings(config).get(field.name, "").split()).replace("|", "\\|")
    placed = is_positional(get_type_hints(config, include_extras=True)[field.name])
    name = field.name.upper() if placed else f"--{field.name.replace('_', '-')}"
    return f"| `{name}` | {_default(field)} | {about} |"


def _default(field: Field[Any]) -> str:
    if field.default is not MISSING:
        value = field.default
    elif field.default_factory is not MISSING:
        value = field.default_factory()
    else:
        return "required"
    return f"`{plain(value)}`" if value not in (None, "", (), []) else ""


@cache
def _docstrings(config: type[Any]) -> dict[str, str]:
    """The string under each field, parents' fields included."""
    found: dict[str, str] = {}
    for owner in reversed(config.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(tree, ast.ClassDef)
        for line, after in zip(tree.body, tree.body[1:], strict=False):
            told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and told:
                found[line.target.id] = str(after.value.value)  # type: ignore[attr-defined]
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
