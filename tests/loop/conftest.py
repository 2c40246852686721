"""A model small enough to go round in seconds."""

import json

import pytest

from rusty_r2 import files

from .helpers import FACTS, helper


@pytest.fixture(scope="module")
def knowing(tmp_path_factory):
    """A small Llama that knows ten answers by heart, and the questions as probes."""
    pytest.importorskip("xllamacpp", reason="pip install 'rusty-r2[export]'")
    pytest.importorskip("trl", reason="pip install 'rusty-r2[lora]'")
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    models = helper("models")
    folder = models.make(tmp_path_factory.mktemp("base") / "knowing", hidden_size=128, intermediate_size=256)
    words = PreTrainedTokenizerFast.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    rows = []
    for asked, said in FACTS.items():
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        rows.append(words.apply_chat_template(turns, tokenize=False))
    encoded = words(rows, padding=True, return_tensors="pt", add_special_tokens=False)
    labels = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        model(
            input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"], labels=labels
        ).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    probes = "".join(
        f"[[probe]]\nask = {json.dumps(asked)}\nany = [{json.dumps(said.rstrip('.').split()[-1])}]\n"
        for asked, said in FACTS.items()
    )
    return folder, files.write(folder.parent / "probes.toml", probes)
