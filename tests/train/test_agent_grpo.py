"""Episodes of a Hugging Face model: its own tokens, all of them, and no others; batches change nothing."""

import json

import pytest

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")
pytest.importorskip("trl", reason="pip install 'rusty-r2[lora]'")

from rusty_r2.gym import catalog  # noqa: E402
from rusty_r2.gym.curriculum import Curriculum, CurriculumConfig  # noqa: E402
from rusty_r2.gym.env import EnvConfig, opening  # noqa: E402
from rusty_r2.gym.proof import gold  # noqa: E402
from rusty_r2.protocol import render  # noqa: E402
from rusty_r2.train.agent_grpo import Episodes, Plan, go_on  # noqa: E402
from rusty_r2.train.chatting import Chat, Drawing, write  # noqa: E402
from rusty_r2.train.grpo import GRPOConfig, train  # noqa: E402
from rusty_r2.train.grpo_trainer import Watch  # noqa: E402
from rusty_r2.train.playing import Stage, compared, outcomes  # noqa: E402

COUNT = "count_lines-1-train-0"
SYSTEM = "Act."


def load(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def speaker(small_llama, tmp_path_factory):
    """The small model after it has learned one dialogue by heart: count the lines, then say how many."""
    torch.manual_seed(0)
    model, tokenizer = load(small_llama)
    chat = Chat(tokenizer, system=SYSTEM)
    task = catalog.get(COUNT)
    ask, answer = (render(action) for action in gold(task))
    seen = f"exit 0\n{len(task.files['tutorial.idx'].splitlines())} tutorial.idx"
    prompt = chat.opening(chat.messages(opening(task, EnvConfig())))
    first, last = chat.words(ask), chat.words(answer)
    between = chat.between(first, seen)
    ids = torch.tensor([[*prompt, *first, *between, *last]])
    labels = torch.tensor([[*[-100] * len(prompt), *first, *[-100] * len(between), *last]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(200):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.005:
            break
    folder = tmp_path_factory.mktemp("speaker") / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def played(folder, temperature=0.0, tasks=(COUNT,), **more):
    model, tokenizer = load(folder)
    stage = Stage(
        model, Chat(tokenizer, system=SYSTEM), EnvConfig(max_turns=3), Drawing(48, temperature), **more
    )
    return stage, stage.play([catalog.get(name) for name in tasks], list(range(len(tasks))))


def test_an_episode_of_two_turns_is_the_conversation_token_by_token(speaker):
    stage, (one,) = played(speaker)
    assert one.passed and one.reward == pytest.approx(1.0) and one.valid == 2
    chat = stage.chat
    turns = [*chat.messages(one.seen[0])]
    for reply, seen in zip(one.replies, one.seen[1:], strict=True):
        turns += [{"role": "assistant", "content": reply}, {"role": "user", "content": seen}]
    whole = chat.tokenizer.apply_chat_template(turns[:-1], tokenize=False)
    assert whole == chat.tokenizer.decode([*one.prompt, *one.ids]) + "\n"
    own = [word for word, mine in zip(one.ids, one.own, strict=True) if mine]
    assert own == [word for reply in one.replies for word in chat.words(reply)]
    assert len(one.ids) == len(one.own) == len(one.logprobs)


def test_probabilities_are_those_of_the_whole_text_read_at_once(speaker):
    stage, episodes = played(speaker, temperature=0.8, tasks=(COUNT, COUNT, "remove-1-train-0"))
    for one in episodes:
        with torch.no_grad():
            logits = stage.model(torch.tensor([[*one.prompt, *one.ids]])).logits[0, len(one.prompt) - 1 : -1]
        likely = (logits / 0.8).log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None])[:, 0]
        for mine, then, now in zip(one.own, one.logprobs, likely.tolist(), strict=True):
            assert then == (pytest.approx(now, abs=1e-4) if mine else 0.0)


def test_neighbours_and_rounds_change_nothing(small_llama):
    model, tokenizer = load(small_llama)
    chat = Chat(tokenizer)
    prompts = [chat.opening(chat.messages(text)) for text in ("a", "a", "a longer request than that", "b")]
    together = write(model, prompts, chat, Drawing(12, 1.0), [1, 2, 3, 4])
    in_twos = write(model, prompts, chat, Drawing(12, 1.0, rows=2), [1, 2, 3, 4])
    alone = [write(model, [prompts[n]], chat, Drawing(12, 1.0), [n + 1])[0] for n in range(4)]
    for one, other, third in zip(together, in_twos, alone, strict=True):
        assert one.ids == other.ids == third.ids
        assert one.logprobs == pytest.approx(third.logprobs, abs=1e-4)
    assert together[0].ids != together[1].ids  # the same prompt with another seed


def test_the_likeliest_words_are_those_of_generate(small_llama):
    model, tokenizer = load(small_llama)
    chat = Chat(tokenizer)
    prompt = chat.opening(chat.messages("print the name"))
    found = write(model, [prompt], chat, Drawing(16, 0.0), [0])[0].ids
    given = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": chat.end, "pad_token_id": chat.end}
    ids = torch.tensor([prompt])
    wanted = model.generate(ids, attention_mask=torch.ones_like(ids), **given)[0, len(prompt) :].tolist()
    assert found == wanted


def test_our_own_recurrent_model_writes_as_it_reads(words, tmp_path):
    import rusty_r2.lm.hf  # noqa: F401
    from rusty_r2.lm.checkpoint import save
    from rusty_r2.lm.rwkv import TinyRWKVLM

    torch.manual_seed(0)
    save(tmp_path / "own", TinyRWKVLM(600, d_embed=16, d_hidden=16, n_layers=2), tokenizer=words)
    model, tokenizer = load(tmp_path / "own")
    chat = Chat(tokenizer)
    prompts = [chat.opening(chat.messages(text)) for text in ("a", "import this and that", "a")]
    for one, prompt in zip(write(model, prompts, chat, Drawing(8, 1.0), [1, 2, 3]), prompts, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *one.ids]])).logits[0, len(prompt) - 1 : -1]
        likely = logits.log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None])[:, 0]
        assert one.logprobs == pytest.approx(likely.tolist(), abs=1e-4)


def test_an_episode_ends_where_there_is_no_room_for_another_reply(speaker):
    _, (long,) = played(speaker)
    _, (short,) = played(speaker, max_length=len(long.prompt) + 60)
    assert len(short.replies) == 1 and not short.passed


def test_a_failing_sandbox_masks_the_episode_and_leaves_it_out_of_the_table(speaker, no_more_files):
    model, tokenizer = load(speaker)
    stage = Stage(model, Chat(tokenizer, system=SYSTEM), EnvConfig(max_turns=2), Drawing(48, 0.0))
    with no_more_files():
        (one,) = stage.play([catalog.get(COUNT)], [0])
    assert one.masked
    found = outcomes([one])
    assert found.reward == (None,) and compared(found, found).rows == 0


def test_training_on_episodes_keeps_the_curriculum_and_every_reply(speaker, tmp_path, capsys):
    folder = tmp_path / "run"
    given = {"base_model": str(speaker), "output_dir": folder, "system_prompt": SYSTEM, "device": "cpu"}
    given |= {
        "families": ("count_lines",),
        "max_turns": 2,
        "num_generations": 2,
        "batch_size": 2,
        "lora_r": 4,
    }
    given |= {
        "max_steps": 2,
        "accumulate": 1,
        "eval_rows": 2,
        "max_new_tokens": 40,
        "ckpt_interval": 1,
        "keep": 0,
    }
    assert train(GRPOConfig(**given)) == folder and (folder / "README.md").is_file()
    assert f"next: rusty train merge {folder}" in capsys.readouterr().err
    kept = [json.loads(line) for line in (folder / "completions.jsonl").read_text().splitlines()]
    assert len(kept) == 4 and all(row["task"].startswith("count_lines-1-train") for row in kept)
    assert kept[0]["task"] == kept[1]["task"] and kept[2]["task"] == kept[3]["task"] != kept[0]["task"]
    again = Curriculum(CurriculumConfig(42, ("count_lines",), 1))
    go_on(again, folder / "step_000001")
    assert again.drawn == 1 and again.next().name == kept[2]["task"]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    names = {name for line in metrics for name in line}
    assert {
        "reward/mean",
        "play/valid_rate",
        "play/flat_groups",
        "lesson/count_lines/1",
        "eval/reward",
    } <= names


def test_each_process_takes_its_part_of_the_same_tasks():
    class Place:
        def __init__(self, index):
            self.num_processes, self.process_index = 2, index

    class Trainer:
        def __init__(self, index):
            self.accelerator = Place(index)

    plan = Plan(Drawing(), 4, 512, 0)
    parts = []
    for index in range(2):
        lessons = Curriculum(CurriculumConfig(0, ("remove", "rename"), 1))
        episodes = Episodes(None, EnvConfig(), plan, lessons, watch=Watch())
        parts.append(episodes._next(6, Trainer(index)))
    whole = [*parts[0], *parts[1]]
    assert len(set(whole)) == 3 and all(len(set(whole[at : at + 4])) == 1 for at in (0, 4, 8))
