# SPDX-License-Identifier: AGPL-3.0-or-later
"""The words of the model: 24,000 pieces of bytes, and sixteen control tokens that no text can spell.

    tokenizer = Tokenizer.load()                   # the one that ships in lm/vocab
    tokenizer.decode(tokenizer.encode(text)) == text          # for every string
    rusty lm tokenizer --data-dir notes --output-dir my-vocab # make another

Byte-level BPE with GPT-2's split and a prefix space. `encode` puts one literal space before the text and
`decode` takes one away, so leading spaces survive and Hugging Face and llama.cpp read the same ids from
the same words (lm/chat.py begins every segment with that space). Text is never searched for control
tokens: "<eos>" typed by a user stays five characters.
The folder is a standard one (tokenizer.json, tokenizer_config.json, chat_template.jinja): AutoTokenizer
loads it. How turns become ids is for lm/chat.py.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rusty_r2.errors import ConfigError, DataError, need
from rusty_r2.lm.documents import Document, documents, files_below, is_jsonl
from rusty_r2.protocol import Cmd, Edit, Msg, render

CONTROL = (
    *("<pad>", "<bos>", "<eos>", "<unk>"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|end|>"),
    *(f"<|spare_{number}|>" for number in range(7)),
)
PAD, BOS, EOS, UNK, SYSTEM, USER, ASSISTANT, OBSERVATION, END = range(9)

VOCAB = Path(__file__).with_name("vocab")
MAX_WORD = 24
"""characters; longer rulers of dashes are not worth a word"""


class Tokenizer:
    """Text ↔ ids. Make one with `load` or `train`."""

    def __init__(self, core: Any) -> None:
        self._core = core
        core.encode_special_tokens = True

    @classmethod
    def load(cls, path: Path | str | None = None) -> Tokenizer:
        """The tokenizer in a folder (or a tokenizer.json); None is the one that ships."""
        tokenizers = need("tokenizers", extra="train")
        file = Path(path) if path is not None else VOCAB
        file = file / "tokenizer.json" if file.is_dir() else file
        if not file.is_file():
            raise ConfigError(
                f"{file} does not exist. Make one: rusty lm tokenizer --output-dir {file.parent}"
            )
        try:
            core = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise ConfigError(f"{file} is not a tokenizer: {error}") from error
        if any(core.token_to_id(word) != number for number, word in enumerate(CONTROL)):
            raise ConfigError(f"{file}: ids 0 to {len(CONTROL) - 1} are not Rusty's control tokens")
        return cls(core)

    @classmethod
    def train(cls, texts: Iterable[str], *, size: int = 24_000, progress: bool = False) -> Tokenizer:
        """Learn `size` words from texts. The same texts in any order give the same words."""
        need("tokenizers", extra="train")
        from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
        from tokenizers import Tokenizer as Core

        core = Core(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        core.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            special_tokens=[AddedToken(word, special=True, normalized=False) for word in CONTROL],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            max_token_length=MAX_WORD,
            show_progress=progress,
        )
        core.train_from_iterator(texts, trainer)
        return cls(core)

    def save(self, folder: Path) -> Path:
        """Write the standard files; `load` and Hugging Face's AutoTokenizer read them back."""
        folder.mkdir(parents=True, exist_ok=True)
        self._core.encode_special_tokens = False
        (folder / "tokenizer.json").write_text(self._core.to_str(pretty=False) + "\n", encoding="utf-8")
        self._core.encode_special_tokens = True
        settings = json.dumps(_hugging_face_settings(), indent=2) + "\n"
        (folder / "tokenizer_config.json").write_text(settings, encoding="utf-8")
        template = (VOCAB / "chat_template.jinja").read_text(encoding="utf-8")
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        return folder

    def __len__(self) -> int:
        return int(self._core.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """The ids of a text; never a control token."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores unless TOKENIZERS_PARALLELISM=false."""
        spaced = [" " + text for text in texts]
        try:
            found = self._core.encode_batch_fast(spaced, add_special_tokens=False)
        except (UnicodeEncodeError, TypeError) as error:
            raise DataError("the text holds half a character (a lone surrogate); repair it first") from error
        return [encoding.ids for encoding in found]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids. Control tokens say nothing; broken UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of ids, exact even where a character is cut in two."""
        words = self.token_bytes
        return b"".join(words[number] for number in ids).removeprefix(b" ")

    @cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        """What each id stands for; nothing for control tokens. (The prefix space is part of a word.)"""
        alphabet = {letter: byte for byte, letter in _byte_letters().items()}
        words = (self._core.id_to_token(number) for number in range(len(self)))
        return tuple(
            b"" if number < len(CONTROL) else bytes(alphabet[letter] for letter in word)
            for number, word in enumerate(words)
        )

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits that name this vocabulary; shards and checkpoints carry them."""
        words = b"\0".join(self.token_bytes) + b"\0".join(word.encode() for word in CONTROL)
        merges = json.dumps(json.loads(self._core.to_str())["model"]["merges"]).encode()
        return hashlib.sha256(words + merges).hexdigest()[:12]


@dataclass(frozen=True)
class TokenizerConfig:
    data_dir: tuple[Path, ...]
    """text, code, JSONL(.xz) or datasets folders to learn from"""
    output_dir: Path = Path("tokenizer")
    """where the three files go"""
    vocab_size: int = 24_000
    """words, the sixteen control tokens and 256 bytes included"""
    sample_mb: float = 30.0
    """megabytes to take of each JSONL file, dataset and folder, so that none drowns the others"""
    wrapped: float = 0.25
    """share of the documents that are also read as JSON replies (code inside strings, commands, messages)"""


def build(config: TokenizerConfig) -> str:
    """Train a tokenizer and save it."""
    smallest = 256 + len(CONTROL)
    if not smallest < config.vocab_size <= 65_536:
        raise ConfigError(f"--vocab-size must be above {smallest} and at most 65536, not {config.vocab_size}")
    if not 0 <= config.wrapped <= 1 or config.sample_mb <= 0:
        raise ConfigError("--wrapped must be between 0 and 1, and --sample-mb above 0")
    loud = sys.stderr.isatty()
    budget = int(config.sample_mb * 1e6)
    groups = [group for root in config.data_dir for group in _groups(root)]
    taken = [one for group in _shown(groups, loud) for one in _smallest(group, budget)]
    if not taken:
        raise DataError(
            f"no text below {', '.join(map(str, config.data_dir))}. Give a folder of .txt, .py or .jsonl"
        )
    tokenizer = Tokenizer.train(lessons(taken, config.wrapped), size=config.vocab_size, progress=loud)
    folder = tokenizer.save(config.output_dir)
    volume = sum(len(document.text) for document in taken) / 1e6
    return (
        f"{len(tokenizer):,} words from {len(taken):,} documents ({volume:.1f} M characters), "
        f"fingerprint {tokenizer.fingerprint}\n{folder}\n"
        f"next: rusty data corpus --tokenizer {folder} --source PATH"
    )


def lessons(taken: Iterable[Document], wrapped: float) -> Iterator[str]:
    """Each document, and again inside a JSON reply where its hash falls below `wrapped`."""
    for document in taken:
        yield " " + document.text
        if _rank(document.text) < wrapped:
            yield " " + as_reply(document)


def as_reply(document: Document) -> str:
    """The document inside the JSON that would say it: code as an EDIT, a line as a CMD, prose as a MSG."""
    text = document.text
    if document.path.endswith(".py") or "\ndef " in text or "\nclass " in text:
        return render(Edit(document.path or "main.py", text))
    lines = text.splitlines()
    if text.startswith("#!") or len(lines) == 1:
        return "\n ".join(render(Cmd(line)) for line in lines)
    return render(Msg(text))


def _groups(root: Path) -> list[Iterable[Document]]:
    """Each JSONL file and dataset below `root`, and its plain files together."""
    if not root.exists():
        raise DataError(f"{root} does not exist. Give a file or a folder of text, JSONL or datasets")
    found = list(files_below(root))
    alone = [path for path in found if path.is_dir() or is_jsonl(path)]
    plain = [path for path in found if path not in set(alone)]
    together = (document for path in plain for document in documents(path))
    return [*(documents(path) for path in alone), together]


def _shown(groups: list[Iterable[Document]], loud: bool) -> Iterable[Iterable[Document]]:
    from rich.console import Console
    from rich.progress import track

    return track(groups, "reading", console=Console(stderr=True), disable=not loud)


def _smallest(group: Iterable[Document], budget: int) -> list[Document]:
    """The documents of smallest hash that fit the budget: one pass, and the same whatever the order."""
    heap: list[tuple[float, str, int, Document]] = []
    held = 0
    for number, document in enumerate(group):
        rank = _rank(document.text)
        if held > budget and rank >= -heap[0][0]:
            continue
        heapq.heappush(heap, (-rank, document.path, number, document))
        held += len(document.text)
        while held - len(heap[0][3].text) > budget:
            held -= len(heapq.heappop(heap)[3].text)
    return [item[3] for item in sorted(heap, key=lambda item: (-item[0], item[1]))]


def _rank(text: str) -> float:
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in set(shown)]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}


def _hugging_face_settings() -> dict[str, Any]:
    names = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS, "unk_token": UNK}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: CONTROL[number] for name, number in names.items()},
        "additional_special_tokens": list(CONTROL[SYSTEM:]),
        "add_prefix_space": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000_000,
    }
