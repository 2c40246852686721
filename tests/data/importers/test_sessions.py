"""Sessions of other coding agents become traces."""

import json

from rusty_r2.data.importers import kinds

from .logs import CLAUDE, CODEX, SPANS, keep, line


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


def test_what_claude_code_notes_after_an_answer_is_no_work(tmp_path):
    later = {"type": "system", "subtype": "local_command", "timestamp": "2026-03-01T23:00:00.000Z"}
    cut = next(at for at, one in enumerate(CLAUDE) if "Thanks" in json.dumps(one))
    first = kinds.read(keep(tmp_path / "s1.jsonl", [*CLAUDE[:cut], later])).traces[0]
    assert first.user_query == "Fix the test" and first.execution_duration_ms == 8000


def test_a_line_of_the_user_that_asks_nothing_is_no_request(tmp_path):
    noted = ("[Request interrupted by user]", "<bash-input>ls</bash-input>", "<bash-stdout>a</bash-stdout>")
    more = [line("user", f"n{at}", said) for at, said in enumerate(noted)]
    reading = kinds.read(keep(tmp_path / "s1.jsonl", [*CLAUDE, *more]))
    assert len(reading.traces) == 3 and not any("interrupted" in one.user_query for one in reading.traces)


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
