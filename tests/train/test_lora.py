"""What every way of training a borrowed mind shares: bases, layers, shapes, the comparison."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("trl", reason="pip install 'rusty-r2[lora]'")

import torch

from rusty_r2 import run
from rusty_r2.errors import CheckpointError, ConfigError
from rusty_r2.hardware import HardwareConfig, get_ryzen_optimized_config
from rusty_r2.train import before_after, lora
from rusty_r2.train.encoded import Said, order, split
from rusty_r2.train.fit import advice
from rusty_r2.train.lora import LoraOptions, Shape


def test_names_of_base_models(tiny_llama, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert lora.find_base(str(tiny_llama)).path == str(tiny_llama)
    hub = lora.find_base("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert hub.remote and hub.path == "HuggingFaceTB/SmolLM2-135M-Instruct"
    small, large = HardwareConfig(ram_gb=8), HardwareConfig(ram_gb=128)
    assert lora.find_base("auto", small).path == "Qwen/Qwen2.5-0.5B-Instruct"
    assert lora.find_base("auto", large).path == "Qwen/Qwen2.5-1.5B-Instruct"
    for name in ("nothing", "a/b/c", "./not-there", "../x", "/no/such"):
        with pytest.raises(ConfigError, match="--base-model smollm2"):
            lora.find_base(name)
    damaged = tmp_path / "run" / "step_000001"
    damaged.mkdir(parents=True)
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        lora.find_base(str(tmp_path / "run"))


def test_a_slip_in_the_name_of_a_run_is_not_asked_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert lora.find_base("runs/kto-9").remote
    (tmp_path / "runs" / "kto-1").mkdir(parents=True)
    (tmp_path / "runs" / "kto-1" / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="no base model 'runs/kto-9'"):
        lora.find_base("runs/kto-9")


def test_a_hub_name_that_cannot_be_fetched_is_one_line_at_once(monkeypatch, capfd):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    for ask in (lora.open_config, lora.open_tokenizer):
        with pytest.raises(ConfigError, match="could not be fetched from the hub") as caught:
            ask(lora.find_base("no-such-owner/no-such-model"))
        assert "\n" not in str(caught.value) and "smollm2" in str(caught.value)
        assert constants.HF_HUB_OFFLINE, "what is not answered is not asked again and again"
    assert "Retrying" not in capfd.readouterr().err


def test_libraries_stay_silent_and_offline(tiny_llama):
    from huggingface_hub import constants

    lora.open_tokenizer(lora.find_base(str(tiny_llama)))
    assert constants.HF_HUB_OFFLINE and constants.HF_HUB_DISABLE_TELEMETRY
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"


def test_layers_by_architecture(tiny_llama, tiny_rwkv):
    for base, wanted in ((tiny_llama, 14), (tiny_rwkv, 14)):  # 7 products in each of 2 layers, both ways
        model, tokenizer = lora.open_model(LoraOptions(base_model=str(base), device="cpu"))
        from peft import get_peft_model

        model = get_peft_model(model, lora.lora_config(LoraOptions(lora_r=4), model))
        names = [name for name, _ in model.named_modules() if name.endswith("lora_A.default")]
        assert len(names) == wanted and not [name for name in names if "head" in name or "embed" in name]
        assert tokenizer.padding_side == "left" and tokenizer.pad_token is not None


def test_the_type_of_weights_is_always_given(tiny_llama):
    options = LoraOptions(base_model=str(tiny_llama), device="cpu", precision="fp32")
    assert {weight.dtype for weight in lora.open_model(options)[0].parameters()} == {torch.float32}
    given = lora.arguments(options, Shape(2, 4), folder=run.Path("x"), steps=10)
    assert (given["bf16"], given["fp16"], given["use_cpu"], given["report_to"]) == (False, False, True, [])
    with pytest.raises(ConfigError, match="fp16 on a CPU"):
        lora.dtype_of(LoraOptions(precision="fp16"), "cpu")


@pytest.mark.parametrize("method", ["kto", "sft", "dpo", "grpo"])
def test_arguments_are_valid_together_on_every_machine(method, tmp_path):
    """Every machine, batch and number of processes gives a configuration that TRL takes."""
    import trl

    machines = [get_ryzen_optimized_config(), *(HardwareConfig(ram_gb=ram) for ram in (4, 16, 32, 64))]
    config = {"kto": trl.KTOConfig, "sft": trl.SFTConfig, "dpo": trl.DPOConfig, "grpo": trl.GRPOConfig}[
        method
    ]
    for hardware, batch, processes in itertools.product(machines, (0, 3, 4), (1, 2)):
        options = LoraOptions(batch_size=batch, device="cpu", precision="fp32")
        shape = lora.shape_of(options, hardware, least=2 if method == "kto" else 1, processes=processes)
        more = {}
        if method == "grpo":
            from rusty_r2.train.grpo import whole_groups

            shape = whole_groups(shape, hardware.num_generations)
            assert shape.rows % hardware.num_generations == 0
            more["num_generations"] = hardware.num_generations
            shape = dataclasses.replace(shape, processes=1) if processes == 1 else shape
        given = lora.arguments(options, shape, folder=tmp_path, steps=3)
        if processes == 1:
            made = config(**given, **more)
            assert made.per_device_train_batch_size == shape.batch >= (2 if method == "kto" else 1)
            assert made.bf16 is False and made.use_cpu


def test_rows_of_a_step_are_shared_by_processes():
    options = LoraOptions(batch_size=2, accumulate=4)
    alone, two = (lora.shape_of(options, processes=count) for count in (1, 2))
    assert alone.rows == two.rows == 8 and (two.batch, two.accumulate) == (2, 2)
    with pytest.raises(ConfigError, match="cannot be shared by 3 processes"):
        lora.shape_of(options, processes=3)


def test_the_longest_row_comes_first_and_every_pass_has_its_own_order():
    lengths = [5, 9, 3, 30, 7, 8]
    prompts = ["a", "a", "b", "b", "c", "c"]
    places = order(lengths, prompts, count=12, seed=3)
    assert places[0] == 3 and sorted(places) == sorted([*range(6), *range(6)])
    assert places[:6] != places[6:]
    assert places == order(lengths, prompts, count=12, seed=3) != order(lengths, prompts, count=12, seed=4)
    assert order(lengths, prompts, count=4, seed=3)[0] == 3


def test_no_prompt_is_learned_and_held_out(tmp_path):
    rows = [{"prompt": f"p{n % 30}", "completion": f"c{n}"} for n in range(90)]
    learned, held = split(tmp_path / "sft.jsonl", rows, None, "sft", seed=1)
    assert len(learned) + len(held) == 90 and held
    assert not {row["prompt"] for row in learned} & {row["prompt"] for row in held}


def test_the_comparison_is_its_definition(tiny_llama):
    model, tokenizer = lora.open_model(LoraOptions(base_model=str(tiny_llama), device="cpu"))
    said = [
        Said([5, 6], [7, 8, 9], [True, False, True]),
        Said([5], [9, 10], [True, True]),
        Said([4, 4, 4], [11], [True]),
    ]
    found = before_after.read(model, said, pad=tokenizer.pad_token_id)
    for at, one in enumerate(said):
        with torch.no_grad():
            logp = model(torch.tensor([one.prompt + one.completion])).logits[0].log_softmax(-1)
        words = [
            (len(one.prompt) + place - 1, word)
            for place, (word, own) in enumerate(zip(one.completion, one.own, strict=True))
            if own
        ]
        assert found.logp[at] == pytest.approx(sum(float(logp[row, word]) for row, word in words), abs=1e-4)
        assert found.tokens[at] == len(words)


def scores(values):
    return before_after.Scores(np.array(values), np.ones(len(values)), np.zeros(len(values)))


def test_intervals_tell_a_gain_from_chance():
    chance = np.random.default_rng(1)
    kinds = [list(range(40)), list(range(40, 80))]
    base = scores(chance.normal(size=80))
    raised = scores(base.logp + np.r_[np.full(40, 0.5), np.zeros(40)])
    found = before_after.compare({"margin": before_after.margin}, base, raised, kinds)
    line = found.lines[0]
    assert line.change == pytest.approx((0.5, 0.5, 0.5)) and line.sure and not found.worse
    noisy = scores(base.logp + chance.normal(size=80) * 0.5)
    for one, two in ((base, noisy), (noisy, base)):
        unsure = before_after.compare({"margin": before_after.margin}, one, two, kinds)
        assert not (unsure.lines[0].sure or unsure.worse), "chance, either way"
        assert unsure.doubtful == (unsure.lines[0].gain < 0)
    assert before_after.compare({"margin": before_after.margin}, raised, base, kinds).worse
    few = before_after.compare({"margin": before_after.margin}, raised, base, [[0], [40]])
    assert few.facts()["doubtful"] and not (few.worse or few.facts()["sure"])
    assert "the result is below its base, but so few rows cannot tell" in few.table()
    more = before_after.compare({"margin": before_after.margin}, base, raised, [[0], [40]])
    assert not (more.worse or more.doubtful) and "cannot tell" in more.table()
    broken = before_after.compare({"margin": before_after.margin}, base, scores(base.logp * np.nan), kinds)
    assert broken.worse, "no number is no gain"
    assert before_after.accuracy(scores([1.0, 2.0, 0.0, 1.0]), (np.array([0, 1]), np.array([2, 3]))) == 0.875


def test_a_margin_that_was_bought_by_forgetting_is_told():
    kinds = [list(range(20)), list(range(20, 40))]
    base = scores(np.random.default_rng(1).normal(size=40))
    measures = {"margin": before_after.margin, "loss of good rows": before_after.loss}
    for good, lost in ((-1.0, ["loss of good rows"]), (0.5, [])):
        after = scores(base.logp + np.r_[np.full(20, good), np.full(20, -3.0)])
        found = before_after.compare(measures, base, after, kinds, lower=["loss of good rows"])
        assert not found.worse and found.lost == lost and found.facts()["lost"] == lost
        assert ("loss of good rows got worse" in found.table()) is bool(lost)


def test_memory_advice_names_what_is_left_to_try():
    assert advice(LoraOptions(device="cpu"), 4).endswith("Type: --gradient-checkpointing")
    tried = LoraOptions(device="cpu", gradient_checkpointing=True)
    assert "--batch-size 2" in advice(tried, 4) and "--max-length 512" in advice(tried, 1)


def test_running_out_of_memory_ends_with_what_to_type(tiny_llama, tmp_path, monkeypatch):
    from trl import SFTTrainer

    from rusty_r2.errors import TrainingError
    from rusty_r2.train.sft import SFTConfig, train

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")

    monkeypatch.setattr(SFTTrainer, "training_step", full)
    data = tmp_path / "sft.jsonl"
    data.write_text(json.dumps({"prompt": "User: a", "completion": "b"}) + "\n")
    with pytest.raises(TrainingError, match="ran out of memory with 1 rows .* --gradient-checkpointing"):
        train(
            SFTConfig(
                base_model=str(tiny_llama), data=data, output_dir=tmp_path / "run", batch_size=1, device="cpu"
            )
        )
    assert json.loads((tmp_path / "run" / "run.json").read_text())["ended"] == "error: TrainingError"


def test_gradient_checkpointing_changes_no_number(tiny_llama, tiny_rwkv, tmp_path):
    from rusty_r2.train.sft import SFTConfig, train

    data = tmp_path / "sft.jsonl"
    data.write_text(
        "".join(json.dumps({"prompt": f"User: {n}", "completion": "import os"}) + "\n" for n in range(8))
    )
    shared = {"max_steps": 2, "batch_size": 4, "accumulate": 1, "lora_r": 4, "learning_rate": 1e-2}
    shared |= {"device": "cpu", "eval_rows": 0}
    for base in (tiny_llama, tiny_rwkv):
        found = []
        for again in (False, True):
            config = SFTConfig(
                base_model=str(base),
                data=data,
                output_dir=tmp_path / f"{base.name}-{again}",
                gradient_checkpointing=again,
                **shared,
            )
            found.append([line["loss/train"] for line in run.metrics(train(config))])
        assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_two_processes_take_the_same_steps_as_one(tiny_llama, tmp_path):
    """A real torchrun over gloo: what a step sees, and so every loss, is the same however many share it."""
    from rusty_r2.train.sft import SFTConfig, train

    data = tmp_path / "sft.jsonl"
    lines = [{"prompt": f"User: {n}", "completion": "import os " * (1 + n % 3)} for n in range(16)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = {"max_steps": 3, "batch_size": 2, "accumulate": 2, "lora_r": 4, "learning_rate": 1e-2}
    options |= {"base_model": str(tiny_llama), "data": data, "device": "cpu", "eval_rows": 4}
    train(SFTConfig(output_dir=tmp_path / "one", **options))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["-m", "rusty_r2.cli", "train", "sft", "--output-dir", str(tmp_path / "two")]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = (
        [line["loss/train"] for line in run.metrics(tmp_path / name) if "loss/train" in line]
        for name in ("one", "two")
    )
    assert one == pytest.approx(two, abs=1e-5) and len(one) == 3
    assert run.newest(tmp_path / "two").name == "step_000003"
    assert "worse" in json.loads((tmp_path / "two" / "run.json").read_text())


def test_an_adapter_that_names_itself_as_its_base_is_one_line(tmp_path):
    import json

    from rusty_r2.errors import CheckpointError
    from rusty_r2.train.lora import find_base

    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path)}))
    with pytest.raises(CheckpointError, match="names itself"):
        find_base(str(tmp_path))
