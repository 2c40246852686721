"""Who is asked, when, and what a no means: with a reason the agent goes on, without one it ends."""

import pytest

from rusty_r2.agent.approval import Answer, Approval, kind_of, nobody
from rusty_r2.agent.policy import ScriptedPolicy
from rusty_r2.agent.rollout import begin, rollout
from rusty_r2.agent.workspace import Workspace
from rusty_r2.protocol import Cmd, Edit, Msg, render
from rusty_r2.rewards.engine import RewardEngine
from rusty_r2.trace import ExecutionTrace

from .conftest import snapshot
from .test_workspace import NO, YES, do, needs_ns, place


@needs_ns
def test_ask_writes_asks_when_something_changed_and_not_before(folder):
    before = snapshot(folder)
    with place(folder, "writes", NO, YES, NO) as work:
        assert do(work, Cmd("ls"))[0].startswith("exit 0") and not work.person.asked
        assert "did not keep what this changed: not today" in do(work, Cmd("echo x > a"))[0]
        assert snapshot(folder) == before
        do(work, Cmd("echo x > a"))
        assert (folder / "a").exists()
        assert do(work, Edit("a", "y"))[0] == "SYSTEM_MSG: The user said no: not today"
    assert work.person.asked == [("keep", "echo x > a"), ("keep", "echo x > a"), ("write", "EDIT")]
    assert (folder / "a").read_text() == "x\n"


@needs_ns
def test_ask_always_asks_before_and_takes_a_better_command(folder):
    with place(folder, "always", NO, Answer(True, command="echo better"), Answer(True, always=True)) as work:
        assert do(work, Cmd("touch a"))[0] == "SYSTEM_MSG: The user said no: not today"
        seen = do(work, Cmd("echo worse"))[0]
        assert seen == "SYSTEM_MSG: The user changed the command to: echo better\nexit 0\nbetter"
        do(work, Cmd("ls"))
        do(work, Cmd("ls -la"))
    assert work.person.asked == [("run", "touch"), ("run", "echo"), ("run", "ls")]
    assert not (folder / "a").exists()


def plays(folder, ask, asker, *actions):
    policy = ScriptedPolicy(*map(render, actions))
    with Workspace(folder, approval=Approval(ask, asker)) as work:
        return rollout(policy, work, begin(policy, work, query="Make a, then list the files"))


LOOKS = Cmd("ls"), Cmd("cat total.py"), Cmd("cat check.py")
MAKES = Cmd("echo loud; echo x > a")
PRINTED = "exit 0\nloud\n"


@needs_ns
@pytest.mark.parametrize(
    ("ask", "action", "printed", "no", "undone"),
    [
        ("writes", MAKES, PRINTED, "did not keep what this changed", "not kept: a"),
        ("always", MAKES, "", "said no", "not run: echo loud; echo x > a"),
        ("writes", Edit("a", "x"), "", "said no", "not written: a"),
    ],
)
@pytest.mark.parametrize("ended", ["refused", "unasked"])
def test_a_bare_no_ends_the_request_and_earns_nothing(folder, ask, action, printed, no, undone, ended):
    before = snapshot(folder)
    looks = LOOKS if ask == "writes" else ()
    asker = nobody if ended == "unasked" else lambda question: Answer(False)
    trace = plays(folder, ask, asker, *looks, action, Msg("Never said."))
    assert trace.ended == ended and trace.answer == "" and snapshot(folder) == before
    assert trace.llm_calls_count == len(trace.steps) == len(looks) + 1, "nothing more is asked of the model"
    assert [step.ok for step in trace.steps] == [True] * len(looks) + [False]
    told = f"nobody to ask, so {undone}" if ended == "unasked" else f"The user {no}"
    assert trace.steps[-1].observation == f"{printed}SYSTEM_MSG: {told}"
    assert ExecutionTrace.from_dict(trace.to_dict()) == trace and trace.reward_score is None
    score = RewardEngine().score(trace)
    assert score.parts["tool_success"] == 0 and score.total < 0.5, "three good looks do not make up for it"


@needs_ns
def test_a_no_with_a_reason_is_words_for_the_model(folder):
    trace = plays(
        folder, "writes", lambda question: NO, MAKES, Edit("a", "x"), Cmd("ls"), Msg("As you like.")
    )
    assert trace.ended == "done" and trace.answer == "As you like."
    assert [step.ok for step in trace.steps] == [False, False, True, True]
    kept, wrote = (step.observation for step in trace.steps[:2])
    assert kept == "exit 0\nloud\nSYSTEM_MSG: The user did not keep what this changed: not today"
    assert wrote == "SYSTEM_MSG: The user said no: not today"


@needs_ns
def test_after_a_no_the_next_request_begins_anew(folder):
    with place(folder, "writes", Answer(False), YES) as work:
        assert do(work, Edit("a", "x"))[1]
        work.reset(options={"query": "then do"})
        seen, over, info = do(work, Edit("a", "x"))
        assert seen == "wrote a" and not over and info["ok"]
        assert do(work, Cmd("ls"))[2]["ok"]


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("ls -la src", "ls"),
        ("ls; rm -rf /", "ls; rm -rf /"),
        ("ls $(rm x)", "ls $(rm x)"),
        ("X=1 ls", "X=1 ls"),
        ("ls 'unclosed", "ls 'unclosed"),
        ("ls\nrm x", "ls\nrm x"),
        ("EDIT notes", "$ EDIT"),
        ("EDIT", "$ EDIT"),
    ],
)
def test_always_covers_one_program_or_exactly_this_text(command, kind):
    assert kind_of(Cmd(command)) == kind


def test_a_no_grants_nothing_for_good():
    approval = Approval("always", lambda question: Answer(False, always=True))
    assert not approval.before_writing(Edit("a", "")).yes and not approval.granted
