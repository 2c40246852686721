# SPDX-License-Identifier: AGPL-3.0-or-later
"""A Hugging Face model that speaks: what it read stays read, and it can be held to the action grammar.

    model = Transformer.load("smollm2")                     # or a folder, a LoRA adapter's folder, a hub name
    model.complete(model.tokenize(model.render([{"role": "user", "content": "2+2?"}])), max_new_tokens=16)

The keys and values of the newest conversations are kept: a prompt costs only what is new since the longest
beginning it shares with one of them. Words are chosen as lm/sampling.py says; those that the grammar leaves
no choice about are read and not sampled. No code that comes with a model is run, and no pickle is opened.
Its twin for GGUF files is lm/llama.py; training is in train/.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np

from rusty_r2 import machine
from rusty_r2.errors import CheckpointError, ContextFull, PolicyError, need
from rusty_r2.lm import smollm2
from rusty_r2.lm.llama import GREEDY, Message, OnText, Said
from rusty_r2.lm.sampling import Floats, Sampling, choose, uniform

if TYPE_CHECKING:
    from rusty_r2.lm.grammar import ActionGrammar, Matcher

ADAPTER = "adapter_config.json"
FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt"]
"""what is downloaded of a model: no code, no pickles"""
REMEMBERED = 4
"""conversations whose keys and values are kept"""
AT_ONCE = 512
"""tokens read in one go"""


@dataclass
class _Memory:
    """Tokens, and the keys and values they led to."""

    ids: list[int]
    cache: Any


@dataclass
class _Answer:
    """One answer in the making."""

    matcher: Matcher | None
    most: int
    """its longest"""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""

    def say(self, token: int, logprob: float) -> None:
        """One word that was chosen, and all that the grammar then leaves no choice about."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.matcher is not None:
            self.matcher.accept(token)
        self.go_on()

    def go_on(self) -> None:
        if self.matcher is not None:
            forced = self.matcher.forced()[: self.most - len(self.tokens)]
            self.tokens += forced
            self.logprobs += [0.0] * len(forced)
            self.finish = "stop" if self.matcher.done else ""
        if len(self.tokens) >= self.most:
            self.finish = self.finish or "length"


class Transformer:
    def __init__(
        self, model: Any, tokenizer: Any, *, context: int = 4096, source: Path | None = None
    ) -> None:
        self.model, self.tokenizer, self.source = model.eval(), tokenizer, source
        self.words: int = model.get_input_embeddings().num_embeddings
        self.context = min(context, getattr(model.config, "max_position_embeddings", None) or context)
        self.ends = _ends(model, tokenizer)
        self._memories: list[_Memory] = []
        self._grammar: ActionGrammar | None = None

    @classmethod
    def load(cls, name: str, *, context: int = 4096, device: str = "cpu", dtype: str = "") -> Transformer:
        """`name`: smollm2, a folder with a model or a LoRA adapter, or a name on the Hugging Face hub."""
        need("torch", extra="train")
        need("transformers", extra="train")
        folder = locate(name)
        model = _weights(folder, dtype or dtype_for(device))
        tokenizer = _from_pretrained("AutoTokenizer", _with_words(folder))
        return cls(model.to(device), tokenizer, context=context, source=folder)

    @property
    def facts(self) -> dict[str, Any]:
        return {"ftype": str(self.model.dtype).removeprefix("torch."), "device": str(self.model.device)}

    def tokenize(self, text: str, special: bool = True) -> list[int]:
        """A piece of text that `render` made; `special`: its marks are one token each."""
        found = self.tokenizer(text, add_special_tokens=False, split_special_tokens=not special)
        return [int(token) for token in found["input_ids"]]

    def detokenize(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def render(self, messages: Sequence[Message]) -> str:
        """The conversation in the words of the model's own chat template; plain names where it has none."""
        if not self.tokenizer.chat_template:
            said = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
            return "\n\n".join([*said, "Assistant: "])
        from jinja2 import TemplateError

        try:
            found = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise PolicyError(f"the model's chat template refuses the conversation: {error}") from error
        return str(found)

    def grammar(self) -> ActionGrammar:
        """Only actions, in this tokenizer's words; made once."""
        from rusty_r2.lm.grammar import ActionGrammar

        if self._grammar is None:
            own = self.tokenizer.eos_token_id
            end = min(self.ends) if own is None else int(own)
            self._grammar = ActionGrammar.for_transformers(self.tokenizer, vocab_size=self.words, end=end)
        return self._grammar

    def next_logprobs(self, ids: Sequence[int]) -> Floats:
        """Log-probabilities [words] of what follows `ids`."""
        memory = self._remembered(ids)
        logits = self._read(memory, ids[len(memory.ids) :])[0].astype(np.float64)
        self._keep(memory)
        logits -= logits.max()
        return np.asarray(logits - np.log(np.exp(logits).sum()), np.float32)

    def complete(
        self,
        ids: Sequence[int],
        *,
        max_new_tokens: int = 256,
        sampling: Sampling = GREEDY,
        grammar: ActionGrammar | None = None,
        on_text: OnText | None = None,
    ) -> Said:
        """Go on from `ids`; log-probabilities are of the words as they were drawn, 0 for the forced ones."""
        if len(ids) >= self.context:
            raise ContextFull(
                f"the prompt has {len(ids)} tokens, the context {self.context}: nothing was cut. "
                "Type: --context with more (if the model has it), or ask for less"
            )
        started = time.perf_counter()
        memory = self._remembered(ids)
        kept = len(memory.ids)
        answer = _Answer(grammar.start() if grammar else None, min(max_new_tokens, self.context - len(ids)))
        pieces = _Pieces(self, on_text)
        first = 0.0
        try:
            answer.go_on()
            while not answer.finish:
                logits = self._read(memory, [*ids, *answer.tokens][len(memory.ids) :])
                self._choose(answer, logits, sampling)
                first = first or time.perf_counter()
                pieces.tell(answer.tokens)
            pieces.tell(answer.tokens, last=True)
        finally:
            self._keep(memory)
        ended = time.perf_counter()
        return Said(
            text=pieces.text,
            tokens=tuple(answer.tokens),
            logprobs=tuple(answer.logprobs),
            finish=answer.finish,
            read=len(ids) - kept,
            kept=kept,
            seconds_to_first=(first or ended) - started,
            seconds=ended - started,
        )

    def close(self) -> None:
        self._memories.clear()

    def _choose(self, answer: _Answer, logits: Floats, sampling: Sampling) -> None:
        mask = answer.matcher.mask()[None] if answer.matcher is not None else None
        chance = uniform([sampling.seed], [len(answer.tokens)])
        tokens, logprobs, _ = choose(logits, sampling, chance, mask, [answer.tokens])
        if int(tokens[0]) in self.ends:
            answer.finish = "stop"
        else:
            answer.say(int(tokens[0]), float(logprobs[0]))

    def _read(self, memory: _Memory, fresh: Sequence[int]) -> Floats:
        """Read on from `memory`, which grows; the logits [1, words] of what comes next."""
        import torch

        logits = None
        with torch.inference_mode():
            for start in range(0, len(fresh), AT_ONCE):
                piece = list(fresh[start : start + AT_ONCE])
                ids = torch.tensor([piece], device=self.model.device)
                out = self.model(ids, past_key_values=memory.cache, use_cache=True, logits_to_keep=1)
                memory.ids += piece
                logits = out.logits[0, -1:]
        assert logits is not None
        return np.asarray(logits.float().cpu().numpy(), np.float32)

    def _remembered(self, ids: Sequence[int]) -> _Memory:
        """The memory that shares the longest beginning with `ids`, cut to it; at least one token is left."""
        from transformers import DynamicCache

        def shared(memory: _Memory) -> int:
            pairs = zip(memory.ids, ids[:-1], strict=False)
            return next(
                (place for place, (a, b) in enumerate(pairs) if a != b), min(len(memory.ids), len(ids) - 1)
            )

        best = max(self._memories, key=shared, default=None)
        same = shared(best) if best is not None else 0
        if best is None or same == 0:
            return _Memory([], DynamicCache(config=self.model.config))
        if same == len(best.ids):
            self._memories = [memory for memory in self._memories if memory is not best]
            return best
        if not all(getattr(layer, "is_croppable", not layer.is_sliding) for layer in best.cache.layers):
            return _Memory([], DynamicCache(config=self.model.config))
        cut = copy.deepcopy(best.cache)
        cut.crop(same - len(best.ids))
        return _Memory(best.ids[:same], cut)

    def _keep(self, memory: _Memory) -> None:
        self._memories = [*self._memories, memory][-REMEMBERED:]


class _Pieces:
    """Text told as it grows: a character whose last token is still to come is held back."""

    def __init__(self, model: Transformer, listen: OnText | None) -> None:
        self._decode, self._listen = model.detokenize, listen
        self._told, self._from = 0, 0
        self.text = ""

    def tell(self, tokens: Sequence[int], *, last: bool = False) -> None:
        """All tokens so far; those told already are decoded again beside the new ones, as a space before a
        word depends on what stands before it."""
        before = self._decode(tokens[self._from : self._told])
        now = self._decode(tokens[self._from :])
        if len(now) <= len(before) or (now.endswith("\ufffd") and not last):
            return
        piece = now[len(before) :]
        self._from, self._told = self._told, len(tokens)
        self.text += piece
        if self._listen is not None:
            self._listen(piece)


def locate(name: str) -> Path:
    """The folder that is meant: smollm2, a folder with a model or an adapter, or a name on the hub."""
    folder = smollm2.folder() if name == smollm2.NAME else Path(name).expanduser()
    if not folder.is_dir():
        folder = _from_the_hub(name)
    if not any((folder / sign).is_file() for sign in ("config.json", ADAPTER)):
        raise PolicyError(f"{folder} holds neither a model (config.json) nor an adapter ({ADAPTER})")
    return folder


def dtype_for(device: str) -> str:
    """bfloat16 where the machine computes in it, else float32; float16 on older GPUs."""
    if device == "cpu":
        return "bfloat16" if machine.cpu().flags & {"avx512_bf16", "amx_bf16", "bf16"} else "float32"
    found = machine.gpu()
    return "bfloat16" if found is None or found.capability >= 8 else "float16"


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    """Words that end an answer."""
    said = getattr(model.generation_config, "eos_token_id", None)
    found = {*(said if isinstance(said, list) else [said]), tokenizer.eos_token_id} - {None}
    if not found:
        raise CheckpointError("the model names no word that ends an answer (eos_token_id)")
    return frozenset(int(word) for word in found)


def _base_of(adapter: Path) -> Path:
    """The base model an adapter was trained on."""
    try:
        named = str(json.loads((adapter / ADAPTER).read_text(encoding="utf-8"))["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{adapter / ADAPTER} names no base model: {error}") from error
    ours = "SmolLM2-135M-Instruct"  # its folder lies in a data home, which may have moved
    return locate(smollm2.NAME if Path(named).name == ours and not Path(named).is_dir() else named)


def _with_words(folder: Path) -> Path:
    """The folder with the tokenizer: the adapter's own, or its base's."""
    bare = (folder / ADAPTER).is_file() and not (folder / "tokenizer.json").is_file()
    return _with_words(_base_of(folder)) if bare else folder


def _weights(folder: Path, dtype: str) -> Any:
    """The model; of an adapter, its base (itself perhaps an adapter's) with the adapter added to the weights,
    which is as fast as without."""
    if not (folder / ADAPTER).is_file():
        if json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type") == "rusty_rwkv":
            raise PolicyError(f"{folder} is one of our own models. Say it without hf:, an adapter merged")
        return _from_pretrained("AutoModelForCausalLM", folder, dtype=dtype, use_safetensors=True)
    model = _weights(_base_of(folder), dtype)
    peft = need("peft", extra="lora")
    try:
        return peft.PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(
            f"the adapter in {folder} does not fit its base model: {_line(error)}"
        ) from error


def _from_pretrained(kind: str, folder: Path, **options: Any) -> Any:
    """Load what lies in a folder, without running a model's own code."""
    import transformers

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars
            return getattr(transformers, kind).from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False, **options
            )
    except (OSError, ValueError, ImportError) as error:
        raise CheckpointError(f"the model in {folder} cannot be opened: {_line(error)}") from error


def _from_the_hub(name: str) -> Path:
    """The folder of a model on the hub, downloaded now if it was not before."""
    from huggingface_hub import constants, snapshot_download

    with contextlib.suppress(OSError, ValueError):
        return Path(snapshot_download(name, allow_patterns=FILES, local_files_only=True))
    host = urlsplit(constants.ENDPOINT)
    try:
        if not getproxies():  # the library itself tries for a minute and more
            socket.create_connection((host.hostname or "", host.port or 443), timeout=5).close()
        return Path(snapshot_download(name, allow_patterns=FILES))
    except (OSError, ValueError) as error:
        raise PolicyError(
            f"{name} is neither a folder nor downloaded, and {host.hostname} did not give it: "
            f"{_line(error)}. Name a folder, or what needs no network: hf:smollm2"
        ) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
