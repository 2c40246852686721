"""Adapter and base as one folder that others read, with a card that tells where it came from."""

import json
import shutil

import pytest

pytest.importorskip("trl", reason="pip install 'rusty-r2[lora]'")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rusty_r2 import files, run
from rusty_r2.errors import CheckpointError, ConfigError
from rusty_r2.train import lora
from rusty_r2.train.merge import MergeConfig, merge
from rusty_r2.train.sft import SFTConfig, train


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "sft.jsonl"
    lines = [
        {
            "prompt": [{"role": "user", "content": f"list {n}"}],
            "completion": [{"role": "assistant", "content": "import os, sys"}],
            "trace_id": f"t{n}",
        }
        for n in range(8)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def tuned(base, rows, folder):
    options = {"max_steps": 4, "lora_r": 4, "learning_rate": 2e-2, "batch_size": 4, "accumulate": 1}
    return train(SFTConfig(base_model=str(base), data=rows, output_dir=folder, device="cpu", **options))


@pytest.fixture(scope="module")
def trained(tiny_llama, rows, tmp_path_factory):
    return tuned(tiny_llama, rows, tmp_path_factory.mktemp("run") / "sft-1")


@torch.no_grad()
def logits(model, ids):
    return model(input_ids=torch.tensor([ids])).logits


def test_the_merged_model_is_the_adapted_one(trained, tiny_llama, capsys):
    from peft import PeftModel

    folder = merge(MergeConfig(trained))
    assert folder == trained / "merged" and files.verify(folder) == ""
    assert f"next: rusty export gguf {folder}" in capsys.readouterr().out
    base = AutoModelForCausalLM.from_pretrained(tiny_llama)
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_llama), run.newest(trained))
    merged = AutoModelForCausalLM.from_pretrained(folder)
    ids = AutoTokenizer.from_pretrained(folder)(" import os")["input_ids"]
    assert torch.allclose(logits(merged, ids), logits(adapted, ids), atol=1e-5)
    assert not torch.allclose(logits(merged, ids), logits(base, ids), atol=1e-3)
    assert not [name for name, _ in merged.named_parameters() if "lora" in name]
    assert (folder / "chat_template.jinja").is_file()


def test_the_card_follows_the_line_back(trained, rows):
    folder = merge(MergeConfig(trained))
    card, told = (folder / "README.md").read_text(), json.loads((folder / "lineage.json").read_text())
    assert told["dataset"] == files.digest(rows) and told["config"] == files.digest(trained / "config.json")
    assert told["adapter"] == files.digest(run.newest(trained) / "adapter_model.safetensors")
    assert told["merged"] == files.digest(folder / "model.safetensors")
    for part in (told["dataset"], told["config"], told["adapter"], told["merged"]):
        assert part[:16] in card
    assert "traces" in card and "| loss |" in card and "base_model: llama" in card


def test_the_adapter_alone_can_be_shared(trained):
    folder = merge(MergeConfig(trained, adapter_only=True))
    assert {path.name for path in folder.iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
        "README.md",
    }
    assert not list(folder.glob("optimizer*"))
    base = lora.find_base(str(folder))
    assert base.adapters == (folder,) and not base.remote


def test_a_run_is_a_base_for_the_next_run(trained, rows, tmp_path):
    second = tuned(trained, rows, tmp_path / "sft-2")
    base = lora.find_base(str(second))
    assert base.adapters == (run.newest(trained), run.newest(second))
    both = AutoModelForCausalLM.from_pretrained(merge(MergeConfig(second)))
    first = AutoModelForCausalLM.from_pretrained(merge(MergeConfig(trained)))
    ids = [5, 6, 7, 8]
    assert not torch.allclose(logits(both, ids), logits(first, ids), atol=1e-3)
    ends = [
        json.loads((folder / "run.json").read_text())["before_after"]["loss"] for folder in (trained, second)
    ]
    assert ends[1]["before"] == pytest.approx(ends[0]["after"], abs=1e-4), (
        "the second begins where the first ended"
    )


def test_our_own_rwkv_merges_into_a_checkpoint_of_ours(tiny_rwkv, rows, tmp_path):
    from rusty_r2.lm import checkpoint

    folder = merge(MergeConfig(tuned(tiny_rwkv, rows, tmp_path / "run")))
    ours = checkpoint.load(folder, device="cpu", dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.allclose(ours(ids)[0], theirs(input_ids=ids).logits, atol=1e-5)


@pytest.mark.parametrize("alone", [True, False])
def test_no_room_on_the_disk_is_said_before_anything_is_written(trained, tmp_path, monkeypatch, alone):
    usage = shutil.disk_usage(tmp_path)
    target = tmp_path / "far" / "there"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=16_000_000))
    with pytest.raises(
        ConfigError, match=r" has 16 MB free and there needs \d+\..*--output FOLDER$"
    ) as caught:
        merge(MergeConfig(trained, output=target, adapter_only=alone))
    command = f"rusty train merge {run.newest(trained)}{' --adapter-only' if alone else ''} --output FOLDER"
    assert "\n" not in str(caught.value) and command in str(caught.value)
    assert not target.parent.exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=40_000_000))
    assert merge(MergeConfig(trained, output=target, adapter_only=alone)) == target


def test_a_folder_without_an_adapter_is_one_line(tmp_path, tiny_llama):
    with pytest.raises(CheckpointError, match="holds no LoRA adapter"):
        merge(MergeConfig(tiny_llama))


def test_a_folder_with_other_files_is_not_taken_away(tmp_path):
    adapter = tmp_path / "run" / "adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "smollm2"}')
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine").write_text("a year of work")
    for alone in (True, False):
        with pytest.raises(ConfigError, match="--output NEW_FOLDER"):
            merge(MergeConfig(adapter, output=tmp_path / "models", adapter_only=alone))
    assert (tmp_path / "models" / "mine").read_text() == "a year of work"
