# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a terminal would obey is shown, not obeyed."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from rusty_r2.gym.safetext import neutral, one_line


def harmless(text: str) -> bool:
    return all(
        c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for c in text
    )


@given(st.binary())
def test_any_bytes_become_harmless_text(data: bytes) -> None:
    assert harmless(neutral(data))
    neutral(data).encode()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_becomes_harmless(text: str) -> None:
    assert harmless(neutral(text))
    assert "\n" not in one_line(text) and len(one_line(text, 40)) < 100


@given(st.text(st.sampled_from("abc äöü 漢字 🙂\n\t")))
def test_honest_text_stays(text: str) -> None:
    assert neutral(text.encode()) == text


def test_known_tricks_are_spelt_out() -> None:
    assert neutral(b"\x1b[2J\x1b]52;c;ZXZpbA==\x07") == "␛[2J␛]52;c;ZXZpbA==␇"
    assert neutral("rm \u202egpj.x".encode()) == "rm \\u202egpj.x"
    assert neutral(b"safe\rrm -rf /\x08") == "safe␍rm -rf /␈"
    assert neutral(b"\x9b31m\xff\x00") == "\\x9b31m\\xff␀"
    assert neutral(b"dos\r\n") == "dos\n"
    assert one_line("a" * 5000, 20) == "aaaaaaaaaa [... 4980 characters cut ...] aaaaaaaaaa"
