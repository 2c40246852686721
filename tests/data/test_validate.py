"""What is wrong with a file of rows is named by line and field."""

import json

import pytest

from rusty_r2.data.validate import ValidateConfig, check_file, validate
from rusty_r2.errors import DataError
from rusty_r2.trace import ExecutionTrace

USER, SAID = [{"role": "user", "content": "q"}], [{"role": "assistant", "content": "a"}]
KTO = {"prompt": USER, "completion": SAID, "label": True}
GRPO = {"prompt": USER, "completions": [SAID, SAID], "rewards": [1.0, -1.0]}
DPO = {"prompt": USER, "chosen": SAID, "rejected": [{"role": "assistant", "content": "b"}]}
SFT = {"prompt": USER, "completion": SAID}


def wrong(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return [fault.removeprefix(f"{path}:") for fault in check_file(path).faults]


@pytest.mark.parametrize("row", [KTO, GRPO, DPO, SFT, {"messages": USER + SAID}, {"prompt": "User: q"}])
def test_good_rows_have_no_faults(tmp_path, row):
    assert wrong(tmp_path, row, row) == []


def test_traces_are_checked_too(tmp_path):
    trace = ExecutionTrace(user_query="q").to_dict()
    assert wrong(tmp_path, trace) == []
    assert wrong(tmp_path, trace | {"total_cost": "much"})[0].startswith("1: trace: trace field total_cost")


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (KTO | {"label": "True"}, 'label: must be true or false, not the text "True"'),
        (KTO | {"label": 1}, "label: must be true or false, not the number 1"),
        (KTO | {"prompt": ""}, "prompt: is empty"),
        (
            KTO | {"prompt": [{"role": "user", "content": "\ud800"}]},
            "prompt[0].content: holds half a character",
        ),
        (KTO | {"prompt": 7}, "prompt: must be a text or a list of messages, not the number 7"),
        (KTO | {"prompt": [{"role": "robot", "content": "x"}]}, "prompt[0].role: must be one of"),
        (KTO | {"prompt": [{"role": "user"}]}, "prompt[0].content: must be a text, not null"),
        (
            KTO | {"completion": USER},
            "completion[0].role: the last turn must be the assistant's, not the user's",
        ),
        (KTO | {"completion": "a"}, "prompt and completion: must have one form"),
        (KTO | {"completion": [{"role": "assistant", "content": " "}]}, "completion: is empty"),
        (GRPO | {"rewards": [1.0]}, "rewards: must be a list of 2 numbers, one for each completion, not 1"),
        (GRPO | {"rewards": [1.0, "x"]}, 'rewards[1]: must be a finite number, not the text "x"'),
        (GRPO | {"rewards": [True, 0]}, "rewards[0]: must be a finite number"),
        (GRPO | {"completions": []}, "completions: must be a list with at least one"),
        (GRPO | {"trace_ids": ["a"]}, "trace_ids: must be a list of 2"),
        (GRPO | {"completions": ["x", SAID]}, "completions[0]: must have the form of the prompt"),
        (DPO | {"rejected": SAID}, "rejected: is the same as chosen"),
    ],
)
def test_the_line_and_the_field_are_named(tmp_path, row, fault):
    good = KTO if "label" in row else GRPO if "rewards" in row else DPO
    assert wrong(tmp_path, good, row)[0].startswith(f"2: {fault}")


def test_a_missing_field_is_named(tmp_path):
    assert wrong(tmp_path, KTO, {"prompt": USER, "label": True}) == ["2: completion: is missing"]


def test_lines_that_are_no_json(tmp_path):
    found = wrong(tmp_path, KTO, "{broken", "[1]", '{"prompt": "q", "completion": "a", "label": NaN}')
    assert found[0].startswith("2: no JSON")
    assert found[1] == "3: a row is an object, not a list"
    assert "NaN is not JSON" in found[2]


def test_deep_nesting_is_a_fault_not_a_crash(tmp_path):
    assert wrong(tmp_path, KTO, "[" * 100_000)[0].startswith("2: ")


def test_empty_unknown_and_binary_files(tmp_path):
    assert wrong(tmp_path, "")[0].endswith("the file holds no rows")
    assert "are no row we know" in wrong(tmp_path, {"x": 1})[0]
    (tmp_path / "b.jsonl").write_bytes(b"{}\n\xff\xfe")
    with pytest.raises(DataError, match=r"b.jsonl:2: the file is not UTF-8"):
        check_file(tmp_path / "b.jsonl")
    with pytest.raises(DataError, match="No such file.* rusty data "):
        check_file(tmp_path / "gone.jsonl")


def test_the_command_prints_and_fails(tmp_path, capsys):
    path = tmp_path / "kto.jsonl"
    path.write_text(json.dumps(KTO) + "\n" + json.dumps(KTO | {"label": "no"}) + "\n")
    with pytest.raises(DataError, match="1 fault in 2 kto rows"):
        validate(ValidateConfig(path))
    assert f"{path}:2: label" in capsys.readouterr().out
    path.write_text(json.dumps(KTO) + "\n")
    told = validate(ValidateConfig(path))
    assert "every label is true" in told
    assert told.splitlines()[-1] == f"next: rusty train kto --data {path}"


def test_the_kind_can_be_demanded(tmp_path):
    path = tmp_path / "sft.jsonl"
    path.write_text(json.dumps(SFT) + "\n")
    assert check_file(path, "kto").faults == [f"{path}:1: label: must be true or false, not missing"]


def test_a_json_list_is_rows_too(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([KTO, KTO | {"label": None}]))
    assert check_file(path).faults == [f"{path} row 2: label: must be true or false, not null"]


@pytest.mark.parametrize(
    ("member", "fault"),
    [
        (json.dumps(json.dumps(KTO)), " row 1: a row is an object, not the text"),
        (json.dumps(KTO | {"score": float("nan")}), ": no JSON: NaN is not JSON"),
    ],
)
def test_a_list_is_held_to_what_lines_are(tmp_path, member, fault):
    path = tmp_path / "rows.json"
    path.write_text(f"[{member}]")
    (found,) = check_file(path).faults
    assert found.startswith(f"{path}{fault}")
