# SPDX-License-Identifier: AGPL-3.0-or-later
"""The table as pictures: one panel a figure, one bar a mind, its interval on it. Needs matplotlib.

`draw` is the short table, `draw_families` the gym's families: one panel a mind, pass@1 beside pass@k.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rusty_r2.errors import need
from rusty_r2.eval.figures import Figure
from rusty_r2.eval.table import Columns, families, find, rows

ACROSS = 4
"""panels side by side"""


def draw(columns: Columns, path: Path) -> Path:
    """Write a PNG of the short table."""
    pyplot = _pyplot()
    names = [name for name in rows(columns, short=True) if _shown(columns, name)]
    down = max(1, -(-len(names) // ACROSS))
    sheet, grid = pyplot.subplots(down, ACROSS, figsize=(4 * ACROSS, 2.4 * down), squeeze=False)
    for axis in grid.flat[len(names) :]:
        axis.axis("off")
    for axis, name in zip(grid.flat, names, strict=False):
        _panel(axis, columns, name)
    return _saved(pyplot, sheet, path)


def draw_families(columns: Columns, path: Path) -> Path | None:
    """Write a PNG of the gym's families; None where none was measured."""
    kinds, names = families(columns)
    if not names:
        return None
    pyplot = _pyplot()
    size = (5 * len(columns) + 2, 1 + 0.16 * len(names) * len(kinds))
    sheet, grid = pyplot.subplots(1, len(columns), figsize=size, squeeze=False, sharey=True)
    for axis, (address, figures) in zip(grid.flat, columns.items(), strict=True):
        for number, kind in enumerate(kinds):
            told = [find(figures, f"gym {kind}: {name}") for name in names]
            known = [(place, one) for place, one in enumerate(told) if one is not None and one.measured]
            high = 0.8 / len(kinds)
            axis.barh(
                [place + high * number for place, _ in known],
                [one.value for _, one in known],
                height=high,
                xerr=[[max(0, one.value - one.low) for _, one in known],
                      [max(0, one.high - one.value) for _, one in known]],
                error_kw={"elinewidth": 0.5},
                label=kind,
            )  # fmt: skip
        axis.set_yticks([place + 0.4 for place in range(len(names))], names, fontsize=7)
        axis.set_title(f"{address[-40:]}: gym, % of tasks solved", fontsize=9)
        axis.set_xlim(0, 100)
        axis.margins(y=0.01)
        axis.spines[["top", "right"]].set_visible(False)
    grid.flat[0].invert_yaxis()
    grid.flat[0].legend(fontsize=7)
    return _saved(pyplot, sheet, path)


def _pyplot() -> Any:
    need("matplotlib", extra="plots")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _saved(pyplot: Any, sheet: Any, path: Path) -> Path:
    sheet.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.savefig(path, dpi=110)
    pyplot.close(sheet)
    return path


def _shown(columns: Columns, name: str) -> list[tuple[str, Figure]]:
    """The figures of this name that were measured, by address."""
    found = [(address, find(figures, name)) for address, figures in columns.items()]
    return [(address, one) for address, one in found if one is not None and one.measured]


def _panel(axis: Any, columns: Columns, name: str) -> None:
    shown = _shown(columns, name)
    for place, (_, one) in enumerate(shown):
        known = one.low == one.low  # not a number where there is no interval
        spread = [[max(0, one.value - one.low)], [max(0, one.high - one.value)]] if known else None
        axis.barh(place, one.value, xerr=spread, color=f"C{place % 10}", capsize=3)
    axis.set_yticks(range(len(shown)), [address[-24:] for address, _ in shown])
    axis.invert_yaxis()
    unit = shown[0][1].unit
    arrow = "lower is better" if shown[0][1].lower_is_better else ""
    axis.set_title(f"{name}, {unit}" if unit not in name else name, fontsize=10)
    axis.set_xlabel(arrow, fontsize=8)
    axis.set_xlim(left=0)
    axis.spines[["top", "right"]].set_visible(False)
