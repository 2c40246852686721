"""Traces come from outside: whatever they hold, the shipped rewards answer, and in linear time."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rusty_r2.errors import TraceError
from rusty_r2.rewards.classifier import features
from rusty_r2.rewards.code import SyntaxValidationReward
from rusty_r2.rewards.conduct import (
    EfficiencyReward,
    FormatComplianceReward,
    TaskCompletionReward,
    ToolSuccessReward,
)
from rusty_r2.rewards.engine import RewardEngine
from rusty_r2.trace import ExecutionTrace

LIGHT = RewardEngine(
    [
        SyntaxValidationReward(),
        ToolSuccessReward(),
        TaskCompletionReward(),
        EfficiencyReward(),
        FormatComplianceReward(),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
STEP = st.fixed_dictionaries({"reply": JSON}, optional={"observation": JSON, "ok": JSON})
CALL = st.fixed_dictionaries(
    {"tool_name": JSON, "arguments": JSON, "result": JSON, "success": JSON, "duration_ms": JSON},
    optional={"error": JSON},
)
WORDS = st.text(max_size=200) | st.sampled_from(
    ["```python\n", "```", "<a></a>", '{"action": "CMD"', "Done."]
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=100)
@given(
    st.fixed_dictionaries(
        {"user_query": WORDS, "final_response": WORDS},
        optional={
            "steps": st.lists(STEP, max_size=3),
            "tool_calls": st.lists(CALL, max_size=3),
            "tasks_created": st.lists(JSON, max_size=3),
            "tasks_failed": st.lists(JSON, max_size=3),
            "history": st.lists(JSON, max_size=3),
            "task_name": st.text(max_size=4),
        },
    )
)
def test_no_trace_breaks_a_shipped_reward(data):
    try:
        trace = ExecutionTrace.from_dict(data)
    except TraceError:
        return
    total = LIGHT.score(trace).total
    assert total is None or 0 <= total <= 1
    features(trace)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece", ["\n", " ", "<", "`", '"', "{", "[", "a", ">", "(", "Action:\n", "exit\n", "```\n"]
)
def test_long_texts_are_read_in_linear_time(piece):
    text = piece * (190_000 // len(piece))
    for wrapped in (text, f"```python\n{text}\n```", f"```bash\n{text}\n```"):
        trace = ExecutionTrace(user_query=text, final_response=wrapped)
        assert 0 <= (LIGHT.score(trace).total or 0) <= 1


def test_thousands_of_branches_are_no_crash():
    source = "if 0:\n    pass\n" + "elif 0:\n    pass\n" * 5000
    trace = ExecutionTrace(user_query="Write a Python function.", final_response=f"```python\n{source}```")
    assert LIGHT.score(trace).total is not None
