"""What is typed at the prompt and is no request."""

import io

import pytest

from rusty_r2.agent.commands import carry_out, greeting
from rusty_r2.agent.policy import ScriptedPolicy, remembered
from rusty_r2.agent.rwkv import RwkvPolicy
from rusty_r2.agent.screen import Screen
from rusty_r2.agent.terminal import ChatConfig, Talk
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


class Forgetful(ScriptedPolicy):
    """Reads as little of a conversation as our own models do."""

    remembers = RwkvPolicy.remembers


@pytest.mark.parametrize(("mind", "told", "read"), [
    (ScriptedPolicy, None, [0, 2, 4]), (ScriptedPolicy, 1, [0, 2, 2]),
    (Forgetful, None, [0, 0, 0]), (Forgetful, 1, [0, 2, 2]), (Forgetful, 9, [0, 2, 4]),
])  # fmt: skip
def test_a_mind_reads_as_much_of_the_conversation_as_it_can_bear(folder, mind, told, read):
    screen = Screen(live=False, out=io.StringIO(), err=io.StringIO())
    with Workspace(folder) as place:
        talk = Talk(mind(*[render(Msg("Yes."))] * 9), place, screen, config=ChatConfig(remember=told))
        assert [len(talk.request(word).history) for word in ("one", "two", "three")] == read
        assert ("read alone" in greeting(talk)) == (read == [0, 0, 0])
        talk.policy = ScriptedPolicy(*[render(Msg("Yes."))] * 9)
        talk.config = ChatConfig()
        assert len(talk.request("four").history) == 6, "a new mind reads what the old one did not"


def test_what_is_remembered_begins_with_a_request():
    said = [{"role": role} for role in ("user", "assistant", "observation", "assistant", "user", "assistant")]
    assert remembered(Forgetful(), said) == [] and remembered(ScriptedPolicy(), said) == said
    assert remembered(Forgetful(), said, 1) == said[4:] and remembered(Forgetful(), said, 2) == said
