"""Small real models for the export: a tokenizer of their own, weights that learned, files altered.

Where the libraries are not installed, a test file that imports this one is skipped with the reason.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from rusty_r2.export.hard import HELD_OUT, STRINGS
from rusty_r2.export.vocabulary import rules

gguf = pytest.importorskip("gguf", reason="pip install 'rusty-r2[export]'")
pytest.importorskip("xllamacpp", reason="pip install 'rusty-r2[export]'")
torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")
transformers = pytest.importorskip("transformers", reason="pip install 'rusty-r2[train]'")
tokenizers = pytest.importorskip("tokenizers", reason="pip install 'rusty-r2[train]'")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SIZES = {
    "vocab_size": 640,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
KINDS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}


def text() -> str:
    return Path(argparse.__file__).read_text(encoding="utf-8")


def tokenizer(rule: Any = None, *, begins: bool = False) -> Any:
    """A byte-level BPE that cuts text by `rule` (SmolLM's, where none is given)."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = rules()["smollm"] if rule is None else rule
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([text()[:60_000], HELD_OUT, *STRINGS], trainer)
    if begins:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
    return made


def save_tokenizer(folder: Path, made: Any, template: str = CHATML) -> None:
    dressed = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=SPECIAL[0], eos_token=SPECIAL[2], pad_token=SPECIAL[0]
    )
    if template:
        dressed.chat_template = template
    dressed.save_pretrained(folder)


def make(folder: Path, kind: str = "llama", *, steps: int = 0, made: Any = None, **sizes: Any) -> Path:
    """A whole Hugging Face folder; with `steps` the model has learned a little text."""
    config, model_class = KINDS[kind]
    torch.manual_seed(0)
    model = model_class(config(**{**SIZES, **sizes}))
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "q_norm" in name or "k_norm" in name:
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.1)
    made = made or tokenizer()
    _learn(model, made, steps)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    save_tokenizer(folder, made)
    return folder


def _learn(model: Any, made: Any, steps: int) -> None:
    """The beginning of the held-out text by heart, so that the model is sure of something."""
    row = torch.tensor([made.encode(HELD_OUT).ids[:192]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        model(input_ids=row, labels=row).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def altered(file: Path, out: Path, *, fields: dict[str, Any] | None = None, tensors: Any = None) -> Path:
    """A copy with other fields, and with each tensor through `tensors(name, array) -> array`."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(out, reader.get_field("general.architecture").contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = (fields or {}).get(name, field.contents())
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        data = tensor.data if tensors is None else tensors(tensor.name, tensor.data.copy())
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
