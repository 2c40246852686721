"""Messages of chat APIs and of ShareGPT become traces."""

import json
import math

import pytest

from rusty_r2.data.conversation import iso
from rusty_r2.data.importers import kinds
from rusty_r2.errors import DataError

from .logs import MESSAGES, SHARED, keep


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


def test_times_of_any_unit_are_read_and_what_is_none_is_none():
    assert iso(1.7e9) == iso(1.7e12) == iso(1.7e18) == "2023-11-14T22:13:20.000+00:00"
    assert [iso(wrong) for wrong in (math.inf, -math.inf, math.nan, -1e300, True, "soon")] == [""] * 6
