"""Rewards are kept beside the traces, with their parts."""

import pytest

from rusty_r2.errors import DataError
from rusty_r2.rewards.scoring import ScoreConfig, score
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace


def test_traces_get_their_rewards_once(tmp_path):
    where = str(tmp_path / "t.db")
    with TraceStore(where) as store:
        good = store.append(ExecutionTrace(user_query="What is up?", final_response="The sky is up."))
        bad = store.append(ExecutionTrace(user_query="What is up?", final_response=""))
        assert score(ScoreConfig(store=where)).startswith("2 traces judged, 0 without")
        assert store.get(good).reward_score == 1.0
        assert store.get(good).reward_parts == {"format_compliance": 1.0}
        assert store.get(bad).reward_score == 0.0
        with pytest.raises(DataError, match="no trace to judge"):
            score(ScoreConfig(store=where))
        assert score(ScoreConfig(store=where, again=True)).startswith("2 traces judged")
