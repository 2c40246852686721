"""Hooks on agents of every kind: they record all, and the agent never notices."""

import asyncio
import inspect
from types import SimpleNamespace

import pytest

from rusty_r2.agent.agent import RustyAgent
from rusty_r2.agent.approval import Approval
from rusty_r2.agent.collector import TraceCollector
from rusty_r2.agent.hooks import hook_into_agent, unhook
from rusty_r2.agent.policy import ScriptedPolicy
from rusty_r2.agent.workspace import Workspace
from rusty_r2.errors import ConfigError
from rusty_r2.protocol import Cmd, Edit, Msg, render


@pytest.fixture
def collector(tmp_path):
    with TraceCollector(tmp_path / "store") as made:
        yield made


class FlowAgent:
    """The interface the document's agents have, with its running totals."""

    def __init__(self):
        self.amd = SimpleNamespace(name="flow", system_message="Be brief.")
        self.total_tokens_in = self.total_tokens_out = self.total_llm_calls = 0
        self.total_cost_accumulated = 0.0

    async def a_run(self, query, session_id="default", **kwargs):
        self.total_tokens_in += 100
        self.total_tokens_out += 10
        self.total_cost_accumulated += 0.5
        self.total_llm_calls += 1
        await asyncio.sleep(kwargs.get("slow", 0))
        if query == "crash":
            raise ZeroDivisionError("by zero")
        if query == "delegate":
            return "outer " + await self.a_run("part of it", session_id)
        found = await self.arun_function("search", query, depth=1)
        return f"{query}: {found}"

    async def arun_function(self, function_name, *args, **kwargs):
        if args == ("bad",):
            raise KeyError("bad")
        await asyncio.sleep(0)
        return {"error": "nothing there"} if args == ("none",) else f"about {args[0]}"

    async def a_stream(self, query, session_id="default"):
        await self.arun_function("look", query)
        for piece in ("one ", "two ", "three"):
            got = yield piece
            if got:
                yield got


DOCUMENT = """
from rusty_r2.rl import TraceCollector, hook_into_agent

# Create agent
agent = FlowAgent(amd)

# Hook trace collection
collector = TraceCollector()
hook_into_agent(agent, collector)

# Run agent normally - traces are captured
await agent.a_run("Write a Python function...")

# Get statistics
stats = collector.get_statistics()
print(f"Collected {stats['total']} traces")
"""


def test_the_documents_sample(capsys):
    names = {"FlowAgent": lambda amd: FlowAgent(), "amd": None}
    code = compile(DOCUMENT, "document", "exec", flags=__import__("ast").PyCF_ALLOW_TOP_LEVEL_AWAIT)
    asyncio.run(eval(code, names))
    assert capsys.readouterr().out == "Collected 1 traces\n"
    names["collector"].close()


def test_a_run_its_tools_and_its_own_numbers(collector):
    agent = FlowAgent()
    hook_into_agent(agent, collector)
    for number in range(3):
        assert asyncio.run(agent.a_run(f"q{number}", "s")) == f"q{number}: about q{number}"
    traces = collector.load_traces()
    assert [trace.user_query for trace in traces] == ["q0", "q1", "q2"]
    for trace in traces:
        assert trace.agent_name == "flow" and trace.session_id == "s" and trace.system_prompt == "Be brief."
        assert (trace.total_tokens_in, trace.total_tokens_out, trace.total_cost) == (100, 10, 0.5)
        assert trace.llm_calls_count == 1 and trace.execution_duration_ms > 0 and trace.ended == "done"
        (call,) = trace.tool_calls
        assert call.tool_name == "search" and call.success
        assert call.arguments == {"args": [trace.user_query], "kwargs": {"depth": 1}}


def test_hooking_twice_is_hooking_once_and_unhook_leaves_nothing(collector, tmp_path):
    agent = FlowAgent()
    before = dict(vars(agent))
    hook_into_agent(agent, collector)
    first = agent.a_run
    hook_into_agent(agent, collector)
    assert agent.a_run is first
    asyncio.run(agent.a_run("q"))
    assert len(collector.traces) == 1
    with TraceCollector(tmp_path / "other") as other:
        hook_into_agent(agent, other)
        asyncio.run(agent.a_run("q"))
        assert len(other.traces) == len(collector.traces) == 1
    assert unhook(agent) is True and unhook(agent) is False
    assert set(vars(agent)) == set(before)
    asyncio.run(agent.a_run("q"))
    assert len(collector.traces) == 1


def test_unhook_under_somebody_elses_wrapper_only_passes_on(collector):
    agent = FlowAgent()
    hook_into_agent(agent, collector)
    ours = agent.a_run
    agent.a_run = lambda *args: ours(*args)
    theirs = agent.a_run
    unhook(agent)
    assert agent.a_run is theirs and asyncio.run(agent.a_run("q")) == "q: about q"
    assert collector.traces == []


def test_concurrent_runs_do_not_mix_and_do_not_invent_numbers(collector):
    agent = FlowAgent()
    hook_into_agent(agent, collector)

    async def both():
        slow = agent.a_run("same", "s", slow=0.05)
        return await asyncio.gather(
            slow, *(agent.a_run("same", "s") for _ in range(20)), agent.a_run("x", "s")
        )

    assert asyncio.run(both()) == ["same: about same"] * 21 + ["x: about x"]
    traces = collector.load_traces()
    assert len(traces) == 22
    for trace in traces:
        assert len(trace.tool_calls) == 1
        assert trace.final_response == f"{trace.user_query}: about {trace.user_query}"
        assert trace.total_tokens_in == 0 and trace.extra["usage"].startswith("unknown")
    asyncio.run(agent.a_run("later"))
    assert collector.traces[-1].total_tokens_in == 100


def test_exceptions_pass_through_and_are_kept(collector):
    agent = FlowAgent()
    hook_into_agent(agent, collector)
    with pytest.raises(ZeroDivisionError, match="by zero"):
        asyncio.run(agent.a_run("crash"))
    with pytest.raises(KeyError):
        asyncio.run(agent.a_run("bad"))
    asyncio.run(agent.a_run("none"))
    crash, bad, none = collector.load_traces()
    assert crash.ended == "ZeroDivisionError" and crash.final_response == "Error: ZeroDivisionError: by zero"
    assert crash.tasks_failed == [{"error": "ZeroDivisionError: by zero", "type": "execution_error"}]
    assert bad.tool_calls[0].success is False and bad.tool_calls[0].error.startswith("KeyError")
    assert none.tool_calls[0].success is False and none.tool_calls[0].error == "nothing there"


def test_a_cancelled_run_is_kept_and_stays_cancelled(collector):
    agent = FlowAgent()
    hook_into_agent(agent, collector)

    async def cancel():
        task = asyncio.ensure_future(agent.a_run("q", slow=10))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
    assert collector.load_traces()[0].ended == "CancelledError"


def test_a_run_in_a_run_knows_its_parent(collector):
    agent = FlowAgent()
    hook_into_agent(agent, collector)
    assert asyncio.run(agent.a_run("delegate")) == "outer part of it: about part of it"
    inner, outer = collector.traces
    assert inner.extra["parent_trace_id"] == outer.trace_id
    assert len(inner.tool_calls) == 1 and outer.tool_calls == []


def test_a_broken_store_never_reaches_the_agent(collector):
    agent = FlowAgent()
    hook_into_agent(agent, collector)
    collector.store.append = None
    collector.record_tool_call = None
    assert asyncio.run(agent.a_run("q")) == "q: about q"
    collector.begin = None
    assert asyncio.run(agent.a_run("q")) == "q: about q"
    with pytest.raises(ZeroDivisionError):
        asyncio.run(agent.a_run("crash"))


def test_wrappers_are_of_the_same_kind(collector):
    agent = FlowAgent()
    hook_into_agent(agent, collector)
    assert inspect.iscoroutinefunction(agent.a_run) and inspect.isasyncgenfunction(agent.a_stream)
    assert inspect.signature(agent.a_run) == inspect.signature(FlowAgent().a_run)


def test_streams_are_recorded_and_keep_both_directions(collector):
    agent = FlowAgent()
    hook_into_agent(agent, collector)

    async def read():
        return [piece async for piece in agent.a_stream("q", session_id="s")]

    async def talk():
        stream = agent.a_stream("q2")
        heard = [await anext(stream), await stream.asend("sent "), await anext(stream)]
        await stream.aclose()
        return heard

    async def two_at_once():
        a, b = agent.a_stream("a"), agent.a_stream("b")
        for _ in range(3):
            await anext(a), await anext(b)
        assert collector.current_trace is None
        for stream in (a, b):
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    assert asyncio.run(read()) == ["one ", "two ", "three"]
    assert asyncio.run(talk()) == ["one ", "sent ", "two "]
    asyncio.run(two_at_once())
    first, second, *pair = collector.load_traces()
    assert first.final_response == "one two three" and first.ended == "done" and first.session_id == "s"
    assert [call.tool_name for call in first.tool_calls] == ["look"]
    assert second.final_response == "one sent two " and second.ended == "closed"
    assert {t.user_query: t.tool_calls[0].arguments["args"] for t in pair} == {"a": ["a"], "b": ["b"]}


class Thrown:
    async def a_run(self, query):
        try:
            yield 1
        except ValueError as error:
            yield str(error)


def test_what_is_thrown_into_a_stream_arrives_there(collector):
    agent = Thrown()
    hook_into_agent(agent, collector)

    async def throw():
        stream = agent.a_run("q")
        await anext(stream)
        said = await stream.athrow(ValueError("hello"))
        await stream.aclose()
        return said

    assert asyncio.run(throw()) == "hello"


class Sync:
    name = "sync"

    def a_run(self, query, session_id=None):
        if query == "stream":
            return (piece for piece in ({"type": "content", "chunk": "a"}, {"type": "tool"}, "b"))
        if query == "later":
            return self._later()
        if query == "task":
            return asyncio.ensure_future(self._later())
        return self.arun_function("t"), {"context": 1}

    async def _later(self):
        return SimpleNamespace(content="later")

    def arun_function(self, function_name):
        return self._later() if function_name == "async" else "used"


def test_agents_that_are_not_async(collector):
    agent = Sync()
    hook_into_agent(agent, collector)
    assert agent.a_run("plain") == ("used", {"context": 1})
    assert list(agent.a_run("stream")) == [{"type": "content", "chunk": "a"}, {"type": "tool"}, "b"]

    async def later():
        return (await agent.a_run("later")).content, (await agent.a_run("task")).content

    assert asyncio.run(later()) == ("later", "later")
    asyncio.run(agent.arun_function("async"))
    said = {trace.user_query: trace.final_response for trace in collector.load_traces()}
    assert said == {"plain": "used", "stream": "ab", "later": "later", "task": "later"}
    assert collector.traces[0].agent_name == "sync" and collector.traces[0].session_id == "default"
    assert [call.tool_name for call in collector.traces[0].tool_calls] == ["t"]


def test_an_agent_that_cannot_be_hooked_is_told_so(collector):
    class Closed:
        __slots__ = ()

        async def a_run(self, query):
            return query

    with pytest.raises(ConfigError, match="cannot be hooked"):
        hook_into_agent(Closed(), collector)
    with pytest.raises(ConfigError, match="it has no a_run or a_stream"):
        hook_into_agent(object(), collector)
    assert unhook(object()) is False


def test_our_own_agent_with_its_commands_and_edits(collector, tmp_path):
    lines = (render(Edit("a.txt", "x")), render(Cmd("cat a.txt")), render(Msg("Written.")))
    place = lambda: Workspace(tmp_path, approval=Approval("never"))  # noqa: E731
    with RustyAgent(ScriptedPolicy(*lines), place, name="rusty") as agent:
        hook_into_agent(agent, collector)
        assert agent.run("write it") == "Written."
    (trace,) = collector.load_traces()
    assert [call.tool_name for call in trace.tool_calls] == ["write_file", "run_command"]
    assert trace.agent_name == "rusty" and trace.llm_calls_count == 3 and trace.total_tokens_out > 0


def test_a_trace_of_our_own_agent_tells_how_the_run_ended_also_side_by_side(collector, tmp_path):
    scripts = {
        "done": ScriptedPolicy(render(Msg("Yes."))),
        "malformed": ScriptedPolicy("uh", "uh", "uh"),
        "turns": ScriptedPolicy(*[render(Edit(f"{n}.txt", "x")) for n in range(9)]),
        "PolicyError": ScriptedPolicy(),
    }

    class Mind(ScriptedPolicy):
        def reply(self, trace, *, listen=None):
            return scripts[trace.user_query].reply(trace, listen=listen)

    async def many(agent):
        runs = (agent.a_run(query, session_id=str(n)) for n, query in enumerate([*scripts] * 3))
        return await asyncio.gather(*runs, return_exceptions=True)

    with RustyAgent(Mind(), lambda: Workspace(tmp_path, approval=Approval("never")), max_turns=4) as agent:
        hook_into_agent(agent, collector)
        asyncio.run(many(agent))
        found = [(trace.user_query, trace.ended) for trace in collector.load_traces()]
        assert sorted(found) == sorted((name, name) for name in [*scripts] * 3)
        unhook(agent)
        assert agent.run("done") == "Yes."


def test_our_own_agents_runs_side_by_side(collector, tmp_path):
    script = ScriptedPolicy(render(Edit("a.txt", "x")), render(Msg("Written.")))
    with RustyAgent(script, lambda: Workspace(tmp_path, approval=Approval("never"))) as agent:
        hook_into_agent(agent, collector)

        async def many():
            return await asyncio.gather(*(agent.a_run("write it", session_id=str(n)) for n in range(8)))

        assert asyncio.run(many()) == ["Written."] * 8
    assert [len(trace.tool_calls) for trace in collector.traces] == [1] * 8 and collector.unattached == 0
