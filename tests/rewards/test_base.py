"""A reward answers with a number from 0 to 1, or None, or it is broken and says so."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rusty_r2.errors import RustyError, SandboxError
from rusty_r2.rewards.base import BaseReward, RewardError, RewardResult
from rusty_r2.trace import ExecutionTrace


class Fixed(BaseReward):
    name = "fixed"

    def __init__(self, answer):
        self.answer = answer

    def compute(self, trace):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_every_score_is_finite_and_clamped_or_broken(value):
    reward, trace = Fixed(RewardResult(value, False)), ExecutionTrace(trace_id="t1")
    if math.isfinite(value):
        score = reward(trace).score
        assert 0 <= score <= 1
        assert score == value or not 0 <= value <= 1
    else:
        with pytest.raises(RewardError, match=r"fixed scored .*trace t1"):
            reward(trace)


@pytest.mark.parametrize("answer", [ValueError("oops"), 0.5, None, RewardResult("high", True)])
def test_a_broken_reward_names_itself_and_the_trace(answer):
    with pytest.raises(RewardError, match=r"the reward fixed .*trace abc") as caught:
        Fixed(answer)(ExecutionTrace(trace_id="abc"))
    assert isinstance(caught.value, RustyError)


def test_broken_infrastructure_is_not_a_broken_reward():
    with pytest.raises(SandboxError):
        Fixed(SandboxError("no sandbox"))(ExecutionTrace())


def test_what_does_not_apply_stays_none_and_is_no_success():
    result = Fixed(RewardResult(None))(ExecutionTrace())
    assert result.score is None
    assert result.to_binary() == 0


def test_to_binary_goes_by_the_threshold():
    assert RewardResult(0.5, False).to_binary() == 1
    assert RewardResult(0.5, False).to_binary(threshold=0.6) == 0


def test_numbers_of_other_kinds_are_numbers():
    import numpy as np

    assert Fixed(RewardResult(np.float32(0.25), False))(ExecutionTrace()).score == 0.25
    assert Fixed(RewardResult(True, True))(ExecutionTrace()).score == 1.0
