"""A GGUF file with a header and nothing else, for tests that never compute."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are SmolLM.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def field(name: str, value: Any) -> bytes:
    if isinstance(value, bool):
        return text(name) + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return text(name) + struct.pack("<II", 4, value)
    if isinstance(value, list):
        return text(name) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return text(name) + struct.pack("<I", 8) + text(value)


def tiny_gguf(path: Path, *, template: str | None = CHATML, salt: str = "", **more: Any) -> Path:
    facts = {
        "general.architecture": "llama",
        "general.name": f"tiny {salt}",
        "llama.context_length": 8192,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<s>", "a", "<|im_end|>"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        **more,
    }
    if template is not None:
        facts["tokenizer.chat_template"] = template
    path.parent.mkdir(parents=True, exist_ok=True)
    body = b"".join(field(name, value) for name, value in facts.items())
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(facts)) + body)
    return path
