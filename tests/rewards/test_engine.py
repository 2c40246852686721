"""The engine adds up what applies, vetoes what is faked, and never rewards silence."""

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rusty_r2.errors import ConfigError, SandboxError
from rusty_r2.rewards import running
from rusty_r2.rewards.base import BaseReward, RewardError, RewardResult
from rusty_r2.rewards.engine import HISTORY, RewardEngine, Score, group_totals, normalised
from rusty_r2.trace import ExecutionTrace, Step, ToolCallTrace


def chat(query, answer):
    return ExecutionTrace(user_query=query, final_response=answer)


CHATS = [
    chat("Hey bist du online?", "Ja, ich bin online und bereit zu helfen!"),
    chat("Hi!", "Hello! How can I help you today?"),
    chat("What is the capital of France?", "Paris."),
    chat("Why is the sky blue?", "Short waves scatter more strongly in air than long ones."),
    chat("Is C# able to do that?", "Yes: use List<int>, or <b>Dictionary</b> for pairs."),
    chat("Should I use tabs?", "I can't see a reason to. Most style guides prefer spaces, so use those."),
    chat("Can I divide by zero in Python?", "No, it raises ZeroDivisionError."),
]


@pytest.mark.parametrize("trace", CHATS, ids=lambda trace: trace.user_query)
def test_an_ordinary_chat_answer_is_not_bad(trace):
    assert RewardEngine().get_binary_label(trace) is True


class Word(BaseReward):
    """Reads its score out of the answer: `name=0.5`."""

    def __init__(self, name, weight=1.0):
        self.name, self.weight = name, weight

    def compute(self, trace):
        found = dict(part.split("=") for part in trace.final_response.split() if "=" in part)
        score = found.get(self.name)
        return RewardResult(None if score is None else float(score), False)


def words(text):
    return ExecutionTrace(user_query="q", final_response=text)


def test_what_does_not_apply_is_left_out_of_the_mean():
    engine = RewardEngine([Word("a", 3.0), Word("b", 1.0)])
    assert engine.compute_combined(words("a=1 b=0")) == 0.75
    assert engine.compute_combined(words("a=0.5")) == 0.5
    assert engine.compute_combined(words("nothing=1")) == 0
    assert engine.score(words("nothing=1")).total is None
    assert {name: result.score for name, result in engine.compute_all(words("a=1")).items()} == {
        "a": 1.0,
        "b": None,
    }


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_groups_are_normalised_by_the_populations_deviation(scores):
    engine = RewardEngine([Word("a")])
    made = engine.compute_for_group([words(f"a={score!r}") for score in scores])
    spread = statistics.pstdev(scores)
    if len(scores) < 2 or spread < 1e-9:
        assert made == [0.0] * len(scores)
    else:
        mean = statistics.fmean(scores)
        assert made == pytest.approx([(score - mean) / spread for score in scores])


def test_silence_never_outscores_a_failed_try():
    weights = {"tries": 2.0, "format": 1.0}

    def score(**parts):
        return Score({name: RewardResult(value) for name, value in parts.items()}, weights)

    tried, silent, won = group_totals(
        [score(tries=0.0, format=1.0), score(format=1.0), score(tries=1.0, format=1.0)]
    )
    assert silent == tried < won


def test_what_has_no_score_is_left_out_of_the_group():
    assert normalised([1.0, None, 0.0]) == [1.0, 0.0, -1.0]


def test_a_broken_reward_is_reported_never_zero():
    class Broken(BaseReward):
        name = "broken"

        def compute(self, trace):
            return RewardResult(float("nan"))

    with pytest.raises(RewardError, match="broken scored nan"):
        RewardEngine([Broken()]).score_all(CHATS)


def test_a_broken_sandbox_masks_the_trace():
    class NoBox(BaseReward):
        name = "no_box"

        def compute(self, trace):
            raise SandboxError("no namespace")

    (score,) = RewardEngine([NoBox()]).score_all(CHATS[:1])
    assert (score.total, score.masked) == (None, "no namespace")


def test_the_documented_weights_are_the_default():
    weights = {reward.name: reward.weight for reward in RewardEngine().rewards}
    assert weights == {
        "code_execution": 2.0,
        "syntax_validation": 1.0,
        "tool_success": 2.0,
        "task_completion": 1.5,
        "efficiency": 0.5,
        "format_compliance": 1.0,
    }


def test_summary_runs_nothing_and_explains_the_score():
    engine = RewardEngine()
    trace = chat(
        "Write a function called f.", "```python\ndef f(x):\n    return x * 7  # summary\nprint(f(6))\n```"
    )
    before = running.OUTCOMES.runs
    assert "not run yet" in engine.summary(trace)
    assert running.OUTCOMES.runs == before
    engine.compute_combined(trace)
    assert "code_execution (weight 2): 1.00" in engine.summary(trace)
    assert running.OUTCOMES.runs == before + 1


def test_history_is_bounded():
    engine = RewardEngine([Word("a")])
    for _ in range(HISTORY + 5):
        engine.compute_combined(words("a=1"))
    assert len(engine.reward_history) == HISTORY
    assert engine.reward_history[-1]["combined"] == 1.0


def test_engines_that_make_no_sense_are_refused():
    for rewards in ([], [Word("a"), Word("a")], [Word("a", 0)], [Word("a", float("nan"))]):
        with pytest.raises(ConfigError):
            RewardEngine(rewards)


def test_the_same_answer_to_different_requests_is_canned():
    answer = "It depends on the circumstances, as so many things do."
    same = [chat(f"Question {number}: why?", answer) for number in range(3)]
    assert [score.total for score in RewardEngine().score_all(same)] == [0, 0, 0]
    assert RewardEngine().score_all(same[:2])[0].total == 1
    assert [score.total for score in RewardEngine(veto=False).score_all(same)] == [1, 1, 1]


@pytest.mark.parametrize(
    "trace",
    [
        ExecutionTrace(
            user_query="Add a unit test for total() in tests/test_total.py",
            tool_calls=[
                ToolCallTrace(
                    "write_file", {"path": "tests/test_total.py", "content": "..."}, "ok", True, 1.0
                )
            ],
            final_response="Added a test for the empty list.",
        ),
        ExecutionTrace(
            user_query="Make the parser faster",
            tool_calls=[
                ToolCallTrace(
                    "write_file",
                    {"path": "test_mine.py", "content": "assert 1"},
                    "wrote test_mine.py",
                    True,
                    1.0,
                ),
                ToolCallTrace(
                    "write_file",
                    {"path": "test_mine.py", "content": "assert 2"},
                    "wrote test_mine.py",
                    True,
                    1.0,
                ),
            ],
            final_response="Done.",
        ),
        ExecutionTrace(
            user_query="Fix a.py",
            steps=[
                Step(
                    '{"action": "EDIT", "path": "a.py", "content": "x = 2"}',
                    "wrote a.py\nTEST_RESULT: all pass",
                )
            ],
            final_response="",
        ),
        chat(
            "What does `TEST_RESULT:` mean?",
            "The gym prints `TEST_RESULT:` after an edit; it is the verdict.",
        ),
        chat("How do I thank someone?", "Thank you works everywhere. In German say danke, in French merci."),
        chat("List ten numbers", "\n".join(f"{n}. {n * n}" for n in range(10))),
    ],
)
def test_honest_work_is_not_vetoed(trace):
    assert RewardEngine().score(trace).veto == ""


def test_scores_explain_themselves():
    told = str(RewardEngine([Word("a"), Word("b")]).score(words("a=1 b=0.5")))
    assert told == "0.75 = a 1.00  b 0.50"
