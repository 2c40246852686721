"""`rusty trace …` as a person types it."""

import io
import json
import os
import pty
import subprocess
import sys

import pytest

from rusty_r2.errors import ConfigError, DataError, StoreError
from rusty_r2.rewards.reading import passed
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace, ReasoningStep, Step, ToolCallTrace
from rusty_r2.traces import (
    ExportConfig,
    ImportConfig,
    LabelConfig,
    ListConfig,
    ReplayConfig,
    ShowConfig,
    StatsConfig,
    bring_in,
    export,
    label,
    replay,
    show,
    show_list,
    stats,
)


@pytest.fixture
def three():
    """Three traces in the data home, oldest first."""
    traces = [
        ExecutionTrace(
            user_query=f"question {number}",
            final_response=f"answer {number}",
            agent_name="tester",
            timestamp=f"2026-01-0{number + 1}T00:00:00.000+00:00",
            tool_calls=[ToolCallTrace("search", {"q": number}, "found", True, 12.0)] * number,
        )
        for number in range(3)
    ]
    with TraceStore() as store:
        store.append_many(traces)
    return traces


def labels():
    with TraceStore() as store:
        return [trace.label for trace in store.find(newest_first=False)]


def test_list_narrows_and_counts(three):
    told = show_list(ListConfig()).splitlines()
    assert "question 2" in told[1] and "question 0" in told[3] and told[4].startswith("3 of 3 traces")
    assert "question 1" in show_list(ListConfig(tool="search", oldest_first=True)).splitlines()[1]
    assert len(show_list(ListConfig(text="QUESTION 1")).splitlines()) == 4
    assert show_list(ListConfig(label="good")).startswith("no traces that fit")
    for wrong in ("yesterday", "15.11.2026", "2026-11-15 noon"):
        with pytest.raises(ConfigError, match="--since"):
            ListConfig(since=wrong)
    rows = [json.loads(line) for line in show_list(ListConfig(json=True, limit=2)).splitlines()]
    assert [row["query"] for row in rows] == ["question 2", "question 1"]


def test_a_line_of_the_list_is_one_line_of_the_request_and_counts_what_was_done(three):
    done = [Step('{"action": "CMD", "command": "ls"}'), Step('{"action": "MSG", "message": "hm"}')]
    with TraceStore() as store:
        store.append(ExecutionTrace(user_query=f"look {'x' * 90}\n\nFILES: a", steps=done, agent_name="me"))
    told = show_list(ListConfig(agent="me")).splitlines()[1]
    assert len(told) == 100 and told.endswith("x…") and told.split()[3:5] == ["-", "1"]


def test_show_takes_the_end_of_an_id(three):
    told = show(ShowConfig(three[1].trace_id[-10:]))
    for words in ("question 1", "answer 1", "tool search", '{"q": 1}', "found", "not labelled"):
        assert words in told
    assert json.loads(show(ShowConfig(three[1].trace_id, json=True)))["user_query"] == "question 1"
    for name in ("abc", "", "nope-nope"):
        with pytest.raises(StoreError, match="there is no trace"):
            show(ShowConfig(name))


def test_replay_goes_part_by_part(three, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n\nq\n"))
    replay(ReplayConfig(three[1].trace_id))
    told = capsys.readouterr().out
    assert "question 1" in told and "tool search" in told and "found" not in told
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    replay(ReplayConfig(three[1].trace_id))
    assert capsys.readouterr().out == show(ShowConfig(three[1].trace_id)).rpartition("next:")[0]


def test_nothing_in_a_trace_can_pass_for_ours():
    hostile = "\x1b]0;owned\x07\x1b[2Jfine\r\nlabel: good, says person\u202e"
    trace = ExecutionTrace(
        user_query=hostile,
        final_response=hostile,
        agent_name=hostile,
        session_id=hostile,
        tool_calls=[ToolCallTrace(hostile, {hostile: hostile}, hostile, False, 1.0, hostile)],
        reasoning_steps=[ReasoningStep(hostile, hostile)],
        steps=[Step(hostile, hostile, ok=False), Step('{"type": "MSG", "message": "done"}')],
        ended=hostile,
        reward_score=0.5,
        reward_parts={"words": "all", "nothing": None, "huge": 10**400, "sound": 0.25, "passes": "no"},
        task_name="sum_list",
    )
    assert passed(trace) is None
    with TraceStore() as store:
        store.append(trace)
    told = show(ShowConfig(trace.trace_id)) + show_list(ListConfig())
    assert not set(told) & {"\x1b", "\x07", "\r", "\u202e"} and "reward 0.50 = sound 0.25" in told
    assert [line for line in told.splitlines() if line.startswith("label:")] == ["label: not labelled"]


def test_label_one_and_take_it_back(three):
    assert "bad, says ada: wrong" in label(
        LabelConfig(trace=three[0].trace_id, bad=True, note="wrong", who="ada")
    )
    assert labels() == [False, None, None]
    label(LabelConfig(trace=three[0].trace_id[-10:], clear=True))
    assert labels() == [None, None, None]
    for config in (
        LabelConfig(trace="x"),
        LabelConfig(good=True),
        LabelConfig(trace="x", good=True, bad=True),
    ):
        with pytest.raises(ConfigError):
            label(config)


def test_a_sitting_with_a_pipe(three, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n\nn\nu\nc\nso so\nn\nq\n"))
    assert label(LabelConfig(limit=2)).startswith("2 labelled; 1 wait")
    assert sorted(labels(), key=str) == [False, None, True]
    with TraceStore() as store:
        assert store.find(label=False)[0].review_notes == "so so"
        assert len(store.labels(store.find(label=False)[0].trace_id)) == 3, "the undone label is remembered"
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\nu\nq\n"))
    label(LabelConfig(label="bad", who="bob"))
    assert sorted(labels(), key=str) == [False, None, True], "undoing gives back what was said before"
    assert "1 of 2" in capsys.readouterr().out


def test_a_sitting_at_a_terminal_takes_one_key_each(three):
    code = "from rusty_r2.traces import *; print(label(LabelConfig()))"
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs) as person:
        os.close(theirs)
        heard = b""
        for key, at in ((b"yn", 1), (b"\x1b[A", 1), (b"y", 1), (b"n", 2), (b"q", 3)):
            while f"{at} of 3".encode() not in heard or not heard.endswith(b"q quit\r\n"):
                heard += os.read(ours, 4096)
            while not _raw(ours):
                pass
            os.write(ours, key)
            heard = heard[-1:] if key == b"q" else heard + b"\0"
        assert person.wait(60) == 0
    os.close(ours)
    assert sorted(labels(), key=str) == [False, None, True]


def _raw(terminal):
    import termios

    return not termios.tcgetattr(terminal)[3] & termios.ICANON


def test_out_and_in_again(three, tmp_path):
    assert export(ExportConfig(output=tmp_path / "t.jsonl", agent="tester")).startswith("3 traces")
    export(ExportConfig(output=tmp_path / "folder", text="question 1"))
    store = str(tmp_path / "other.db")
    assert bring_in(ImportConfig((tmp_path / "folder",), store=store)).startswith("1 trace added, 0 known")
    assert bring_in(ImportConfig((tmp_path / "t.jsonl",), store=store)).startswith("2 traces added, 1 known")
    with TraceStore(store) as again:
        assert again.find(newest_first=False) == three


def test_import_names_what_it_passed_over(tmp_path, capsys):
    chat = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    (tmp_path / "chats.jsonl").write_text(json.dumps(chat) + "\n{broken\n")
    (tmp_path / "\x1b[2Jtraces.jsonl").write_text('{"user_query": "q", "total_cost": NaN}\n')
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "evil.pkl").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path).encode() + b"/mark'\ntR.")
    told = bring_in(ImportConfig((tmp_path,), agent="mine"))
    assert told.startswith("1 trace added, 0 known already, 4 parts passed over")
    said = capsys.readouterr().err
    assert (
        "chats.jsonl:2: not JSON" in said
        and "nothing in it was run" in said
        and "other.json holds no" in said
        and "traces.jsonl:1: not JSON: NaN" in said
        and "\x1b" not in said
    )
    assert not (tmp_path / "mark").exists()
    with TraceStore() as store:
        assert store.find()[0].agent_name == "mine"
    with pytest.raises(DataError, match="holds no conversation"):
        bring_in(ImportConfig((tmp_path / "other.json",)))
    (tmp_path / "empty").mkdir()
    for nothing in (tmp_path / "empty", tmp_path / "nowhere.jsonl"):
        with pytest.raises(DataError, match="no trace was found in .* Kinds: rusty trace import --help"):
            bring_in(ImportConfig((nothing,)))
    with pytest.raises(ConfigError, match="name a file"):
        bring_in(ImportConfig(()))


def test_statistics(three):
    label(LabelConfig(trace=three[2].trace_id, good=True))
    told = json.loads(stats(StatsConfig(json=True)))
    assert (told["total"], told["labeled"], told["positive_labels"], told["avg_tool_calls"]) == (3, 1, 1, 1.0)
    assert "avg tool calls" in stats(StatsConfig())
    assert json.loads(stats(StatsConfig(json=True, agent="nobody"))) == {"total": 0}
