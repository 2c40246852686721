# SPDX-License-Identifier: AGPL-3.0-or-later
"""A line that moves while data is made, where somebody is looking; silent in logs and pipes."""

from __future__ import annotations

import sys
from typing import Any


class Meter:
    """`with Meter() as meter: meter.show("1,024 documents")`"""

    def __enter__(self) -> Meter:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        console = Console(stderr=True)
        self._bars = Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True)
        self._bars.__enter__()
        self._task = self._bars.add_task("reading", total=None)
        return self

    def __exit__(self, *why: Any) -> None:
        self._bars.__exit__(*why)

    def show(self, text: str) -> None:
        self._bars.update(self._task, description=text)
