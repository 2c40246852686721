"""The learned reward learns people's taste, knows when it does not know, and never speaks over a person."""

import random

import numpy as np
import pytest

from rusty_r2.errors import DataError
from rusty_r2.rewards import classifier
from rusty_r2.rewards.engine import RewardEngine
from rusty_r2.rewards.labeler import WHO, LearnConfig, by_doubt, label_unlabelled, learn
from rusty_r2.rewards.learned import LearnedReward
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace, ToolCallTrace

TOPICS = ["cats", "rivers", "bread", "trains", "stars"]


def made(count, seed=0, labelled=True):
    """Clear answers are good, evasive ones bad."""
    rng = random.Random(seed)
    for number in range(count):
        good = rng.random() < 0.5
        topic = rng.choice(TOPICS)
        tail = " ".join(rng.choices(["alpha", "beta", "gamma", "delta", "eta"], k=8))
        text = f"The facts about {topic} are these: {tail}" if good else f"Hard to say, {topic} vary. {tail}"
        trace = ExecutionTrace(
            trace_id=f"{seed}-{number:04d}", user_query=f"Tell me about {topic} {number}", final_response=text
        )
        if labelled:
            trace.label, trace.manual_review = good, True
        yield trace, good


def traces(count, seed=0):
    return [trace for trace, _ in made(count, seed)]


def test_it_learns_and_says_how_well():
    reward = LearnedReward()
    report = reward.learn_from_traces(traces(80))
    assert report.learned
    assert report.accuracy > 0.9 > report.baseline
    assert report.calibration_error < 0.15
    judged = [(reward(trace).score, good) for trace, good in made(60, seed=1)]
    right = [(score >= 0.5) == good for score, good in judged if score is not None]
    assert len(right) > 30
    assert sum(right) / len(right) > 0.9


def test_outcomes_count_too():
    rng = random.Random(3)
    some = []
    for number in range(60):
        good = rng.random() < 0.5
        call = ToolCallTrace("shell", {"command": "make"}, "out", good, 1.0)
        some.append(
            ExecutionTrace(
                user_query=f"build {number}", tool_calls=[call], final_response="built", label=good
            )
        )
    assert LearnedReward().learn_from_traces(some).accuracy > 0.95


def test_noise_teaches_it_to_abstain():
    rng = random.Random(1)
    noise = [
        ExecutionTrace(user_query=f"q{n}", final_response=str(rng.random()), label=rng.random() < 0.5)
        for n in range(60)
    ]
    reward = LearnedReward()
    report = reward.learn_from_traces(noise)
    answered = [trace for trace in noise if reward(trace).score is not None]
    assert report.coverage < 0.5
    assert len(answered) < 50


def test_one_request_is_never_in_two_folds():
    rows = classifier.rows_of(traces(20))
    good = np.array([1.0, 0.0] * 10)
    assert np.isnan(classifier.cross_validate(rows, good, ["same"] * 20)).all()


def test_too_few_or_one_class_teach_nothing():
    reward = LearnedReward()
    assert "10 are needed" in reward.learn_from_traces(traces(9)).why
    one_class = [trace for trace in traces(60) if trace.label]
    assert "say the same" in reward.learn_from_traces(one_class).why
    assert reward(one_class[0]).score is None


def test_labels_of_classifiers_are_not_learned_from():
    some = traces(40)
    for trace in some:
        trace.manual_review, trace.labeled_by = False, WHO
    assert LearnedReward().learn_from_traces(some).examples == 0


def test_it_is_saved_and_read_back_without_pickle(tmp_path):
    reward = LearnedReward()
    reward.learn_from_traces(traces(40))
    path = reward.save(tmp_path / "taste.npz")
    again = LearnedReward(path)
    assert again.report == reward.report
    for trace in traces(5, seed=9):
        assert again.chance(trace) == pytest.approx(reward.chance(trace), abs=1e-4)
    with np.load(path, allow_pickle=False) as held:
        assert sorted(held) == ["about", "weights"]


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04broken"])
def test_a_file_that_is_no_model_is_one_line(tmp_path, content):
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="holds no learned reward"):
        LearnedReward(path)


def test_a_pickled_model_is_refused(tmp_path):
    path = tmp_path / "evil.npz"
    np.savez(path, about=np.array([{"a": 1}], dtype=object), weights=np.zeros(3))
    with pytest.raises(DataError):
        LearnedReward(path)


def test_nothing_learned_is_nothing_saved(tmp_path):
    with pytest.raises(DataError, match="rusty rewards learn"):
        LearnedReward().save(tmp_path / "x.npz")


def test_learning_is_the_same_every_time():
    first, second = LearnedReward(), LearnedReward()
    some = traces(40)
    first.learn_from_traces(some)
    second.learn_from_traces(some[::-1])
    assert np.array_equal(first.weights, second.weights)


def test_it_works_in_an_engine():
    reward = LearnedReward()
    engine = RewardEngine([*RewardEngine().rewards, reward])
    trace = next(trace for trace, good in made(50, seed=4) if not good)
    before = engine.compute_combined(trace)
    reward.learn_from_traces(traces(80))
    assert engine.compute_combined(trace) < before


def test_the_auto_labeler_labels_what_it_is_sure_of_and_never_over_a_person(tmp_path):
    waiting = [trace for trace, _ in made(40, seed=7, labelled=False)]
    with TraceStore(tmp_path / "t.db") as store:
        store.append_many([*traces(80), *waiting])
        told = learn(LearnConfig(store=str(tmp_path / "t.db"), output=tmp_path / "taste.npz", label=True))
        assert "next: rusty data kto" in told
        labelled = store.find(labeled=True, limit=None)
        by_machine = [trace for trace in labelled if not trace.manual_review]
        assert {trace.labeled_by for trace in by_machine} == {WHO}
        assert all(
            "confidence 0." in trace.review_notes or "confidence 1." in trace.review_notes
            for trace in by_machine
        )
        assert len(by_machine) > 20
        right = {trace.trace_id: good for trace, good in made(40, seed=7)}
        assert sum(right[trace.trace_id] == trace.label for trace in by_machine) > 0.85 * len(by_machine)
        victim = by_machine[0].trace_id
        store.label(victim, not by_machine[0].label, who="ada")
        label_unlabelled(store, LearnedReward(tmp_path / "taste.npz"))
        assert store.get(victim).labeled_by == "ada"


def test_doubt_comes_first():
    reward = LearnedReward()
    reward.learn_from_traces(traces(80))
    some = traces(20, seed=5)
    ordered = by_doubt(some, reward)
    doubts = [reward.doubt(trace) for trace in ordered]
    assert doubts == sorted(doubts, reverse=True)


def test_an_empty_store_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match="rusty trace label"):
        learn(LearnConfig(store=str(tmp_path / "t.db")))


def test_stated_chances_are_those_that_came_true():
    """Platt's two numbers are found again where labels were drawn by them."""
    chance = np.random.default_rng(0)
    logits = chance.normal(size=4000)
    good = (chance.random(4000) < classifier.sigmoid(2.5 * logits - 1)).astype(float)
    a, b = classifier.scale(logits, good)
    assert a == pytest.approx(2.5, abs=0.25) and b == pytest.approx(-1, abs=0.15)
    stated = classifier.sigmoid(a * logits + b)
    assert classifier.calibration_error(stated, good) < 0.03
    assert classifier.calibration_error(classifier.sigmoid(logits), good) > 0.08
