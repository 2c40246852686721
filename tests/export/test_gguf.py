"""From a Hugging Face folder to a file: every family, refusals, and a file that is whole or not there."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from rusty_r2 import cli, files
from rusty_r2.errors import CheckpointError, ConfigError, DataError
from rusty_r2.export import gguf as exporting
from rusty_r2.export.check import check
from rusty_r2.export.gguf import GGUFExporter, suitable, write_gguf
from rusty_r2.export.source import Source
from rusty_r2.lm import tensors
from rusty_r2.rl import GGUFExporter as PublicExporter

from .models import KINDS, gguf, make, torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with random weights."""
    return make(tmp_path_factory.mktemp("random") / "agent")


def copy(folder, to, **config):
    shutil.copytree(folder, to)
    path = to / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return to


def rewrite(folder, change):
    """The folder's weights through `change(dict)`."""
    path = folder / "model.safetensors"
    found = tensors.TensorFile(path)
    kept = {name: found.floats(name) for name in found.names}
    change(kept)
    tensors.write(path, kept, {"format": "pt"})
    return folder


# what comes out


@pytest.mark.parametrize("kind", KINDS)
def test_every_family_says_in_llama_cpp_what_it_says_in_transformers(tmp_path, kind):
    sizes = {"head_dim": 32} if kind == "qwen3" else {"tie_word_embeddings": kind == "qwen2"}
    folder = make(tmp_path / kind, kind, **sizes)
    report = check(write_gguf(folder, tmp_path / "m.gguf", "F32").path, folder, positions=24)
    assert report.passed, report.table()
    assert report.findings[-1].measured["kl"] < 1e-5


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_stretched_positions_are_kept(tmp_path, rope):
    rope = {"rope_theta": 10000.0, **rope}
    folder = make(tmp_path / "long", rope_parameters=rope, initializer_range=0.1)
    out = write_gguf(folder, tmp_path / "m.gguf", "F32").path
    report = check(out, folder, positions=48)
    assert report.passed, report.table()
    plain = make(tmp_path / "plain", initializer_range=0.1)
    assert not check(out, plain, positions=48).passed


@pytest.mark.parametrize("quantization", exporting.NAMES)
def test_every_type_is_written_and_passes_the_gate(trained, tmp_path, quantization):
    written = write_gguf(trained, tmp_path / "m.gguf", quantization)
    report = check(written.path, trained, positions=32)
    assert report.passed, report.table()
    assert report.quantization == written.quantization == quantization
    reader = gguf.GGUFReader(written.path)
    size = sum(int(tensor.n_bytes) for tensor in reader.tensors)
    assert written.bits_per_weight == pytest.approx(8 * size / written.parameters)
    assert written.sha256 == files.digest(written.path)
    assert written.size == written.path.stat().st_size
    assert sum(written.types.values()) == len(reader.tensors)


def test_bf16_and_sharded_folders_are_read(folder, tmp_path):
    model = KINDS["llama"][1].from_pretrained(folder, dtype=torch.bfloat16)
    other = copy(folder, tmp_path / "shards")
    (other / "model.safetensors").unlink()
    model.save_pretrained(other, max_shard_size="300KB")
    assert len(list(other.glob("model-*.safetensors"))) > 1
    report = check(write_gguf(other, tmp_path / "m.gguf", "BF16").path, other, positions=16)
    assert report.passed, report.table()
    assert report.findings[4].measured["worst_share_of_bound"] == 0.0


def test_words_that_the_tokenizer_does_not_use_are_filled(folder, tmp_path):
    out = write_gguf(folder, tmp_path / "m.gguf", "Q8_0").path
    words = gguf.GGUFReader(out).get_field("tokenizer.ggml.tokens").contents()
    assert len(words) == 640
    assert words[600:] == [f"[PAD{n}]" for n in range(600, 640)]


# which type


def test_rows_that_do_not_divide_are_counted_and_an_empty_name_is_refused(tmp_path):
    odd = make(
        tmp_path / "odd", hidden_size=96, num_attention_heads=3, num_key_value_heads=3, intermediate_size=256
    )
    written = write_gguf(odd, tmp_path / "m.gguf", "Q6_K")
    assert (written.fallbacks, written.matrices) == (13, 15)
    assert written.types == {"Q6_K": 2, "Q8_0": 13, "F32": 5}
    assert written.bits_per_weight > 8
    assert "13 of 15 matrices are of a larger type" in written.summary()
    with pytest.raises(ConfigError, match=r"cannot be Q2_K: not one of its matrices.*--quantization Q4_K_M"):
        write_gguf(odd, tmp_path / "n.gguf", "Q2_K")
    assert not (tmp_path / "n.gguf").exists()
    narrow = make(
        tmp_path / "narrow",
        hidden_size=96,
        num_attention_heads=3,
        num_key_value_heads=3,
        intermediate_size=96,
    )
    with pytest.raises(ConfigError, match=r"--quantization Q8_0"):
        write_gguf(narrow, tmp_path / "n.gguf", "Q4_K_M")
    assert suitable(Source.open(narrow)) == "Q8_0"


def test_an_unknown_type_is_an_error_with_the_list(folder, tmp_path):
    with pytest.raises(ConfigError, match="'Q5_1' is no type.*Q4_K_M"):
        write_gguf(folder, tmp_path / "m.gguf", "Q5_1")


# the documented object


def test_the_documents_sample(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exporter = PublicExporter(str(folder))
    path = exporter.convert("Q4_K_M")
    assert path == "exports/agent-Q4_K_M.gguf"
    assert gguf.GGUFReader(path).get_field("general.file_type").contents() == 15
    named = GGUFExporter(folder, output_dir=tmp_path / "there").convert("Q8_0", output_name="helper")
    assert named == str(tmp_path / "there" / "helper.gguf")


def test_making_an_exporter_does_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exporter = GGUFExporter("nowhere", "no-llama.cpp", "no-folder")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="nowhere is not a folder"):
        exporter.convert()


# whole or not there


def test_a_failure_in_the_middle_leaves_the_old_file_and_nothing_else(folder, tmp_path):
    out = write_gguf(folder, tmp_path / "m.gguf", "Q8_0").path
    before = out.read_bytes()
    broken = copy(folder, tmp_path / "broken")
    rewrite(broken, lambda kept: kept["model.layers.1.mlp.up_proj.weight"].fill(np.nan))
    with pytest.raises(DataError, match="blk.1.ffn_up.weight"):
        write_gguf(broken, out, "Q8_0")
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["m.gguf"]


def test_what_a_killed_export_left_is_removed_and_a_living_ones_is_not(folder, tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead, alive = (tmp_path / f".tmp-{number}-m.gguf" for number in (gone.pid, os.getppid()))
    dead.write_bytes(b"half")
    alive.write_bytes(b"half")
    write_gguf(folder, tmp_path / "m.gguf", "Q8_0")
    assert not dead.exists()
    assert alive.exists()


def test_a_model_that_was_trained_on_is_exported_anew(folder, tmp_path):
    later = copy(folder, tmp_path / "later")
    out = write_gguf(later, tmp_path / "m.gguf", "Q4_K_M").path
    assert check(out, later, positions=16).passed
    rewrite(later, lambda kept: kept["model.layers.0.mlp.up_proj.weight"].__imul__(1.5))
    again = write_gguf(later, out, "Q4_K_M")
    assert not out.with_suffix(".check.json").exists(), "the old answer spoke of another file"
    assert check(again.path, later, positions=16).passed
    assert not check(again.path, folder, positions=16).passed


def test_a_disk_without_room_is_said_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match="MB free and the file needs"):
        exporting._enough_room(tmp_path / "deep" / "m.gguf", 10**18)
    assert not (tmp_path / "deep").exists()


# refusals


def test_adapters_alone_ask_for_the_merge(folder, tmp_path):
    run = tmp_path / "kto-3"
    (run / "step_000010").mkdir(parents=True)
    (run / "step_000010" / "adapter_config.json").write_text("{}")
    (run / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"holds LoRA adapters.*rusty train merge {run}"):
        write_gguf(run, tmp_path / "m.gguf", "Q8_0")
    shutil.copytree(folder, run / "merged")
    assert Source.open(run).folder == run / "merged"
    assert Source.open(run).name == Source.open(run / "merged").name == "kto-3"


def test_a_merge_that_is_older_than_its_run_is_not_reused(folder, tmp_path):
    run = tmp_path / "kto-3"
    for step, content in ((10, b"first"), (20, b"second")):
        with files.whole_folder(run / f"step_{step:06d}") as beside:
            (beside / "adapter_config.json").write_text("{}")
            (beside / "adapter_model.safetensors").write_bytes(content)
        if step == 10:
            copy(folder, run / "merged")
            first = files.digest(run / "step_000010" / "adapter_model.safetensors")
            (run / "merged" / "lineage.json").write_text(json.dumps({"adapter": first}))
            assert Source.open(run).folder == run / "merged"
    for asked in (run, run / "merged"):
        with pytest.raises(ConfigError, match=f"was merged before step_000020. .*rusty train merge {run}"):
            write_gguf(asked, tmp_path / "m.gguf", "Q8_0")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            {"model_type": "rusty_rwkv"},
            "RWKV-4, which llama.cpp does not know. It runs here: rusty chat --model",
        ),
        ({"model_type": "gpt2"}, "is a gpt2 model; llama, qwen2, qwen3 can be exported"),
        ({"hidden_act": "gelu"}, "uses gelu"),
        ({"use_sliding_window": True}, "sliding window"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}},
            "stretches positions by 'dynamic'",
        ),
        ({"quantization_config": {"bits": 4}}, "is quantised already"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(folder, tmp_path, config, problem):
    with pytest.raises(ConfigError, match=problem):
        write_gguf(copy(folder, tmp_path / "other", **config), tmp_path / "m.gguf", "Q8_0")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda kept: kept.pop("model.layers.1.self_attn.v_proj.weight"),
            "holds no model.layers.1.self_attn.v_proj",
        ),
        (
            lambda kept: kept.update({"model.layers.0.extra.weight": np.zeros(3, np.float32)}),
            "holds model.layers.0.extra",
        ),
        (
            lambda kept: kept.update({"model.norm.weight": np.zeros(9, np.float32)}),
            "has the shape .9,. where",
        ),
    ],
    ids=["missing", "too many", "another shape"],
)
def test_a_folder_that_is_not_the_model_it_says_is_refused(folder, tmp_path, change, problem):
    broken = rewrite(copy(folder, tmp_path / "broken"), change)
    with pytest.raises(CheckpointError, match=problem):
        write_gguf(broken, tmp_path / "m.gguf", "Q8_0")


# the command


def test_the_command_writes_the_file_and_says_what_comes_next(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", "gguf", str(folder)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Q8_0: ")
    assert said[-2] == "exports/agent-Q8_0.gguf"
    assert said[-1] == f"next: rusty export check exports/agent-Q8_0.gguf --against {folder}"
    assert cli.main(["export", "gguf", str(folder), "--output", "model.bin"]) == 1
    assert "must end in .gguf" in capsys.readouterr().err


def test_quantised_tensors_are_named_as_the_library_names_them(folder):
    source = Source.open(folder)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, source.layers)
    for entry in source.tensors:
        assert names.get_name(entry.stored, try_suffixes=(".weight", ".bias")) == entry.name


def test_written_is_a_plain_record(folder, tmp_path):
    written = write_gguf(folder, tmp_path / "m.gguf", "Q8_0", threads=2)
    assert replace(written, seconds=0.0) == replace(
        write_gguf(folder, tmp_path / "m.gguf", "Q8_0", threads=1), seconds=0.0
    )
