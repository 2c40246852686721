"""Checkpoints of both shapes, as pickles, dicts and JSON, give the conversations that are in them."""

import json
import os
import pickle
import sys
import time
import types
from dataclasses import dataclass, field

import pytest

from rusty_r2.agent.agent import RustyAgent
from rusty_r2.agent.approval import Approval
from rusty_r2.agent.policy import ScriptedPolicy
from rusty_r2.agent.workspace import Workspace
from rusty_r2.config import home
from rusty_r2.data.checkpoints import CheckpointLoader
from rusty_r2.data.pipeline import DatasetPipeline
from rusty_r2.errors import DataError, TraceError
from rusty_r2.protocol import Edit, Msg, render
from rusty_r2.store import TraceStore

HISTORY = [
    {"role": "system", "content": "You are Isaa."},
    {"role": "user", "content": "Hey bist du online?", "timestamp": "2026-01-02T10:00:00"},
    {
        "role": "assistant",
        "content": "Ja, ich bin online und bereit zu helfen!",
        "timestamp": "2026-01-02T10:00:02",
    },
    {"role": "user", "content": "Wie spät ist es?", "timestamp": "2026-01-02T10:01:00"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "function": {"name": "clock", "arguments": "{}"}}],
    },
    {"role": "tool", "content": "10:01", "tool_call_id": "c1"},
    {"role": "assistant", "content": "Es ist 10:01."},
]


def bare(messages):
    """As today's checkpoints keep them: no times."""
    return [{key: value for key, value in message.items() if key != "timestamp"} for message in messages]


def first_shape(history=HISTORY, session="268830485889810432", **more):
    return {
        "timestamp": "2026-01-02T10:05:00",
        "agent_state": {
            "total_tokens_in": 150,
            "total_tokens_out": 45,
            "total_cost_accumulated": 0.0002,
            "total_llm_calls": 3,
        },
        "task_state": {
            "t1": {"id": "t1", "status": "completed"},
            "t2": {"id": "t2", "status": "failed", "error": "x"},
        },
        "metadata": {
            "session_id": session,
            "last_query": "Wie spät ist es?",
            "checkpoint_version": "4.1_data_only",
        },
        "session_data": {session: {"history": history, "session_type": "chat"}},
        "variable_scopes": {"reasoning": {"final_result": "the time"}, "user": {"name": "x"}},
        **more,
    }


def second_shape(history=HISTORY, session="s", **more):
    return {
        "version": "2.0",
        "timestamp": "2026-02-02T10:05:00",
        "agent_name": "Coder",
        "sessions_data": {
            "version": 2,
            "sessions": {session: {"session_id": session, "chat_history": bare(history)}},
        },
        "statistics": {
            "total_tokens_in": 150,
            "total_tokens_out": 45,
            "total_cost": 0.5,
            "total_llm_calls": 3,
        },
        **more,
    }


def as_object(data, module):
    """An instance of a class AgentCheckpoint in a module that is gone when the pickle is read."""

    @dataclass
    class AgentCheckpoint:
        version: str = ""
        nested: dict = field(default_factory=dict)

    fake = types.ModuleType(module)
    AgentCheckpoint.__module__, AgentCheckpoint.__qualname__ = module, "AgentCheckpoint"
    fake.AgentCheckpoint = AgentCheckpoint
    made = AgentCheckpoint()
    vars(made).update(data)
    sys.modules[module] = fake
    try:
        return pickle.dumps(made)
    finally:
        del sys.modules[module]


def keep(folder, agent, name, content):
    path = folder / agent / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


@pytest.fixture
def root(tmp_path):
    keep(
        tmp_path,
        "Discord",
        "agent_checkpoint_20260102_100500.pkl",
        as_object(first_shape(), "toolbox_v1_types"),
    )
    keep(tmp_path, "Coder", "final_checkpoint.pkl", as_object(second_shape(), "toolbox_v2_manager"))
    keep(tmp_path, "Coder", "final_checkpoint.meta.json", {"summary": "x"})
    keep(tmp_path, "self", "agent_checkpoint_20260102_100500.json", second_shape())
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_both_shapes_as_pickles_and_json(root):
    loader = CheckpointLoader(checkpoint_path=root)
    assert loader.discover_all_agents() == ["Coder", "Discord", "self"]
    found = loader.load_all_agents_traces()
    assert {name: len(traces) for name, traces in found.items()} == {"Coder": 2, "Discord": 2, "self": 2}
    assert loader.problems == []
    for name, (first, second) in found.items():
        assert first.user_query == "Hey bist du online?" and first.agent_name == name
        assert first.final_response == "Ja, ich bin online und bereit zu helfen!" and first.tool_calls == []
        assert first.system_prompt == second.system_prompt == "You are Isaa."
        assert [call.tool_name for call in second.tool_calls] == ["clock"]
        assert second.tool_calls[0].result == "10:01" and second.tool_calls[0].success
        assert second.final_response == "Es ist 10:01." and len(second.history) == 2
    discord = found["Discord"][0]
    assert discord.session_id == "268830485889810432" and discord.timestamp == "2026-01-02T10:00:00.000+00:00"
    assert discord.execution_duration_ms == 2000


def test_tasks_and_thoughts_go_to_the_request_they_belong_to(root):
    first, second = CheckpointLoader("Discord", root).load_all_traces()
    assert first.tasks_created == [] and first.reasoning_steps == []
    assert [task["id"] for task in second.tasks_created] == ["t1", "t2"]
    assert [task["id"] for task in second.tasks_completed] == ["t1"]
    assert [task["id"] for task in second.tasks_failed] == ["t2"]
    assert [step.step_type for step in second.reasoning_steps] == ["final_result"]
    assert first.total_tokens_in == second.total_tokens_in == 0, "totals of two runs are those of neither"
    (only,) = CheckpointLoader().extract_traces_from_checkpoint(first_shape(HISTORY[:3]))
    assert (only.total_tokens_in, only.total_tokens_out, only.llm_calls_count) == (150, 45, 3)
    assert only.total_cost == 0.0002 and only.reasoning_steps


@pytest.mark.parametrize("shape", [first_shape, second_shape])
def test_the_same_conversation_in_two_checkpoints_is_one_even_without_times(tmp_path, shape):
    history = bare(HISTORY)
    longer = [*history, {"role": "user", "content": "Danke"}, {"role": "assistant", "content": "Gern."}]
    keep(tmp_path, "a", "1.json", shape(history[:6]))  # saved in the middle of the second request
    keep(tmp_path, "a", "2.json", shape(history))
    keep(tmp_path, "a", "3.json", shape(longer[3:]))  # the oldest messages fell out
    for age, name in enumerate(("3", "2", "1")):
        os.utime(tmp_path / "a" / f"{name}.json", (time.time() - age * 60,) * 2)
    loader = CheckpointLoader("a", tmp_path)
    assert [trace.user_query for trace in loader.load_all_traces()] == [
        "Hey bist du online?",
        "Wie spät ist es?",
        "Danke",
    ]
    assert len(loader.load_all_traces(deduplicate=False)) == 6


def test_two_answers_to_one_question_are_two_traces():
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    other = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]
    loader = CheckpointLoader()
    a, b, again = loader.extract_traces_from_checkpoint(
        {"session_data": {"s": {"history": said + other + said}}}
    )
    assert a.trace_id != b.trace_id and a.trace_id == again.trace_id


def test_one_agents_folder_given_as_the_path(root):
    assert CheckpointLoader(checkpoint_path=root / "Coder").discover_all_agents() == ["Coder"]
    (first, _) = CheckpointLoader("mine", root / "Coder").load_all_traces()
    assert first.agent_name == "mine"
    assert CheckpointLoader("../Coder", root / "self").load_all_agents_traces().keys() == {"../Coder"}
    assert CheckpointLoader("../../etc", root).load_all_traces() == []
    assert CheckpointLoader("x", root / "nowhere").load_all_traces() == []


def test_lists_ages_and_statistics(root):
    loader = CheckpointLoader("Coder", root)
    (told,) = loader.list_checkpoints()
    assert told["filename"] == "final_checkpoint.pkl" and told["size_mb"] > 0 and "T" in told["modified"]
    os.utime(told["path"], (0, 0))
    assert loader.load_all_traces(max_age_hours=1) == []
    everything = CheckpointLoader(checkpoint_path=root)
    assert [row["filename"] for row in everything.list_checkpoints()][-1] == "final_checkpoint.pkl"
    stats = everything.get_training_statistics()
    assert (stats["total_traces"], stats["unique_sessions"], stats["traces_with_tool_calls"]) == (6, 3, 3)
    assert stats["tools_list"] == ["clock"] and stats["unique_tools_used"] == 1
    assert stats["unlabeled_traces"] == 6 and stats["labeled_traces"] == 0
    assert stats["agents_discovered"] == ["Coder", "Discord", "self"] and stats["checkpoints_available"] == 3
    tasks = everything.generate_synthetic_tasks(1)
    assert tasks == [
        {"prompt": "Hey bist du online?", "category": "question", "source": "checkpoint_derived"}
    ]
    assert [task["category"] for task in everything.generate_synthetic_tasks()] == ["question", "tools"]


class Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def test_hostile_and_broken_files_are_named_and_the_rest_is_read(root, tmp_path):
    mark = tmp_path / "mark"
    bad = keep(root, "Coder", "evil.pkl", pickle.dumps({"session_data": Evil(mark)}))
    keep(root, "Coder", "broken.json", b'{"session_data": ')
    keep(root, "Coder", "list.json", [1, 2])
    keep(root, "Coder", "future.json", second_shape(version="9.0"))
    keep(root, "Coder", "other.json", {"weights": 1})
    keep(root, "Coder", "silent.json", {"session_data": {}})
    keep(root, "Coder", "deep.json", b"[" * 100_000)
    loader = CheckpointLoader("Coder", root)
    assert len(loader.load_all_traces()) == 2
    assert not mark.exists()
    assert len(loader.problems) == 7
    told = "\n".join(loader.problems)
    assert "posix.system" in told and "nothing in it was run" in told and "version '9.0' is not known" in told
    assert "silent.json: no answered request in it" in told
    with pytest.raises(DataError, match="posix.system"):
        loader.load_checkpoint(bad)
    with pytest.raises(DataError, match="cannot be read"):
        loader.load_checkpoint(root / "none.pkl")
    with pytest.raises(TraceError, match="not a int"):
        loader.extract_traces_from_checkpoint(3)


def test_plain_dicts_objects_and_odd_messages():
    loader = CheckpointLoader("a")
    assert len(loader.extract_traces_from_checkpoint(types.SimpleNamespace(**first_shape()))) == 2
    assert len(loader.extract_traces_from_checkpoint({"messages": HISTORY})) == 2
    odd = [
        None,
        3,
        {"role": 5},
        {"role": "alien", "content": "x"},
        {"content": "x"},
        *HISTORY,
        {"role": "user"},
    ]
    assert len(loader.extract_traces_from_checkpoint({"session_data": {"s": {"history": odd}}})) == 2
    for broken in (None, "x", {"s": None}, {"s": {"history": "no"}}):
        loader.extract_traces_from_checkpoint({"session_data": broken, "messages": []})
    with pytest.raises(TraceError, match="not a table"):
        loader.extract_traces_from_checkpoint({"sessions_data": {"sessions": [1]}})


DOCUMENT = """
from rusty_r2.rl import CheckpointLoader

# Discover all agents with saved checkpoints
loader = CheckpointLoader()  # No agent_name = discover all
agents = loader.discover_all_agents()
print(f"Found agents: {agents}")
# Output: ['DiscordKernelAssistant', 'TelegramKernelAssistant', 'Coder', 'self']

# Load traces from a specific agent
loader = CheckpointLoader(agent_name="DiscordKernelAssistant")
traces = loader.load_all_traces()
print(f"Extracted {len(traces)} conversation traces")

# Get comprehensive statistics
stats = loader.get_training_statistics()
print(f"Total traces: {stats['total_traces']}")
print(f"Unique sessions: {stats['unique_sessions']}")
print(f"Tools used: {stats['tools_list']}")

# Load traces from ALL agents at once
all_traces = loader.load_all_agents_traces()
for agent_name, agent_traces in all_traces.items():
    print(f"{agent_name}: {len(agent_traces)} traces")
"""


def test_the_documents_sample(capsys):
    folder = home() / "Agents" / "checkpoint"
    keep(folder, "DiscordKernelAssistant", "a.pkl", as_object(first_shape(), "toolbox_v1_types"))
    keep(folder, "Coder", "b.pkl", pickle.dumps(second_shape()))
    exec(DOCUMENT, {})
    assert capsys.readouterr().out.splitlines() == [
        "Found agents: ['Coder', 'DiscordKernelAssistant']",
        "Extracted 2 conversation traces",
        "Total traces: 2",
        "Unique sessions: 1",
        "Tools used: ['clock']",
        "Coder: 2 traces",
        "DiscordKernelAssistant: 2 traces",
    ]


def test_our_own_agents_checkpoints_and_the_dataset_pipeline(tmp_path):
    place = lambda: Workspace(tmp_path, approval=Approval("never"))  # noqa: E731
    script = ScriptedPolicy(render(Edit("a.txt", "x")), render(Msg("Written.")))
    with RustyAgent(script, place, name="keeper") as agent:
        agent.run("write it")
        agent.save_checkpoint()
    (trace,) = CheckpointLoader("keeper").load_all_traces()
    assert trace.user_query == "write it" and "Written." in trace.final_response
    pipeline = DatasetPipeline("keeper", tmp_path / "store")
    assert [found.trace_id for found in pipeline.collect_all_traces()] == [trace.trace_id]
    assert pipeline.get_pipeline_statistics()["checkpoints"]["total_traces"] == 1
    pipeline.store.close()


def test_what_is_read_can_be_kept_once(root):
    traces = [
        trace
        for traces in CheckpointLoader(checkpoint_path=root).load_all_agents_traces().values()
        for trace in traces
    ]
    with TraceStore(root / "t.db") as store:
        assert store.append_many(traces, known="skip") == 6
        assert store.append_many(traces, known="skip") == 0
