"""The main loop in the real gym, with a policy that follows a script."""

from rusty_r2.agent.policy import ScriptedPolicy
from rusty_r2.agent.prompt import SYSTEM, conversation
from rusty_r2.agent.rollout import begin, rollout
from rusty_r2.gym.env import TASKS, CodingEnv
from rusty_r2.protocol import Cmd, Edit, Msg, render
from rusty_r2.task import Task
from rusty_r2.trace import ExecutionTrace

SUM_LIST = Task.load(TASKS / "sum_list")
GOLD = render(Edit("template.py", SUM_LIST.solution["template.py"] or ""))


def play(*lines, max_turns=8):
    with CodingEnv() as env:
        policy = ScriptedPolicy(*lines)
        trace = begin(policy, env, task=SUM_LIST)
        return rollout(policy, env, trace, max_turns=max_turns)


def test_an_episode_heals_acts_and_ends_when_the_tests_pass():
    trace = play("uh", render(Cmd("ls")), GOLD, render(Msg("never said")))
    assert trace.ended == "done" and len(trace.steps) == 3
    assert [step.ok for step in trace.steps] == [False, True, True]
    assert '"action"' in trace.steps[0].observation and "template.py" in trace.steps[1].observation
    assert trace.reward_score == -0.5 + 1.0 and trace.task_name == "sum_list"
    assert trace.llm_calls_count == 3 and trace.sandbox_level and trace.model == "script"


def test_where_nobody_judges_there_is_no_reward():
    class Folder(CodingEnv):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed, options=options)[0], {}

    policy = ScriptedPolicy(GOLD)
    with Folder() as place:
        assert rollout(policy, place, begin(policy, place, task=SUM_LIST)).reward_score is None


def test_turns_run_out():
    assert play(*[render(Cmd("true"))] * 3, max_turns=2).ended == "turns"


def test_the_conversation_only_grows_at_its_end():
    trace = play("uh", render(Cmd("ls")), GOLD)
    whole = conversation(trace)
    assert [turn.role for turn in whole[:4]] == ["system", "user", "assistant", "observation"]
    assert whole[0].text == SYSTEM
    for cut in range(len(trace.steps)):
        shorter = ExecutionTrace(**{**vars(trace), "steps": trace.steps[:cut]})
        assert conversation(shorter) == whole[: 2 + 2 * cut]


def test_a_trace_of_the_gym_survives_the_store_and_json():
    trace = play("uh", GOLD)
    assert ExecutionTrace.from_dict(trace.to_dict()) == trace
    assert trace.redacted() == trace
