"""What is typed at the prompt and is no request."""

import io

import pytest

from rusty_r2.agent.commands import carry_out
from rusty_r2.agent.policy import ScriptedPolicy
from rusty_r2.agent.screen import Screen
from rusty_r2.agent.terminal import Talk
from rusty_r2.agent.workspace import Workspace
from rusty_r2.protocol import Msg, render


@pytest.fixture
def talk(folder):
    """A conversation with a mind that has one answer, and what a person reads of it."""
    out, err = io.StringIO(), io.StringIO()
    with Workspace(folder) as place:
        talk = Talk(ScriptedPolicy(render(Msg("Answered."))), place, Screen(live=False, out=out, err=err))
        yield talk, out, err


@pytest.mark.parametrize("letter", ["y", "n", " Y ", "a"])
def test_an_answer_without_a_question_is_no_request(talk, letter):
    talk, out, err = talk
    assert carry_out(talk, letter)
    assert talk.last is None and out.getvalue() == ""
    assert err.getvalue().startswith("! no question is open")


def test_words_that_only_begin_like_an_answer_are_a_request(talk):
    talk, out, _ = talk
    assert carry_out(talk, "yes")
    assert talk.last.user_query == "yes" and out.getvalue() == "Answered.\n"
