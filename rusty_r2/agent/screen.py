# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a person sees. Everything that comes from a model or a command stands behind a bar.

Control characters are spelt out (gym/safetext.py), so nothing can move the cursor, set a title or hide
text; and every line, wrapped ones included, begins with our own bar, so nothing can pass for a prompt of
ours. On a terminal lines are wrapped and coloured; in a pipe the answer goes to standard output as plain
text and everything else to standard error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import IO

from rich.cells import get_character_cell_size
from rich.console import Console
from rich.text import Text

from rusty_r2.agent.telling import counted
from rusty_r2.agent.unfold import Unfold
from rusty_r2.gym.safetext import neutral, no_text, one_line
from rusty_r2.gym.sandbox import Change, Result

LONGEST = 20_000
"""characters of one message that are shown; the trace keeps all"""
OUTPUT_LINES = 40
DIFF_LINES = 60
LONG_LINE = 400
_DIFF = {"+": "green", "-": "red", "@": "cyan"}
_CHANGE = {"added": ("+", "green"), "modified": ("~", "yellow"), "deleted": ("-", "red")}


class Screen:
    """The terminal, or the two streams of a pipe. Also a `Watcher` of the workspace."""

    def __init__(self, *, live: bool, out: IO[str] | None = None, err: IO[str] | None = None) -> None:
        self.live = live
        """a person looks on, on a terminal"""
        self._out = Console(file=out or sys.stdout, highlight=False, markup=False, soft_wrap=True)
        plain = Console(file=err or sys.stderr, highlight=False, markup=False, soft_wrap=True)
        self._err = self._out if live else plain
        self._message: Behind | None = None
        self._unfold = Unfold()
        self._counting, self._counted = False, 0.0
        self.hidden: list[str] = []
        """all lines of what was last shown, where some of them were cut"""
        self._unnamed: list[str] = []
        """all paths a command changed, where some of them were not named"""

    # ── the reply as it is written ──────────────────────────────────────────────────────────────

    def begin_reply(self) -> None:
        self._unfold, self._message = Unfold(), None

    def hear(self, piece: str) -> None:
        """One more piece of the reply."""
        said = self._unfold.feed(piece)
        if said and self.live:
            self._uncount()
            self._message = self._message or self._behind("│ ", "", "bold magenta")
            self._message.feed(said)
        elif self.live and self._message is None:
            self._count()

    def end_reply(self) -> None:
        self._uncount()
        if self._message is not None:
            self._message.end()
            self._message = None

    def answer(self, message: str) -> None:
        """A message that was not shown while it was written."""
        if not self.live:
            text = neutral(message)
            self._out.file.write(text if text.endswith("\n") else text + "\n")
            self._out.file.flush()
        elif self._unfold.kind != "MSG":
            block = self._behind("│ ", "", "bold magenta")
            block.feed(message)
            block.end()

    def _count(self) -> None:
        """A slow model shows that it is alive; the line is ours and goes away again."""
        if self._err.is_dumb_terminal or (self._counting and time.monotonic() < self._counted + 0.1):
            return
        self._counting, self._counted = True, time.monotonic()
        kind = {"CMD": "a command", "EDIT": "a file"}.get(self._unfold.kind, "…")
        self._err.file.write(f"\r\x1b[2m· {kind} {self._unfold.length:,}\x1b[0m\x1b[K")
        self._err.file.flush()

    def _uncount(self) -> None:
        if self._counting:
            self._err.file.write("\r\x1b[K")
            self._counting = False

    # ── what is done ────────────────────────────────────────────────────────────────────────────

    def command(self, command: str) -> None:
        lines = command.split("\n")
        self.hidden = lines if len(lines) > OUTPUT_LINES or len(command) > LONG_LINE else []
        self._unnamed = []
        self._block("$ ", command, "bold", limit=OUTPUT_LINES)

    def result(self, result: Result) -> None:
        raw = result.stdout + result.stderr
        if no_text(raw):
            size = f"{'more than ' * result.truncated}{len(raw):,} bytes"
            self._line("┊ ", f"{one_line(raw[:16])} … {size} that are no text", "dim")
        else:
            self._block("┊ ", result.output, "dim", limit=OUTPUT_LINES)
        if not result.ok:
            ended = f"exit {result.code}" if result.reason == "exit" else f"stopped: {result.reason}"
            self._line("┊ ", ended, "red")

    def edit(self, lines: list[str]) -> None:
        """A coloured diff; where it is cut, the cut says how much is missing."""
        cut = _cut(lines, DIFF_LINES)
        short = len(cut) == len(lines) and all(len(line) <= LONG_LINE for line in lines)
        self.hidden = [] if short and not self._unnamed else [*self._unnamed, *lines]
        self._unnamed = []
        for line in cut:
            self._line("± ", one_line(line, LONG_LINE), _DIFF.get(line[:1], ""))

    def all_of_it(self) -> None:
        """What was cut, whole."""
        for line in self.hidden:
            self._line("± ", line, _DIFF.get(line[:1], ""))

    def changes(self, changes: Sequence[Change], *, dry: bool) -> None:
        what = "would change" if dry else "changed"
        names = [(*_CHANGE.get(change.kind, ("?", "")), change) for change in changes]
        self._line("± ", f"{what} {counted(len(changes), 'path')}", "cyan")
        for mark, style, change in names[:OUTPUT_LINES]:
            size = f" ({change.size:,} bytes)" if change.size else ""
            self._line("± ", f"{mark} {one_line(change.path)}{size}", style)
        if len(names) > OUTPUT_LINES:
            self._line("± ", f"… and {len(names) - OUTPUT_LINES} more", "cyan")
            self._unnamed = [f"{mark} {one_line(change.path)}" for mark, _, change in names]

    def notice(self, text: str) -> None:
        self._line("· ", one_line(text, 600), "dim")

    def error(self, text: str) -> None:
        self._line("! ", one_line(text, 1000), "red")

    def say(self, text: str, style: str = "") -> None:
        """Our own words."""
        self._put(neutral(text) + "\n", style)

    def _line(self, bar: str, text: str, style: str) -> None:
        block = self._behind(bar, style, style)
        block.feed(text)
        block.end(always=True)

    def _block(self, bar: str, text: str, style: str, *, limit: int) -> None:
        lines = neutral(text).rstrip("\n").split("\n") if text.strip("\n") else []
        for line in _cut(lines, limit):
            self._line(bar, one_line(line, 8 * LONG_LINE) if len(line) > 8 * LONG_LINE else line, style)

    def _behind(self, bar: str, style: str, bar_style: str) -> Behind:
        width = self._err.width if self.live else 0
        return Behind(self, bar, style, bar_style, width)

    def _put(self, text: str, style: str = "") -> None:
        if self._err.is_terminal:
            self._err.print(Text(text, style=style), end="")
        else:
            self._err.file.write(text)
            self._err.file.flush()


class Behind:
    """Text that grows, wrapped by us: each line on the screen starts with the bar."""

    def __init__(self, screen: Screen, bar: str, style: str, bar_style: str, width: int) -> None:
        self.screen, self.bar, self.style, self.bar_style = screen, bar, style, bar_style
        self.room = max(width - len(bar) - 1, 8) if width else 1 << 30
        self._column, self._word, self._wide, self._count = -1, "", 0, 0
        self._ready = ""

    def feed(self, text: str) -> None:
        room = LONGEST - self._count
        self._count += len(text)
        for char in neutral(text[: max(room, 0)]):
            if char == "\n":
                self._place()
                self._break()
            elif char in " \t":
                self._place()
                wanted = 1 if char == " " else 4 - max(self._column, 0) % 4
                gap = min(wanted, self.room - max(self._column, 0))
                self._add(" " * gap, gap)
            else:
                self._letter(char)
        self._flush()

    def end(self, *, always: bool = False) -> None:
        """The last word, and the end of the line."""
        self._place()
        if self._column >= 0 or always:
            self._open()
            self._break()
        self._flush()
        if self._count > LONGEST:
            self.screen._put(f"· {self._count - LONGEST:,} more characters are in the trace\n", "dim")

    def _letter(self, char: str) -> None:
        wide = get_character_cell_size(char)
        if self._wide + wide > self.room:
            self._place()
            self._break()
        self._word += char
        self._wide += wide

    def _place(self) -> None:
        """Put the held word where it fits."""
        if self._word:
            if self._column > 0 and self._column + self._wide > self.room:
                self._break()
            self._add(self._word, self._wide)
            self._word, self._wide = "", 0

    def _add(self, text: str, wide: int) -> None:
        self._open()
        self._ready += text
        self._column += wide

    def _open(self) -> None:
        if self._column < 0:
            self._flush()
            self.screen._put(self.bar, self.bar_style)
            self._column = 0

    def _break(self) -> None:
        self._open()
        self._ready += "\n"
        self._column = -1
        self._flush()

    def _flush(self) -> None:
        if self._ready:
            self.screen._put(self._ready, self.style)
            self._ready = ""


def _cut(lines: list[str], most: int) -> list[str]:
    if len(lines) <= most:
        return lines
    head, tail = most * 2 // 3, most // 3
    return [*lines[:head], f"[{len(lines) - head - tail} lines not shown]", *lines[-tail:]]
