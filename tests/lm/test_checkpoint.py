# SPDX-License-Identifier: AGPL-3.0-or-later
"""A saved model is the same model, and a folder that is none says so in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rusty_r2.errors import CheckpointError
from rusty_r2.lm.checkpoint import load, save, sizes
from rusty_r2.lm.rwkv import TinyRWKVLM


@pytest.fixture
def model() -> TinyRWKVLM:
    torch.manual_seed(0)
    return TinyRWKVLM(31, d_embed=8, d_hidden=16, n_layers=2, d_ffn=24, dropout=0.25)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tok"
    folder.mkdir()
    words = {f"w{i}": i for i in range(31)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}, "added_tokens": []}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "notes.txt").write_text("not a tokenizer's file")
    return folder


def test_save_and_load_undo_each_other(model: TinyRWKVLM, tokenizer: Path, tmp_path: Path) -> None:
    folder = save(tmp_path / "a" / "step_1", model, tokenizer=tokenizer, extra={"trained_tokens": 5})
    assert sorted(path.name for path in folder.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    again = load(folder)
    assert again.config == model.config and not again.training
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in model.state_dict().items())
    assert all(x.requires_grad for x in again.parameters())
    assert json.loads((folder / "config.json").read_text())["trained_tokens"] == 5


def test_saving_again_replaces_the_whole_folder(model: TinyRWKVLM, tokenizer: Path, tmp_path: Path) -> None:
    folder = save(tmp_path / "m", model, tokenizer=tokenizer)
    save(folder, model)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "tok"]


def test_a_failed_save_leaves_what_was_there(model: TinyRWKVLM, tmp_path: Path) -> None:
    folder = save(tmp_path / "m", model)
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="rusty lm tokenizer"):
        save(folder, TinyRWKVLM(31, 8, 16, 1), tokenizer=tmp_path)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_another_precision_can_be_asked_for(model: TinyRWKVLM, tmp_path: Path) -> None:
    folder = save(tmp_path / "m", model)
    assert load(folder, dtype=torch.bfloat16).lm_head.weight.dtype == torch.bfloat16


def config_of(folder: Path) -> dict[str, object]:
    return dict(json.loads((folder / "config.json").read_text()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"d_hidden": 32}, "config.json asks for"),
        ({"n_layers": 3}, "missing"),
        ({"n_layers": 1}, "no such tensor"),
        ({"n_layers": "2"}, "n_layers is '2', not a int"),
        ({"n_layers": 0}, "at least 1"),
        ({"vocab_size": 30}, "they do not belong together"),
    ],
)
def test_a_folder_that_does_not_fit_says_what_was_seen(
    model: TinyRWKVLM, tokenizer: Path, tmp_path: Path, change: dict[str, object], says: str
) -> None:
    folder = save(tmp_path / "m", model, tokenizer=tokenizer)
    (folder / "config.json").write_text(json.dumps(config_of(folder) | change))
    with pytest.raises(CheckpointError, match=says):
        load(folder)


@pytest.mark.parametrize("gone", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named_with_the_next_command(model: TinyRWKVLM, tmp_path: Path, gone: str) -> None:
    folder = save(tmp_path / "m", model)
    (folder / gone).unlink()
    with pytest.raises(CheckpointError, match=rf"{gone}.*rusty train supervised"):
        load(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_rubbish_is_one_clear_line(model: TinyRWKVLM, tokenizer: Path, tmp_path: Path, name: str) -> None:
    folder = save(tmp_path / "m", model, tokenizer=tokenizer)
    (folder / name).write_bytes(b"\x80\x04rubbish")
    with pytest.raises(CheckpointError, match=name):
        load(folder)


def test_a_renamed_tensor_is_noticed(model: TinyRWKVLM, tmp_path: Path) -> None:
    folder = save(tmp_path / "m", model)
    weights = load_file(folder / "model.safetensors")
    weights["ln_out.gamma"] = weights.pop("ln_out.weight")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"ln_out\.gamma"):
        load(folder)


def test_sizes_without_reading_weights(model: TinyRWKVLM, tmp_path: Path) -> None:
    folder = save(tmp_path / "m", model)
    (folder / "model.safetensors").unlink()
    assert sizes(folder) == model.config
