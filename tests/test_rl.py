"""The document's samples about rewards, datasets and labels run with only the import line changed."""

import builtins
import subprocess
import sys

import pytest

from rusty_r2 import rl
from rusty_r2.data.validate import check_file
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace, ToolCallTrace

CHAT = {"user_query": "Hey bist du online?", "final_response": "Ja, ich bin online und bereit zu helfen!"}
GOOD = "```python\ndef add(a, b):\n    return a + b\nprint(add(1, 2))\n```"
BAD = "```python\ndef add(a, b):\n    return a + c\nprint(add(1, 2))\n```"


@pytest.mark.parametrize("name", sorted(rl._WHERE))
def test_every_public_name_is_there(name):
    assert getattr(rl, name) is not None
    assert name in dir(rl)


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(AttributeError, match="has no name 'Nope'"):
        rl.Nope  # noqa: B018
    with pytest.raises(ImportError):
        exec("from rusty_r2.rl import Nope")


def test_importing_it_is_light():
    code = "import sys, rusty_r2.rl; print([m for m in ('torch', 'numpy', 'sqlalchemy') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


REWARDS = """
from rusty_r2.rl import RewardEngine

engine = RewardEngine()
combined = engine.compute_combined(trace)  # Weighted average
normalized = engine.compute_for_group(traces)  # For GRPO
label = engine.get_binary_label(trace)  # For KTO
"""


def test_the_engine_sample():
    asked = "Write a Python function called add."
    traces = [ExecutionTrace(user_query=asked, final_response=text) for text in (GOOD, BAD)]
    names = {"trace": ExecutionTrace(**CHAT), "traces": traces}
    exec(REWARDS, names)
    assert names["combined"] == 1.0
    assert names["label"] is True
    assert names["normalized"] == pytest.approx([1.0, -1.0])


DATASETS = """
from rusty_r2.rl import DatasetPipeline

pipeline = DatasetPipeline("agent_name")
kto_examples = pipeline.build_kto_dataset("kto_data.jsonl")
grpo_examples = pipeline.build_grpo_dataset("grpo_data.jsonl")
"""


def test_the_dataset_sample(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = "Write a Python function called add."
    with TraceStore() as store:
        for text in (GOOD, BAD):
            store.append(ExecutionTrace(user_query=asked, final_response=text, agent_name="agent_name"))
    names = {}
    exec(DATASETS, names)
    assert sorted(example.label for example in names["kto_examples"]) == [False, True]
    (group,) = names["grpo_examples"]
    assert len(group.completions) == len(group.rewards) == 2
    assert check_file(tmp_path / "kto_data.jsonl").rows == 2
    assert check_file(tmp_path / "grpo_data.jsonl").rows == 1
    names["pipeline"].store.close()


LABELS = """
from rusty_r2.rl import TraceCollector

collector = TraceCollector()

# Get unlabeled traces
unlabeled = collector.get_unlabeled_traces(limit=10)

for trace in unlabeled:
    print(f"Query: {trace.user_query}")
    print(f"Response: {trace.final_response[:200]}...")
    print(f"Tools used: {[tc.tool_name for tc in trace.tool_calls]}")

    # Manual review
    label = input("Good? (y/n): ").lower() == "y"
    collector.label_trace(trace.trace_id, label)
"""


def test_the_labelling_sample(monkeypatch, capsys):
    with TraceStore() as store:
        for number in range(3):
            call = ToolCallTrace("search", {"q": str(number)}, "found", True, 1.0)
            store.append(ExecutionTrace(user_query=f"q{number}", final_response="a", tool_calls=[call]))
    said = iter(["y", "N", "Y"])
    monkeypatch.setattr(builtins, "input", lambda prompt: next(said))
    exec(LABELS, {})
    assert "Tools used: ['search']" in capsys.readouterr().out
    with TraceStore() as store:
        told = store.statistics()
        assert (told["labeled"], told["positive_labels"]) == (3, 2)
        assert all(trace.manual_review for trace in store.find())


CUSTOM = """
from rusty_r2.rl import BaseReward, RewardResult, RewardEngine, CodeExecutionReward, ToolSuccessReward

class CustomReward(BaseReward):
    name = "my_custom_reward"
    weight = 1.5

    def compute(self, trace) -> RewardResult:
        # Check something specific
        has_feature = "specific_pattern" in trace.final_response
        return RewardResult(
            score=1.0 if has_feature else 0.0,
            is_binary=True,
            details={"has_feature": has_feature}
        )

# Use with engine
engine = RewardEngine([
    CodeExecutionReward(),
    ToolSuccessReward(),
    CustomReward()
])
"""


def test_the_custom_reward_sample():
    names = {}
    exec(CUSTOM, names)
    engine = names["engine"]
    assert (
        engine.compute_combined(ExecutionTrace(user_query="q?", final_response="a specific_pattern here"))
        == 1.0
    )
    assert engine.compute_combined(ExecutionTrace(user_query="q?", final_response="something else")) == 0.0
    result = engine.compute_all(ExecutionTrace(user_query="q?", final_response="x"))["my_custom_reward"]
    assert result.details == {"has_feature": False}
    assert rl.run_audit(engine).ok is False  # a pattern alone is no honest judge, and the audit says so


SEVEN = {
    "CodeExecutionReward": 2.0,
    "SyntaxValidationReward": 1.0,
    "ToolSuccessReward": 2.0,
    "TaskCompletionReward": 1.5,
    "EfficiencyReward": 0.5,
    "FormatComplianceReward": 1.0,
    "LearnedReward": 1.0,
}


@pytest.mark.parametrize("name", SEVEN)
def test_the_seven_rewards_have_the_documented_weights(name):
    reward = getattr(rl, name)()
    assert reward.weight == SEVEN[name]
    assert reward.is_binary is (name not in ("EfficiencyReward", "LearnedReward"))
