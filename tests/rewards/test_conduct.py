"""Conduct is read off what was recorded, not off what the agent says of itself."""

import pytest

from rusty_r2.errors import ConfigError
from rusty_r2.rewards.conduct import (
    EfficiencyReward,
    FormatComplianceReward,
    TaskCompletionReward,
    ToolSuccessReward,
)
from rusty_r2.trace import ExecutionTrace, ReasoningStep, Step, ToolCallTrace

TOOLS, TASKS, CHEAP, PLAIN = (
    ToolSuccessReward(),
    TaskCompletionReward(),
    EfficiencyReward(),
    FormatComplianceReward(),
)


def call(command="ls src", ok=True, result="main.py", error=None):
    return ToolCallTrace("shell", {"command": command}, result, ok, 1.0, error)


def used(*calls, query="List the files in src", answer="main.py"):
    return ExecutionTrace(user_query=query, tool_calls=list(calls), final_response=answer)


def test_the_documented_names_and_weights():
    told = [(reward.weight, reward.is_binary) for reward in (TOOLS, TASKS, CHEAP, PLAIN)]
    assert told == [(2.0, True), (1.5, True), (0.5, False), (1.0, True)]
    assert (CHEAP.max_tokens, CHEAP.max_tool_calls, CHEAP.max_reasoning_steps) == (2000, 10, 15)


@pytest.mark.parametrize(
    ("trace", "score"),
    [
        (used(call()), 1),
        (used(call(ok=False)), 0),
        (used(call("ls sr", ok=False), call("ls src")), 1),
        (used(call("ls src"), call("cat x", ok=False)), 0),
        (used(call(result="Error: no such file")), 0),
        (used(call(result={"exit_code": 2, "stdout": ""})), 0),
        (used(call(error="timeout")), 0),
        (used(*[call("echo hi")] * 3), 0),
        (used(*[call()] * 20), 0),
        (used(query="Delete the file notes.txt", answer="It is gone."), 0),
        (used(query="Is it tested?", answer="I ran the suite and all tests pass."), 0),
        (used(call("uname -a", result="Linux"), query="Count the lines of main.py"), 0),
        (used(call("ls"), query="Write a Python function that adds"), None),
        (used(call("echo 'x' > helper.txt"), query="Write a Python function that adds numbers"), None),
        (used(call("echo 'def add(a, b): ...' > add.py"), query="Write a Python function that adds"), 1),
        (used(query="What is 2 + 2?", answer="4"), None),
        (
            used(answer="ls src"),
            0,
        ),  # said, not run: it may have had tools
        (used(query="Show me how to delete a file", answer="With the program rm."), None),
    ],
)
def test_tools(trace, score):
    assert TOOLS(trace).score == score


def test_arguments_of_hooked_functions_are_read():
    hooked = ToolCallTrace(
        "write_file", {"args": [], "kwargs": {"path": "a.txt", "content": "x"}}, "ok", True, 1.0
    )
    assert TOOLS(used(hooked)).score == 1


def step(reply, seen="exit 0\nok", ok=True, reward=0.0):
    return Step(reply, seen, ok, reward)


def gym(*steps, ended="done"):
    return ExecutionTrace(
        user_query="Fix a.py", steps=list(steps), ended=ended, task_name="fix", final_response=""
    )


CMD = '{"action": "CMD", "command": "pytest -q"}'
EDIT = '{"action": "EDIT", "path": "a.py", "content": "x = 1"}'
MSG = '{"action": "MSG", "message": "done"}'


def test_our_own_protocol_is_judged():
    won = gym(step(CMD), step(EDIT, "wrote a.py\nTEST_RESULT: all pass", reward=1.0))
    assert (TOOLS(won).score, TASKS(won).score) == (1, 1)
    lost = gym(step(CMD, "exit 1\nfailed", ok=False), step(MSG, reward=-0.1), ended="turns")
    assert (TOOLS(lost).score, TASKS(lost).score) == (0, 0)
    gave_up = gym(step(MSG, reward=-0.1), ended="turns")
    assert (TOOLS(gave_up).score, TASKS(gave_up).score) == (0, 0)
    assert TASKS(gym(step(CMD), ended="masked")).score is None
    assert PLAIN(gym(step("no action at all"))).score == 0


def test_the_gyms_exit_line_beats_the_flag():
    assert TOOLS(gym(step(CMD, "exit 2\n"), ended="turns")).score == 0


def test_a_pass_printed_by_a_command_is_no_pass():
    shouted = step('{"action": "CMD", "command": "cat x"}', "exit 0\nTEST_RESULT: all pass", reward=0.0)
    assert TASKS(gym(shouted, ended="done")).score == 0


def test_tasks_of_the_agent():
    def tasks(created, completed, failed=()):
        rows = [[{"id": name} for name in names] for names in (created, completed, failed)]
        return ExecutionTrace(tasks_created=rows[0], tasks_completed=rows[1], tasks_failed=rows[2])

    assert TASKS(tasks("ab", "ab")).score == 1
    assert TASKS(tasks("ab", "a")).score == 0
    assert TASKS(tasks("ab", "ab", "b")).score == 0
    assert TASKS(tasks("", "a")).score == 1
    assert TASKS(tasks("", "", "a")).score == 0
    assert TASKS(tasks("", "")).score is None
    assert TASKS(tasks("ab", "aa")).score == 0


def test_missing_numbers_are_no_efficiency():
    assert CHEAP(ExecutionTrace(final_response="x")).score is None
    for nonsense in (float("nan"), float("inf"), -5):
        assert CHEAP(ExecutionTrace(total_tokens_out=nonsense)).score is None


def test_efficiency_falls_with_use():
    some = [CHEAP(ExecutionTrace(total_tokens_out=tokens)).score for tokens in (1, 500, 1500, 9999)]
    assert some == sorted(some, reverse=True)
    assert (some[-1], some[0] > 0.99) == (0.0, True)
    thinking = ExecutionTrace(total_tokens_out=500, reasoning_steps=[ReasoningStep("plan", "x")] * 15)
    assert CHEAP(thinking).score < some[1]
    with pytest.raises(ConfigError):
        EfficiencyReward(max_tokens=0)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Plain words.", 1),
        ("Use List<int> or a <b>bold</b> word, and a < b > c.", 1),
        ("`<tool_call>` is a tag.", 1),
        ("```xml\n<a><b/></a>\n```", 1),
        ("<result>42</result>", 0),
        ("<think>hmm</think> 42", 0),
        ("42<|im_end|>", 0),
        ('{"action": "MSG", "message": "42"}', 0),
        ("", 0),
    ],
)
def test_format(answer, score):
    assert PLAIN(ExecutionTrace(user_query="What is six times seven?", final_response=answer)).score == score


def test_markup_that_was_asked_for():
    asked = ExecutionTrace(user_query="Give me an XML example", final_response="<note>hi</note>")
    assert PLAIN(asked).score == 1


def test_own_forbidden_patterns():
    own = FormatComplianceReward([r"(?i)as an ai"])
    assert own(ExecutionTrace(user_query="q", final_response="As an AI, no.")).score == 0
    assert own(ExecutionTrace(user_query="q", final_response="<x>fine</x>")).score == 1
    with pytest.raises(ConfigError):
        FormatComplianceReward(["("])
