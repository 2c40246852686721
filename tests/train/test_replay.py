"""Offline GRPO: advantages, ratios, masks and the loss of one step, each against a computation by hand."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")
pytest.importorskip("trl", reason="pip install 'rusty-r2[lora]'")

from rusty_r2.errors import ConfigError, DataError  # noqa: E402
from rusty_r2.train.before_after import Scores  # noqa: E402
from rusty_r2.train.chatting import Chat  # noqa: E402
from rusty_r2.train.replay import (  # noqa: E402
    UNKNOWN,
    Group,
    Recorded,
    ReplayConfig,
    lesson,
    read_groups,
    train,
)
from rusty_r2.train.replay_run import Pairs  # noqa: E402

ASKED = [{"role": "user", "content": "What is 2+3?"}]


def said(text):
    return [{"role": "assistant", "content": text}]


@pytest.fixture
def chat(small_llama):
    from transformers import AutoTokenizer

    return Chat(AutoTokenizer.from_pretrained(small_llama))


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def logps(folder, prompt, ids):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        likely = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return likely.gather(1, torch.tensor(ids)[:, None])[:, 0]


def config(small_llama, tmp_path, data, **more):
    given = {"base_model": str(small_llama), "output_dir": tmp_path / "run", "data": data, "max_steps": 1}
    given |= {"batch_size": 4, "accumulate": 1, "warmup": 0.0, "lora_r": 4, "eval_rows": 0, "device": "cpu"}
    return ReplayConfig(**(given | more))


def loss_of_step(folder, step=1):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return next(line["loss/train"] for line in lines if line["step"] == step and "loss/train" in line)


def test_the_loss_of_one_step_is_what_a_hand_computes(small_llama, chat, tmp_path):
    """A group of 3 in places for 4, one token of a tool, recorded probabilities unlike the model's own."""
    texts, rewards, shifts = ["5", "six maybe", "it is 5"], [1.0, 0.0, 0.5], [0.1, -0.05, 0.4]
    prompt = chat.opening(ASKED)
    ids = [chat.words(text) for text in texts]
    now = [logps(small_llama, prompt, one) for one in ids]
    then = [(one - shift) for one, shift in zip(now, shifts, strict=True)]
    row = {
        "prompt": ASKED,
        "completions": [said(text) for text in texts],
        "rewards": rewards,
        "token_ids": [[one] for one in ids],
        "logprobs": [[one.tolist()] for one in then],
    }
    other = row | {
        "completions": [said("a"), said("b"), said("c"), said("d")],
        "rewards": [1.0, 1.0, 1.0, 1.0],
    }
    del other["token_ids"], other["logprobs"]
    data = write(tmp_path / "grpo.jsonl", row, other)
    train(config(small_llama, tmp_path, data, batch_size=3))
    paid = torch.tensor(rewards)
    advantages = (paid - paid.mean()) / (paid.std() + 1e-4)
    total = count = 0.0
    for advantage, mine, theirs in zip(advantages, now, then, strict=True):
        ratio = (mine - theirs).exp()
        total += -torch.min(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage).sum()
        count += len(mine)
    assert loss_of_step(tmp_path / "run") == pytest.approx(float(total / count), abs=1e-5)


def test_a_small_group_is_filled_with_what_does_not_count(small_llama, chat, tmp_path):
    """Two groups, of 2 and of 4: the loss is that of the six real answers."""
    rows = [
        {"prompt": ASKED, "completions": [said("5"), said("no idea")], "rewards": [1.0, 0.0]},
        {
            "prompt": [{"role": "user", "content": "Say hello."}],
            "completions": [said("hello"), said("bye"), said("hi"), said("what")],
            "rewards": [1.0, 0.0, 0.5, 0.25],
        },
    ]
    data = write(tmp_path / "grpo.jsonl", *rows)
    train(config(small_llama, tmp_path, data, batch_size=8))
    total = count = 0.0
    for row in rows:
        paid = torch.tensor(row["rewards"])
        advantages = (paid - paid.mean()) / (paid.std() + 1e-4)
        for advantage, answer in zip(advantages, row["completions"], strict=True):
            size = len(chat.words(answer[0]["content"]))
            total, count = total - float(advantage) * size, count + size  # the ratio is 1 at the first step
    assert loss_of_step(tmp_path / "run") == pytest.approx(total / count, abs=1e-5)


def test_what_was_said_between_two_turns_is_read_and_not_trained(small_llama, chat, tmp_path):
    turns = [*said("ls"), {"role": "tool", "content": "a.txt"}, *said("done")]
    row = {"prompt": ASKED, "completions": [turns, said("no")], "rewards": [1.0, 0.0]}
    groups = read_groups([row], chat, config(small_llama, tmp_path, tmp_path / "g"))
    first, second = groups.kept[0].answers
    own = [word for word, mine in zip(first.ids, first.own, strict=True) if mine]
    assert own == [*chat.words("ls"), *chat.words("done")]
    whole = chat.tokenizer.decode(first.ids)
    assert "a.txt" in whole and whole.count("<|im_start|>assistant") == 1
    rendered = chat.tokenizer.apply_chat_template(
        [*ASKED, *said("ls"), {"role": "user", "content": "a.txt"}, *said("done")], tokenize=False
    )
    assert rendered.startswith(chat.tokenizer.decode([*groups.kept[0].prompt, *first.ids]))
    assert list(second.own) == [1] * len(second.ids)
    assert groups.known == 0, "what stood between two turns is nobody's probability"


def test_tokens_of_another_model_are_not_taken_for_our_own(small_llama, chat, tmp_path):
    row = {"prompt": ASKED, "completions": [said("five"), said("four")], "rewards": [1.0, 0.0]}
    strange = row | {"token_ids": [[[70000, 3]], [[5, 6]]], "logprobs": [[[-1.0, -1.0]], [[-2.0, -2.0]]]}
    groups = read_groups([strange], chat, config(small_llama, tmp_path, tmp_path / "g"))
    for one, text in zip(groups.kept[0].answers, ("five", "four"), strict=True):
        assert list(one.ids) == chat.words(text)
        assert all(math.isnan(chance) for chance in one.logprobs)
    assert groups.known == 0


def test_recorded_tokens_are_kept_as_they_are(small_llama, chat, tmp_path):
    """Ids that say the same text in other pieces stay; the end that was not recorded has no probability."""
    pieces = [word for letter in "five" for word in chat.tokenizer(letter)["input_ids"]]
    row = {"prompt": ASKED, "completions": [said("five"), said("x")], "rewards": [1.0, 0.0]}
    row |= {"token_ids": [[pieces], [chat.words("x")]], "logprobs": [[[-0.5] * len(pieces)], [[-1.0, -1.0]]]}
    groups = read_groups([row], chat, config(small_llama, tmp_path, tmp_path / "g"))
    first = groups.kept[0].answers[0]
    assert list(first.ids) == [*pieces, chat.end] and pieces != chat.words("five")[:-1]
    assert list(first.logprobs[:-1]) == [-0.5] * len(pieces) and math.isnan(first.logprobs[-1])


@pytest.mark.parametrize("kept", [[None, []], [[5, 6], [[]]], [[[]], None]])
def test_what_was_recorded_for_fewer_turns_is_no_record(small_llama, chat, tmp_path, kept):
    row = {"prompt": ASKED, "completions": [said("five"), said("x")], "rewards": [1.0, 0.0]}
    for name in ("token_ids", "logprobs"):
        groups = read_groups([row | {name: kept}], chat, config(small_llama, tmp_path, tmp_path / "g"))
        assert [list(one.ids) for one in groups.kept[0].answers] == [chat.words("five"), chat.words("x")]
        assert groups.known == 0


def test_without_a_file_of_held_out_groups_one_prompt_in_ten_is_kept_out(tmp_path):
    row = {"completions": ["a", "b"], "rewards": [1.0, 0.0]}
    data = write(tmp_path / "grpo.jsonl", *({"prompt": f"n {n}", **row} for n in range(60)))
    learned, held = lesson(ReplayConfig(data=data))
    assert len(learned) + len(held) == 60 and 1 <= len(held) <= 15
    few = write(tmp_path / "few.jsonl", *({"prompt": f"n {n}", **row} for n in range(9)))
    assert lesson(ReplayConfig(data=few)) == (rows_of(few), []), "few are all learned from"
    write(tmp_path / "few.eval.jsonl", {"prompt": "n 3", **row})
    assert "n 3" not in {one["prompt"] for one in lesson(ReplayConfig(data=few))[0]}
    with pytest.raises(DataError, match=r"none\.jsonl"):
        lesson(ReplayConfig(data=data, eval_data=tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("rows", "said_"),
    [
        ([], "holds no rows"),
        ([{"prompt": ASKED, "completion": said("x"), "label": True}], "kto rows, not groups"),
        ([{"prompt": ASKED, "completions": [said("x")], "rewards": ["1"]}], r"g.jsonl:1: rewards\[0\]"),
        ([{"prompt": ASKED, "completions": [said("x"), said("y")], "rewards": [1.0]}], "g.jsonl:1: rewards"),
    ],
)
def test_a_faulty_file_is_named_before_anything_is_loaded(rows, said_, tmp_path):
    data = write(tmp_path / "g.jsonl", *rows)
    with pytest.raises(DataError, match=said_):
        train(ReplayConfig(data=data, base_model="nowhere/at-all"))


def test_groups_that_teach_nothing_are_refused_in_a_sentence(small_llama, tmp_path):
    flat = {"prompt": ASKED, "completions": [said("x"), said("y")], "rewards": [1.0, 1.0]}
    data = write(tmp_path / "g.jsonl", flat)
    with pytest.raises(DataError, match="no group whose answers were paid differently: .* 1 flat"):
        train(config(small_llama, tmp_path, data))
    with pytest.raises(DataError, match="there is no file"):
        train(ReplayConfig(data=tmp_path / "none.jsonl"))
    with pytest.raises(ConfigError, match="--max-group"):
        ReplayConfig(data=data, max_group=1)


def test_replay_raises_what_was_paid_more_and_says_so(small_llama, tmp_path, capsys):
    asked = ["sum", "list", "name", "path", "word", "time"]
    rows = [
        {
            "prompt": [{"role": "user", "content": f"the {word}"}],
            "completions": [said("return value"), said("raise error")],
            "rewards": [1.0, 0.0],
        }
        for word in asked
    ]
    data = write(tmp_path / "grpo.jsonl", *rows[:4])
    write(tmp_path / "grpo.eval.jsonl", *rows[4:])
    given = {"max_steps": 6, "learning_rate": 3e-3, "eval_rows": 10, "batch_size": 4, "temperature": 1.0}
    train(config(small_llama, tmp_path, data, **given))
    note = json.loads((tmp_path / "run" / "run.json").read_text())
    margin = note["before_after"]["margin, nats a token"]
    assert margin["after"][0] > margin["before"][0] and margin["change"][1] > 0
    assert note["worse"] is False and "held-out rows" in capsys.readouterr().err
    assert "margin, nats a token" in (tmp_path / "run" / "README.md").read_text()


def test_intervals_are_drawn_over_groups_for_pairs_of_one_are_no_witnesses_of_each_other():
    """Two groups of 8 answers, one gained in every pair and one in none: 56 pairs are two witnesses."""
    answers = [Recorded((n, 9), (1, 1), (UNKNOWN, UNKNOWN), float(n)) for n in range(8)]
    pairs = Pairs.of([Group((1,), tuple(answers)), Group((2,), tuple(answers))])
    ones = np.ones(16)
    before = Scores(np.zeros(16), ones, ones)
    after = Scores(np.concatenate([np.arange(8.0), np.zeros(8)]), ones, ones)
    found = pairs.compared(before, after, held_out=True)
    assert found.rows == 2 and len(pairs.better) == 56
    assert found.lines[0].change == (0.5, 0.0, 1.0), "a draw of groups holds one of them twice, or both"


def test_stopped_and_resumed_is_never_stopped(small_llama, tmp_path):
    rows = [
        {
            "prompt": [{"role": "user", "content": f"n {n}"}],
            "completions": [said("a b"), said("c")],
            "rewards": [n, 1],
        }
        for n in (0, 2, 3, 4)
    ]
    data = write(tmp_path / "grpo.jsonl", *rows)
    given = {"max_steps": 4, "ckpt_interval": 2, "keep": 0, "batch_size": 2, "learning_rate": 1e-3}
    given |= {"eval_rows": 9}
    train(config(small_llama, tmp_path, data, **given, output_dir=tmp_path / "whole"))
    train(config(small_llama, tmp_path, data, **given, output_dir=tmp_path / "parts"))
    for late in ("step_000004", "step_000003"):
        folder = tmp_path / "parts" / late
        if folder.exists():
            import shutil

            shutil.rmtree(folder)
    train(config(small_llama, tmp_path, data, **given, output_dir=tmp_path / "parts", resume="auto"))
    weights = [
        (tmp_path / name / "step_000004" / "adapter_model.safetensors").read_bytes()
        for name in ("whole", "parts")
    ]
    assert weights[0] == weights[1]
    assert json.loads((tmp_path / "whole" / "run.json").read_text())["before_after"]["held_out"] is False
    assert loss_of_step(tmp_path / "parts", 4) == loss_of_step(tmp_path / "whole", 4)


def test_two_processes_take_the_step_of_one(small_llama, chat, tmp_path):
    """A group of 4 shared by two processes: advantages, masks and sizes are those of the whole group."""
    texts = ("5", "no idea at all", "five", "?")
    ids = [chat.words(text) for text in texts]
    row = {"prompt": ASKED, "completions": [said(text) for text in texts], "rewards": [1.0, 0.0, 0.5, 0.25]}
    row |= {"token_ids": [[one] for one in ids], "logprobs": [[[-5.5] * len(one)] for one in ids]}
    data = write(tmp_path / "grpo.jsonl", row)
    train(config(small_llama, tmp_path, data, output_dir=tmp_path / "one", max_steps=2, learning_rate=1e-2))
    words = ["train", "replay", "--data", str(data), "--base-model", str(small_llama), "--max-steps", "2"]
    words += ["--batch-size", "2", "--accumulate", "2", "--warmup", "0", "--lora-r", "4", "--eval-rows", "0"]
    words += ["--device", "cpu", "--output-dir", str(tmp_path / "two"), "--learning-rate", "1e-2"]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    subprocess.run(
        [*start, "-m", "rusty_r2.cli", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        timeout=280,
        capture_output=True,
    )
    for step in (1, 2):
        one, two = (loss_of_step(tmp_path / name, step) for name in ("one", "two"))
        assert one == pytest.approx(two, abs=1e-5)
    assert loss_of_step(tmp_path / "one", 2) < loss_of_step(tmp_path / "one", 1) - 1e-3
