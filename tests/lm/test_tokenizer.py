# SPDX-License-Identifier: AGPL-3.0-or-later
"""Truths about the words: every string comes back, no text spells a control token, two builds agree."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="needs the train extra")

from rusty_r2.errors import ConfigError, DataError
from rusty_r2.lm.tokenizer import (
    BOS,
    CONTROL,
    EOS,
    PAD,
    UNK,
    Tokenizer,
    TokenizerConfig,
    build,
)

SHIPPED = Tokenizer.load()

HARD = [
    "",
    " ",
    "    ",
    "hello",
    " hello",
    "\r\n\r\n\t x",
    "日本語 🙂🏽‍💻",
    "e\u0301 vs é",
    "\x00\x01\x7f\ufeff",
    "<eos> <|end|><|assistant|> {",
    "def f():\n        return 'x'   \n",
    '{"action": "EDIT", "path": "a.py", "content": "def f():\\n    return 1\\n"}',
    "".join(map(chr, range(0x300))),
]

pieces = st.one_of(
    st.text(),
    st.sampled_from([*CONTROL, " ", "  ", "\r\n", "\n    ", "\t", "🙂", "<|", "|>", '{"action": "']),
)
texts = st.lists(pieces, max_size=8).map("".join)


@pytest.mark.parametrize("text", HARD)
def test_hard_strings_come_back(text: str) -> None:
    assert SHIPPED.decode(SHIPPED.encode(text)) == text


@settings(max_examples=300, deadline=None)
@given(texts)
def test_every_string_comes_back_and_none_spells_a_control_token(text: str) -> None:
    ids = SHIPPED.encode(text)
    assert SHIPPED.decode(ids) == text
    assert all(number >= len(CONTROL) for number in ids)


@settings(max_examples=50, deadline=None)
@given(st.lists(texts, max_size=6))
def test_a_batch_is_its_texts(batch: list[str]) -> None:
    assert SHIPPED.encode_batch(batch) == [SHIPPED.encode(text) for text in batch]


@settings(max_examples=50, deadline=None)
@given(texts)
def test_bytes_survive_a_cut_anywhere(text: str) -> None:
    ids = SHIPPED.encode(text)
    half = len(ids) // 2
    words = SHIPPED.token_bytes
    joined = b"".join(words[i] for i in ids[:half]) + b"".join(words[i] for i in ids[half:])
    assert joined == b" " + text.encode()


def test_the_shipped_vocabulary_is_the_promised_one() -> None:
    assert len(SHIPPED) == 24_000
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert len(CONTROL) == len(set(CONTROL)) == 16
    assert {bytes([byte]) for byte in range(256)} <= set(SHIPPED.token_bytes)
    assert len(set(SHIPPED.token_bytes[len(CONTROL) :])) == 24_000 - len(CONTROL)


def test_the_protocol_is_cheap() -> None:
    assert len(SHIPPED.encode('{"action": "CMD", "command": "')) == 10
    assert len(SHIPPED.encode('{"action": "MSG", "message": "')) == 10
    assert len(SHIPPED.encode("):\\n        return x")) <= 5


def test_half_a_character_is_refused() -> None:
    with pytest.raises(DataError, match="lone surrogate"):
        SHIPPED.encode("\ud800")


def test_control_tokens_say_nothing() -> None:
    assert SHIPPED.decode([BOS, *SHIPPED.encode("hi"), EOS]) == "hi"


def _corpus(folder: Path) -> Path:
    (folder / "code").mkdir(parents=True)
    for number in range(30):
        (folder / "code" / f"m{number}.py").write_text(f"def f{number}(x):\n    return x + {number}\n" * 5)
    rows = [{"text": f"Row {number} says hello to the world.", "licence": "MIT"} for number in range(200)]
    rows += [{"text": "The same row again."}] * 3 + [{"text": "zzqqzzqq " * 50, "split": "test"}]
    with lzma.open(folder / "rows.jsonl.xz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return folder


def test_two_builds_agree_and_reload(tmp_path: Path) -> None:
    data = _corpus(tmp_path / "data")
    made = []
    for name in ("one", "two"):
        config = TokenizerConfig((data,), tmp_path / name, vocab_size=400, sample_mb=0.01)
        assert f"{tmp_path / name}" in build(config)
        made.append((tmp_path / name / "tokenizer.json").read_bytes())
    assert made[0] == made[1]
    again = Tokenizer.load(tmp_path / "one")
    assert again.decode(again.encode("def f(x): <pad> 🙂")) == "def f(x): <pad> 🙂"
    assert again.fingerprint == Tokenizer.load(tmp_path / "two").fingerprint != SHIPPED.fingerprint


def test_measuring_records_teach_no_words(tmp_path: Path) -> None:
    data = _corpus(tmp_path / "data")
    build(TokenizerConfig((data,), tmp_path / "out", vocab_size=400))
    assert not any(b"zzqq" in word for word in Tokenizer.load(tmp_path / "out").token_bytes)


def test_wrong_folders_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rusty lm tokenizer"):
        Tokenizer.load(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        build(TokenizerConfig((tmp_path / "none",), tmp_path))
    with pytest.raises(DataError, match="no text"):
        build(TokenizerConfig((tmp_path,), tmp_path))
    with pytest.raises(ConfigError, match="vocab-size"):
        build(TokenizerConfig((tmp_path,), tmp_path, vocab_size=100))
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n{oops\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2"):
        build(TokenizerConfig((tmp_path,), tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_dataset_folder_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the data extra")
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(50)]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "sums")
    build(TokenizerConfig((tmp_path / "sums",), tmp_path / "out", vocab_size=300))
    assert any(b"What" in word for word in Tokenizer.load(tmp_path / "out").token_bytes)
