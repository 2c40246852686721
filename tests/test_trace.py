"""Round trips, unknown fields, ids, and secrets that stay outside every part of a trace."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rusty_r2.errors import TraceError
from rusty_r2.protocol import Cmd, Msg, render
from rusty_r2.redact import redact_all
from rusty_r2.trace import ExecutionTrace, ReasoningStep, Step, ToolCallTrace, new_id

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
json_data = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
traces = st.builds(
    ExecutionTrace,
    session_id=text,
    user_query=text,
    final_response=text,
    tool_calls=st.lists(
        st.builds(
            ToolCallTrace,
            text,
            st.dictionaries(text, json_data, max_size=2),
            json_data,
            st.booleans(),
            st.floats(0, 9),
        ),
        max_size=2,
    ),
    reasoning_steps=st.lists(st.builds(ReasoningStep, text, text, st.floats(0, 1)), max_size=2),
    steps=st.lists(
        st.builds(Step, text, text, st.booleans(), token_ids=st.lists(st.integers(0, 23999))), max_size=2
    ),
    label=st.none() | st.booleans(),
    reward_score=st.none() | st.floats(-1, 1),
    sampling=st.dictionaries(text, json_data, max_size=2),
)


@given(traces)
def test_json_round_trip(trace):
    assert ExecutionTrace.from_dict(json.loads(json.dumps(trace.to_dict()))) == trace


@given(st.dictionaries(text.map("x_".__add__), json_data, max_size=3))
def test_unknown_fields_pass_through_and_the_input_is_not_changed(unknown):
    data = {"trace_id": "a", "user_query": "q", **unknown}
    before = json.dumps(data)
    assert {**ExecutionTrace.from_dict(data).to_dict()}.items() >= data.items()
    assert json.dumps(data) == before


CALL = {"tool_name": "t", "arguments": {}, "result": None, "success": True, "duration_ms": 1}


def test_a_tools_result_is_whatever_it_said():
    for result in (None, True, 3, [1], {"a": 1}, "x"):
        found = ExecutionTrace.from_dict({"tool_calls": [{**CALL, "result": result, "error": None}]})
        assert found.tool_calls[0].result == result


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("user_query", 3),
        ("label", "yes"),
        ("tool_calls", {}),
        ("tool_calls", [1]),
        ("steps", [{"ok": True}]),
        ("total_cost", "x"),
        ("history", ["hello"]),
        ("steps", [{"reply": 3}]),
        ("steps", [{"reply": "r", "ok": "yes"}]),
        ("steps", [{"reply": "r", "token_ids": ["1"]}]),
        ("steps", [{"reply": "r", "token_ids": [True]}]),
        ("steps", [{"reply": "r", "logprobs": 0.5}]),
        ("reasoning_steps", [{"step_type": "t", "content": None}]),
        ("tool_calls", [{**CALL, "arguments": "rm"}]),
        ("tool_calls", [{**CALL, "success": 1}]),
        ("tool_calls", [{**CALL, "duration_ms": True}]),
        ("tool_calls", [{**CALL, "duration_ms": 10**30}]),
        ("execution_duration_ms", 10**30),
        ("total_cost", float("nan")),
        ("total_tokens_in", -(2**63)),
    ],
)
def test_a_wrong_type_is_named(field, value):
    with pytest.raises(TraceError, match=field):
        ExecutionTrace.from_dict({field: value})


def test_ids_never_collide_and_sort_by_time():
    ids = [new_id() for _ in range(20_000)]
    assert len(set(ids)) == len(ids) and ids[0] < ids[-1]
    assert ExecutionTrace(user_query="same").trace_id != ExecutionTrace(user_query="same").trace_id


def test_a_trace_grows_and_derives_its_meaning():
    trace = (
        ExecutionTrace(user_query="q")
        .then(Step("uh", ok=False))
        .then(Step(render(Cmd("ls"))))
        .then(Step(render(Msg("ok"))))
    )
    assert [step.action for step in trace.steps] == [None, Cmd("ls"), Msg("ok")]
    assert trace.answer == "ok"


AWS, GITHUB, OPENAI = (
    "AKIA" + "Q3EXBMPL7JUZ5TKD",
    "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8",
    "sk-" + "proj-aB3dE5fG7hJ9kL2mN4pQ",
)


def test_redaction_reaches_every_part_and_drops_the_tokens_of_a_changed_reply():
    trace = ExecutionTrace(
        user_query=f"use {AWS}",
        tool_calls=[ToolCallTrace("sh", {"cmd": f"echo {OPENAI}"}, f"{GITHUB}", True, 1.0)],
        steps=[
            Step(f"say {AWS}", token_ids=[1, 2], logprobs=[-1.0, -2.0]),
            Step("clean", token_ids=[3], logprobs=[-1.0]),
        ],
    )
    clean = trace.redacted()
    assert not any(secret in json.dumps(clean.to_dict()) for secret in (AWS, OPENAI, GITHUB))
    assert clean.redactions == 4 and clean.trace_id == trace.trace_id
    assert clean.steps[0].token_ids == [] and clean.steps[1].token_ids == [3]


@pytest.mark.parametrize(
    ("data", "secret"),
    [
        ({"password": "hunter22-x"}, "hunter22"),
        ({"env": {"DB_PASSWORD": "hunter22-x"}}, "hunter22"),
        ({"clientSecret": "hunter22-x", "maxTokens": "12-34-56"}, "hunter22"),
        ({"headers": {"x-api-key": "0123456789abcdef"}}, "0123456789abcdef"),
        ({"Authorization": "dXNlcjpodW50ZXIyMg=="}, "dXNlcjpodW50ZXIyMg"),
        ({"Authorization": "Token 9944b09199c62bcf9418ad84"}, "9944b0"),
        ({"argv": ["mysql", "--password", "hunter22-x"]}, "hunter22"),
        ({"argv": ["/usr/bin/mysql", "-uroot", "-phunter22-x", "shop"]}, "hunter22"),
        ({"password": "hush"}, "hush"),
        ({"userPassword": "correct horse battery staple"}, "horse"),
        ({"headers": {"Cookie": "sid=hush; c=d"}}, "hush"),
        ({"Set-Cookie": "sid=hush; Path=/"}, "hush"),
        ({"argv": ["tool", "--db-password", "hush"]}, "hush"),
        ({"tokens": ["hunter22-x"], "token": ["hunter22-y"]}, "hunter22-y"),
    ],
)
def test_in_plain_data_the_key_or_the_flag_gives_a_secret_away(data, secret):
    clean, count = redact_all(data)
    assert count == 1 and secret not in json.dumps(clean)
    assert redact_all(clean) == (clean, 0)


def test_keys_that_only_sound_like_secrets_hide_nothing():
    data = {
        "max_tokens": "12-34-56",
        "tokenizer": "llama-3.2-1b",
        "secretary": "bob-the-2nd",
        "token": "none",
        "password": "<password>",
        "eos_token": "<|im_end|>",
        "new_password": ["This field is required."],
        "password_type": "string",
        "cookies": "accepted",
        "argv": ["tool", "--password", "--user", "bob"],
    }
    assert redact_all(data) == (data, 0)
