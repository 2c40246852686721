"""The collector as the document uses it, and with many runs at once."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rusty_r2.agent.collector import TraceCollector
from rusty_r2.agent.plain import LONGEST, plain, text
from rusty_r2.config import home
from rusty_r2.errors import StoreError, TraceError


@pytest.fixture
def collector(tmp_path):
    with TraceCollector(tmp_path) as made:
        yield made


def test_a_run_is_in_the_store_when_it_is_finished(collector, tmp_path):
    started = collector.start_trace("s", "What is 2+2?")
    assert collector.current_trace is started and collector.storage_path == tmp_path
    collector.record_tool_call("calc", {"x": "2+2"}, "4", True, 1.5)
    collector.record_reasoning_step("plan", "add them", 0.5, insights=["easy"])
    collector.record_task({"id": 1}, "created")
    collector.record_task({"id": 1}, "completed")
    made = collector.finish_trace("4", 10, 2, 0.25, llm_calls_count=1)
    assert collector.current_trace is None and collector.traces == [made]
    assert (tmp_path / "traces.db").is_file()
    (kept,) = collector.load_traces()
    assert kept == made
    assert (kept.total_tokens_in, kept.total_tokens_out, kept.total_cost) == (10, 2, 0.25)
    assert kept.execution_duration_ms > 0 and kept.ended == "done"
    assert kept.tasks_created == kept.tasks_completed == [{"id": 1}] and kept.tasks_failed == []
    assert kept.reasoning_steps[0].insights == ["easy"]


def test_without_a_folder_it_is_the_data_home():
    with TraceCollector() as collector:
        assert collector.storage_path == home() and (home() / "traces.db").is_file()


def test_labels_and_statistics(collector):
    assert collector.get_statistics() == {"total": 0}
    for number in range(3):
        collector.start_trace("s", f"q{number}")
        for _ in range(number):
            collector.record_tool_call("t", {}, "", True, 1)
        collector.finish_trace("a")
    first, second, third = collector.load_traces()
    collector.label_trace(first.trace_id, True, "fine")
    collector.label_trace(second.trace_id, False)
    assert [trace.trace_id for trace in collector.get_unlabeled_traces()] == [third.trace_id]
    assert collector.load_traces(labeled_only=True)[0].review_notes == "fine"
    assert collector.load_traces(labeled_only=True)[0].manual_review
    assert len(collector.load_traces(min_tool_calls=1)) == 2
    assert len(collector.load_traces(start_date=first.timestamp[:10], end_date=first.timestamp[:10])) == 3
    assert collector.load_traces(end_date="2001-01-01") == []
    told = collector.get_statistics()
    assert (told["total"], told["labeled"], told["positive_labels"], told["avg_tool_calls"]) == (3, 2, 1, 1.0)
    with pytest.raises(ValueError, match="there is no trace 'nope'"):
        collector.label_trace("nope", True)
    with pytest.raises(StoreError):
        collector.label_trace("*", True)


def test_a_record_without_a_run_is_nothing_and_an_end_without_one_an_error(collector):
    collector.record_tool_call("t", {}, "", True, 1)
    collector.record_usage(1, 2)
    with pytest.raises(ValueError, match="no trace is in progress"):
        collector.finish_trace("x")
    with pytest.raises(TraceError, match="not 'begun'"):
        collector.record_task({}, "begun")


def test_hundred_runs_at_once_do_not_mix(collector):
    async def run(number):
        collector.start_trace(f"s{number}", f"q{number}")
        for call in range(3):
            await asyncio.sleep(0)
            collector.record_tool_call(f"tool{number}", {"call": call}, number, True, 1)
            collector.record_usage(number, 1, 0.5)
        await asyncio.gather(
            *(asyncio.to_thread(collector.record_reasoning_step, "x", str(number)) for _ in "ab")
        )
        collector.finish_trace(f"a{number}")

    async def all_of_them():
        await asyncio.gather(*(run(number) for number in range(100)))

    asyncio.run(all_of_them())
    traces = collector.load_traces()
    assert len(traces) == 100
    for trace in traces:
        number = trace.user_query[1:]
        assert trace.final_response == f"a{number}" and trace.session_id == f"s{number}"
        assert [call.tool_name for call in trace.tool_calls] == [f"tool{number}"] * 3
        assert [step.content for step in trace.reasoning_steps] == [number] * 2
        assert (trace.total_tokens_in, trace.llm_calls_count, trace.total_cost) == (3 * int(number), 3, 1.5)


def test_threads_have_runs_of_their_own(collector):
    ready = threading.Barrier(4)

    def run(number):
        collector.start_trace("s", str(number))
        ready.wait()
        collector.record_tool_call(str(number), {}, "", True, 1)
        ready.wait()
        collector.finish_trace("done")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    assert all([call.tool_name for call in t.tool_calls] == [t.user_query] for t in collector.load_traces())


def test_a_thread_without_context_finds_the_only_run_and_never_guesses(collector):
    def record():
        collector.record_tool_call("lost", {}, "", True, 1)

    collector.start_trace("s", "alone")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(record).result()
        other = collector.begin("s", "another")
        pool.submit(record).result()
    assert len(collector.finish_trace("a").tool_calls) == 1
    assert collector.end(other, "b").tool_calls == [] and collector.unattached == 1


def test_a_run_in_a_run_comes_back_to_the_outer_one(collector):
    outer = collector.start_trace("s", "outer")
    collector.start_trace("s", "inner")
    collector.finish_trace("i")
    assert collector.current_trace is outer
    collector.finish_trace("o")
    assert [trace.final_response for trace in collector.traces] == ["i", "o"]


class Nasty:
    def __repr__(self):
        raise RuntimeError("no")


def test_whatever_a_tool_is_given_the_trace_can_be_kept(collector):
    loop = []
    loop += [loop, loop]
    given = {
        "o": Nasty(),
        "loop": loop,
        "n": float("nan"),
        "b": b"\xff",
        3: {1, 2},
        "big": 10**5000,
        "s": "\ud800",
    }
    collector.start_trace(7, Nasty())
    collector.record_tool_call(None, given, Nasty(), 1, float("inf"), error=Nasty())
    collector.finish_trace({"a": 1}, total_tokens_in=-3, total_cost=float("nan"), total_tokens_out="many")
    (kept,) = collector.load_traces()
    assert kept.session_id == "7" and kept.user_query == "<Nasty>" and kept.final_response == '{"a": 1}'
    assert kept.tool_calls[0].arguments["n"] == "nan" and kept.tool_calls[0].arguments["3"] == [1, 2]
    assert (kept.total_tokens_in, kept.total_cost, kept.total_tokens_out) == (0, 0.0, 0)


def test_secrets_do_not_enter(collector):
    key = "sk-ant-" + "a1B2c3D4e5F6g7H8"
    collector.start_trace("s", f"use {key}")
    collector.record_tool_call("http", {"headers": {"Authorization": f"Bearer {key}"}}, key, True, 1)
    collector.finish_trace(f"used {key}")
    assert key not in str(collector.load_traces()[0].to_dict())
    assert key.encode() not in b"".join(path.read_bytes() for path in collector.storage_path.iterdir())


def test_plain_is_bounded():
    assert text("a" * (LONGEST + 5)).endswith("[5 characters cut]")
    deep = []
    for _ in range(10_000):
        deep = [deep]
    assert "…" in str(plain(deep))
    assert len(str(plain(list(range(10**6))))) < 10**6
