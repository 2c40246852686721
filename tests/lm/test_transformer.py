"""A Hugging Face model that speaks: as transformers would say it, with nothing read twice."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("transformers", reason="pip install 'rusty-r2[train]'")

from rusty_r2.errors import CheckpointError, PolicyError
from rusty_r2.lm import transformer
from rusty_r2.lm.llama import GREEDY
from rusty_r2.lm.sampling import Sampling
from rusty_r2.lm.transformer import Transformer, dtype_for, locate
from rusty_r2.protocol import Cmd, parse

ASKED = [{"role": "user", "content": "Dönë 日本 😀?\n    42 lines"}]


@pytest.fixture
def model(small_transformer):
    """With nothing read yet."""
    small_transformer.close()
    return small_transformer


@pytest.fixture
def ids(model):
    return model.tokenize(model.render(ASKED))


def test_it_says_what_generate_says(model, ids):
    import torch

    theirs = model.model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :]
    said = model.complete(ids, max_new_tokens=12)
    assert list(said.tokens) == theirs.tolist()
    assert said.text == model.detokenize(said.tokens) and said.finish == "length"


def test_a_conversation_that_goes_on_is_not_read_again(model, ids):
    first = model.complete(ids, max_new_tokens=6)
    longer = [*ids, *first.tokens, *model.tokenize("<|im_end|>\n<|im_start|>user\nAgain.")]
    again = model.complete(longer, max_new_tokens=6)
    assert (first.read, first.kept) == (len(ids), 0)
    assert again.kept == len(ids) + 5 and again.read == len(longer) - again.kept
    model.close()
    assert model.complete(longer, max_new_tokens=6).tokens == again.tokens


def test_another_conversation_begins_where_they_part(model, ids):
    one = model.complete(ids, max_new_tokens=4)
    other = [*ids[:-3], 28, 29, 30]
    two = model.complete(other, max_new_tokens=4)
    assert two.kept == len(ids) - 3
    assert model.complete(ids, max_new_tokens=4).tokens == one.tokens, "the first is still whole"
    model.close()
    assert model.complete(other, max_new_tokens=4).tokens == two.tokens


def test_only_so_many_conversations_are_kept(model):
    for n in range(transformer.REMEMBERED + 2):
        model.complete([100 + n, 28, 29, 30], max_new_tokens=1)
    assert len(model._memories) == transformer.REMEMBERED


def test_who_stops_listening_leaves_a_memory_that_holds(model, ids):
    def stop(piece):
        raise KeyError("enough")

    with pytest.raises(KeyError):
        model.complete(ids, max_new_tokens=8, on_text=stop)
    kept = model.complete(ids, max_new_tokens=8)
    assert kept.kept > 0
    model.close()
    assert model.complete(ids, max_new_tokens=8).tokens == kept.tokens


def test_characters_come_whole(model):
    """Each piece is text, whatever tokens it is made of."""
    text = "😀 é日本 x\n  y 🌍!"
    tokens, heard = model.tokenize(text, special=False), []
    pieces = transformer._Pieces(model, heard.append)
    for end in range(1, len(tokens) + 1):
        pieces.tell(tokens[:end])
    pieces.tell(tokens, last=True)
    assert "".join(heard) == pieces.text == text and "\ufffd" not in "".join(heard)


def test_under_the_grammar_only_actions_are_said(model, ids):
    grammar = model.grammar()
    for seed in range(4):
        drawn = Sampling(1.0, top_k=50, seed=seed)
        said = model.complete(ids, max_new_tokens=48, sampling=drawn, grammar=grammar)
        if said.finish == "stop":
            parse(said.text)
        assert said.text.startswith('{"action": "')
        assert len(said.tokens) == len(said.logprobs) and max(said.logprobs) <= 0


def test_the_grammar_spells_an_action_as_the_tokenizer_does(model):
    matcher = model.grammar().start()
    for token in model.tokenize('{"action": "CMD", "command": "ls -la"}', special=False):
        assert np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")[token]
        matcher.accept(token)
    assert matcher.done and parse('{"action": "CMD", "command": "ls -la"}') == Cmd("ls -la")


def test_logprobs_are_of_the_words_as_drawn(model, ids):
    said = model.complete(ids, max_new_tokens=3, sampling=Sampling(1.0, seed=5))
    for place, (token, logprob) in enumerate(zip(said.tokens, said.logprobs, strict=True)):
        known = model.next_logprobs([*ids, *said.tokens[:place]])[token]
        assert logprob == pytest.approx(known, abs=1e-3)
    assert set(model.complete(ids, max_new_tokens=3, sampling=GREEDY).logprobs) == {0.0}
    cold = replace(GREEDY, temperature=0.5, seed=5)
    assert model.complete(ids, max_new_tokens=3, sampling=cold).tokens == (
        model.complete(ids, max_new_tokens=3, sampling=cold).tokens
    )


def test_a_prompt_that_does_not_fit_is_refused_and_never_cut(model):
    with pytest.raises(PolicyError, match="1024 tokens, the context 1024: nothing was cut"):
        model.complete([28] * 1024)
    assert model.complete([28] * 1022, max_new_tokens=50).finish == "length"


def test_templates_of_other_models(model, monkeypatch):
    strict = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    monkeypatch.setattr(model.tokenizer, "chat_template", strict + "[{{ m.content }}]{% endfor %}")
    assert model.render(ASKED) == f"[{ASKED[0]['content']}]"
    with pytest.raises(PolicyError, match="no system"):
        model.render([{"role": "system", "content": "x"}])
    monkeypatch.setattr(model.tokenizer, "chat_template", None)
    assert model.render([{"role": "user", "content": "hi"}]) == "User: hi\n\nAssistant: "


def test_an_adapter_is_its_base_and_more(model, tmp_path, ids):
    """Also where it belongs to another adapter."""
    peft = pytest.importorskip("peft", reason="pip install 'rusty-r2[lora]'")
    import torch

    model.model.save_pretrained(tmp_path / "base")
    model.tokenizer.save_pretrained(tmp_path / "base")
    below = str(tmp_path / "base")
    for name in ("one", "two"):
        opened = Transformer.load(below)
        torch.manual_seed(len(name))
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        adapted = peft.get_peft_model(opened.model, config)
        adapted.peft_config["default"].base_model_name_or_path = below
        adapted.save_pretrained(tmp_path / name, save_embedding_layers=False)
        below = str(tmp_path / name)
        with torch.inference_mode():
            wanted = adapted(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        assert Transformer.load(below).next_logprobs(ids) == pytest.approx(wanted.numpy(), abs=1e-3)


def test_what_cannot_be_opened_is_one_line(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(transformer, "getproxies", dict)
    with pytest.raises(
        PolicyError, match="neither a folder nor downloaded, and 127.0.0.1 did not give it"
    ) as gone:
        Transformer.load("nobody/nothing")
    with pytest.raises(PolicyError, match="neither a model .* nor an adapter"):
        locate(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "rusty_rwkv"}))
    with pytest.raises(PolicyError, match="one of our own"):
        Transformer.load(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(CheckpointError, match="cannot be opened") as empty:
        Transformer.load(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="names no base model"):
        Transformer.load(str(tmp_path))
    assert "\n" not in str(gone.value) + str(empty.value)


def test_numbers_are_of_a_kind_the_machine_computes_in(monkeypatch):
    from rusty_r2 import machine

    for flags, kind in (
        ({"avx2"}, "float32"),
        ({"avx512_bf16"}, "bfloat16"),
        ({"asimd", "bf16"}, "bfloat16"),
    ):
        monkeypatch.setattr(machine, "cpu", lambda flags=flags: machine.Cpu("a", 1, 1, frozenset(flags)))
        assert dtype_for("cpu") == kind
    for capability, kind in ((7.5, "float16"), (9.0, "bfloat16")):
        monkeypatch.setattr(machine, "gpu", lambda c=capability: machine.Gpu("a", 24.0, c))
        assert dtype_for("cuda") == kind
