# SPDX-License-Identifier: AGPL-3.0-or-later
"""Lessons and drills: what is asked for can be copied from the request, rows come out."""

from __future__ import annotations

import re

from rusty_r2.data.lessons import Namer, lessons, vocabulary
from rusty_r2.lm.tokenizer import Tokenizer
from rusty_r2.protocol import Cmd, Edit, Msg, parse

WORDS = ("quark", "lantern", "Vortex", "mango", "pickle")


def test_the_same_seed_gives_the_same_lessons() -> None:
    assert list(lessons(WORDS, 50, seed=3)) == list(lessons(WORDS, 50, seed=3))
    assert list(lessons(WORDS, 50, seed=3)) != list(lessons(WORDS, 50, seed=4))


def test_every_reply_is_an_action_and_its_names_stand_in_what_was_read() -> None:
    for episode in lessons(WORDS, 400):
        read = ""
        for role, text, *_ in episode.turns[1:]:
            if role != "assistant":
                read += text.lower()
                continue
            action = parse(text)
            said = {Cmd: "command", Msg: "message", Edit: "content"}[type(action)]
            for word in re.findall("|".join(WORDS), str(getattr(action, said)).lower(), re.IGNORECASE):
                assert word in read, (episode.turns[1:], word)


def test_lessons_show_every_kind_of_action() -> None:
    kinds = {episode.kind for episode in lessons(WORDS, 200)}
    assert kinds == {"CMD", "MSG", "EDIT", "STEPS", "REFUSE"}


def test_vocabulary_is_the_words_of_the_tokenizer() -> None:
    words = vocabulary(Tokenizer.load())
    assert len(words) > 10_000 and words == sorted(set(words))
    assert all(word.isalpha() and word.isascii() for word in words)


def test_names_differ_from_draw_to_draw() -> None:
    import random

    namer = Namer(WORDS, random.Random(0))
    assert len({namer["file1"] for _ in range(100)}) > 50
