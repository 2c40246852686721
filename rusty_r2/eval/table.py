# SPDX-License-Identifier: AGPL-3.0-or-later
"""One table: a row a figure, a column a mind; on the terminal, as Markdown, and as plain data.

`results` is what results.json holds. `short` leaves the details to the long table in table.md; the gym's
families have a table of their own there, pass@1 beside pass@k. A figure that could not be had is a dash, and
the reason stands below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rusty_r2.eval.figures import Figure

Columns = Mapping[str, Sequence[Figure]]
"""figures by address"""
_FAMILY = re.compile(r"gym (pass@.*?): (.*)")


def results(columns: Columns, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **about,
        "minds": {address: [figure.to_dict() for figure in figures] for address, figures in columns.items()},
    }


def markdown(columns: Columns, *, short: bool = False) -> str:
    """A table with its reasons below, and the gym's families."""
    names = [name for name in rows(columns, short=short) if not _FAMILY.fullmatch(name)]
    lines = [f"| measure | {' | '.join(columns)} | items |", f"|---|{'--:|' * (len(columns) + 1)}"]
    for name in names:
        cells = [_cell(figures, name) for figures in columns.values()]
        lines.append(f"| {_label(columns, name)} | {' | '.join(cells)} | {_items(columns, name)} |")
    lines += ["", *reasons(columns, short=short)]
    kinds, found = families(columns)
    if found and not short:
        heads = [f"{address}, {kind}" for address in columns for kind in kinds]
        lines += ["", f"| gym family, % | {' | '.join(heads)} | tasks |", f"|---|{'--:|' * (len(heads) + 1)}"]
        for family in found:
            names = [f"gym {kind}: {family}" for kind in kinds]
            cells = [_cell(figures, name) for figures in columns.values() for name in names]
            lines.append(f"| {family} | {' | '.join(cells)} | {_items(columns, names[0])} |")
    return "\n".join(lines).rstrip() + "\n"


def families(columns: Columns) -> tuple[list[str], list[str]]:
    """What was measured of every family of the gym (pass@1, pass@8…), and the families by name."""
    told = [found.groups() for name in rows(columns, short=False) if (found := _FAMILY.fullmatch(name))]
    return list(dict.fromkeys(kind for kind, _ in told)), sorted({family for _, family in told})


def plain(columns: Columns) -> str:
    """The short table for a terminal."""
    names = rows(columns, short=True)
    grid = [["", *columns, "items"]]
    for name in names:
        cells = [_cell(figures, name) for figures in columns.values()]
        grid.append([_label(columns, name), *cells, _items(columns, name)])
    widths = [max(len(row[at]) for row in grid) for at in range(len(grid[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in grid
    ]
    return "\n".join([*lines, *reasons(columns, short=True)])


def rows(columns: Columns, *, short: bool) -> list[str]:
    """Names of the rows, in the order they were measured in."""
    every = [figure for figures in columns.values() for figure in figures]
    return list(dict.fromkeys(figure.name for figure in every if not (short and figure.detail)))


def reasons(columns: Columns, *, short: bool) -> list[str]:
    """Why figures are missing, and what to know of the others: said once where it is the same for all."""
    said = []
    for name in rows(columns, short=short):
        found = {address: find(figures, name) for address, figures in columns.items()}
        why = {
            address: one.caveat if one.measured else one.note
            for address, one in found.items()
            if one is not None and (one.caveat or not one.measured)
        }
        if len(why) == len(columns) and len(set(why.values())) == 1:
            said.append(f"{name}: {next(iter(why.values()))}")
        else:
            said += [f"{name}, {address}: {note}" for address, note in why.items() if note]
    return said


def find(figures: Sequence[Figure], name: str) -> Figure | None:
    return next((figure for figure in figures if figure.name == name), None)


def _cell(figures: Sequence[Figure], name: str) -> str:
    found = find(figures, name)
    return "–" if found is None else str(found)


def _label(columns: Columns, name: str) -> str:
    figure = next(found for figures in columns.values() if (found := find(figures, name)) is not None)
    return f"{name}, {figure.unit}" if figure.unit not in name else name


def _items(columns: Columns, name: str) -> str:
    counts = {found.count for figures in columns.values() if (found := find(figures, name)) is not None}
    return "–" if counts <= {0} else " / ".join(str(count) for count in sorted(counts - {0}))
