# SPDX-License-Identifier: AGPL-3.0-or-later
"""A conversation as ids: append-only, so that a mind with a state never reads a word twice.

    <bos> <|system|> text <|end|> <|user|> text <|end|> <|assistant|> text <|end|> <|observation|> …

Each text begins with a literal space. `encode_turn` knows nothing of the turns before it, hence
encoding turn by turn equals encoding all at once. vocab/chat_template.jinja says the same to Hugging
Face and llama.cpp; there a control token typed by a user is broken up ("< eos>"), here it is plain text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rusty_r2.errors import DataError
from rusty_r2.lm.tokenizer import ASSISTANT, BOS, END, OBSERVATION, SYSTEM, USER, Tokenizer

ROLES = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "observation": OBSERVATION}

Said = tuple[str, str] | tuple[str, str, bool] | Sequence[str | bool]
"""(role, text), or (role, text, False) for an assistant's turn that is shown but not to be learned"""


def open_chat() -> list[int]:
    """The ids before the first turn."""
    return [BOS]


def open_reply() -> list[int]:
    """The ids that hand the word to the assistant; it answers with text and <|end|>."""
    return [ASSISTANT]


def encode_turn(tokenizer: Tokenizer, role: str, text: str) -> list[int]:
    """One whole turn: role token, text, <|end|>."""
    return [_role(role), *tokenizer.encode(text), END]


def encode_turns(tokenizer: Tokenizer, turns: Iterable[Said]) -> tuple[list[int], list[bool]]:
    """Ids of a whole conversation, and which of them are the assistant's own (text and <|end|>)."""
    return encode_conversations(tokenizer, [list(turns)])[0]


def encode_conversations(
    tokenizer: Tokenizer, conversations: Sequence[Sequence[Said]]
) -> list[tuple[list[int], list[bool]]]:
    """`encode_turns` for many conversations in one call of the tokenizer: much faster."""
    said = list(dict.fromkeys(str(turn[1]) for turns in conversations for turn in turns))
    known = dict(zip(said, tokenizer.encode_batch(said), strict=True))  # the system's words come in each
    return [_lay_out(turns, [known[str(turn[1])] for turn in turns]) for turns in conversations]


def _lay_out(turns: Sequence[Said], texts: Sequence[list[int]]) -> tuple[list[int], list[bool]]:
    ids = open_chat()
    own = [False] * len(ids)
    for turn, text in zip(turns, texts, strict=True):
        role = _role(str(turn[0]))
        learned = role == ASSISTANT and (len(turn) < 3 or bool(turn[2]))
        ids += [role, *text, END]
        own += [False, *([learned] * (len(text) + 1))]
    return ids, own


def _role(name: str) -> int:
    if name not in ROLES:
        raise DataError(f"{name!a} is no role; say one of {', '.join(ROLES)}")
    return ROLES[name]
