# SPDX-License-Identifier: AGPL-3.0-or-later
"""How far a measure is, its rate and the time left: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

EVERY_S = 20.0
"""seconds between two lines where nobody is looking"""


class Bar:
    """`with Bar("gym, rusty", 312) as bar: bar.advance()`"""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0

    def __enter__(self) -> Bar:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        self._bars = Progress(
            *columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True
        )
        self._bars.__enter__()
        self._line = self._bars.add_task(self.what, total=self.total, rate="")
        self._began = self._told = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.__exit__(kind, error, trace)

    def advance(self, count: int = 1) -> None:
        self.done += count
        now = time.monotonic()
        rate = self.done / max(now - self._began, 1e-9)
        self._bars.update(self._line, advance=count, rate=f"{rate:.1f}/s")
        if not sys.stderr.isatty() and now - self._told > EVERY_S:
            self._told = now
            left = (self.total - self.done) / rate
            print(
                f"{self.what}: {self.done}/{self.total}, {rate:.1f}/s, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
