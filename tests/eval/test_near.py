"""Copies are found wherever they stand, however they are spaced; strangers are not."""

import random

import pytest

from rusty_r2.eval.near import LENGTH, copied, pieces


def prose(seed, words=400):
    rng = random.Random(seed)
    return " ".join("".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(words))


def test_a_share_is_what_one_document_holds_of_it():
    text = prose(1)
    half = text[: len(text) // 2]
    assert copied([text], [prose(2), prose(3)]) == [0.0]
    assert copied([text, prose(4)], [prose(2) + text + prose(3)]) == [1.0, 0.0]
    assert copied([text], [half]) == [pytest.approx(0.5, abs=0.1)]
    rest = text[len(text) // 2 :]
    assert copied([text], [half, rest]) == [pytest.approx(0.5, abs=0.1)], "one document, not all together"


def test_white_space_hides_no_copy():
    text = prose(5)
    assert copied([text], [text.replace(" ", "\n\t  ")]) == [1.0]


def test_two_held_out_texts_may_share_what_was_copied():
    text = prose(6)
    assert copied([text, text + prose(7, 30)], [text])[0] == 1.0
    assert copied([text, text + prose(7, 30)], [text])[1] > 0.8


@pytest.mark.parametrize("text", ["", "short", "x" * (LENGTH - 1)])
def test_texts_shorter_than_a_piece_are_never_copies(text):
    assert len(pieces(text)) == 0 and copied([text], [text]) == [0.0]


def test_nothing_held_out_reads_nothing():
    assert copied([], iter([])) == []
