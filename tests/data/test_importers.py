"""Logs of other programs become traces; what is broken is named by its line and the rest is read."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rusty_r2.data.importers import claude, codex, kinds, openai, otel, sharegpt
from rusty_r2.data.importers.lines import Reading
from rusty_r2.errors import DataError, RustyError
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace


def keep(path, records):
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n")
    return path


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather in Paris?"}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I need the tool.",
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
            },
            {"id": "b", "type": "function", "function": {"name": "time", "arguments": "not json"}},
        ],
    },
    {"role": "tool", "tool_call_id": "b", "content": "noon"},
    {"role": "tool", "tool_call_id": "a", "content": "rain"},
    {"role": "assistant", "content": "Rain, at noon.", "annotations": ["x"]},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "Sure."},
]


def check_weather(trace):
    assert trace.user_query == "Weather in Paris?" and trace.final_response == "Rain, at noon."
    assert [(call.tool_name, call.result, call.success) for call in trace.tool_calls] == [
        ("weather", "rain", True),
        ("time", "noon", True),
    ]
    assert trace.tool_calls[0].arguments == {"city": "Paris"}


def test_openai_messages(tmp_path):
    path = keep(tmp_path / "chats.jsonl", [{"messages": MESSAGES, "session_id": "s1", "source": "prod"}])
    reading = kinds.read(path)
    assert reading.kind == "openai" and reading.problems == []
    first, second = reading.traces
    check_weather(first)
    assert first.tool_calls[1].arguments == {"input": "not json"}
    assert first.system_prompt == "Be brief." and first.session_id == "s1"
    assert first.reasoning_steps[0].content == "I need the tool." and first.llm_calls_count == 2
    assert first.extra == {"source": "prod", "messages": [{"annotations": ["x"]}]}
    assert [turn["role"] for turn in second.history] == ["user", "assistant", "tool", "tool", "assistant"]
    assert second.history[1]["tool_calls"][0]["function"]["name"] == "weather"


def test_openai_requests_with_their_responses(tmp_path):
    record = {
        "request": {"model": "m", "messages": MESSAGES[:-1]},
        "response": {
            "model": "m-2026",
            "created": 1767348000,
            "choices": [{"message": {"role": "assistant", "content": "You are welcome."}}],
            "usage": {"prompt_tokens": 50, "completion_tokens": 5},
        },
        "latency": 3,
    }
    (trace,) = kinds.read(keep(tmp_path / "log.jsonl", [record])).traces
    assert trace.user_query == "Thanks" and trace.final_response == "You are welcome."
    assert (trace.total_tokens_in, trace.total_tokens_out, trace.llm_calls_count) == (50, 5, 1)
    assert (
        trace.model == "m-2026" and trace.timestamp.startswith("2026-01-02") and trace.extra == {"latency": 3}
    )


def test_a_whole_file_of_json(tmp_path):
    (tmp_path / "list.json").write_text(
        json.dumps([{"messages": MESSAGES}, {"messages": MESSAGES[6:]}], indent=1)
    )
    (tmp_path / "one.json").write_text(json.dumps(MESSAGES, indent=1))
    assert len(kinds.read(tmp_path / "list.json").traces) == 3
    assert len(kinds.read(tmp_path / "one.json").traces) == 2


SHARED = [
    {"from": "human", "value": "Weather in Paris?"},
    {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Paris"}}'},
    {"from": "observation", "value": "rain"},
    {"from": "function_call", "value": '{"name": "time", "arguments": {}}'},
    {"from": "observation", "value": "noon"},
    {"from": "gpt", "value": "Rain, at noon."},
]


def test_sharegpt(tmp_path):
    record = {"id": "c1", "system": "Be brief.", "conversations": SHARED, "tools": "[]"}
    reading = kinds.read(keep(tmp_path / "share.jsonl", [record]))
    (trace,) = reading.traces
    check_weather(trace)
    assert reading.kind == "sharegpt" and trace.session_id == "c1" and trace.extra == {"tools": "[]"}
    assert trace.system_prompt == "Be brief."


def test_bad_lines_are_named_and_skipped(tmp_path):
    good = {"messages": MESSAGES[6:]}
    bad = ["{broken", {"messages": [{"role": "alien"}]}, "[1, 2", {"messages": [3]}, {"other": 1}, "null"]
    reading = kinds.read(keep(tmp_path / "chats.jsonl", [good, *bad, good]))
    assert len(reading.traces) == 2
    assert [problem.split(": ")[0] for problem in sorted(reading.problems)] == [
        f"{tmp_path / 'chats.jsonl'}:{line}" for line in range(2, 8)
    ]
    assert "the role 'alien' is not known" in "\n".join(reading.problems)
    with pytest.raises(DataError, match="no conversation of a kind we know"):
        kinds.read(keep(tmp_path / "none.jsonl", [{"a": 1}]))
    with pytest.raises(DataError, match="cannot be read"):
        kinds.read(tmp_path / "missing.jsonl")


def line(kind, uuid, content, second=0, **more):
    message = more.pop("message", {})
    return {
        "type": kind,
        "uuid": uuid,
        "sessionId": "s1",
        "version": "2.0.14",
        "cwd": "/home/me/p",
        "isSidechain": False,
        "timestamp": f"2026-03-01T10:00:{second:02d}.000Z",
        "message": {"role": kind, "content": content, **message},
        **more,
    }


USAGE = {
    "input_tokens": 5,
    "cache_read_input_tokens": 100,
    "cache_creation_input_tokens": 20,
    "output_tokens": 30,
}
SPOKEN = {"id": "msg_1", "model": "claude-x", "usage": USAGE}
CLAUDE = [
    {"type": "summary", "summary": "Fixing a test", "leafUuid": "x"},
    line("user", "0", "Caveat: The messages below were generated by the user while running", isMeta=True),
    line("user", "1", "Fix the test", 1),
    line("assistant", "2", [{"type": "thinking", "thinking": "Look first."}], 2, message=SPOKEN),
    line("assistant", "3", [{"type": "text", "text": "I look."}], 3, message=SPOKEN),
    line(
        "assistant",
        "4",
        [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "pytest"}}],
        4,
        message=SPOKEN,
    ),
    line(
        "user",
        "5",
        [{"type": "tool_result", "tool_use_id": "t1", "content": "1 failed", "is_error": True}],
        6,
    ),
    {"type": "file-history-snapshot", "sessionId": "s1", "snapshot": {"a": 1}},
    line("user", "6", "do it quickly", 7, isSidechain=True, agentId="ab"),
    line(
        "assistant", "7", [{"type": "text", "text": "done by the other"}], 8, isSidechain=True, agentId="ab"
    ),
    line("assistant", "8", [{"type": "text", "text": "Fixed."}], 9, message={**SPOKEN, "id": "msg_2"}),
    line("user", "9", "Thanks", 10),
    line("assistant", "10", [{"type": "text", "text": "Sure."}], 11, message={**SPOKEN, "id": "msg_3"}),
]


def test_claude_code_sessions(tmp_path):
    reading = kinds.read(keep(tmp_path / "s1.jsonl", CLAUDE))
    assert reading.kind == "claude" and reading.problems == []
    first, second, side = sorted(reading.traces, key=lambda trace: (trace.agent_name, trace.timestamp))
    assert first.user_query == "Fix the test" and first.final_response == "Fixed."
    assert first.agent_name == "claude-code" and first.session_id == "s1" and first.model == "claude-x"
    (call,) = first.tool_calls
    assert (call.tool_name, call.arguments, call.success) == ("Bash", {"command": "pytest"}, False)
    assert call.error == "1 failed"
    assert (first.total_tokens_in, first.total_tokens_out, first.llm_calls_count) == (250, 60, 2)
    assert first.execution_duration_ms == 8000 and first.timestamp == "2026-03-01T10:00:01.000+00:00"
    assert [step.content for step in first.reasoning_steps] == ["Look first.", "I look."]
    assert first.extra["version"] == "2.0.14" and first.extra["claude"][0]["type"] == "file-history-snapshot"
    assert second.user_query == "Thanks" and second.total_tokens_out == 30
    assert (side.agent_name, side.user_query) == ("claude-code/ab", "do it quickly")


def test_versions_are_checked(tmp_path):
    future = {**line("user", "1", "hello"), "version": "9.0.0"}
    reading = kinds.read(keep(tmp_path / "s.jsonl", [*CLAUDE, future, [1]]))
    assert len(reading.traces) == 3
    assert reading.problems[0].endswith("Claude Code 9.0.0 is not known; up to 2 is")
    assert reading.problems[1].endswith("a line must be an object, not a list")
    meta = {"type": "session_meta", "payload": {"id": "x", "cli_version": "7.0.0"}}
    assert (
        "Codex 7.0.0 is not known" in kinds.read(keep(tmp_path / "c.jsonl", [meta, *CODEX[1:]])).problems[0]
    )
    spans = json.loads(json.dumps(SPANS).replace("schemas/1.37.0", "schemas/2.0.0"))
    assert "schemas/2.0.0 is not known" in kinds.read(keep(tmp_path / "o.json", [spans])).problems[0]


def item(payload, second=0, kind="response_item"):
    return {"timestamp": f"2026-03-01T10:00:{second:02d}.000Z", "type": kind, "payload": payload}


def said(role, words):
    part = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": part, "text": words}]}


CODEX = [
    item(
        {"id": "u1", "cwd": "/p", "cli_version": "0.65.0", "instructions": "You are Codex."},
        kind="session_meta",
    ),
    item(said("user", "<environment_context>\n<cwd>/p</cwd>")),
    item({"model": "gpt-x", "cwd": "/p"}, kind="turn_context"),
    item(said("user", "Fix the test"), 1),
    item({"type": "user_message", "message": "Fix the test"}, 1, "event_msg"),
    item(
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Run it."}],
            "encrypted_content": "x",
        },
        2,
    ),
    item(
        {"type": "function_call", "name": "shell", "arguments": '{"command": ["pytest"]}', "call_id": "c1"}, 3
    ),
    item(
        {"type": "token_count", "info": {"last_token_usage": {"input_tokens": 10, "output_tokens": 2}}},
        3,
        "event_msg",
    ),
    item(
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": json.dumps(
                {"output": "1 failed", "metadata": {"exit_code": 1, "duration_seconds": 0.5}}
            ),
        },
        4,
    ),
    item({"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c2"}, 5),
    item({"type": "custom_tool_call_output", "call_id": "c2", "output": "Exit code: 0\nOutput:\nok"}, 6),
    item({"type": "web_search_call", "query": "x"}, 6),
    item(said("assistant", "Fixed."), 7),
    item(
        {"type": "token_count", "info": {"last_token_usage": {"input_tokens": 20, "output_tokens": 4}}},
        7,
        "event_msg",
    ),
]


def test_codex_sessions(tmp_path):
    reading = kinds.read(keep(tmp_path / "rollout.jsonl", CODEX))
    assert reading.kind == "codex" and reading.problems == []
    (trace,) = reading.traces
    assert trace.user_query == "Fix the test" and trace.final_response == "Fixed."
    assert trace.session_id == "u1" and trace.model == "gpt-x" and trace.system_prompt == "You are Codex."
    shell, patch = trace.tool_calls
    assert (shell.tool_name, shell.arguments, shell.result) == ("shell", {"command": ["pytest"]}, "1 failed")
    assert (shell.success, shell.duration_ms) == (False, 500.0)
    assert patch.arguments == {"input": "*** Begin"} and patch.success
    assert (trace.total_tokens_in, trace.total_tokens_out, trace.llm_calls_count) == (30, 6, 2)
    assert trace.extra["cli_version"] == "0.65.0" and trace.extra["codex"][-1]["type"] == "web_search_call"
    assert [step.content for step in trace.reasoning_steps] == ["Run it."]


def test_older_codex_sessions_have_the_items_themselves(tmp_path):
    first = {"id": "u0", "timestamp": "2025-05-07T17:24:21.500Z", "instructions": None}
    bare = [record["payload"] for record in CODEX if record["type"] == "response_item"]
    (trace,) = kinds.read(keep(tmp_path / "old.jsonl", [first, {"record_type": "state"}, *bare])).traces
    assert trace.session_id == "u0" and trace.final_response == "Fixed." and len(trace.tool_calls) == 2


def attributes(**values):
    def typed(value):
        if isinstance(value, list):
            return {"arrayValue": {"values": [typed(item) for item in value]}}
        return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}

    return [{"key": key.replace("__", "."), "value": typed(value)} for key, value in values.items()]


def span(name, start, end, status=None, **values):
    nano = 1_767_348_000_000_000_000
    return {
        "traceId": "5b8e",
        "spanId": name,
        "name": name,
        "startTimeUnixNano": str(nano + start * 10**6),
        "endTimeUnixNano": str(nano + end * 10**6),
        "attributes": attributes(**values),
        "status": status or {},
    }


def parts(role, *given):
    return {"role": role, "parts": list(given)}


ASKED = [parts("user", {"type": "text", "content": "Weather in Paris?"})]
CALLED = parts(
    "assistant", {"type": "tool_call", "id": "a", "name": "weather", "arguments": {"city": "Paris"}}
)
ANSWERED = parts("tool", {"type": "tool_call_response", "id": "a", "response": "rain"})
FINAL = parts("assistant", {"type": "reasoning", "content": "Wet."}, {"type": "text", "content": "Rain."})
CHAT = {"gen_ai__operation__name": "chat", "gen_ai__request__model": "m", "gen_ai__conversation__id": "conv"}
SPANS = {
    "resourceSpans": [
        {
            "resource": {"attributes": attributes(service__name="weatherman")},
            "scopeSpans": [
                {
                    "schemaUrl": "https://opentelemetry.io/schemas/1.37.0",
                    "spans": [
                        span(
                            "chat 2",
                            30,
                            40,
                            **CHAT,
                            gen_ai__input__messages=json.dumps([*ASKED, CALLED, ANSWERED]),
                            gen_ai__output__messages=json.dumps([FINAL]),
                            gen_ai__usage__input_tokens=20,
                            gen_ai__usage__output_tokens=4,
                            gen_ai__response__finish_reasons=["stop"],
                        ),
                        span(
                            "chat 1",
                            0,
                            10,
                            **CHAT,
                            gen_ai__system_instructions=json.dumps(
                                [{"type": "text", "content": "Be brief."}]
                            ),
                            gen_ai__input__messages=json.dumps(ASKED),
                            gen_ai__output__messages=json.dumps([CALLED]),
                            gen_ai__usage__input_tokens=10,
                            gen_ai__usage__output_tokens=2,
                        ),
                        span(
                            "execute_tool",
                            10,
                            30,
                            {"code": 2, "message": "timeout"},
                            gen_ai__operation__name="execute_tool",
                            gen_ai__tool__name="weather",
                            gen_ai__tool__call__arguments='{"city": "Paris"}',
                            gen_ai__tool__call__result="rain",
                        ),
                    ],
                }
            ],
        }
    ]
}


def test_opentelemetry_spans(tmp_path):
    path = tmp_path / "spans.json"
    path.write_text(json.dumps(SPANS, indent=2))
    reading = kinds.read(path)
    assert reading.kind == "otel" and reading.problems == []
    (trace,) = reading.traces
    assert trace.user_query == "Weather in Paris?" and trace.final_response == "Rain."
    assert (trace.agent_name, trace.session_id, trace.model) == ("weatherman", "conv", "m")
    assert (trace.total_tokens_in, trace.total_tokens_out, trace.llm_calls_count) == (30, 6, 2)
    assert trace.execution_duration_ms == pytest.approx(40, abs=0.01) and trace.timestamp.startswith(
        "2026-01-02T10:00:00"
    )
    (call,) = trace.tool_calls
    assert (call.tool_name, call.arguments, call.success, call.error) == (
        "weather",
        {"city": "Paris"},
        False,
        "timeout",
    )
    assert call.duration_ms == pytest.approx(20, abs=0.01)
    assert trace.extra["otel"]["gen_ai.response.finish_reasons"] == ["stop"]
    assert [step.content for step in trace.reasoning_steps] == ["Wet."]


def test_older_ways_of_writing_messages_in_spans(tmp_path):
    numbered = span("chat", 0, 1, **CHAT, gen_ai__prompt__0__role="user", gen_ai__prompt__0__content="q",
                    gen_ai__completion__0__role="assistant", gen_ai__completion__0__content="a")  # fmt: skip
    evented = {**span("chat", 0, 1, **CHAT), "traceId": "6c"}
    evented["events"] = [
        {"name": "gen_ai.user.message", "attributes": attributes(content="q2")},
        {"name": "gen_ai.choice", "attributes": attributes(message='{"content": "a2"}')},
    ]
    silent = {**span("chat", 0, 1, **CHAT), "traceId": "7d"}
    found = {"resourceSpans": [{"scopeSpans": [{"spans": [numbered, evented, silent]}]}]}
    reading = kinds.read(keep(tmp_path / "s.jsonl", [found]))
    assert [(t.user_query, t.final_response) for t in reading.traces] == [("q", "a"), ("q2", "a2")]
    assert reading.problems[0].endswith("trace 7d: no messages are recorded in its spans")


def test_traces_and_checkpoints_are_kinds_too(tmp_path):
    trace = ExecutionTrace(user_query="q", final_response="a")
    assert kinds.read(keep(tmp_path / "t.jsonl", [trace.to_dict()])).traces == [trace]
    saved = {"session_data": {"s": {"history": MESSAGES}}}
    assert len(kinds.read(keep(tmp_path / "c.json", [saved])).traces) == 2


@pytest.mark.parametrize(
    "records", [[{"messages": MESSAGES}], [{"conversations": SHARED}], CLAUDE, CODEX, [SPANS]]
)
def test_a_file_imported_twice_adds_nothing_and_its_secrets_stay_out(records, tmp_path):
    key = "ghp_" + "a1B2c3D4e5" * 4
    told = json.loads(
        json.dumps(records).replace("Fix the test", f"Fix {key}").replace("Weather", f"{key} Weather")
    )
    path = keep(tmp_path / "log.jsonl", told)
    with TraceStore(tmp_path / "t.db") as store:
        first = kinds.read(path).traces
        assert store.append_many(first, known="skip") == len(first) > 0
        assert store.append_many(kinds.read(path).traces, known="skip") == 0
        assert key not in str([trace.to_dict() for trace in store.find()])
        assert sum(trace.redactions for trace in store.find()) >= 1


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "payload", "message", "content", "parts", "text"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_junk_makes_an_importer_fall_over(tmp_path_factory, data):
    """Any part of a good file may be anything: there are traces, problems or one clear error."""
    records = json.loads(
        json.dumps(data.draw(st.sampled_from([CLAUDE, CODEX, [SPANS], [{"messages": MESSAGES}]])))
    )
    for _ in range(data.draw(st.integers(1, 3))):
        place = records
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if (
                not isinstance(place[key], (dict, list))
                or not place[key]
                or data.draw(st.integers(0, 3)) == 0
            ):
                place[key] = data.draw(JUNK)
                break
            place = place[key]
    path = keep(tmp_path_factory.mktemp("junk") / "log.jsonl", records)
    try:
        traces = kinds.read(path).traces
    except RustyError:
        return
    with TraceStore(path.with_name("t.db")) as store:
        store.append_many(traces, known="skip")


def test_each_kind_knows_its_own():
    samples = {
        "openai": {"messages": []},
        "sharegpt": {"conversations": []},
        "otel": SPANS,
        "claude": CLAUDE[2],
        "codex": CODEX[0],
    }
    modules = {"openai": openai, "sharegpt": sharegpt, "otel": otel, "claude": claude, "codex": codex}
    for name, sample in samples.items():
        assert [other for other, module in modules.items() if module.looks(sample)] == [name]
    assert otel.read([(1, {"resourceSpans": []})], Reading("x")) == []
