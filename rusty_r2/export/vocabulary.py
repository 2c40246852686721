# SPDX-License-Identifier: AGPL-3.0-or-later
"""The model's own tokenizer and chat template, as a GGUF file holds them.

llama.cpp knows pre-tokenizers (the rule that cuts text before merging) only by name. `pre_tokenizer` finds
the name by behaviour: the model's rule and each rule that llama.cpp has cut the same hard strings, and
must cut them the same. A tokenizer that matches none is an error, never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rusty_r2.errors import CheckpointError, ConfigError, need
from rusty_r2.export.hard import STRINGS
from rusty_r2.export.source import table

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""GGUF's kinds of token"""
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
REGEXES = {
    "llama-bpe": rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_REST}",
}
"""rules that llama.cpp has by name; gpt-2 and smollm are parts that `tokenizers` has too"""


@dataclass(frozen=True)
class Vocabulary:
    """What goes into the file's tokenizer fields."""

    tokens: list[str]
    kinds: list[int]
    merges: list[str]
    pre: str
    """llama.cpp's name of the pre-tokenizer"""
    special: dict[str, int]
    """bos, eos, unk, pad → id"""
    add_bos: bool
    add_eos: bool
    template: str
    """the chat template; empty where the model has none"""


def read(folder: Path, words: int) -> Vocabulary:
    """The tokenizer of a Hugging Face folder whose embedding has `words` rows."""
    tokenizer = load(folder)
    raw = table(folder / "tokenizer.json")
    model = raw["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback") or not _by_bytes(raw):
        raise ConfigError(
            f"{folder} has a {model.get('type')} tokenizer that does not work on bytes; "
            "only byte-level BPE (as in SmolLM, Llama 3, Qwen) can be exported"
        )
    tokens, kinds = _tokens(raw, words, folder)
    special = _special(folder, tokens)
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    dressed = tokenizer.encode("a", add_special_tokens=True).ids
    return Vocabulary(
        tokens=tokens,
        kinds=kinds,
        merges=[m if isinstance(m, str) else " ".join(m) for m in model["merges"]],
        pre=pre_tokenizer(tokenizer, str(folder)),
        special=special,
        add_bos=dressed[: -len(plain) or None][:1] == [special["bos"]] and len(dressed) > len(plain),
        add_eos=dressed[-1:] == [special["eos"]] and len(dressed) > len(plain),
        template=chat_template(folder),
    )


def load(folder: Path) -> Any:
    """tokenizer.json as it is: the Auto classes may put a tokenizer of their own in its place."""
    tokenizers = need("tokenizers", extra="train")
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no tokenizer.json; save the tokenizer beside the model")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{path} is not a tokenizer: {error}") from error


def pre_tokenizer(tokenizer: Any, where: str) -> str:
    """llama.cpp's name for the rule by which `tokenizer` cuts text."""
    mine = [_cut(tokenizer.pre_tokenizer, text) for text in STRINGS]
    for name, rule in rules().items():
        if mine == [_cut(rule, text) for text in STRINGS]:
            return name
    raise ConfigError(
        f"{where} has a tokenizer that cuts text like none that is known here ({', '.join(rules())}); "
        "llama.cpp would read other words than the model learned"
    )


def rules() -> dict[str, Any]:
    """Every rule that is known here, under llama.cpp's name."""
    tokenizers = need("tokenizers", extra="train")
    parts = tokenizers.pre_tokenizers
    own = parts.ByteLevel(add_prefix_space=False, use_regex=True)
    bytes_only = parts.ByteLevel(add_prefix_space=False, use_regex=False)
    found = {"gpt-2": own, "smollm": parts.Sequence([parts.Digits(individual_digits=True), own])}
    for name, regex in REGEXES.items():
        cut = parts.Split(tokenizers.Regex(regex), "isolated")
        found[name] = parts.Sequence([cut, bytes_only])
    return found


def chat_template(folder: Path) -> str:
    """The model's own; newer folders keep it in a file, older ones in tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = _settings(folder).get("chat_template") or ""
    if isinstance(found, list):
        found = next((entry["template"] for entry in found if entry.get("name") == "default"), "")
    return str(found)


def _cut(rule: Any, text: str) -> list[str] | None:
    return None if rule is None else [piece for piece, _ in rule.pre_tokenize_str(text)]


def _by_bytes(raw: dict[str, Any]) -> bool:
    rule = raw.get("pre_tokenizer") or {}
    parts = rule.get("pretokenizers") or [rule]
    return any(part.get("type") == "ByteLevel" and not part.get("add_prefix_space") for part in parts)


def _tokens(raw: dict[str, Any], words: int, folder: Path) -> tuple[list[str], list[int]]:
    known = {number: (text, NORMAL) for text, number in raw["model"]["vocab"].items()}
    for added in raw.get("added_tokens", ()):
        known[added["id"]] = (added["content"], CONTROL if added["special"] else USER_DEFINED)
    if max(known) >= words:
        raise CheckpointError(
            f"{folder}: the tokenizer has {max(known) + 1} words, the model {words}: not a pair"
        )
    pairs = [known.get(number, (f"[PAD{number}]", UNUSED)) for number in range(words)]
    return [text for text, _ in pairs], [kind for _, kind in pairs]


def _special(folder: Path, tokens: list[str]) -> dict[str, int]:
    """Ids of the special tokens: by name in the tokenizer's settings, else by number in the model's."""
    settings, found = _settings(folder), {}
    numbers = {**_optional(folder / "generation_config.json"), **_optional(folder / "config.json")}
    where = {text: number for number, text in enumerate(tokens)}
    for name in ("bos", "eos", "unk", "pad"):
        text = settings.get(f"{name}_token")
        text = text.get("content") if isinstance(text, dict) else text
        number = where.get(text) if text else numbers.get(f"{name}_token_id")
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(number, int) and 0 <= number < len(tokens):
            found[name] = number
    if "eos" not in found:
        raise CheckpointError(f"{folder} does not say which token ends a text (eos_token); name it there")
    found.setdefault("bos", found["eos"])  # left out, llama.cpp would take token 11
    return found


def _settings(folder: Path) -> dict[str, Any]:
    return _optional(folder / "tokenizer_config.json")


def _optional(path: Path) -> dict[str, Any]:
    return table(path) if path.is_file() else {}
