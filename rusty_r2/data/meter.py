# SPDX-License-Identifier: AGPL-3.0-or-later
"""How far the making of data is: a line that moves where somebody is looking, one now and then in a log.

with Meter() as meter:
    meter.show("reading")
    for episode in meter.track(episodes, "gym tasks played", total=12_000):    # with speed and time left
        ...
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")
IN_A_LOG_S = 30.0
"""seconds between two lines where nobody is looking"""


class Meter:
    def __enter__(self) -> Meter:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        console = Console(stderr=True)
        self._seen = sys.stderr.isatty()
        self._bars = Progress(*columns, console=console, disable=not self._seen, transient=True)
        self._bars.__enter__()
        self._task = self._bars.add_task("reading", total=None)
        self._due = time.monotonic() + IN_A_LOG_S
        return self

    def __exit__(self, *why: Any) -> None:
        self._bars.__exit__(*why)

    def show(self, text: str) -> None:
        self._bars.update(self._task, description=text)
        if not self._seen and time.monotonic() >= self._due:
            self._due = time.monotonic() + IN_A_LOG_S
            print(text, file=sys.stderr, flush=True)

    def track(self, items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
        """The items as they come, counted; the first may take long and is not counted as speed."""
        self.show(what)
        began = time.monotonic()
        for done, item in enumerate(items, 1):
            began = time.monotonic() if done == 1 else began
            yield item
            speed = (done - 1) / max(1e-3, time.monotonic() - began)
            self.show(f"{what}: {done:,}{f' of {total:,}' if total else ''}{_pace(done, total, speed)}")


def _pace(done: int, total: int | None, speed: float) -> str:
    if not speed:
        return ""
    seconds = max(0, (total or 0) - done) / speed
    left = f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
    return f", {speed:,.1f} a second" + (f", {left} left" if total else "")
