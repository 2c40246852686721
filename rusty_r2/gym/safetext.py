# SPDX-License-Identifier: AGPL-3.0-or-later
"""Bytes from a payload become text that is safe to show to a person.

A terminal obeys what it prints: escape sequences move the cursor, set the title or the clipboard,
carriage returns and bidirectional marks hide words. `neutral` makes all of that visible instead of
active. Not for HTML; the page escapes.
"""

from __future__ import annotations

import unicodedata

_INVISIBLE = {"Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def neutral(data: bytes | str) -> str:
    """Newlines and tabs stay; every other control, invisible or invalid character is spelt out."""
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    text = text.replace("\r\n", "\n")
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(char: str) -> str:
    code = ord(char)
    if char in "\n\t":
        return char
    if code < 32:
        return chr(0x2400 + code)
    if code == 127:
        return "\u2421"
    if (
        0x80 <= code < 0xA0
        or unicodedata.category(char) in _INVISIBLE
        or code in (0x115F, 0x1160, 0x3164, 0xFFA0)
    ):
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
    return char


def one_line(data: bytes | str, width: int = 200) -> str:
    """For prompts and logs: `neutral`, newlines spelt out, the middle cut with its length named."""
    text = neutral(data).replace("\n", "\\n").replace("\t", "\\t")
    if len(text) <= width:
        return text
    half = width // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters cut ...] {text[-half:]}"


def no_text(data: bytes) -> bool:
    """Whether more than one in ten of the first characters are controls, or bytes that are no UTF-8."""
    text = data[:4096].decode("utf-8", "surrogateescape")
    odd = sum(char not in "\n\t\r\x1b\b" and unicodedata.category(char) in ("Cc", "Cs") for char in text)
    return odd > max(8, len(text) / 10)
