"""GRPO rows: recorded groups of exactly one prompt, nothing invented, every number kept."""

import asyncio
import json
import random
import statistics

import pytest

from rusty_r2.data.grpo import GRPODatasetBuilder, GRPOExample, GRPORowsConfig, build
from rusty_r2.data.validate import check_file
from rusty_r2.protocol import Msg, render
from rusty_r2.rewards.base import BaseReward, RewardResult
from rusty_r2.rewards.engine import RewardEngine
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace, Step


class Rated(BaseReward):
    name = "rated"

    def compute(self, trace):
        return RewardResult(float(trace.final_response.split()[-1]), False)


def group(*scores, query="Write CODE for ME", start=0, **more):
    return [
        ExecutionTrace(
            trace_id=f"{query[:5]}{start + n:03d}",
            timestamp=f"2026-01-01T00:00:00.{start + n:03d}",
            user_query=query,
            final_response=f"answer {start + n} scores {score}",
            **more,
        )
        for n, score in enumerate(scores)
    ]


def builder(**more):
    return GRPODatasetBuilder(RewardEngine([Rated()]), **more)


def test_a_row_keeps_the_prompt_and_every_number(tmp_path):
    (example,) = builder().build_dataset(group(0.2, 0.9, 0.7))
    raw = [0.2, 0.9, 0.7]
    mean, spread = statistics.fmean(raw), statistics.pstdev(raw)
    assert example.prompt == [{"role": "user", "content": "Write CODE for ME"}]
    assert example.raw_rewards == raw
    assert example.rewards == pytest.approx([(r - mean) / spread for r in raw], abs=1e-6)
    assert example.advantages == pytest.approx([r - mean for r in raw], abs=1e-6)
    assert example.parts == [{"rated": r} for r in raw]
    assert example.trace_ids == ["Write000", "Write001", "Write002"]
    path = builder().save_dataset([example], tmp_path / "grpo.jsonl")
    assert check_file(path).faults == []
    assert set(json.loads(path.read_text())) == {
        "prompt", "completions", "rewards", "raw_rewards", "advantages", "parts", "trace_ids",
    }  # fmt: skip
    assert builder().load_dataset(path)[0].to_dict() == example.to_dict()


class Choosy(Rated):
    """Has no opinion of some answers."""

    def compute(self, trace):
        return RewardResult(None, False) if "shrug" in trace.final_response else super().compute(trace)


def test_what_no_reward_applies_to_is_left_out_of_its_group():
    """Its place would be the mean, above a failed try, whoever labelled it by machine."""
    made = GRPODatasetBuilder(RewardEngine([Choosy()]))
    known = group(0.2, 0.9, 0.7)
    shrugs = group("shrug", "shrug", start=7, label=True, labeled_by="learned")
    (example,) = made.build_dataset(known + shrugs)
    assert example.raw_rewards == [0.2, 0.9, 0.7] and len(example.completions) == 3
    assert made.report.left_out == {"no reward applies": 2}
    alone = made.build_example_from_group("Write CODE for ME", known[:2] + shrugs)
    assert alone.raw_rewards == [0.2, 0.9]
    people = group("shrug", start=7, label=True, labeled_by="ada", manual_review=True)
    (example,) = made.build_dataset(known + people)
    assert sorted(example.raw_rewards) == [0.2, 0.7, 0.9, 1.0], "a person's word is worth something"


def test_the_documents_form_is_an_option():
    (example,) = builder(form="plain").build_dataset(group(0.2, 0.9))
    assert example.prompt == "User: Write CODE for ME"
    assert example.completions == ["answer 0 scores 0.2", "answer 1 scores 0.9"]


def test_long_requests_that_differ_at_the_end_stay_apart():
    some = group(0.1, 0.9, query="x" * 300 + "a") + group(0.1, 0.9, query="x" * 300 + "B", start=5)
    assert len(builder().build_dataset(some)) == 2
    assert len(builder().group_traces_by_query(some)) == 2


def test_history_and_task_are_part_of_the_prompt():
    told = [{"role": "user", "content": "earlier"}]
    some = group(0.1, 0.9) + group(0.3, start=5, history=told) + group(0.4, start=6, task_name="sum")
    (example,) = builder().build_dataset(some)
    assert len(example.completions) == 2


def test_no_loser_is_invented():
    made = builder()
    assert made.build_dataset(group(0.9)) == []
    assert made.report.left_out["no other answer to compare with"] == 1
    (single,) = made.build_dataset(group(0.9), include_singles=True)
    assert (len(single.completions), single.rewards, single.raw_rewards) == (1, [0.0], [0.9])


def test_flat_groups_are_zeros_and_reported():
    made = builder()
    (example,) = made.build_dataset(group(0.5, 0.5))
    assert example.rewards == [0.0, 0.0]
    assert "flat" in made.report.table()


def test_large_groups_become_rows_of_even_size():
    examples = builder(num_completions=4).build_dataset(group(*[n / 10 for n in range(10)]))
    assert sorted(len(example.completions) for example in examples) == [3, 3, 4]
    assert len({name for example in examples for name in example.trace_ids}) == 10


def test_a_persons_word_is_the_reward():
    some = group(0.2, 0.9)
    some[0].label, some[0].manual_review = True, True
    (example,) = builder().build_dataset(some)
    assert example.raw_rewards == [1.0, 0.9]
    assert example.parts[0] == {"person": 1.0, "rated": 0.2}


def test_equal_answers_count_once():
    some = group(0.2, 0.9)
    some += [
        ExecutionTrace(user_query=some[0].user_query, final_response=some[0].final_response, timestamp="3")
    ]
    (example,) = builder().build_dataset(some)
    assert len(example.completions) == 2


def test_the_order_of_the_traces_changes_nothing(tmp_path):
    some = [one for n in range(12) for one in group(0.1, 0.5, 0.9, query=f"q{n:03d}", start=n * 10)]
    first = builder().save_dataset(builder().build_dataset(some), tmp_path / "a.jsonl").read_bytes()
    random.Random(2).shuffle(some)
    assert builder().save_dataset(builder().build_dataset(some), tmp_path / "b.jsonl").read_bytes() == first


def test_recorded_log_probabilities_are_kept(tmp_path):
    def played(number, reward):
        step = Step(render(Msg(str(number))), "x", True, reward, [1, 2], [-0.1, -0.2])
        return ExecutionTrace(
            trace_id=str(number),
            user_query="q",
            task_name="t",
            steps=[step],
            ended="done",
            final_response=str(reward),
        )

    (example,) = builder().build_dataset([played(1, 1.0), played(2, 0.0)])
    assert example.token_ids == [[[1, 2]], [[1, 2]]]
    assert example.logprobs == [[[-0.1, -0.2]], [[-0.1, -0.2]]]
    assert "logprobs" in example.to_dict()
    assert check_file(builder().save_dataset([example], tmp_path / "g.jsonl")).faults == []


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_synthetic_groups_are_what_the_agent_really_says(kind):
    said = iter(range(100))

    def speak(query):
        return f"{query} again {next(said)} 0.{next(said) % 10}"

    async def speak_slowly(query):
        await asyncio.sleep(0)
        return speak(query)

    async def inside_a_loop():
        generate = speak if kind == "plain" else speak_slowly
        return builder().build_synthetic_groups(group(0.9), generate, num_generations=3)

    (example,) = asyncio.run(inside_a_loop())
    assert len(example.completions) == 3
    assert example.completions[0][0]["content"] == "answer 0 scores 0.9"


def test_statistics():
    made = builder()
    told = made.get_statistics(made.build_dataset(group(0.2, 0.9)))
    assert (told["total"], told["completions"], told["flat"]) == (1, 2, 0)
    assert made.get_statistics([])["total"] == 0


def test_an_example_can_be_made_by_hand():
    assert GRPOExample("User: a", ["b", "c"], [1.0, -1.0]).to_dict()["rewards"] == [1.0, -1.0]


def test_the_command(tmp_path):
    with TraceStore(tmp_path / "t.db") as store:
        store.append_many(group("yes", "<think>no</think> maybe", query="Is water wet?"))
    told = build(GRPORowsConfig(store=str(tmp_path / "t.db"), output=tmp_path / "g.jsonl", eval_share=0.0))
    assert told.splitlines()[-1] == f"next: rusty train replay --data {tmp_path / 'g.jsonl'}"
    assert check_file(tmp_path / "g.jsonl").rows == 1
