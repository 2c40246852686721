# SPDX-License-Identifier: AGPL-3.0-or-later
"""A model as a folder in Hugging Face's layout: config.json, model.safetensors, the tokenizer's files.

`save` and `load` undo each other, and after `import rusty_r2.lm.hf` AutoModelForCausalLM and AutoTokenizer
read the same folder. Nothing in it is code, and nothing of it is executed: the weights are safetensors,
the rest is JSON that is checked here. A folder appears whole or not at all.
What a run needs beside the weights (optimizer, position in the data) is the run folder's business.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rusty_r2.errors import CheckpointError, ConfigError
from rusty_r2.lm import quantize
from rusty_r2.lm.rwkv import ModelConfig, TinyRWKVLM

MODEL_TYPE = "rusty_rwkv"
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_TRAIN = "Train a model first: rusty train supervised --help"


def save(
    folder: Path, model: TinyRWKVLM, *, tokenizer: Path | None = None, extra: dict[str, Any] | None = None
) -> Path:
    """Write `model` and the files of the tokenizer folder to `folder`; `extra` joins config.json."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; name a folder for the checkpoint")
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        fresh.chmod(0o777 & ~_umask())
        weights = {name: x.detach().to("cpu").contiguous() for name, x in model.state_dict().items()}
        save_file(weights, fresh / WEIGHTS, metadata={"format": "pt"})
        config = describe(model.config, dtype=str(next(iter(weights.values())).dtype).removeprefix("torch."))
        (fresh / CONFIG).write_text(
            json.dumps({**(extra or {}), **config}, indent=2) + "\n", encoding="utf-8"
        )
        for path in _tokenizer_files(tokenizer):
            shutil.copyfile(path, fresh / path.name)
        _put(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def load(folder: Path, *, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> TinyRWKVLM:
    """The model in `folder`, ready to read (eval mode), or one line on what is wrong with it."""
    config = sizes(folder)
    with torch.device("meta"):
        model = TinyRWKVLM.of(config)
    wanted = {name: tuple(x.shape) for name, x in model.state_dict().items()}
    weights = {}
    try:
        with safe_open(folder / WEIGHTS, framework="pt", device=str(device)) as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            _compare(folder, wanted, found)
            for name in wanted:
                weights[name] = file.get_tensor(name) if dtype is None else file.get_tensor(name).to(dtype)
    except FileNotFoundError as error:
        weights = _widened(folder, wanted, error)
        weights = {name: x.to(device=device, dtype=dtype or torch.float32) for name, x in weights.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder / WEIGHTS} cannot be read: {error}. {_TRAIN}") from error
    model.load_state_dict(weights, assign=True)
    return model.eval()


def _widened(
    folder: Path, wanted: dict[str, tuple[int, ...]], missing: FileNotFoundError
) -> dict[str, torch.Tensor]:
    """The weights of a quantised folder as fp32, so that a small model can be trained further."""
    if not any((folder / name).is_file() for name in ("model.int8.safetensors", "model.int4.safetensors")):
        raise CheckpointError(f"{folder} holds no {WEIGHTS}. {_TRAIN}") from missing
    found = quantize.arrays(folder)
    _compare(folder, wanted, {name: array.shape for name, array in found.items()})
    return {name: torch.tensor(array) for name, array in found.items()}


def sizes(folder: Path) -> ModelConfig:
    """The sizes written in a checkpoint's config.json, checked against its tokenizer."""
    path = folder / CONFIG
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} holds no checkpoint: there is no {CONFIG}. {_TRAIN}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}. {_TRAIN}") from error
    if not isinstance(data, dict) or data.get("model_type") != MODEL_TYPE:
        seen = data.get("model_type") if isinstance(data, dict) else type(data).__name__
        raise CheckpointError(f"{path}: model_type is {seen!a}, not {MODEL_TYPE!a}. {_TRAIN}")
    known = {field.name: type(field.default) for field in fields(ModelConfig)}
    given = {name: data[name] for name in known if name in data}
    for name, value in given.items():
        if type(value) is not known[name] and not (known[name] is float and type(value) is int):
            raise CheckpointError(f"{path}: {name} is {value!a}, not a {known[name].__name__}")
    try:
        config = ModelConfig(**given)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    _same_vocabulary(folder, config)
    return config


def describe(config: ModelConfig, *, dtype: str = "float32") -> dict[str, Any]:
    """What config.json says about a model."""
    about = {"model_type": MODEL_TYPE, "architectures": ["RustyRwkvForCausalLM"], "dtype": dtype}
    words = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
    return {**about, **asdict(config), **words}


def _compare(folder: Path, wanted: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> None:
    for name in sorted(set(wanted) | set(found)):
        if wanted.get(name) != found.get(name):
            raise CheckpointError(
                f"{folder / WEIGHTS}: {name} is {found.get(name, 'missing')}, but {CONFIG} asks for "
                f"{wanted.get(name, 'no such tensor')}. {_TRAIN}"
            )


def _same_vocabulary(folder: Path, config: ModelConfig) -> None:
    path = folder / "tokenizer.json"
    if not path.exists():
        return
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        ids = [*data["model"]["vocab"].values(), *(word["id"] for word in data.get("added_tokens", []))]
        words = max(ids) + 1
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is not a tokenizer: {error!a}") from error
    if words > config.vocab_size:
        raise CheckpointError(
            f"{folder}: its tokenizer has {words} words, its model {config.vocab_size}: they do not belong "
            f"together. {_TRAIN}"
        )


def _tokenizer_files(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    folder = folder.parent if folder.is_file() else folder
    found = [folder / name for name in TOKENIZER if (folder / name).is_file()]
    if not any(path.name == "tokenizer.json" for path in found):
        raise CheckpointError(f"{folder} holds no tokenizer.json. Make one: rusty lm tokenizer --help")
    return found


def _put(fresh: Path, folder: Path) -> None:
    """Rename `fresh` to `folder`; what was there before is removed only when the new one is in place."""
    if not folder.exists():
        os.rename(fresh, folder)  # noqa: PTH104
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    os.rename(folder, old / "was")  # noqa: PTH104
    os.rename(fresh, folder)  # noqa: PTH104
    shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    now = os.umask(0o022)
    os.umask(now)
    return now
