"""KTO rows: real booleans, people first, honest balance, the same bytes every time."""

import json
import random
from itertools import pairwise

import pytest

from rusty_r2.data.judged import progress_bar
from rusty_r2.data.kto import KTODatasetBuilder, KTOExample, KTORowsConfig, build
from rusty_r2.errors import DataError
from rusty_r2.rewards.base import BaseReward, RewardResult
from rusty_r2.rewards.engine import RewardEngine
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace, Step


class Rated(BaseReward):
    """Reads its score out of the last word."""

    name = "rated"

    def compute(self, trace):
        return RewardResult(float(trace.final_response.split()[-1]), False)


def trace(number, score, query=None, **more):
    return ExecutionTrace(
        trace_id=f"{number:04d}",
        timestamp=f"2026-01-01T00:00:00.{number:04d}",
        user_query=query or f"Question {number}?",
        final_response=f"The answer to number {number} scores {score}",
        **more,
    )


def builder(**more):
    return KTODatasetBuilder(RewardEngine([Rated()]), **more)


def test_rows_are_trls_with_real_booleans(tmp_path):
    examples = builder().build_dataset([trace(1, 0.9), trace(2, 0.1)])
    path = builder().save_dataset(examples, tmp_path / "kto.jsonl")
    made = sorted(
        (json.loads(line) for line in path.read_text().splitlines()), key=lambda row: row["trace_id"]
    )
    assert made[0]["prompt"] == [{"role": "user", "content": "Question 1?"}]
    assert made[0]["completion"] == [{"role": "assistant", "content": "The answer to number 1 scores 0.9"}]
    assert [row["label"] for row in made] == [True, False]
    again = builder().load_dataset(path)
    assert [example.to_dict() for example in again] == [example.to_dict() for example in examples]


def test_the_documents_form_is_an_option():
    (example,) = builder(form="plain", system_prompt="Sys").build_dataset([trace(1, 0.9)])
    assert (example.prompt, example.label) == ("Sys\n\nUser: Question 1?", True)
    assert example.completion == "The answer to number 1 scores 0.9"


def test_the_threshold_decides_and_a_person_beats_it():
    made = builder(reward_threshold=0.8)
    assert made.trace_to_example(trace(1, 0.7)).label is False
    assert made.trace_to_example(trace(1, 0.8)).label is True
    person = made.trace_to_example(trace(1, 0.1, label=True, manual_review=True, labeled_by="ada"))
    assert (person.label, person.labeled_by, person.score) == (True, "ada", 0.1)
    machine = made.trace_to_example(trace(1, 0.1, label=True, labeled_by="learned"))
    assert (machine.label, machine.labeled_by) == (True, "learned")


def test_traces_without_request_answer_or_judgement_give_no_row():
    made = KTODatasetBuilder(RewardEngine([*RewardEngine().rewards[:1]]))
    some = [
        ExecutionTrace(trace_id="a", user_query=" ", final_response="x"),
        ExecutionTrace(trace_id="b", user_query="q", final_response=""),
        ExecutionTrace(trace_id="c", user_query="What is up?", final_response="The sky is up."),
        ExecutionTrace(trace_id="d", user_query="q", final_response="words", ended="masked"),
        ExecutionTrace(trace_id="g", user_query="q", steps=[Step('{"action": "CMD"}')], ended="unasked"),
        ExecutionTrace(trace_id="e", user_query="q", final_response="half \ud83d", label=True),
        ExecutionTrace(
            trace_id="f",
            user_query="q",
            history=[{"role": "user", "content": "\ud800"}],
            final_response="words",
        ),
    ]
    assert made.build_dataset(some) == []
    assert dict(made.report.left_out) == {
        "no request": 1,
        "no answer": 1,
        "no reward applies": 1,
        "the sandbox failed": 1,
        "nobody could be asked": 1,
        "half a character in it": 2,
    }
    assert "no reward applies" in made.report.table()


def test_balance_drops_the_larger_class_and_keeps_people():
    some = [trace(n, 0.9) for n in range(20)] + [trace(n + 50, 0.1) for n in range(5)]
    some[3].label, some[3].manual_review = True, True
    made = builder()
    told = made.get_statistics(made.build_dataset(some))
    assert (told["positive"], told["negative"]) == (5, 5)
    assert "0003" in {example.trace_id for example in made.build_dataset(some)}
    assert made.report.left_out["to balance good and bad"] == 15
    assert len(made.build_dataset(some, balance=False)) == 25
    assert len(made.build_dataset(some, balance=False, max_examples=7)) == 7


def test_one_class_is_said_out_loud():
    made = builder()
    assert len(made.build_dataset([trace(n, 0.9) for n in range(4)])) == 4
    assert "every row is good" in made.report.table()


def test_the_order_of_the_traces_changes_nothing(tmp_path):
    some = [trace(n, n % 10 / 10, query=f"Question {n % 30}?") for n in range(120)]
    first = builder().save_dataset(builder().build_dataset(some), tmp_path / "a.jsonl").read_bytes()
    random.Random(1).shuffle(some)
    assert builder().save_dataset(builder().build_dataset(some), tmp_path / "b.jsonl").read_bytes() == first
    other = builder(seed=1)
    assert other.save_dataset(other.build_dataset(some), tmp_path / "c.jsonl").read_bytes() != first


def test_no_two_rows_of_one_prompt_side_by_side_in_a_file():
    some = [trace(n, n % 10 / 10, query=f"Question {n % 12}?") for n in range(120)]
    examples = builder(eval_share=0.5).build_dataset(some)
    for split in ("train", "eval"):
        kept = [example for example in examples if example.split == split]
        assert len({str(example.prompt) for example in kept}) > 2
        assert not any(a.prompt == b.prompt for a, b in pairwise(kept))


def test_no_two_rows_of_one_prompt_side_by_side():
    examples = builder().build_dataset([trace(n, n % 10 / 10, query=f"Question {n % 6}?") for n in range(60)])
    pairs = pairwise(examples)
    assert not any(a.prompt == b.prompt for a, b in pairs)


def test_splits_share_no_task():
    made = builder(eval_share=0.3)
    examples = made.build_dataset([trace(n, n % 2, query=f"Question {n % 40}?") for n in range(120)])
    train, held = ({e.task for e in examples if e.split == split} for split in ("train", "eval"))
    assert train
    assert held
    assert not train & held


def copies(count, label=None, **more):
    for number in range(count):
        yield ExecutionTrace(
            trace_id=f"c{number}", user_query="Q?", final_response="the same 0.9", label=label, **more
        )


def test_exact_duplicates_are_one_row():
    made = builder()
    assert len(made.build_dataset(list(copies(5)))) == 1
    assert made.report.left_out["duplicate"] == 4


def test_a_persons_copy_is_the_one_kept():
    some = list(copies(3))
    some[2].label, some[2].manual_review = False, True
    (example,) = builder().build_dataset(some)
    assert (example.label, example.trace_id) == (False, "c2")


def test_where_people_disagree_there_is_no_row():
    some = list(copies(3, label=True, manual_review=True))
    some[1].label = False
    made = builder()
    assert made.build_dataset(some) == []
    assert made.report.left_out["people disagree"] == 3


def test_near_duplicates_go_unless_the_verdict_differs():
    words = [f"word{n}" for n in range(300)]
    near = [*words[:299], "other"]
    texts = [" ".join(words) + " 0.9", " ".join(near) + " 0.9", " ".join(near) + " 0.1"]
    some = [
        ExecutionTrace(trace_id=f"{n}", user_query="Q?", final_response=text) for n, text in enumerate(texts)
    ]
    made = builder()
    assert [example.label for example in made.build_dataset(some, balance=False)].count(True) == 1
    assert made.report.left_out["near duplicate"] == 1
    for number, one in enumerate(some):
        one.task_name = f"task {number}"
    assert len(builder().build_dataset(some, balance=False)) == 3
    assert len(builder(alike=2.0).build_dataset(some, balance=False)) == 3


class Collector:
    """What TraceCollector promises."""

    def __init__(self, traces):
        self.traces = traces

    def load_traces(self, labeled_only=False):
        return [trace for trace in self.traces if trace.label is not None or not labeled_only]

    def load_all_traces(self):
        return self.traces


def test_from_a_collector_and_from_checkpoints():
    source = Collector([trace(1, 0.9, label=True), trace(2, 0.1)])
    assert len(builder().build_from_collector(source)) == 2
    assert len(builder().build_from_collector(source, include_unlabeled=False)) == 1
    assert len(builder().build_from_checkpoints(source)) == 2


def test_hugging_face_reads_the_rows():
    pytest.importorskip("datasets", reason="pip install 'rusty-r2[data]'")
    made = builder().to_hf_dataset(builder().build_dataset([trace(1, 0.9), trace(2, 0.1)]))
    assert made.features["label"].dtype == "bool"
    assert {"prompt", "completion", "label"} <= set(made.column_names)


def test_the_command_writes_both_splits(tmp_path):
    with TraceStore(tmp_path / "t.db") as store:
        chats = [
            ExecutionTrace(
                user_query=f"What is {n} plus {n}?", final_response=f"It is {2 * n}.", agent_name="ada"
            )
            for n in range(40)
        ]
        for chat in chats[::2]:
            chat.label, chat.manual_review = False, True
        store.append_many(chats)
    config = KTORowsConfig(
        store=str(tmp_path / "t.db"), agent="ada", output=tmp_path / "kto.jsonl", eval_share=0.3
    )
    told = build(config)
    assert told.splitlines()[-1] == f"next: rusty train kto --data {tmp_path / 'kto.jsonl'}"
    assert (tmp_path / "kto.eval.jsonl").exists()
    assert build(config) == told
    with pytest.raises(DataError, match="no traces of the agent bob"):
        build(KTORowsConfig(store=str(tmp_path / "t.db"), agent="bob"))


def test_an_example_can_be_made_by_hand():
    assert KTOExample("User: a", "b", True).to_dict()["label"] is True


def test_judging_says_nothing_into_a_log(capsys):
    with progress_bar(2, "judging", show=True) as advance:
        advance()
    assert capsys.readouterr() == ("", "")
