# SPDX-License-Identifier: AGPL-3.0-or-later
"""Rows are learned as they are heard in use."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from rusty_r2.agent.prompt import Turn
from rusty_r2.agent.speech import messages
from rusty_r2.train.encoded import heard

BORROWED = SimpleNamespace(chat_template="{{ messages }}")
OURS = SimpleNamespace(chat_template="{{ messages }}<|observation|>")
ROLES = st.sampled_from(["system", "user", "assistant", "observation"])
TEXTS = st.text(max_size=5) | st.just("<|im_end|>")


@given(st.lists(st.tuples(ROLES, TEXTS), max_size=8))
def test_a_borrowed_model_hears_a_row_as_it_hears_a_conversation(said):
    row = {"messages": [{"role": role, "content": text} for role, text in said]}
    before = {"messages": [dict(turn) for turn in row["messages"]]}
    assert heard(BORROWED, row)["messages"] == messages([Turn(role, text) for role, text in said])
    assert row == before and heard(OURS, row) == row


def test_a_turn_that_is_more_than_words_stands_alone():
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "ls"}]}
    row = {"prompt": [{"role": "user", "content": "a"}], "completion": [call, call], "label": True}
    assert heard(BORROWED, row) == row
