"""The documented classes: the samples run with only the import changed."""

import json

import pytest

pytest.importorskip("trl", reason="pip install 'rusty-r2[lora]'")

from rusty_r2.errors import ConfigError, DataError, TrainingError
from rusty_r2.hardware import HardwareConfig, get_ryzen_optimized_config
from rusty_r2.train.rl_trainer import RLTrainer, TrainingConfig

DOCUMENTED = {
    "base_model": "Qwen/Qwen2.5-1.5B-Instruct",
    "output_dir": "./rl_output",
    "method": "grpo",
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "lora_target_modules": ["q_proj", "v_proj", "k_proj", "o_proj"],
    "learning_rate": 5e-5,
    "num_epochs": 3,
    "per_device_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "max_seq_length": 2048,
    "num_generations": 4,
    "max_completion_length": 512,
    "beta": 0.1,
    "desirable_weight": 1.0,
    "undesirable_weight": 1.0,
    "use_cpu": True,
    "use_bf16": False,
    "use_fp16": False,
    "gradient_checkpointing": True,
    "warmup_ratio": 0.1,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
    "logging_steps": 10,
    "save_steps": 100,
    "eval_steps": 50,
    "early_stopping_patience": 3,
}
SAMPLE = """
from rusty_r2.rl import TrainingConfig, RLTrainer
config = TrainingConfig(
    base_model="Qwen/Qwen2.5-1.5B-Instruct",
    method="grpo",
    lora_r=16,
    lora_alpha=32,
    per_device_batch_size=2,
    gradient_accumulation_steps=4,
    num_generations=6,
    learning_rate=5e-5,
    num_epochs=3,
    use_bf16=True,
    gradient_checkpointing=True
)
trainer = RLTrainer(config)
trainer.setup()  # Load model + LoRA
trainer.train(dataset)  # GRPO or KTO
trainer.save_model(merge_lora=True)  # Merged weights
"""


@pytest.fixture
def here(tiny_llama, tmp_path, monkeypatch):
    """A folder in which the document's base model lies as a folder of that name, and is small."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen").mkdir()
    (tmp_path / "Qwen" / "Qwen2.5-1.5B-Instruct").symlink_to(tiny_llama)
    return tmp_path


def groups(count=4):
    """As the document has them: plain text, rewards normalised within the group."""
    return [
        {
            "prompt": f"User: list {n}",
            "completions": ["import os", "class x: pass", "import sys"],
            "rewards": [0.8, -0.3, -0.5],
        }
        for n in range(count)
    ]


def labelled(count=6):
    return [
        {"prompt": f"User: list {n}", "completion": "import os" if good else "class x: pass", "label": good}
        for n in range(count)
        for good in (True, False)
    ]


def small(**more):
    options = {"num_epochs": 1, "learning_rate": 1e-2, "lora_r": 4, "lora_alpha": 8, "logging_steps": 1}
    return TrainingConfig(**{**options, "gradient_checkpointing": False, "max_seq_length": 128, **more})


@pytest.mark.filterwarnings("ignore:bf16 on this CPU")
def test_the_documents_sample_runs_with_only_the_import_changed(here):
    exec(compile(SAMPLE, "document", "exec"), {"dataset": groups()})
    from transformers import AutoModelForCausalLM

    final = here / "rl_output" / "final"
    assert AutoModelForCausalLM.from_pretrained(final).config.model_type == "llama"
    assert (final / "tokenizer.json").is_file()
    stats = json.loads((final / "training_stats.json").read_text())
    assert stats["status"] == "done" and stats["steps"] >= 1 and stats["final_loss"] is not None
    assert json.loads((here / "rl_output" / "training_config.json").read_text())["num_generations"] == 6


def test_the_defaults_are_the_documents():
    assert {name: TrainingConfig().to_dict()[name] for name in DOCUMENTED} == DOCUMENTED


def test_a_config_is_saved_and_read_back(tmp_path):
    config = TrainingConfig(method="kto", desirable_weight=1.5, lora_target_modules=["q_proj"])
    config.save(tmp_path / "a" / "config.json")
    assert TrainingConfig.load(tmp_path / "a" / "config.json") == config
    (tmp_path / "b.json").write_text('{"lora_rank": 3}')
    with pytest.raises(ConfigError, match="unknown option 'lora_rank'"):
        TrainingConfig.load(tmp_path / "b.json")


def test_a_machine_gives_the_settings_and_a_wrong_word_is_refused():
    config = TrainingConfig.from_hardware_config(get_ryzen_optimized_config(), method="kto")
    assert (config.per_device_batch_size, config.gradient_accumulation_steps) == (2, 4)
    assert (config.num_generations, config.lora_r, config.use_bf16, config.use_cpu) == (6, 16, False, True)
    gpu = HardwareConfig(has_gpu=True, cuda_available=True, gpu_vram_gb=24, gpu_capability=8.0)
    assert TrainingConfig.from_hardware_config(gpu).use_bf16 is True
    with pytest.raises(ConfigError, match="unknown option 'epochs'"):
        TrainingConfig.from_hardware_config(gpu, epochs=1)


def test_kto_by_the_document_evaluates_and_saves_the_adapter_alone(here):
    from rusty_r2.data.kto import KTOExample

    trainer = RLTrainer(small(method="kto", eval_steps=2, use_bf16=False))
    assert trainer.get_training_summary()["status"] == "not trained"
    examples = [KTOExample(**row) for row in labelled()]
    summary = trainer.train(examples)
    assert summary["status"] == "done" and summary["lineage"]["rows"] > 0
    found = trainer.evaluate(labelled(3), metrics=["margin"])
    assert list(found) == ["margin"] and found["margin"]["after"][0] != found["margin"]["before"][0]
    with pytest.raises(ConfigError, match="there is no number 'bleu'"):
        trainer.evaluate(labelled(3), metrics=["bleu"])
    path = trainer.save_model(str(here / "adapter"), merge_lora=False)
    assert path == str(here / "adapter") and (here / "adapter" / "adapter_model.safetensors").is_file()
    assert not (here / "adapter" / "model.safetensors").exists()
    assert trainer.save_model(path, merge_lora=False) == path, "what it wrote itself may be written again"
    (here / "adapter" / "diary.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds other files"):
        trainer.save_model(path)
    assert (here / "adapter" / "diary.txt").read_text() == "mine"


def test_grpo_with_functions_of_ones_own(here):
    seen = []

    def brief(prompts, completions, **_):
        seen.extend(completions)
        return [-float(len(said)) / 100 for said in completions]

    trainer = RLTrainer(
        small(
            num_generations=2, per_device_batch_size=2, max_completion_length=6, gradient_accumulation_steps=1
        )
    )
    summary = trainer.train_grpo([{"prompt": "User: list"}, {"prompt": "User: sort"}], reward_funcs=[brief])
    assert summary["steps"] == 2 and all(isinstance(said, str) for said in seen) and len(seen) >= 4


def test_what_cannot_be_done_is_one_line(here):
    with pytest.raises(ConfigError, match="there is no method 'ppo2'; there are grpo, kto"):
        RLTrainer(TrainingConfig(method="ppo2"))
    with pytest.raises(ConfigError, match="neither a folder nor"):
        RLTrainer(TrainingConfig(base_model="nowhere at all")).setup()
    with pytest.raises(TrainingError, match=r"Call train\(dataset\) first"):
        RLTrainer(small()).save_model()
    with pytest.raises(DataError, match="no recorded completions"):
        RLTrainer(small()).train([{"prompt": "User: hi"}])
    with pytest.raises(ConfigError, match="reward functions are for grpo"):
        RLTrainer(small(method="kto")).train(labelled(), reward_funcs=[len])


def test_a_reward_function_that_is_broken_says_so():
    from rusty_r2.rewards.base import RewardError
    from rusty_r2.train.grpo_paid import Functions

    paid = Functions([lambda prompts, completions: [1.0, None], lambda prompts, completions: [0.5, None]])
    assert paid(["a", "b"], ["x", "y"]) == [1.5, None]
    with pytest.raises(RewardError, match="gave 1 rewards for 2 completions"):
        Functions([lambda prompts, completions: [1.0]])(["a", "b"], ["x", "y"])
    with pytest.raises(RewardError, match="no finite number"):
        Functions([lambda prompts, completions: [float("nan")]])(["a"], ["x"])
