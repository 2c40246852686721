# SPDX-License-Identifier: AGPL-3.0-or-later
"""A reply as it is being written: the message inside the JSON, letter by letter, before its end is known.

    unfold = Unfold()
    for piece in pieces:
        text = unfold.feed(piece)        # what of the message is new; "" for a command or an edit

For showing only. What is done comes from `protocol.parse` of the whole reply, and from nothing here.
"""

from __future__ import annotations

import re

_OPENING = re.compile(r'\{\s*(?=["}])')
_HEAD = re.compile(r'\s*"action"\s*:\s*"([A-Z]{1,8})"\s*,\s*"([a-z]{1,8})"\s*:\s*"')
_MARK = re.compile(r'["\\]')
_PLAIN = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
LONGEST_HEAD = 4096
"""characters before the first value; a reply that rambles longer is shown when it is whole"""


class Unfold:
    """One reply."""

    def __init__(self) -> None:
        self.kind = ""
        """MSG, CMD or EDIT as soon as it is known"""
        self.length = 0
        """characters that came"""
        self.done = False
        """the first value is whole"""
        self._held = ""

    def feed(self, piece: str) -> str:
        """The new part of the message."""
        self.length += len(piece)
        if self.done:
            return ""
        self._held += piece
        if not self.kind and not self._read_head():
            return ""
        said = self._read_string()
        return said if self.kind == "MSG" else ""

    def _read_head(self) -> bool:
        opening = _OPENING.search(self._held)
        head = _HEAD.match(self._held, opening.end()) if opening else None
        if head is None:
            self.done = len(self._held) > LONGEST_HEAD
            return False
        self.kind, self._held = head[1], self._held[head.end() :]
        return True

    def _read_string(self) -> str:
        """Take from what is held all whole characters of the string, up to its closing quote."""
        said: list[str] = []
        at, text = 0, self._held
        while at < len(text) and not self.done:
            mark = _MARK.search(text, at)
            stop = mark.start() if mark else len(text)
            said.append(text[at:stop])
            at = stop
            if at == len(text):
                break
            if text[at] == '"':
                self.done = True
                break
            step, letter = _escape(text, at)
            if not step:
                break
            said.append(letter)
            at += step
        self._held = text[at:]
        return "".join(said)


def _escape(text: str, at: int) -> tuple[int, str]:
    """(length, letter) of the escape at `at`; length 0 where its end has not come yet."""
    mark = text[at + 1 : at + 2]
    if mark != "u":
        return (2, _PLAIN.get(mark, mark)) if mark else (0, "")
    first = _hex(text, at)
    if first is None or not 0xD800 <= first < 0xDC00:
        return (6, chr(first)) if first is not None else (0 if len(text) < at + 6 else 2, "")
    if text[at + 6 : at + 8] == "\\u"[: len(text) - at - 6] and len(text) < at + 12:
        return 0, ""
    second = _hex(text, at + 6)
    if second is not None and 0xDC00 <= second < 0xE000:
        return 12, chr(0x10000 + ((first - 0xD800) << 10) + second - 0xDC00)
    return 6, chr(first)


def _hex(text: str, at: int) -> int | None:
    digits = text[at + 2 : at + 6]
    known = text[at : at + 2] == "\\u" and re.fullmatch("[0-9a-fA-F]{4}", digits)
    return int(digits, 16) if known else None
