# SPDX-License-Identifier: AGPL-3.0-or-later
"""Hugging Face's Auto classes read our checkpoints, and generate as we would."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

import tokenizers
import transformers

from rusty_r2.errors import ConfigError
from rusty_r2.lm.checkpoint import load, save
from rusty_r2.lm.hf import wrap
from rusty_r2.lm.rwkv import TinyRWKVLM


@pytest.fixture
def model() -> TinyRWKVLM:
    torch.manual_seed(0)
    model = TinyRWKVLM(60, d_embed=12, d_hidden=24, n_layers=2).eval()
    with torch.no_grad():
        for x in model.parameters():
            x.add_(torch.randn_like(x) * 0.3)
    return model


@pytest.fixture
def folder(model: TinyRWKVLM, tmp_path: Path) -> Path:
    words = {f"w{i}": i for i in range(60)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w3"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (tmp_path / "tok").mkdir()
    made.save(str(tmp_path / "tok" / "tokenizer.json"))
    return save(tmp_path / "model", model, tokenizer=tmp_path / "tok")


def test_the_auto_classes_load_the_folder(folder: Path, model: TinyRWKVLM) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.randint(4, 60, (2, 9))
    with torch.no_grad():
        assert torch.allclose(theirs(ids).logits, model(ids)[0], atol=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer("w5 w6")["input_ids"] == [5, 6]


def test_save_pretrained_is_our_checkpoint(folder: Path, model: TinyRWKVLM, tmp_path: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    theirs.save_pretrained(tmp_path / "again")
    again = load(tmp_path / "again")
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in model.state_dict().items())


def greedy(model: TinyRWKVLM, prompt: list[int], count: int) -> list[int]:
    with torch.no_grad():
        logits, _, state = model(torch.tensor([prompt]))
        made = [int(logits[0, -1].argmax())]
        while len(made) < count:
            step, _, state = model.advance(torch.tensor(made[-1:]), state)
            made.append(int(step[0].argmax()))
    return made


def test_generate_with_left_padding_and_state(model: TinyRWKVLM) -> None:
    theirs = wrap(model)
    prompts = [[7, 8, 9, 10, 11], [12, 13]]
    ids = torch.tensor([prompts[0], [0, 0, 0, *prompts[1]]])
    lengths = []
    theirs.token_embedding.register_forward_hook(lambda _, args, __: lengths.append(args[0].shape[1]))
    mask = (ids != 0).long()
    out = theirs.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert out[:, 5:].tolist() == [greedy(model, p, 6) for p in prompts]
    assert lengths == [5, 1, 1, 1, 1, 1]


def test_beams_are_refused(model: TinyRWKVLM) -> None:
    with pytest.raises(ConfigError, match="num_beams"):
        wrap(model).generate(torch.tensor([[5, 6]]), max_new_tokens=2, num_beams=2)


def test_labels_give_the_mean_loss(model: TinyRWKVLM) -> None:
    ids = torch.randint(4, 60, (2, 9))
    labels = ids.clone()
    labels[0, :4] = -100
    out = wrap(model)(ids, labels=labels)
    mask = labels[:, 1:] != -100
    total, count, _ = model.loss(ids[:, :-1], ids[:, 1:], mask)
    assert out.loss.item() == pytest.approx(total.item() / count, rel=1e-5)


def test_checkpointing_can_be_switched_on(model: TinyRWKVLM) -> None:
    theirs = wrap(model).train()
    ids = torch.randint(4, 60, (2, 9))
    plain = torch.autograd.grad(theirs(ids, labels=ids).loss, theirs.lm_head.weight)[0]
    theirs.gradient_checkpointing_enable()
    assert torch.allclose(torch.autograd.grad(theirs(ids, labels=ids).loss, theirs.lm_head.weight)[0], plain)


def test_weights_are_shared_by_wrapping(model: TinyRWKVLM) -> None:
    theirs = wrap(model)
    assert theirs.lm_head.weight.data_ptr() == model.lm_head.weight.data_ptr()
