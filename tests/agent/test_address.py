"""One line of text picks a mind, or says in one line why not."""

from pathlib import Path

import pytest

from rusty_r2 import files
from rusty_r2.agent import address
from rusty_r2.agent.address import MindOptions, find, open_policy
from rusty_r2.errors import PolicyError
from rusty_r2.trace import ExecutionTrace


@pytest.fixture
def run(tmp_path, tokenizer, monkeypatch):
    """A run folder with two checkpoints and a best one."""
    pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")
    from rusty_r2.lm import checkpoint
    from rusty_r2.lm.rwkv import ModelConfig, TinyRWKVLM

    words = tokenizer.save(tmp_path / "words")
    model = TinyRWKVLM.of(ModelConfig(vocab_size=len(tokenizer), d_embed=32, d_hidden=64, n_layers=1))
    monkeypatch.chdir(tmp_path)
    for step in (100, 200):
        with files.whole_folder(Path(f"runs/sft-1/step_{step:06d}")) as folder:
            checkpoint.save(folder, model, tokenizer=words)
    return Path("runs/sft-1")


def test_a_run_means_its_best_or_newest_checkpoint(run):
    assert find("runs/sft-1") == run / "step_000200"
    assert find("runs/sft-1/step_000100") == run / "step_000100"
    (run / "step_000200" / "model.safetensors").write_bytes(b"torn")
    assert find("runs/sft-1") == run / "step_000100", "a damaged checkpoint is passed over"
    (run / "step_000100").rename(run / "best")
    assert find("runs/sft-1") == run / "best"


def test_rusty_is_the_shipped_model_or_the_newest_here(run, monkeypatch, tmp_path):
    monkeypatch.setattr(address, "SHIPPED", tmp_path / "shipped")
    policy = open_policy("rusty", MindOptions(grammar=False, max_new_tokens=4))
    assert policy.name == f"rusty ({run / 'step_000200'})" and len(policy.digest) == 16
    assert policy.reply(ExecutionTrace(user_query="hello")).tokens_out <= 4
    (run / "step_000200").rename(tmp_path / "shipped")
    assert open_policy("rusty", MindOptions(grammar=False)).name == "rusty"


def test_a_patch_beside_the_shipped_weights_is_another_model(run, monkeypatch, tmp_path):
    from rusty_r2.lm import patch, quantize, tensors

    shipped = quantize.save(run / "step_000200", tmp_path / "shipped")
    monkeypatch.setattr(address, "SHIPPED", shipped)
    before = open_policy("rusty", MindOptions(grammar=False)).digest
    later = quantize.arrays(shipped)
    later["lm_head.weight"] *= -1
    tensors.write(run / "step_000200" / "model.safetensors", later, {})
    new = quantize.save(run / "step_000200", tmp_path / "new")
    patch.make(shipped, new, shipped / patch.PATCH)
    patched, whole = (open_policy(name, MindOptions(grammar=False)) for name in ("rusty", str(new)))
    assert patched.name == "rusty" and patched.digest == whole.digest != before
    tensors.write(shipped / "model.safetensors", later, {})
    plain = open_policy("rusty", MindOptions(grammar=False)).digest
    assert plain not in (whole.digest, before), "plain weights are read first"


def test_without_any_model_it_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(address, "SHIPPED", tmp_path / "shipped")
    with pytest.raises(PolicyError, match="rusty train supervised"):
        open_policy("rusty")


@pytest.mark.parametrize(
    ("line", "problem"),
    [("nowhere/at/all", "neither a folder"), ("script:none", "cannot be read"), (".", "holds no model")],
)
def test_what_cannot_be_found_is_one_line(line, problem, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError, match=problem) as error:
        open_policy(line)
    assert "\n" not in str(error.value)


def test_the_base_models_short_word_is_an_address(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert [address.meant(word) for word in ("smollm2", "rusty")] == ["hf:smollm2", "rusty"]
    monkeypatch.setitem(address.ELSEWHERE, "hf", "not_there_yet")
    with pytest.raises(PolicyError, match="cannot open hf: addresses"):
        open_policy("smollm2")
    (tmp_path / "smollm2").mkdir()
    assert address.meant("smollm2") == "smollm2", "a folder of that name is meant"


def test_a_kind_this_version_does_not_have(monkeypatch):
    monkeypatch.setitem(address.ELSEWHERE, "hf", "not_there_yet")
    with pytest.raises(PolicyError, match="cannot open hf: addresses"):
        open_policy("hf:Qwen/Qwen2.5-1.5B-Instruct")
