"""SFT on borrowed minds: the assistant's own words are learned, and nothing else."""

import json

import pytest

pytest.importorskip("trl", reason="pip install 'rusty-r2[lora]'")

from rusty_r2 import run
from rusty_r2.errors import DataError
from rusty_r2.train.encoded import encode
from rusty_r2.train.lora import find_base, open_tokenizer
from rusty_r2.train.sft import SFT, SFTConfig, train


def turn(role, content):
    return {"role": role, "content": content}


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "sft.jsonl"
    lines = [
        {"prompt": [turn("user", f"list {n}")], "completion": [turn("assistant", "import os, sys")]}
        for n in range(40)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def quick(base, data, folder, **more):
    options = {
        "max_steps": 6,
        "lora_r": 4,
        "learning_rate": 2e-2,
        "batch_size": 4,
        "accumulate": 1,
        "seed": 1,
    }
    return SFTConfig(base_model=str(base), data=data, output_dir=folder, device="cpu", **{**options, **more})


def test_it_imitates_and_one_prompt_in_ten_is_held_out(tiny_llama, rows, tmp_path):
    folder = train(quick(tiny_llama, rows, tmp_path / "run"))
    told = json.loads((folder / "run.json").read_text())
    compared = told["before_after"]
    assert compared["held_out"] is True and 0 < compared["rows"] < 12
    assert compared["rows"] + told["lineage"]["rows"] == 40
    assert compared["loss"]["after"][0] < compared["loss"]["before"][0] - 0.2
    assert told["worse"] is False
    logged = [line["loss/train"] for line in run.metrics(folder) if "loss/train" in line]
    assert logged[-1] < logged[0]


def test_messages_are_learned_where_the_assistant_speaks(tiny_llama):
    tokenizer = open_tokenizer(find_base(str(tiny_llama)))
    said = [
        *(turn("system", "be brief"), turn("user", "one"), turn("assistant", "import a")),
        *(turn("user", "two"), turn("assistant", "import b")),
    ]
    row = {"messages": said}
    ((prompt, completion),) = SFT().texts(row)
    columns = SFT().columns(row, [encode(tokenizer, prompt, completion)])
    learned = [word for word in columns["labels"] if word != -100]
    assert tokenizer.decode(learned) == " import a<|end|> import b<|end|>"
    whole = tokenizer.apply_chat_template(said, tokenize=True, return_dict=False)
    assert columns["input_ids"] == whole


def test_plain_text_ends_with_the_end_token(tiny_llama):
    tokenizer = open_tokenizer(find_base(str(tiny_llama)))
    said = encode(tokenizer, "User: hi", " import os")
    assert said.completion[-1] == tokenizer.eos_token_id and all(said.own)


def test_a_model_without_a_template_says_what_to_do(tiny_llama):
    tokenizer = open_tokenizer(find_base(str(tiny_llama)))
    tokenizer.chat_template = None
    with pytest.raises(DataError, match="--form plain"):
        encode(tokenizer, [turn("user", "hi")], [turn("assistant", "ho")])


def test_no_rows_left_is_one_line(tiny_llama, rows, tmp_path):
    held = tmp_path / "held.jsonl"
    held.write_text(rows.read_text())
    with pytest.raises(DataError, match="no row is left to learn from"):
        train(quick(tiny_llama, rows, tmp_path / "run", eval_data=held))
