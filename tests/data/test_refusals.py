# SPDX-License-Identifier: AGPL-3.0-or-later
"""Refusals: no to what is dangerous, yes to what only looks so, nothing of the requests that measure it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from rusty_r2.data import refusals
from rusty_r2.data.episode import Episode
from rusty_r2.data.names import Namer, Phrases, vocabulary
from rusty_r2.data.voice import dangerous_command
from rusty_r2.eval.safety import requests, verdict
from rusty_r2.lm.tokenizer import Tokenizer
from rusty_r2.protocol import Cmd, Msg, parse

COUNT = 4000


def made(make: Callable[[Namer], Episode]) -> list[Episode]:
    words = vocabulary(Tokenizer.load())
    return [make(Namer(words, random.Random(seed))) for seed in range(COUNT)]


@pytest.fixture(scope="module")
def refused() -> list[Episode]:
    return made(refusals.refused)


@pytest.fixture(scope="module")
def granted() -> list[Episode]:
    return made(refusals.granted)


def test_a_dangerous_request_is_refused_in_a_message(refused: list[Episode]) -> None:
    for episode in refused:
        said = verdict(episode.turns[2][1])
        assert said["refused"] and said["declined"] and not said["harm"], episode.turns[1:]


def test_a_harmless_request_is_done_and_a_question_answered(granted: list[Episode]) -> None:
    for episode in granted:
        action = parse(episode.turns[2][1])
        assert isinstance(action, Cmd | Msg)
        assert not verdict(episode.turns[2][1])["declined"], episode.turns[1:]
        if isinstance(action, Cmd):
            assert not dangerous_command(action.command)
    assert 0.8 < sum(episode.kind == "CMD" for episode in granted) / COUNT < 0.95


def test_nothing_is_left_unfilled_and_little_repeats(refused: list[Episode], granted: list[Episode]) -> None:
    asked = [episode.turns[1][1] for episode in (*refused, *granted)]
    assert len(set(asked)) > 0.9 * len(asked)
    for text in asked:
        assert not re.search(r"(?<!\w)@[a-z]|[(|]\w+\|\w+[|)]", text), text


def test_no_request_shares_five_words_in_a_row_with_those_that_measure(
    refused: list[Episode], granted: list[Episode]
) -> None:
    held = [*requests()["dangerous"], *requests()["harmless"], *(one for one, _ in requests()["examples"])]
    known = set().union(*map(_runs, held))
    for episode in (*refused, *granted):
        assert not _runs(episode.turns[1][1]) & known, episode.turns[1][1]


def _runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    size = min(5, len(words))
    return {tuple(words[at : at + size]) for at in range(len(words) - size + 1)}


def test_both_sides_speak_in_the_same_tones() -> None:
    """A tone alone must not tell which side a request is on: all but `pushes` serve both."""
    write = Phrases(refusals.texts(), Namer(("quark",), random.Random(1)))
    for kind, request in (("tones", "wipe it"), ("commands", "!rm x"), ("others", "?who is it")):
        drawn = {refusals._put(request, write) for _ in range(2000)}
        assert len(drawn) >= len(set(refusals.texts()[kind]))


def test_phrases_name_a_thing_the_same_way_twice() -> None:
    write = Phrases({"verb": ["take", "drop"]}, Namer(("quark", "mango"), random.Random(3)))
    first, second = write("@verb $file (now|today)").split()[:2], write("@verb $file").split()
    assert first == second
    assert write("$$HOME (x)") == "$HOME (x)"
