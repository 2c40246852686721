# SPDX-License-Identifier: AGPL-3.0-or-later
"""Only actions can be said: the protocol as a mask over the next word (llguidance).

    grammar = ActionGrammar(tokenizer)             # once; a tenth of a second
    matcher = grammar.start()                      # once an answer
    matcher.forced()                               # words that leave no choice: read, not sampled
    matcher.mask()                                 # bits of the words allowed now, for Engine.pick
    matcher.accept(token)

An answer is a space (every segment begins with one, lm/chat.py) and one object spelled as `render` spells
it; then <|end|> is the only word left. Control tokens are never part of it: no answer opens another's turn.
A borrowed model's tokenizer begins without the space and ends with its own word (`for_transformers`).
Forced words are the tokenizer's own words for the text, as in training; the last one stays open, because
what follows may belong to the same word.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rusty_r2.errors import ProtocolError, RustyError, need
from rusty_r2.lm.tokenizer import CONTROL, END, Tokenizer
from rusty_r2.protocol import schema

Mask = NDArray[np.uint32]


class ActionGrammar:
    """The grammar for one tokenizer; `vocab_size` when the model has more words than the tokenizer."""

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int | None = None) -> None:
        llguidance = need("llguidance", extra="train")
        words = vocab_size or len(tokenizer)
        wrapped = llguidance.TokenizerWrapper(_Words(tokenizer))
        tokens = llguidance.LLTokenizer(wrapped, n_vocab=words, eos_token=END, slices=[])
        self._prepare(tokens, words, END, lead=" ")

    @classmethod
    def for_transformers(cls, tokenizer: Any, *, vocab_size: int, end: int) -> ActionGrammar:
        """The grammar for a fast tokenizer of transformers; `end` is the word that ends an answer."""
        from_tokenizer = need("llguidance.hf", extra="train").from_tokenizer
        made = cls.__new__(cls)
        made._prepare(from_tokenizer(tokenizer, n_vocab=vocab_size, eos_token=end), vocab_size, end, lead="")
        return made

    def _prepare(self, tokens: Any, words: int, end: int, *, lead: str) -> None:
        self._matcher = need("llguidance", extra="train").LLMatcher
        self.words, self.end, self._tokens = words, end, tokens
        self._grammar = self._matcher.grammar_from_lark(lark(schema(), lead=lead))
        problem = self._matcher.validate_grammar(self._grammar, self._tokens)
        if problem:
            raise RustyError(f"the action grammar is not accepted by llguidance: {problem}")
        # a copy costs microseconds, a new one milliseconds
        self._fresh = Matcher(self._matcher(self._tokens, self._grammar, log_level=0), words, end)

    def start(self) -> Matcher:
        """A fresh answer."""
        return self._fresh.copy()


class Matcher:
    """Where one answer stands in the grammar."""

    def __init__(self, core: Any, words: int, end: int = END) -> None:
        self._core, self._words, self._end = core, words, end

    @property
    def done(self) -> bool:
        """The object is whole: only the word that ends an answer may follow."""
        return bool(self._core.is_stopped())

    def mask(self) -> Mask:
        """Bits of the words allowed now."""
        bits = np.zeros((self._words + 31) // 32, np.uint32)
        if self.done:
            bits[self._end // 32] = 1 << self._end % 32
        else:
            self._core.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            self._check()
        return bits

    def accept(self, token: int) -> None:
        """Go on past a word that the mask allowed."""
        if token == self._end and self.done:
            return
        if not self._core.consume_token(token):
            raise ProtocolError(f"the grammar does not allow token {token} here", "sample under the mask")

    def forced(self) -> list[int]:
        """The words that leave no choice from here, accepted already; never the one that ends it."""
        if self.done:
            return []
        tokens = [int(token) for token in self._core.compute_ff_tokens() if token != self._end]
        for token in tokens:
            self.accept(token)
        return tokens

    def copy(self) -> Matcher:
        """Another matcher at the same place, for an answer that forks here."""
        return Matcher(self._core.deep_copy(), self._words, self._end)

    def _check(self) -> None:
        if self._core.is_error():
            raise RustyError(f"the grammar stopped: {self._core.get_error()}")


class _Words:
    """Our words as llguidance wants to see them: their bytes, and the ids of any piece of an answer."""

    eos_token_id, bos_token_id = END, None
    special_token_ids = tuple(range(len(CONTROL)))

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode
        words = enumerate(tokenizer.token_bytes)
        self.tokens = [word or CONTROL[number].encode() for number, word in words]

    def __call__(self, piece: bytes | str) -> list[int]:
        """`encode` puts a space first. A piece without one is read behind a letter or a digit that no word
        joins to it, and that is then cut off."""
        text = piece.decode() if isinstance(piece, bytes) else piece
        if text.startswith(" "):
            return self._encode(text[1:])
        before = "1" if text[:1].isalpha() else "a"
        return self._encode(before + text)[len(self._encode(before)) :]


def lark(protocol: dict[str, Any], *, lead: str = " ") -> str:
    """The schema of an action as a grammar: `lead`, then the object as `protocol.render` spells it.

    Strings hold what JSON holds, spelled the way Python spells it; NUL only in file contents, since `parse`
    refuses it elsewhere.
    """
    plain = r'[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00(0[1-9a-f]|1[0-9a-f])'
    return (
        f"start: {json.dumps(lead) + ' ' if lead else ''}action\n"
        f"action: {_kinds(protocol)}\n"
        f'TEXT: /"({plain})*"/\n'
        f'CONTENT: /"({plain}|\\\\u0000)*"/\n'
    )


def gbnf(protocol: dict[str, Any]) -> str:
    """The same in llama.cpp's own notation, for servers that were built without llguidance."""
    plain = r'[^"\\\x00-\x1f] | "\\" ["\\bfnrt] | "\\u00" ("0" [1-9a-f] | "1" [0-9a-f])'
    return (
        f"root ::= {_kinds(protocol)}\n"
        rf'TEXT ::= "\"" ({plain})* "\""' + "\n"
        rf'CONTENT ::= "\"" ({plain} | "\\u0000")* "\""' + "\n"
    )


def _kinds(protocol: dict[str, Any]) -> str:
    """Each kind of action as its members in their order."""
    found = [
        " ".join(_member(number, *item) for number, item in enumerate(kind["properties"].items())) + ' "}"'
        for kind in protocol["anyOf"]
    ]
    return " | ".join(found)


def _member(number: int, name: str, kind: dict[str, Any]) -> str:
    before = ("{" if number == 0 else ", ") + json.dumps(name) + ": "
    if "const" in kind:
        return json.dumps(before + json.dumps(kind["const"]))
    return f"{json.dumps(before)} {'CONTENT' if name == 'content' else 'TEXT'}"
