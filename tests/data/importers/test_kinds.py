"""Every kind: known by itself, read once, and no junk makes it fall over."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rusty_r2.data.importers import claude, codex, kinds, openai, otel, sharegpt
from rusty_r2.data.importers.lines import Reading
from rusty_r2.errors import RustyError
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace

from .logs import CLAUDE, CODEX, MESSAGES, SHARED, SPANS, keep


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
