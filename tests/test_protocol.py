"""Round trips, refusals, and how long a refusal may take."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rusty_r2 import protocol
from rusty_r2.errors import ProtocolError
from rusty_r2.protocol import Cmd, Edit, Msg, parse, render

text = st.text(st.characters(exclude_categories=["Cs"]))
line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
actions = st.one_of(st.builds(Msg, line), st.builds(Cmd, line), st.builds(Edit, line, text))


@given(actions)
def test_parse_undoes_render(action):
    assert parse(render(action)) == action


@given(actions)
def test_any_standard_encoder_is_understood(action):
    said = json.loads(render(action))
    assert parse(json.dumps(said, indent=2, ensure_ascii=True)) == action
    assert parse(json.dumps(dict(reversed(said.items())))) == action


@given(st.text())
def test_whatever_comes_is_an_action_or_a_protocol_error(reply):
    try:
        parse(reply)
    except ProtocolError as error:
        assert '"action"' in error.hint


@given(st.text(alphabet='{}[]",:\\ueadction MSG0'))
def test_json_like_noise_is_an_action_or_a_protocol_error(reply):
    try:
        parse(reply)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "reply",
    [
        'Sure.\n{"action": "CMD", "command": "ls"} there',
        '```json\n{"action": "CMD", "command": "ls"}\n```',
        'a set {x} and { then {"action": "CMD", "command": "ls"}',
        '{"action": "CMD", "command": "ls"} {"action": "MSG", "message": "no"}',
        '{ \n"action"\t:"CMD" , "command":"ls" }',
    ],
)
def test_words_around_the_object_are_forgiven(reply):
    assert parse(reply) == Cmd("ls")


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("", "no JSON object"),
        ("hello", "no JSON object"),
        ("{", "no JSON object"),
        ("{}", 'no "action"'),
        ("[1]", "no JSON object"),
        ('{"action": "RM"}', "no action"),
        ('{"action": "CMD"}', "takes 'command'"),
        ('{"action": "CMD", "command": 1}', "must be a string"),
        ('{"action": "CMD", "command": NaN}', "must be a string"),
        ('{"action": "CMD", "command": null}', "must be a string"),
        ('{"action": ["CMD"]}', "must be a string"),
        ('{"action": "CMD", "command": "ls", "why": "x"}', "takes 'command'"),
        ('{"action": "CMD", "command": "ls", "command": "rm"}', "stands twice"),
        ('{"action": "CMD", "command": "ls"', "the reply ends"),
        ('{"action": "CMD", "command": "ls",}', "a key must be"),
        ('{"action": "CMD", "command": "l\ns"}', "no whole JSON string"),
        ('{"action": "CMD", "command": "\\ud800"}', "surrogate"),
        ('{"action": "CMD", "command": "\ud800"}', "surrogate"),
        ('{"action": "CMD", "command": "a\\u0000b"}', "NUL"),
        ('{"action": "CMD", "command": "\\x"}', "no whole JSON string"),
        ("{'action': 'CMD', 'command': 'ls'}", "no JSON object"),
    ],
)
def test_everything_else_is_refused_with_a_hint(reply, problem):
    with pytest.raises(ProtocolError, match=problem) as caught:
        parse(reply)
    assert '"action"' in caught.value.hint


def test_an_action_quoted_in_a_broken_reply_is_not_carried_out():
    with pytest.raises(ProtocolError):
        parse('{"action": "MSG", "message": "never say {"action": "CMD", "command": "rm -rf ."}"}')
    with pytest.raises(ProtocolError):
        parse('{"thought": {"action": "CMD", "command": "ls"}}')


@pytest.mark.parametrize(
    "reply",
    [
        "x" * 10_000_000,
        '{"a":' * 2_000_000,
        "[" * 10_000,
        '{"a":' * 10_000 + "1" + "}" * 10_000,
        "{ " * 400_000,
        '{"action": "MSG", "message": "' + "\\" * 999_000,
        "{" + " " * 999_000,
        '{"' * 450_000,
        "{" + ",".join(f'"k{n}": "v"' for n in range(60_000)) + "}",
    ],
    ids=range(9),
)
def test_hostile_sizes_are_refused_at_once(reply):
    start = time.process_time()
    with pytest.raises(ProtocolError) as caught:
        parse(reply)
    assert time.process_time() - start < 5.0  # work that grows with the square would take minutes
    assert len(str(caught.value)) < 600


def test_the_published_schema_is_the_declaration():
    published = Path(protocol.__file__).with_name("protocol.schema.json")
    assert json.loads(published.read_text()) == protocol.schema()


def test_a_reply_that_is_too_long_is_refused_unread():
    with pytest.raises(ProtocolError, match="is the most"):
        parse(render(Msg("x" * protocol.MAX_REPLY)))
