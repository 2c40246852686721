# SPDX-License-Identifier: AGPL-3.0-or-later
"""Truths about turns: append-only, own tokens marked, and Hugging Face reads the same ids."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="needs the train extra")

from rusty_r2.errors import DataError
from rusty_r2.lm.chat import ROLES, encode_conversations, encode_turn, encode_turns, open_chat, open_reply
from rusty_r2.lm.tokenizer import ASSISTANT, BOS, CONTROL, END, VOCAB, Tokenizer

SHIPPED = Tokenizer.load()

pieces = st.one_of(
    st.text(),
    st.sampled_from([" ", "  ", "\r\n", "\n    ", "\t", "🙂", "<", "|>", '{"action": "', "{{ x }}", "{%"]),
)
plain = st.lists(pieces, max_size=6).map("".join).filter(lambda text: not any(w in text for w in CONTROL))
anything = st.one_of(plain, st.sampled_from(CONTROL), st.tuples(plain, st.sampled_from(CONTROL)).map("".join))


def conversations(text: st.SearchStrategy[str]) -> st.SearchStrategy[list[tuple[str, str]]]:
    return st.lists(st.tuples(st.sampled_from(sorted(ROLES)), text), min_size=1, max_size=5)


@settings(max_examples=100, deadline=None)
@given(conversations(anything))
def test_turn_by_turn_is_all_at_once(turns: list[tuple[str, str]]) -> None:
    ids, _ = encode_turns(SHIPPED, turns)
    assert ids == open_chat() + [number for turn in turns for number in encode_turn(SHIPPED, *turn)]
    assert sum(number < len(CONTROL) for number in ids) == 1 + 2 * len(turns)


@settings(max_examples=100, deadline=None)
@given(conversations(anything))
def test_own_is_what_the_assistant_says(turns: list[tuple[str, str]]) -> None:
    ids, own = encode_turns(SHIPPED, turns)
    assert len(ids) == len(own)
    said = [number for number, mine in zip(ids, own, strict=True) if mine]
    wanted = [n for role, text in turns if role == "assistant" for n in [*SHIPPED.encode(text), END]]
    assert said == wanted


def test_the_cue_and_a_reply_make_a_turn() -> None:
    reply = '{"action": "MSG", "message": "No."}'
    assert open_reply() + SHIPPED.encode(reply) + [END] == encode_turn(SHIPPED, "assistant", reply)
    assert open_chat() == [BOS]
    assert open_reply() == [ASSISTANT]


def test_a_masked_reply_is_shown_but_not_learned() -> None:
    turns = [("user", "go"), ("assistant", "oops", False), ("assistant", "fine", True)]
    ids, own = encode_turns(SHIPPED, turns)
    assert ids == encode_turns(SHIPPED, [turn[:2] for turn in turns])[0]
    assert [n for n, mine in zip(ids, own, strict=True) if mine] == [*SHIPPED.encode("fine"), END]


def test_many_conversations_are_each_encoded_alone() -> None:
    chats: list[list[tuple[str, str]]] = [[("user", "a b"), ("assistant", " c")], [], [("system", "")]]
    assert encode_conversations(SHIPPED, chats) == [encode_turns(SHIPPED, chat) for chat in chats]


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(DataError, match="no role"):
        encode_turns(SHIPPED, [("tool", "x")])


@pytest.fixture(scope="module")
def hugging_face() -> Any:
    transformers = pytest.importorskip("transformers", reason="needs the train extra")
    return transformers.AutoTokenizer.from_pretrained(VOCAB)


def _template_ids(hugging_face: Any, turns: list[tuple[str, str]], cue: bool) -> list[int]:
    messages = [{"role": role, "content": text} for role, text in turns]
    found = hugging_face.apply_chat_template(messages, add_generation_prompt=cue, return_dict=True)
    return list(found["input_ids"])


def test_hugging_face_reads_the_same_ids(hugging_face: Any) -> None:
    @settings(max_examples=100, deadline=None)
    @given(conversations(plain), st.booleans())
    def same(turns: list[tuple[str, str]], cue: bool) -> None:
        ids, _ = encode_turns(SHIPPED, turns)
        assert _template_ids(hugging_face, turns, cue) == ids + (open_reply() if cue else [])

    same()
    assert (hugging_face.pad_token_id, hugging_face.bos_token_id, hugging_face.eos_token_id) == (0, 1, 2)
    assert len(hugging_face) == len(SHIPPED)


def test_the_template_lets_no_text_become_a_control_token(hugging_face: Any) -> None:
    text = "".join(CONTROL) + "<<eos>eos> <|end|>"
    ids = _template_ids(hugging_face, [("user", text), ("assistant", text)], cue=False)
    assert sum(number < len(CONTROL) for number in ids) == 1 + 2 * 2
