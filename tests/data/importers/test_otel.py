"""Spans of OpenTelemetry become traces."""

import json

import pytest

from rusty_r2.data.importers import kinds

from .logs import CHAT, SPANS, attributes, keep, span


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
