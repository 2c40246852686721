"""Rows hold the words exactly, splits go by task, and the same traces give the same bytes."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rusty_r2.data import rows
from rusty_r2.data.dpo import DPORowsConfig, build_dpo
from rusty_r2.data.sft import SFTRowsConfig, build_sft
from rusty_r2.data.validate import check_file
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.trace import ExecutionTrace, Step


def test_the_conversation_is_kept_whole_and_exact():
    trace = ExecutionTrace(
        system_prompt="Be brief.",
        history=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}],
        user_query="Write CODE for ME\n" + "x" * 500,
        final_response="  Done.\n",
    )
    assert rows.prompt_of(trace) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": trace.user_query},
    ]
    assert rows.completion_of(trace) == [{"role": "assistant", "content": "  Done.\n"}]


@given(st.text(min_size=1))
def test_the_plain_form_is_the_documents(query):
    trace = ExecutionTrace(user_query=query, final_response="yes")
    assert rows.prompt_of(trace, "plain") == "User: " + query
    assert rows.prompt_of(trace, "plain", "Sys") == "Sys\n\nUser: " + query
    assert rows.completion_of(trace, "plain") == "yes"


def test_one_system_prompt_only():
    trace = ExecutionTrace(
        system_prompt="old",
        history=[{"role": "system", "content": "older"}],
        user_query="q",
        final_response="a",
    )
    assert [turn["content"] for turn in rows.prompt_of(trace)] == ["older", "q"]
    assert [turn["content"] for turn in rows.prompt_of(trace, system_prompt="new")] == ["new", "q"]


def test_our_protocol_is_a_completion_of_turns():
    steps = [
        Step('{"action": "CMD", "command": "ls"}', "exit 0\na"),
        Step('{"action": "MSG", "message": "a"}', "seen"),
    ]
    trace = ExecutionTrace(user_query="what is here?", steps=steps, final_response="a")
    made = rows.completion_of(trace)
    assert [turn["role"] for turn in made] == ["assistant", "tool", "assistant"]
    assert made[0]["content"] == steps[0].reply
    assert rows.completion_of(trace, "plain").endswith(steps[1].reply)


def test_splits_go_by_task_and_never_change():
    one = [rows.split_of(ExecutionTrace(user_query=f"q {n % 50}"), 0.3, 0) for n in range(100)]
    assert one[:50] == one[50:]
    assert 5 < one[:50].count("eval") < 35
    assert one[:8] == [rows.split_of(ExecutionTrace(user_query=f"Q  {n}"), 0.3, 0) for n in range(8)]
    assert rows.split_of(ExecutionTrace(user_query="x"), 0.0, 0) == "train"
    named = {rows.split_of(ExecutionTrace(user_query=f"{n}", task_name="sum"), 0.5, 0) for n in range(20)}
    assert len(named) == 1


@given(st.lists(st.integers(0, 3), max_size=30))
def test_neighbours_have_different_prompts_where_possible(prompts):
    made = rows.apart(list(range(len(prompts))), [str(prompt) for prompt in prompts])
    assert sorted(made) == list(range(len(prompts)))
    touching = sum(prompts[a] == prompts[b] for a, b in pairwise(made))
    before = sum(a == b for a, b in pairwise(prompts))
    assert touching <= before


def test_files_round_trip(tmp_path):
    made = [{"prompt": "ä\u2028b", "label": True}, {"prompt": "c", "label": False}]
    for name, form in (("a.jsonl", "jsonl"), ("a.json", "json")):
        assert rows.load(rows.save(made, tmp_path / name, form)) == made
    with pytest.raises(ConfigError):
        rows.save(made, tmp_path / "a.csv", "csv")
    (tmp_path / "bad.jsonl").write_text("{\n")
    with pytest.raises(DataError, match="rusty data validate"):
        rows.load(tmp_path / "bad.jsonl")


def answers(*texts, query="Write a Python function called f."):
    return [
        ExecutionTrace(
            trace_id=f"{n:03d}", timestamp=f"2026-01-01T00:00:{n:02d}", user_query=query, final_response=text
        )
        for n, text in enumerate(texts)
    ]


GOOD = "```python\ndef f(x):\n    return x + 1\nprint(f(1))\n```"
BAD = "```python\ndef f(x):\n    return x + y\nprint(f(1))\n```"


def test_sft_rows_are_the_good_ones(tmp_path):
    some = [*answers(GOOD, BAD), *answers("Paris.", query="What is the capital of France?")]
    some[2].trace_id, some[2].label, some[2].manual_review = "p", False, True
    made = build_sft(some)
    assert [example.trace_id for example in made] == ["000"]
    path = rows.save([example.to_dict() for example in made], tmp_path / "sft.jsonl")
    assert check_file(path).faults == []
    assert build_sft(some, SFTRowsConfig(eval_share=0, threshold=0.4, max_examples=1))


def test_dpo_pairs_are_recorded_answers(tmp_path):
    made = build_dpo(answers(GOOD, BAD, "Use a function."))
    assert len(made) == 1
    assert made[0].trace_ids[0] == "000"
    assert made[0].scores[0] > made[0].scores[1]
    assert made[0].rejected != made[0].chosen
    path = rows.save([example.to_dict() for example in made], tmp_path / "dpo.jsonl")
    assert check_file(path).faults == []
    assert build_dpo(answers(GOOD, BAD), DPORowsConfig(margin=0.9, eval_share=0)) == []
    shuffled = answers(GOOD, BAD, "Use a function.")
    random.Random(0).shuffle(shuffled)
    assert [example.to_dict() for example in build_dpo(shuffled)] == [example.to_dict() for example in made]
