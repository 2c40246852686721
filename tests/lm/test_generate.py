# SPDX-License-Identifier: AGPL-3.0-or-later
"""Text from a checkpoint: greedy is greedy, seeds repeat, batches equal singles, streams stop."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rusty_r2.cli import main
from rusty_r2.errors import ConfigError
from rusty_r2.lm import tensors
from rusty_r2.lm.engine import Engine
from rusty_r2.lm.generate import text_of
from rusty_r2.lm.sampling import Sampling
from rusty_r2.lm.shape import Shape, random_source
from rusty_r2.lm.tokenizer import VOCAB, Tokenizer

SHAPE = Shape(words=400, embed=32, hidden=64, inner=128, layers=2)
PROMPTS = [[1, 5], [1, 6, 7, 8, 9, 10, 11], [1], [1, 12, 13]]
HOT = Sampling(temperature=1.0, top_k=100, top_p=0.95, repetition_penalty=1.1, seed=11)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.build(random_source(SHAPE), weights="int8", threads=1)


def test_temperature_zero_takes_the_likeliest_word(engine):
    said = list(engine.generate([1, 5], sampling=Sampling(temperature=0), max_new_tokens=15, stop=()))
    state, expected = engine.new_state(1), []
    output = engine.prefill([[1, 5]], state)
    for _ in range(15):
        expected.append(int(output.logits[0].argmax()))
        output = engine.step(expected[-1:], state)
    assert said == expected


def test_seeds_repeat_and_differ(engine):
    def run(seed: int) -> list[int]:
        return list(engine.generate([1, 5], sampling=Sampling(1.0, seed=seed), max_new_tokens=20, stop=()))

    assert run(1) == run(1) != run(2)


def test_batches_equal_one_by_one(engine):
    together = engine.generate_batch(PROMPTS, sampling=HOT, max_new_tokens=30, stop=range(0, 400, 25))
    assert len({len(c.tokens) for c in together}) > 1, "all ended at once: the test proves nothing"
    for number, prompt in enumerate(PROMPTS):
        options = {"sampling": HOT, "max_new_tokens": 30, "stop": range(0, 400, 25)}
        (alone,) = engine.generate_batch([prompt], seeds=[11 + number], **options)
        assert alone == together[number]
        sampling = Sampling(1.0, 100, 0.95, 1.1, seed=11 + number)
        assert list(engine.generate(prompt, **{**options, "sampling": sampling})) == alone.tokens


def test_stop_tokens_end_it_and_are_not_said(engine):
    free = list(engine.generate([1, 5], sampling=HOT, max_new_tokens=20, stop=()))
    stop = free[7]
    (found,) = engine.generate_batch([[1, 5]], sampling=HOT, max_new_tokens=20, stop=[stop])
    assert found.tokens == free[: free.index(stop)] and found.reason == "stop"
    (long,) = engine.generate_batch([[1, 5]], sampling=HOT, max_new_tokens=5, stop=())
    assert long.tokens == free[:5] and long.reason == "length"


def test_a_conversation_goes_on_from_its_state(engine):
    state = engine.new_state(1)
    said = list(engine.generate([1, 5], sampling=HOT, max_new_tokens=8, stop=(), state=state))
    fresh = engine.new_state(1)
    engine.prefill([[1, 5, *said]], fresh)
    assert np.array_equal(state, fresh)


def test_a_stream_can_be_left_and_gives_the_same_words(engine):
    stream = engine.generate([1, 5], sampling=HOT, max_new_tokens=50, stop=())
    first = [next(stream) for _ in range(3)]
    stream.close()
    assert first == list(engine.generate([1, 5], sampling=HOT, max_new_tokens=3, stop=()))


def test_repetition_penalty_repeats_less(engine):
    def repeats(penalty: float) -> int:
        sampling = Sampling(0.0, repetition_penalty=penalty)
        said = list(engine.generate([1, 5], sampling=sampling, max_new_tokens=60, stop=()))
        return len(said) - len(set(said))

    assert repeats(5.0) < repeats(1.0)


def test_an_empty_prompt_is_named(engine):
    with pytest.raises(ConfigError, match="<bos>"):
        engine.generate_batch([[]], sampling=HOT, max_new_tokens=1)


needs_tokenizer = pytest.mark.skipif(
    not (VOCAB / "tokenizer.json").is_file(), reason="no tokenizer ships yet; to make one: rusty lm tokenizer"
)


@needs_tokenizer
def test_half_characters_wait_for_their_other_half():
    pytest.importorskip("tokenizers")
    tokenizer = Tokenizer.load()
    words = "né 日本 🙂 end"
    pieces = list(text_of(tokenizer, iter(tokenizer.encode(words)), first=True))
    assert "".join(pieces) == words and "\ufffd" not in "".join(pieces)
    cut = tokenizer.encode("🙂")[:-1]
    assert "".join(text_of(tokenizer, iter(cut), first=True)).endswith("\ufffd")


@pytest.fixture
def checkpoint(tmp_path):
    pytest.importorskip("tokenizers")
    words = len(Tokenizer.load())
    tensors.write(tmp_path / "model.safetensors", random_source(Shape(words, 16, 32, 64, 1)).arrays, {})
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": words}))
    return tmp_path


@needs_tokenizer
@pytest.mark.parametrize("quantization", ["none", "8bit", "4bit", "auto"])
def test_the_command_writes(checkpoint, capsys, quantization):
    words = ["--checkpoint", str(checkpoint), "--prompt", "def f(", "--max_new_tokens", "5"]
    assert main(["lm", "generate", *words, "--quantization", quantization]) == 0
    out = capsys.readouterr().out
    assert out.startswith("def f(") and "a second" in out and "next: rusty lm bench" in out


@needs_tokenizer
def test_the_command_writes_actions_and_samples(checkpoint, capsys):
    pytest.importorskip("llguidance")
    words = ["lm", "generate", "--checkpoint", str(checkpoint), "--prompt", "list", "--max-new-tokens", "12"]
    assert main([*words, "--chat", "--action", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith('{"action": "')
    assert main([*words, "--samples", "3"]) == 0
    assert "--- 3 (" in capsys.readouterr().out


@needs_tokenizer
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--action"], "add --chat"),
        (["--compile"], "no effect"),
        (["--max-new-tokens", "0"], "1 or more"),
        (["--checkpoint", "/nowhere"], "not a folder"),
        (["--device", "cuda"], "GPU"),
    ],
)
def test_the_command_refuses_in_one_line(checkpoint, capsys, wrong, said):
    words = ["lm", "generate", "--checkpoint", str(checkpoint), "--prompt", "x", *wrong]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
