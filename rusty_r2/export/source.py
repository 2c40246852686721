# SPDX-License-Identifier: AGPL-3.0-or-later
"""A merged Hugging Face folder, as an exporter sees it: sizes that are checked, tensors one at a time.

`Source.open` finds the folder (of a run, a path or the word smollm2), refuses what llama.cpp cannot run, and
`tensors` names every matrix in GGUF's words with the shape that the configuration demands: a folder where
one is missing, too many or of another shape is an error before anything is written.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rusty_r2 import files
from rusty_r2.errors import CheckpointError, ConfigError
from rusty_r2.lm import smollm2
from rusty_r2.lm.tensors import TensorFile
from rusty_r2.run import LINEAGE, newest

Array = NDArray[Any]
FAMILIES = ("llama", "qwen2", "qwen3")
"""model_type of config.json; GGUF has the same words"""
INSIDE = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""a layer's parts, here and in GGUF"""
OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
ROPE_SCALING = ("default", "linear", "yarn", "llama3")


@dataclass(frozen=True)
class Entry:
    """One tensor on its way into a file."""

    name: str
    """in GGUF's words"""
    stored: str
    """in Hugging Face's words; empty where it is computed"""
    shape: tuple[int, ...]


class Source:
    """A model that can be exported."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.config = table(folder / "config.json")
        self._refuse_what_cannot_run()
        self._files = [TensorFile(path) for path in sorted(folder.glob("model*.safetensors"))]
        self._where = {name: file for file in self._files for name in file.names}

    @classmethod
    def open(cls, address: str | Path) -> Source:
        """The model of a run, a folder or `smollm2`; one line with the next command where there is none."""
        if str(address) == smollm2.NAME:
            return cls(smollm2.folder(), "SmolLM2-135M-Instruct")
        asked = Path(address).expanduser()
        found = find(asked)
        real = asked.resolve()
        part = real.name in ("merged", "best") or real.name.startswith("step_")
        return cls(found, real.parent.name if part else real.name)

    # sizes

    @property
    def family(self) -> str:
        return str(self.config["model_type"])

    @cached_property
    def layers(self) -> int:
        return int(self.config["num_hidden_layers"])

    @cached_property
    def heads(self) -> int:
        return int(self.config["num_attention_heads"])

    @cached_property
    def key_heads(self) -> int:
        return int(self.config.get("num_key_value_heads") or self.heads)

    @cached_property
    def width(self) -> int:
        return int(self.config["hidden_size"])

    @cached_property
    def head_width(self) -> int:
        return int(self.config.get("head_dim") or self.width // self.heads)

    @cached_property
    def words(self) -> int:
        """Rows of the embedding; the tokenizer may use fewer."""
        return self._shape("model.embed_tokens.weight")[0]

    @cached_property
    def tied(self) -> bool:
        return bool(self.config.get("tie_word_embeddings", False)) or "lm_head.weight" not in self._where

    @cached_property
    def rope(self) -> dict[str, Any]:
        """rope_theta, rope_type and what belongs to the type; transformers 4 and 5 spell them differently."""
        found = dict(self.config.get("rope_parameters") or self.config.get("rope_scaling") or {})
        found.setdefault("rope_theta", self.config.get("rope_theta", 10000.0))
        found.setdefault("rope_type", found.get("type", "default"))
        return found

    # tensors

    @cached_property
    def tensors(self) -> list[Entry]:
        """Every tensor of the file to be, in the order in which a model is read."""
        found = [self._entry("model.embed_tokens.weight"), self._entry("model.norm.weight")]
        if not self.tied:
            found.append(self._entry("lm_head.weight"))
        if self.rope["rope_type"] == "llama3":
            found.append(Entry("rope_freqs.weight", "", (self.head_width // 2,)))
        for layer in range(self.layers):
            for part in INSIDE:
                found += self._entries(f"model.layers.{layer}.{part}")
        self._nothing_left(found)
        return found

    @cached_property
    def parameters(self) -> int:
        return sum(math.prod(entry.shape) for entry in self.tensors if entry.stored)

    def read(self, entry: Entry) -> Array:
        """As stored (bf16 as uint16), in the order of rows that llama.cpp expects."""
        if not entry.stored:
            return self._llama3_frequencies()
        found = self._where[entry.stored].read(entry.stored)
        if self.family == "llama" and ".attn_q." in entry.name:
            return _interleaved(found, self.heads)
        if self.family == "llama" and ".attn_k." in entry.name:
            return _interleaved(found, self.key_heads)
        return found

    def _entries(self, stem: str) -> list[Entry]:
        part = stem.split(".", 3)[3]
        if part in ("self_attn.q_norm", "self_attn.k_norm") and self.family != "qwen3":
            return []
        biased = f"{stem}.bias" in self._where or (self.family == "qwen2" and part[-6:] in _QKV)
        return [self._entry(f"{stem}.weight"), *([self._entry(f"{stem}.bias")] if biased else [])]

    def _entry(self, stored: str) -> Entry:
        shape, wanted = self._shape(stored), self._wanted(stored)
        if shape != wanted:
            raise CheckpointError(
                f"{self.folder}: {stored} has the shape {shape} where config.json demands {wanted}"
            )
        return Entry(_renamed(stored), stored, shape)

    def _shape(self, stored: str) -> tuple[int, ...]:
        if stored not in self._where:
            raise CheckpointError(f"{self.folder} holds no {stored}; the folder is incomplete")
        return self._where[stored].size(stored)

    def _wanted(self, stored: str) -> tuple[int, ...]:
        words = stored.split(".")
        part, inner = words[-2], int(self.config["intermediate_size"])
        queries, keys = self.heads * self.head_width, self.key_heads * self.head_width
        rows = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "gate_proj": inner, "up_proj": inner}
        columns = {"o_proj": queries, "down_proj": inner}
        if part in ("embed_tokens", "lm_head"):
            return (self.words, self.width)
        if part in ("q_norm", "k_norm"):
            return (self.head_width,)
        if "norm" in part:
            return (self.width,)
        if words[-1] == "bias":
            return (rows.get(part, self.width),)
        return (rows.get(part, self.width), columns.get(part, self.width))

    def _nothing_left(self, used: list[Entry]) -> None:
        known = {entry.stored for entry in used} | {"lm_head.weight"}
        left = sorted(name for name in self._where if name not in known and "rotary_emb" not in name)
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise CheckpointError(
                f"{self.folder} holds {left[0]}{more}, which a plain {self.family} model does not have; "
                "merge adapters first, and export a dense model"
            )

    def _llama3_frequencies(self) -> NDArray[np.float32]:
        """Llama 3's stretching of long waves, as the factors that llama.cpp divides frequencies by."""
        rope = self.rope
        factor, low, high = (float(rope[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
        context = float(rope["original_max_position_embeddings"])
        turns = float(rope["rope_theta"]) ** (np.arange(0, self.head_width, 2) / self.head_width)
        waves = 2 * math.pi * turns
        smooth = np.clip((context / waves - low) / (high - low), 0.0, 1.0)
        return np.asarray(1 / ((1 - smooth) / factor + smooth), np.float32)

    def _refuse_what_cannot_run(self) -> None:
        kind = self.config.get("model_type")
        if kind == "rusty_rwkv":
            raise ConfigError(
                f"{self.folder} is our own RWKV-4, which llama.cpp does not know. It runs here: "
                f"rusty chat --model {self.folder}"
            )
        if kind not in FAMILIES:
            raise ConfigError(f"{self.folder} is a {kind} model; {', '.join(FAMILIES)} can be exported")
        if self.config.get("hidden_act", "silu") != "silu":
            raise ConfigError(f"{self.folder} uses {self.config['hidden_act']}, llama.cpp's {kind} uses silu")
        if self.config.get("use_sliding_window"):
            raise ConfigError(f"{self.folder} uses a sliding window, which llama.cpp's {kind} does not")
        if self.rope["rope_type"] not in ROPE_SCALING:
            raise ConfigError(f"{self.folder} stretches positions by {self.rope['rope_type']!a}; "
                              f"{', '.join(ROPE_SCALING)} can be exported")  # fmt: skip
        if self.config.get("quantization_config"):
            raise ConfigError(f"{self.folder} is quantised already; export the model it was made from")


_QKV = ("q_proj", "k_proj", "v_proj")


def find(asked: Path) -> Path:
    """The folder with a whole model: itself, a run's merged/ or best/, or its newest checkpoint."""
    if not asked.is_dir():
        raise ConfigError(f"{asked} is not a folder. Name a run, a merged model's folder, or smollm2")
    for folder in (asked, asked / "merged", asked / "best", newest(asked)):
        if folder is not None and (folder / "config.json").is_file() and _has_weights(folder):
            _refuse_stale(folder)
            return folder
    if any(asked.glob("adapter_config.json")) or any(asked.glob("*/adapter_config.json")):
        raise ConfigError(
            f"{asked} holds LoRA adapters, not a whole model. Merge them first: rusty train merge {asked}"
        )
    raise ConfigError(
        f"{asked} holds no model (config.json and model.safetensors). Train one: rusty train kto --help"
    )


def _refuse_stale(folder: Path) -> None:
    """A merged model names the adapter in it; a run that was trained on since has a newer one."""
    lineage, run = folder / LINEAGE, folder.parent
    last = newest(run) if lineage.is_file() and folder.name == "merged" else None
    adapter = None if last is None else last / "adapter_model.safetensors"
    if adapter is not None and adapter.is_file() and files.digest(adapter) != table(lineage).get("adapter"):
        raise ConfigError(
            f"{folder} was merged before {adapter.parent.name}. Merge again: rusty train merge {run}"
        )


def _has_weights(folder: Path) -> bool:
    return any(folder.glob("model*.safetensors"))


def _renamed(stored: str) -> str:
    if stored in OUTSIDE:
        return OUTSIDE[stored]
    _, _, layer, rest = stored.split(".", 3)
    part, _, suffix = rest.rpartition(".")
    return f"blk.{layer}.{INSIDE[part]}.{suffix}"


def _interleaved(rows: Array, heads: int) -> Array:
    """Hugging Face turns the halves of a head against each other, llama.cpp's llama turns neighbours."""
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


def table(path: Path) -> dict[str, Any]:
    """The table in a model's JSON file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is not a table of settings")
    return found
