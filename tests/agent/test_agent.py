"""RustyAgent as somebody's program uses it: sessions, totals, hooks, checkpoints."""

import asyncio
import contextvars
import json

import pytest

from rusty_r2.agent.agent import RustyAgent
from rusty_r2.agent.approval import Approval
from rusty_r2.agent.policy import ScriptedPolicy
from rusty_r2.agent.workspace import Workspace
from rusty_r2.errors import ConfigError, PolicyError, TraceError
from rusty_r2.gym.env import TASKS, CodingEnv
from rusty_r2.protocol import Cmd, Edit, Msg, render
from rusty_r2.store import TraceStore
from rusty_r2.task import Task

SCRIPT = (render(Edit("a.txt", "x")), render(Msg("Written.")), render(Msg("Again.")))


def agent(folder, *lines, **options):
    place = lambda: Workspace(folder, approval=Approval("never"))  # noqa: E731
    return RustyAgent(ScriptedPolicy(*(lines or SCRIPT)), place, **options)


def test_a_session_remembers_and_the_totals_run(folder):
    with agent(folder, name="tester") as rusty, TraceStore() as store:
        rusty.store = store
        assert rusty.run("write it") == "Written." and (folder / "a.txt").read_text() == "x"
        assert rusty.run("and now?") == "Again.", "the script goes on only if the first request is remembered"
        assert rusty.amd.name == "tester" and rusty.total_llm_calls == 3
        assert rusty.total_tokens_out > 0 and rusty.total_cost_accumulated == 0
        assert store.count(session="default") == 2
        assert rusty.last_trace.agent_name == "tester" and len(rusty.last_trace.history) == 4


def test_a_mind_that_fails_leaves_a_trace_that_says_why(folder):
    with agent(folder, render(Cmd("ls"))) as rusty, TraceStore() as store:
        rusty.store = store
        with pytest.raises(PolicyError, match="at its end"):
            rusty.run("list, and then what?")
        (kept,) = store.find()
        assert kept.ended == "PolicyError" and "at its end" in kept.extra["error"] and len(kept.steps) == 1
        assert rusty.total_llm_calls == 1


def test_sessions_are_apart_and_run_side_by_side(folder):
    async def both(rusty):
        return await asyncio.gather(*(rusty.a_run("write it", session_id=f"s{n}") for n in range(20)))

    with agent(folder) as rusty:
        assert asyncio.run(both(rusty)) == ["Written."] * 20
        assert rusty.total_llm_calls == 40 and len(rusty.sessions) == 20


def test_a_hook_sees_every_command_and_edit(folder):
    seen = []
    with agent(folder) as rusty:
        real = rusty.arun_function

        async def hooked(name, *args, **kwargs):
            seen.append((name, kwargs))
            return await real(name, *args, **kwargs)

        rusty.arun_function = hooked
        rusty.run("write it")
    assert seen == [("write_file", {"path": "a.txt", "content": "x"})]


def test_tools_are_called_in_the_context_of_their_run(folder):
    whose, seen = contextvars.ContextVar("whose"), []

    async def watched(rusty, name):
        whose.set(name)
        return await rusty.a_run("write it", session_id=name)

    async def both(rusty):
        return await asyncio.gather(watched(rusty, "one"), watched(rusty, "two"))

    with agent(folder) as rusty:
        rusty.tools["write_file"] = lambda path, content: seen.append(whose.get()) or "wrote"
        asyncio.run(both(rusty))
    assert sorted(seen) == ["one", "two"]


def test_a_request_that_is_given_up_does_nothing_more(folder):
    async def given_up(rusty):
        asked = asyncio.ensure_future(rusty.a_run("write, wait, write"))
        while not (folder / "a.txt").exists():
            await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    lines = (render(Edit("a.txt", "x")), render(Cmd("sleep 5")), render(Edit("b.txt", "x")), render(Msg("!")))
    with TraceStore() as store:
        with agent(folder, *lines, store=store) as rusty:
            asyncio.run(given_up(rusty))
        (kept,) = store.find()
    assert kept.ended == "Cancelled" and not (folder / "b.txt").exists()


def test_tools_of_ones_own(folder):
    async def slowly(n):
        return n + 1

    with agent(folder) as rusty:
        rusty.add_tool(slowly)
        rusty.add_tool(len, "length")
        assert asyncio.run(rusty.arun_function("slowly", 1)) == 2
        assert asyncio.run(rusty.arun_function("length", "abc")) == 3
        assert asyncio.run(rusty.arun_function("write_file", path="b", content="y")) == "wrote b"
        with pytest.raises(PolicyError, match="there is no tool 'fly'"):
            asyncio.run(rusty.arun_function("fly"))


def test_run_also_works_inside_a_loop(folder):
    async def inside(rusty):
        return rusty.run("write it")

    with agent(folder) as rusty:
        assert asyncio.run(inside(rusty)) == "Written."


def test_a_checkpoint_is_loaded_again(folder, tmp_path):
    with agent(folder, name="keeper") as rusty:
        rusty.run("write it", session_id="monday")
        path = rusty.save_checkpoint()
        assert path.parent.name == "keeper" and path.name.startswith("agent_checkpoint_")
    data = json.loads(path.read_text())
    said = data["sessions_data"]["sessions"]["monday"]["chat_history"]
    assert data["version"] == "2.0" and [turn["role"] for turn in said] == [
        "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert said[1]["tool_calls"][0]["function"]["name"] == "write_file"
    assert said[1]["tool_calls"][0]["id"] == said[2]["tool_call_id"] and said[3]["content"] == "Written."
    with agent(folder) as later:
        later.load_checkpoint(path)
        assert later.sessions["monday"].history == rusty.sessions["monday"].history
        assert later.total_llm_calls == 2
        assert later.run("and now?", session_id="monday") == "Again."
        (tmp_path / "no.json").write_text('{"version": 1}')
        with pytest.raises(TraceError, match="not a checkpoint"):
            later.load_checkpoint(tmp_path / "no.json")
        with pytest.raises(ConfigError, match="cannot be read"):
            later.load_checkpoint(tmp_path / "none.json")


def test_any_place_will_do():
    task = Task.load(TASKS / "sum_list")
    gold = render(Edit("template.py", task.solution["template.py"] or ""))
    with RustyAgent(ScriptedPolicy(render(Cmd("ls")), gold), lambda: CodingEnv([task])) as rusty:
        rusty.run("ignored: the gym has its own prompt")
        assert rusty.last_trace.ended == "done" and rusty.last_trace.task_name == "sum_list"
