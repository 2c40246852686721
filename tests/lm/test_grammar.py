# SPDX-License-Identifier: AGPL-3.0-or-later
"""Nothing but actions can be said: every constrained answer parses, and every action can be said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llguidance")

from rusty_r2.errors import ProtocolError
from rusty_r2.lm.engine import Engine
from rusty_r2.lm.grammar import ActionGrammar, lark
from rusty_r2.lm.sampling import Sampling, allowed
from rusty_r2.lm.shape import Shape, random_source
from rusty_r2.lm.tokenizer import ASSISTANT, BOS, CONTROL, END, VOCAB, Tokenizer
from rusty_r2.protocol import Cmd, Edit, Msg, parse, render, schema

if not (VOCAB / "tokenizer.json").is_file():
    pytest.skip("no tokenizer ships yet; to make one: rusty lm tokenizer", allow_module_level=True)

text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
actions = st.one_of(
    st.builds(Msg, text),
    st.builds(Cmd, text),
    st.builds(Edit, text, st.text(st.characters(exclude_categories=["Cs"]), max_size=60)),
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load()


@pytest.fixture(scope="module")
def grammar(tokenizer) -> ActionGrammar:
    return ActionGrammar(tokenizer)


def can(mask: np.ndarray, token: int) -> bool:
    return bool(mask[token // 32] >> token % 32 & 1)


def say(grammar: ActionGrammar, ids: list[int]) -> tuple[int, bool]:
    """How many of `ids` were forced, and whether they end the answer; fails where one is not allowed."""
    matcher, at, forced = grammar.start(), 0, 0
    while at < len(ids):
        words = matcher.forced()
        assert words == ids[at : at + len(words)], "a forced word is not the tokenizer's own"
        at, forced = at + len(words), forced + len(words)
        if at < len(ids):
            mask = matcher.mask()
            assert can(mask, ids[at])
            assert not any(can(mask, control) for control in range(len(CONTROL)))
            matcher.accept(ids[at])
            at += 1
    return forced, matcher.done


@settings(max_examples=60, deadline=None)
@given(actions)
def test_every_action_can_be_said_in_the_words_of_training(grammar, tokenizer, action):
    forced, done = say(grammar, tokenizer.encode(render(action)))
    assert done and forced >= 6


def test_at_the_end_only_end_is_left(grammar, tokenizer):
    matcher = grammar.start()
    for token in tokenizer.encode(render(Cmd("ls"))):
        matcher.accept(token)
    assert matcher.done and matcher.forced() == []
    assert np.flatnonzero(allowed(matcher.mask(), len(tokenizer))).tolist() == [END]
    matcher.accept(END)
    with pytest.raises(ProtocolError):
        matcher.accept(tokenizer.encode("x")[0])


@pytest.mark.parametrize(
    "wrong",
    [
        '{"action": "RUN", "command": "ls"}',
        '{"action": "CMD", "message": "ls"}',
        '{"action": "CMD", "command": 5}',
        '{"action": "CMD","command": "ls"}',
        '{"action": "CMD", "command": "\\ud800"}',
        '{"action": "CMD", "command": "\\u0000"}',
        'Sure! {"action": "MSG", "message": ""}',
        "[]",
    ],
)
def test_what_is_no_action_cannot_be_said(grammar, tokenizer, wrong):
    matcher = grammar.start()
    with pytest.raises(ProtocolError):
        for token in tokenizer.encode(wrong):
            matcher.accept(token)


def test_a_matcher_forks(grammar, tokenizer):
    matcher = grammar.start()
    matcher.forced()
    other = matcher.copy()
    matcher.accept(tokenizer.encode('"CMD')[-1])
    assert can(other.mask(), tokenizer.encode('"MSG')[-1])


@pytest.mark.parametrize("seed", range(3))
def test_a_model_of_noise_says_only_actions(grammar, tokenizer, seed):
    """Random weights, hot sampling, batches: what ends parses, and what does not was cut off by the limit."""
    shape = Shape(len(tokenizer), 32, 64, 128, 1)
    source = random_source(shape, seed)
    quotes = [n for n, word in enumerate(tokenizer.token_bytes) if b'"' in word]
    source.arrays["lm_head.weight"][quotes] += 0.25 * np.sign(source.arrays["lm_head.weight"][quotes].sum(0))
    engine = Engine.build(source, weights="int8", threads=1)
    rows = 12
    sampling = Sampling(temperature=1.5, seed=100 * seed)
    found = engine.generate_batch(
        [[BOS, 300 + number, ASSISTANT] for number in range(rows)],
        sampling=sampling,
        max_new_tokens=120,
        grammar=grammar,
    )
    ended = [c for c in found if c.reason != "length"]
    assert ended, "nothing ended: the test proves nothing"
    for completion in ended:
        action = parse(tokenizer.decode(completion.tokens))
        assert not any(token < len(CONTROL) for token in completion.tokens)
        assert render(action)
    for completion in found:
        assert (
            len(completion.tokens) == len(completion.logp) == len(completion.forced) == len(completion.values)
        )
        assert any(completion.forced)
        assert all(p == 0 for p, forced in zip(completion.logp, completion.forced, strict=True) if forced)
        assert all(p <= 0 for p in completion.logp)
    alone = engine.generate_batch(
        [[BOS, 305, ASSISTANT]],
        sampling=sampling,
        max_new_tokens=120,
        grammar=grammar,
        seeds=[100 * seed + 5],
    )
    assert alone[0].tokens == found[5].tokens and alone[0].logp == found[5].logp


def test_the_grammar_is_made_from_the_schema():
    assert lark(schema()).count("|") >= 2 and '\\"EDIT\\"' in lark(schema())
