# SPDX-License-Identifier: AGPL-3.0-or-later
"""`rusty lm generate`: a prompt and a checkpoint become text, word by word as it is written.

rusty lm generate --checkpoint runs/first/step_001000 --prompt "def fib(n):" --quantization 8bit
rusty lm generate --checkpoint … --prompt "List the files" --chat --action    # one protocol action
"""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rusty_r2.errors import CheckpointError, ConfigError
from rusty_r2.lm.tokenizer import BOS, VOCAB, Tokenizer

if TYPE_CHECKING:
    from rusty_r2.lm.engine import Engine
    from rusty_r2.lm.sampling import Sampling

QUANTIZATION = {"none": "fp32", "8bit": "int8", "4bit": "int4"}


@dataclass(frozen=True)
class GenerateConfig:
    checkpoint: Path
    """a checkpoint folder, plain or quantised"""
    prompt: str = ""
    """how the text begins; with --chat, what the user says; - reads it from standard input"""
    max_new_tokens: int = 100
    """the most words to write"""
    temperature: float = 0.7
    """0 takes the likeliest word"""
    top_k: int = 50
    """only the k likeliest words; 0: all"""
    top_p: float = 1.0
    """only the likeliest words that together reach this probability"""
    repetition_penalty: float = 1.0
    """above 1: words of this answer become less likely"""
    seed: int = 42
    """the same seed writes the same text"""
    quantization: Literal["auto", "none", "8bit", "4bit"] = "auto"
    """weights in memory; auto: as stored if quantised, else 8bit on a CPU and bf16 on a GPU"""
    chat: bool = False
    """the prompt is a user's turn, and the assistant answers it"""
    action: bool = False
    """only a valid action of the protocol can be written (with --chat)"""
    samples: int = 1
    """answers to write, side by side"""
    tokenizer_path: Path | None = None
    """another tokenizer than the checkpoint's"""
    device: str = "cpu"
    """cpu, or cuda"""
    threads: int | None = None
    """cores to use; default: all, or $OMP_NUM_THREADS"""
    compile: bool = False
    """torch.compile the model (on a GPU)"""


def generate(config: GenerateConfig) -> str | None:
    """Write text; the last line says how fast."""
    from rusty_r2.lm.sampling import Sampling

    sampling = Sampling(
        config.temperature, config.top_k, config.top_p, config.repetition_penalty, config.seed
    )
    if config.action and not config.chat:
        raise ConfigError("--action answers a user's turn: add --chat")
    if config.compile and config.device == "cpu":
        raise ConfigError("--compile has no effect on the C++ engine; it is for --device cuda")
    if config.max_new_tokens < 1 or config.samples < 1:
        raise ConfigError("--max-new-tokens and --samples must be 1 or more")
    tokenizer = Tokenizer.load(_tokenizer_folder(config))
    engine = load(config)
    if len(tokenizer) > engine.shape.words:
        raise CheckpointError(
            f"the tokenizer has {len(tokenizer):,} words, the model {engine.shape.words:,}: "
            "they do not belong together. Type: --tokenizer-path FOLDER"
        )
    prompt = _prompt(config, tokenizer)
    started = time.perf_counter()
    written = (
        _stream(config, engine, tokenizer, prompt, sampling)
        if config.samples == 1
        else _side_by_side(config, engine, tokenizer, prompt, sampling)
    )
    seconds = time.perf_counter() - started
    return (
        f"{written} tokens in {seconds:.2f} s ({written / max(seconds, 1e-9):,.0f} a second), "
        f"{engine.weights} weights, {engine.backend}\nnext: rusty lm bench --checkpoint {config.checkpoint}"
    )


def load(config: GenerateConfig) -> Engine:
    """The engine that the options ask for."""
    from rusty_r2.lm.engine import Engine

    weights = QUANTIZATION.get(config.quantization, "auto")
    if config.compile:
        from rusty_r2.lm.engine_torch import TorchModel

        model = TorchModel.load(config.checkpoint, weights=weights, device=config.device, compiled=True)
        return Engine(model, backend=f"torch on {config.device}, compiled")
    return Engine.load(config.checkpoint, weights=weights, device=config.device, threads=config.threads)


def _tokenizer_folder(config: GenerateConfig) -> Path:
    if config.tokenizer_path is not None:
        return config.tokenizer_path
    own = config.checkpoint / "tokenizer.json"
    return own if own.is_file() else VOCAB


def _prompt(config: GenerateConfig, tokenizer: Tokenizer) -> list[int]:
    from rusty_r2.lm.chat import encode_turn, open_chat, open_reply

    text = sys.stdin.read() if config.prompt == "-" else config.prompt
    if config.chat:
        return [*open_chat(), *encode_turn(tokenizer, "user", text), *open_reply()]
    return [BOS, *(tokenizer.encode(text) if text else [])]


def _stream(
    config: GenerateConfig, engine: Engine, tokenizer: Tokenizer, prompt: list[int], sampling: Sampling
) -> int:
    if not config.chat:
        print(config.prompt if config.prompt != "-" else "", end="", flush=True)
    count = 0

    def counted() -> Iterator[int]:
        nonlocal count
        grammar = _grammar(config, engine, tokenizer)
        for token in engine.generate(
            prompt, sampling=sampling, max_new_tokens=config.max_new_tokens, grammar=grammar
        ):
            count += 1
            yield token

    for piece in text_of(tokenizer, counted(), first=config.chat or not config.prompt):
        print(piece, end="", flush=True)
    print()
    return count


def _side_by_side(
    config: GenerateConfig, engine: Engine, tokenizer: Tokenizer, prompt: list[int], sampling: Sampling
) -> int:
    found = engine.generate_batch(
        [prompt] * config.samples,
        sampling=sampling,
        max_new_tokens=config.max_new_tokens,
        grammar=_grammar(config, engine, tokenizer),
    )
    for number, completion in enumerate(found, 1):
        print(f"--- {number} ({completion.reason})\n{tokenizer.decode(completion.tokens)}")
    return sum(len(completion.tokens) for completion in found)


def _grammar(config: GenerateConfig, engine: Engine, tokenizer: Tokenizer):  # type: ignore[no-untyped-def]
    if not config.action:
        return None
    from rusty_r2.lm.grammar import ActionGrammar

    return ActionGrammar(tokenizer, vocab_size=engine.shape.words)


def text_of(tokenizer: Tokenizer, tokens: Iterator[int], *, first: bool) -> Iterator[str]:
    """Text as it grows: half a character waits for its other half. `first`: cut the format's own space."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        piece = decoder.decode(tokenizer.token_bytes[token])
        if first and piece:
            piece, first = piece.removeprefix(" "), False
        if piece:
            yield piece
    if rest := decoder.decode(b"", True):
        yield rest
