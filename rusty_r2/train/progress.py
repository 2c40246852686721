# SPDX-License-Identifier: AGPL-3.0-or-later
"""How far a training run is, on one line: `step 120/1000  loss 3.214  9,871 tok/s  4 min left`.

On a terminal the line is rewritten in place; anywhere else (a file, a pipe, a log of CI) there is one
every few seconds, and the last. Everything else that a run wants to say goes through `say`, so that it
does not land in the middle of the live line. Only the first of several processes speaks.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

PLAIN_EVERY = 5.0
"""seconds between two lines where nothing can be rewritten"""
REMEMBER = 8
"""reports over which the speed is taken: a pause for evaluation is soon forgotten"""
_a_stage: ContextVar[bool] = ContextVar("a_stage", default=False)


@contextmanager
def as_a_stage() -> Iterator[None]:
    """Training as a part of a larger command, which says itself what comes next."""
    before = _a_stage.set(True)
    try:
        yield
    finally:
        _a_stage.reset(before)


def fitting(text: str) -> str:
    """What is to be said here: a stage does not name the next command."""
    lines = text.split("\n")
    return "\n".join(line for line in lines if not (_a_stage.get() and line.startswith("next: ")))


def stopped(done: str, again: str) -> str:
    """A run that may go on; a stage goes on with the command it is a part of, which says so itself."""
    said = f"stopped {done}, saved"
    return said if _a_stage.get() else f"{said}. Go on: {again}"


class Progress:
    """Tells a person, or a log, how training goes."""

    def __init__(
        self,
        total: int,
        *,
        until: float = float("inf"),
        quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        """`until`: where time.monotonic() ends the run, if the steps do not."""
        self.total = total
        self.until = until
        self.quiet = quiet
        self.stream = stream if stream is not None else sys.stderr
        self._live = self.stream.isatty()
        self._width = 0
        self._shown = float("-inf")
        self._paused = 0.0
        self._seen: deque[tuple[float, int, int]] = deque(maxlen=REMEMBER)
        self.begin_at(0)

    def begin_at(self, step: int) -> None:
        """Start the clock."""
        self._seen.clear()
        self._seen.append((time.monotonic() - self._paused, step, 0))

    def report(self, step: int, tokens: int, facts: dict[str, float]) -> float:
        """Show that `step` steps and `tokens` tokens of this go are done; tokens a second of late."""
        now = time.monotonic() - self._paused
        then, step_then, tokens_then = self._seen[0]
        self._seen.append((now, step, tokens))
        elapsed = max(now - then, 1e-9)
        rate = (tokens - tokens_then) / elapsed
        left = (self.total - step) * elapsed / max(1, step - step_then)
        left = max(0.0, min(left, self.until - time.monotonic()))
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in facts.items())
        if self._live or step == self.total or time.monotonic() >= self._shown + PLAIN_EVERY:
            self._shown = time.monotonic()
            self._show(f"step {step:,}/{self.total:,}  {numbers}  {rate:,.0f} tok/s  {spell(left)} left")
        return rate

    def pause(self, seconds: float) -> None:
        """Leave out of the speed what was not spent on training."""
        self._paused += seconds

    def say(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        if said := fitting(text):
            self._write(said + "\n")

    def close(self) -> None:
        if self._live and self._width:
            self._write("\n")
        self._width = 0

    def _show(self, line: str) -> None:
        if self._live:
            self._clear()
            self._write(line)
            self._width = len(line)
        else:
            self._write(line + "\n")

    def _clear(self) -> None:
        if self._live and self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        if self.quiet:
            return
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:  # nobody reads any more (Ctrl-C ends `| tee` first): no reason to lose the work
            self.quiet = True


def spell(seconds: float) -> str:
    """A length of time as a person would say it."""
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}" if size > 60 else f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
