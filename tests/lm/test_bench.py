# SPDX-License-Identifier: AGPL-3.0-or-later
"""`rusty lm bench` measures every mode in its own process and says what each costs."""

from __future__ import annotations

import json

import pytest

from rusty_r2.cli import main
from rusty_r2.lm import tensors
from rusty_r2.lm.bench import SIZES, measure, table
from rusty_r2.lm.shape import Shape, random_source


def test_the_command_compares_formats(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RUSTY_NATIVE", "0")  # a fresh data home would compile again in each process
    out = tmp_path / "out"
    words = ["--preset", "nano", "--quantization", "8bit", "--tokens", "4", "--batch", "3", "--no-torch"]
    assert main(["lm", "bench", *words, "--output-dir", str(out)]) == 0
    said = capsys.readouterr().out
    report = json.loads((out / "bench.json").read_text())
    assert [row["mode"] for row in report["rows"]] == ["fp32", "int8"]
    exact, small = report["rows"]
    assert all(row[key] > 0 for row in report["rows"] for key in ("prefill", "decode", "decode_3", "peak_mb"))
    assert 0 < small["kl"] < 0.1 and small["agreement"] > 0.7 and "kl" not in exact
    assert "bits_per_byte" not in exact, "random words have no bytes"
    assert "decode tok/s" in said and "next: rusty lm bench" in said


@pytest.mark.parametrize("own", [True, False])
def test_bits_per_byte_come_from_a_text(tmp_path, own):
    """Its words are the checkpoint's, or those that ship where it has none and their number fits."""
    pytest.importorskip("tokenizers")
    from rusty_r2.lm.tokenizer import VOCAB, Tokenizer

    if not (VOCAB / "tokenizer.json").is_file():
        pytest.skip("no tokenizer ships yet; to make one: rusty lm tokenizer")
    words = len(Tokenizer.load())
    tensors.write(tmp_path / "model.safetensors", random_source(Shape(words, 16, 32, 64, 1)).arrays, {})
    (tmp_path / "config.json").write_text("{}")
    if own:
        (tmp_path / "tokenizer.json").write_bytes((VOCAB / "tokenizer.json").read_bytes())
    asked = {"checkpoint": str(tmp_path), "text": "", "tokens": 2, "batch": [2], "device": "cpu"}
    rows = [measure({**asked, "mode": mode, "scratch": str(tmp_path)}) for mode in ("fp32", "int4")]
    assert all(1 < row["bits_per_byte"] < 20 for row in rows) and rows[1]["kl"] > 0
    assert len({len(line) for line in table(rows)}) == 1


def test_sizes_are_those_of_the_presets():
    pytest.importorskip("torch")
    from rusty_r2.lm.rwkv import PRESETS

    sizes = {
        name: Shape(c.vocab_size, c.d_embed, c.d_hidden, c.width, c.n_layers) for name, c in PRESETS.items()
    }
    assert sizes == SIZES


@pytest.mark.parametrize(
    ("wrong", "said"), [(["--tokens", "0"], "1 or more"), (["--checkpoint", "/nowhere"], "model.safetensors")]
)
def test_bad_input_is_one_line(wrong, said, capsys):
    assert main(["lm", "bench", *wrong]) == 1
    assert said in capsys.readouterr().err
