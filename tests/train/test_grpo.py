"""GRPO: whole groups always, rewards for what was done, flat groups said, what is unknown left out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")
pytest.importorskip("trl", reason="pip install 'rusty-r2[lora]'")

from rusty_r2.cli import main  # noqa: E402
from rusty_r2.errors import ConfigError, DataError  # noqa: E402
from rusty_r2.executor import LocalExecutor, open_executor  # noqa: E402
from rusty_r2.gym import catalog  # noqa: E402
from rusty_r2.gym.env import asks  # noqa: E402
from rusty_r2.gym.proof import gold  # noqa: E402
from rusty_r2.hardware import get_ryzen_optimized_config  # noqa: E402
from rusty_r2.protocol import render  # noqa: E402
from rusty_r2.rewards.base import RewardError  # noqa: E402
from rusty_r2.train.agent_grpo import Answers, Plan, paid, rolled_out  # noqa: E402
from rusty_r2.train.chatting import Chat, Drawing  # noqa: E402
from rusty_r2.train.grpo import GRPOConfig, group_size, gym_families, train, whole_groups  # noqa: E402
from rusty_r2.train.grpo_rewards import Attempt, EngineReward, GymReward, attempt  # noqa: E402
from rusty_r2.train.grpo_trainer import GroupTrainer, Watch  # noqa: E402
from rusty_r2.train.lora import Shape, shape_of  # noqa: E402
from rusty_r2.train.replay import ReplayConfig  # noqa: E402
from rusty_r2.train.replay import train as replay  # noqa: E402

REMOVE = "remove-1-train-0"
SOLVED = '{"action": "CMD", "command": "rm notion-backup.txt"}'


# ── whole groups ────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 4), st.integers(2, 16))
def test_a_step_is_always_whole_groups_and_never_smaller(batch, accumulate, processes, size):
    shape = whole_groups(Shape(batch, accumulate, processes), size)
    assert shape.rows % size == 0 and shape.batch == batch
    assert accumulate <= shape.accumulate < accumulate + size


def test_the_documented_ryzen_preset_is_valid():
    """Two rows at once, four times, groups of six: 8 is not whole groups, 12 is."""
    ryzen = get_ryzen_optimized_config()
    config = GRPOConfig()
    size = group_size(config, ryzen)
    shape = whole_groups(shape_of(config, ryzen), size)
    assert (size, shape.batch, shape.rows) == (6, 2, 12)


# ── rewards ─────────────────────────────────────────────────────────────────────────────────────


def test_the_gym_pays_what_was_done():
    said = [
        SOLVED,
        '{"action": "CMD", "command": "ls"}',
        '{"action": "MSG", "message": "done"}',
        "Sure thing!",
    ]
    metrics = {}
    reward = GymReward(LocalExecutor(1))
    found = reward(said, [REMOVE] * 4, log_metric=metrics.__setitem__)
    assert found == pytest.approx([1.0, 0.0, -0.1, -0.5])
    assert metrics["play/valid_rate"] == 0.75 and metrics["play/pass_rate"] == 0.25
    assert metrics["reward_part/malformed"] == pytest.approx(-0.125)
    turns = [[{"role": "assistant", "content": text}] for text in said]
    assert reward(turns, [REMOVE] * 4) == found


def test_gold_is_worth_one_in_every_family_of_one_reply():
    families = gym_families(GRPOConfig())
    assert "remove" in families and "count_lines" not in families
    for name in families[::4]:
        task = next(catalog.tasks("train", families=[name], difficulty=1))
        assert not asks(task)
        replies = [render(action) for action in gold(task)]
        if len(replies) == 1:
            assert attempt(Attempt(task.name, replies[0])).reward == pytest.approx(1.0)


def test_a_broken_sandbox_is_no_score(no_more_files):
    with no_more_files():
        broken = attempt(Attempt(REMOVE, SOLVED))
    assert broken.reward is None
    assert attempt(Attempt(REMOVE, SOLVED)).reward == pytest.approx(1.0)


def test_the_engine_pays_the_same_in_this_process_and_in_others():
    asked = ["Write a function that adds two numbers in Python."] * 2 + ["What is 2+2?"]
    said = ["```python\ndef add(a, b):\n    return a + b\n\nprint(add(2, 3))\n```", "I can't.", "2+2 is 4."]
    prompts = [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}] for text in asked
    ]
    completions = [[{"role": "assistant", "content": text}] for text in said]
    here = EngineReward()(prompts, completions)
    with open_executor("local", workers=2) as pool:
        there = EngineReward(pool)(prompts, completions)
    assert here == there and here[0] > here[1]


def test_a_command_nobody_ran_earns_nothing_from_the_engine():
    from rusty_r2.train.grpo_rewards import trace_of

    trace = trace_of("Delete a.txt", '{"action": "CMD", "command": "rm a.txt"}')
    assert trace.steps == [] and trace.tool_calls == []
    assert trace_of("Hi", '{"action": "MSG", "message": "hello"}').final_response == "hello"


# ── flat groups, silence, unknown rewards ───────────────────────────────────────────────────────


def test_flat_groups_are_counted_and_stop_a_run_with_a_sentence():
    watch = Watch(patience=2)
    assert watch.saw(torch.tensor([[0.0, 1.0], [1.0, 1.0]])) == 0.5 and not watch.reason
    watch.saw(torch.tensor([[-0.5, -0.5]]))
    watch.saw(torch.tensor([[-0.5, -0.5]]))
    assert (
        "last 2 generations" in watch.reason and "-0.50" in watch.reason and "--temperature" in watch.reason
    )
    assert watch.told() == "3 of 4 groups were flat and taught nothing"
    solved = Watch(patience=1)
    solved.saw(torch.tensor([[1.0, 1.0]]))
    assert "solved: take harder" in solved.reason
    unknown = Watch(patience=1)
    unknown.saw(torch.tensor([[torch.nan, 1.0]]))
    assert unknown.left_out == 1 and unknown.reason
    never = Watch(patience=0)
    never.saw(torch.tensor([[1.0, 1.0]]))
    assert not never.reason


def test_a_model_that_never_acts_is_told_so():
    watch = Watch()
    watch.heard([False] * 31)
    assert not watch.reason
    watch.heard([False])
    assert "does not speak the protocol" in watch.reason
    speaks = Watch()
    speaks.heard([True] + [False] * 99)
    assert not speaks.reason


def load(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


def trainer_of(folder, tmp_path, rollout, reward, *, lora=True, **more):
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig as Arguments

    model, tokenizer = load(folder)
    args = {"max_steps": 1, "per_device_train_batch_size": 4, "num_generations": 4, "learning_rate": 1e-2}
    args |= {"bf16": False, "use_cpu": True, "report_to": [], "save_strategy": "no", "logging_steps": 1}
    args |= {"gradient_checkpointing": False, "disable_tqdm": True, "dataloader_pin_memory": False}
    return GroupTrainer(
        model=model,
        args=Arguments(output_dir=str(tmp_path), **(args | more)),
        train_dataset=Dataset.from_list([{"prompt": "x"}] * 64),
        processing_class=tokenizer,
        peft_config=LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM") if lora else None,
        reward_funcs=reward,
        rollout_func=rollout,
    )


def test_a_completion_without_a_reward_is_left_out_of_the_loss_and_its_size(small_llama, tmp_path):
    words = [[10, 11, 2], [12, 13, 14, 15, 16, 2], [17, 2], [18, 19, 20, 2]]
    rewards = [1.0, None, 0.0, 0.25]

    def rollout(prompts, trainer):
        return rolled_out([[5, 6]] * 4, words, None) | {"paid": rewards}

    trainer = trainer_of(small_llama, tmp_path, rollout, paid)
    trainer.train()
    known = torch.tensor([1.0, 0.0, 0.25])
    advantages = (known - known.mean()) / (known.std() + 1e-4)
    sizes = torch.tensor([3.0, 2.0, 4.0])
    by_hand = -(advantages * sizes).sum() / sizes.sum()  # the ratio is 1 at the first step
    assert trainer.state.log_history[0]["loss"] == pytest.approx(float(by_hand), abs=1e-4)
    assert trainer.watch.left_out == 1


def test_a_prompt_that_completions_share_is_read_once_and_nothing_changes(small_llama, tmp_path):
    trainer = trainer_of(small_llama, tmp_path, lambda *_: {}, paid)
    model, (prompt, said) = trainer.model, (6, 5)
    ids = torch.randint(3, 200, (8, prompt + said), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    ids[::2, :prompt], ids[1::2, :prompt] = ids[0, :prompt].clone(), ids[1, :prompt].clone()
    ids[1::2, :2], mask[1::2, :2] = 0, 0  # the shorter prompt is padded, and so are some completions
    mask[3, -2:] = 0
    sizes, found = [], []
    model.get_base_model().model.embed_tokens.register_forward_hook(lambda *at: sizes.append(at[2].shape[:2]))
    for apart in (True, False):  # with gradient checkpointing nothing can be kept, so nothing is shared
        trainer.args.gradient_checkpointing = apart
        model.zero_grad()
        logits = trainer._read(model, ids, mask, said)
        likely = logits.log_softmax(-1).gather(2, ids[:, -said:, None])[..., 0] * mask[:, -said:]
        likely.sum().backward()
        slopes = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
        found.append((likely.detach(), slopes))
    assert [tuple(size) for size in sizes] == [(8, prompt + said), (2, prompt), (8, said - 1)]
    torch.testing.assert_close(found[1][0], found[0][0], atol=1e-5, rtol=1e-5)
    for one, two in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(two, one, atol=1e-5, rtol=1e-4)


def test_online_grpo_learns_to_say_what_is_paid(small_llama, tmp_path):
    """From chance to most of the time: replies are paid for each letter e."""
    chat = Chat(load(small_llama)[1])
    plan = Plan(Drawing(8, 1.0), 8, 512, 0)

    def share(prompts, completions, **_):
        return [text.count("e") / max(1, len(text)) for text in completions]

    more = {"max_steps": 30, "per_device_train_batch_size": 16, "num_generations": 8, "learning_rate": 3e-2}
    more["lr_scheduler_type"] = "constant"
    trainer = trainer_of(small_llama, tmp_path, Answers(chat, plan), share, lora=False, **more)
    trainer.train()
    rewards = [line["reward"] for line in trainer.state.log_history if "reward" in line]
    assert sum(rewards[-3:]) > 4 * sum(rewards[:3])


# ── through the user's door ─────────────────────────────────────────────────────────────────────


def options(folder, tmp_path, **more):
    given = {"base_model": str(folder), "output_dir": tmp_path / "run", "device": "cpu", "lora_r": 4}
    given |= {"num_generations": 4, "batch_size": 8, "accumulate": 1, "max_new_tokens": 8, "eval_rows": 2}
    return GRPOConfig(**(given | more))


def test_a_model_that_does_not_speak_the_protocol_is_stopped_early(small_llama, tmp_path, capsys):
    train(options(small_llama, tmp_path, max_steps=50, families=("remove",)))
    note = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "does not speak the protocol" in note["stopped"] and note["groups"] == 8
    assert "stopped after step 4: none of the first 32 completions was an action" in capsys.readouterr().err


def test_requests_of_ones_own_are_paid_by_the_engine_and_resumed_bit_for_bit(small_llama, tmp_path):
    data = tmp_path / "prompts.jsonl"
    asked = ["Say hello.", "What is 2+3?", "Name a colour.", "Count to three."]
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in asked]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows[:3]))
    (tmp_path / "prompts.eval.jsonl").write_text(json.dumps(rows[3]) + "\n")
    given = {"data": data, "max_steps": 2, "ckpt_interval": 1, "keep": 0, "patience": 0}
    given |= {"temperature": 1.5, "max_new_tokens": 24, "learning_rate": 1e-2}
    train(options(small_llama, tmp_path, **given, output_dir=tmp_path / "whole"))
    note = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert note["before_after"]["rows"] == 1 and "came to an end" in note["before_after"]
    kept = [json.loads(line) for line in (tmp_path / "whole" / "completions.jsonl").read_text().splitlines()]
    shown = [row["prompt"] for row in rows[:3]]
    assert {row["step"] for row in kept} == {0, 1} and all(row["prompt"] in shown for row in kept)
    assert all(len(row["replies"]) == 1 and isinstance(row["reward"], float) for row in kept)
    train(options(small_llama, tmp_path, **given, output_dir=tmp_path / "parts"))
    (tmp_path / "parts" / "step_000002").rename(tmp_path / "away")
    train(options(small_llama, tmp_path, **given, output_dir=tmp_path / "parts", resume="auto"))
    for name in ("step_000002/adapter_model.safetensors", "completions.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    assert json.loads((tmp_path / "parts" / "run.json").read_text())["groups"] == note["groups"] > 1
    lines = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 2], "the base is measured once in the record"


def test_a_reward_that_can_be_cheated_is_refused_before_training(small_llama, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from rusty_r2.rewards.base import BaseReward, RewardResult\n"
        "class Long(BaseReward):\n"
        "    name, weight = 'long', 50.0\n"
        "    def compute(self, trace):\n"
        "        return RewardResult(1.0)\n"
    )
    data = tmp_path / "prompts.jsonl"
    data.write_text('{"prompt": "Say hello."}\n')
    with pytest.raises(RewardError, match="break the audit"):
        train(options(small_llama, tmp_path, data=data, reward=(f"{tmp_path / 'mine.py'}:Long",)))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_generations": 1}, "at least 2"),
        ({"temperature": 0.0}, "above 0"),
        ({"max_turns": 0}, "at least 1"),
        ({"reward": ("x:Y",)}, "add --data"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        GRPOConfig(**given)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "x", "completions": ["a", "b"], "rewards": [1, 0]}', "rusty train replay --data"),
        ('{"prompt": 3}', "prompts.jsonl:1: prompt"),
        ("", "holds no rows"),
        ("{", "no JSON"),
    ],
)
def test_a_faulty_file_of_prompts_is_named_before_anything_is_loaded(line, said, tmp_path):
    data = tmp_path / "prompts.jsonl"
    data.write_text(line + "\n")
    with pytest.raises(DataError, match=said):
        train(GRPOConfig(data=data, base_model="nowhere/at-all"))
    data.write_text('{"prompt": "x"}\n')
    with pytest.raises(DataError, match=r"none\.jsonl"):
        train(GRPOConfig(data=data, eval_data=tmp_path / "none.jsonl", base_model="nowhere/at-all"))


def test_prompts_without_room_for_an_answer_are_left_out_and_a_clock_stops_a_run(
    small_llama, tmp_path, capsys
):
    data = tmp_path / "prompts.jsonl"
    data.write_text(json.dumps({"prompt": "hello"}) + "\n" + json.dumps({"prompt": "long " * 400}) + "\n")
    short = {"data": data, "max_length": 100, "max_steps": 500, "max_minutes": 0.02, "patience": 0}
    train(options(small_llama, tmp_path, **short))
    said = capsys.readouterr().err
    assert "1 prompts left out: over 92 tokens" in said and "Go on: rusty train grpo --config" in said
    assert json.loads((tmp_path / "run" / "run.json").read_text())["ended"] == "stopped"
    with pytest.raises(DataError, match="every prompt .* --max-length 18"):
        train(options(small_llama, tmp_path, data=data, max_length=9))


def test_held_out_families_are_refused(small_llama, tmp_path, capsys):
    words = ["train", "grpo", "--base-model", str(small_llama), "--output-dir", str(tmp_path / "run")]
    assert main([*words, "--families", "copy", "--device", "cpu"]) == 1
    assert "held out for evaluation" in capsys.readouterr().err
    assert not (tmp_path / "run").exists(), "said before anything is begun"


def test_our_own_recurrent_model_is_trained_like_any_other(tiny_rwkv, tmp_path):
    answers = [[{"role": "assistant", "content": text}] for text in ("import os", "no", "return None")]
    asked = [{"role": "user", "content": "the first line"}]
    line = json.dumps({"prompt": asked, "completions": answers, "rewards": [1.0, 0.0, 0.5]}) + "\n"
    (tmp_path / "grpo.jsonl").write_text(line)
    given = {"base_model": str(tiny_rwkv), "output_dir": tmp_path / "run", "device": "cpu", "warmup": 0.0}
    given |= {"max_steps": 3, "batch_size": 3, "accumulate": 1, "learning_rate": 1e-2}
    folder = replay(ReplayConfig(data=tmp_path / "grpo.jsonl", **given))
    note = json.loads((folder / "run.json").read_text())
    assert note["before_after"]["margin, nats a token"]["change"][0] > 0.01


def test_a_dry_run_says_what_would_be_done_and_does_nothing(small_llama, tmp_path):
    told = train(options(small_llama, tmp_path, dry_run=True, num_generations=6, batch_size=4))
    assert '"num_generations": 6' in told and "12 completions a step" in told and "M parameters" in told
    assert not (tmp_path / "run").exists()
