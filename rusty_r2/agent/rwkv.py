# SPDX-License-Identifier: AGPL-3.0-or-later
"""Our own model as a mind: what it has read is a state of fixed size, and nothing is read twice.

    policy = RwkvPolicy.load(Path("runs/ppo-7/best"), MindOptions(temperature=0))
    policy.reply(trace)

A conversation only grows at its end, within a request and from one request to the next. So the turns
read so far are remembered with the state they led to, and a reply reads only what is new. With the grammar
every reply is a valid action, unless a command or a file was cut at the longest reply; it can be turned
off. Tokens and their log-probabilities are kept as they were sampled. How tokens are chosen is in lm/.
"""

from __future__ import annotations

import codecs
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rusty_r2.agent.address import MindOptions
from rusty_r2.agent.policy import Listener, Reply
from rusty_r2.agent.prompt import Turn, conversation
from rusty_r2.agent.speech import closing, digest_of
from rusty_r2.errors import PolicyError, need
from rusty_r2.trace import ExecutionTrace

if TYPE_CHECKING:
    from rusty_r2.lm.engine import Engine
    from rusty_r2.lm.grammar import ActionGrammar
    from rusty_r2.lm.tokenizer import Tokenizer

REMEMBERED = 16
"""conversations whose state is kept; 40 KB each at the seeds' size"""


@dataclass(frozen=True)
class _Memory:
    """A conversation up to here, as a state."""

    turns: tuple[Turn, ...]
    state: Any
    unread: tuple[int, ...]
    """tokens that close the last turn and were not read yet"""


class RwkvPolicy:
    remembers = 0
    """requests before this one that it reads again: models of this size do worse with any (docs/chat.md)"""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        options: MindOptions | None = None,
        *,
        name: str = "rusty",
        digest: str = "",
    ) -> None:
        from rusty_r2.lm.sampling import Sampling

        if len(tokenizer) > engine.shape.words:
            raise PolicyError(
                f"{name}: the tokenizer has {len(tokenizer):,} words, the model {engine.shape.words:,}"
            )
        self.engine, self.tokenizer, self.options = engine, tokenizer, options or MindOptions()
        self.name, self.digest = name, digest
        chosen = self.options
        self._sampling = Sampling(chosen.temperature, chosen.top_k, chosen.top_p, seed=chosen.seed)
        self._grammar = self._make_grammar() if chosen.grammar else None
        self._memories: OrderedDict[tuple[Turn, ...], _Memory] = OrderedDict()
        self._replies = 0
        self._lock = threading.Lock()

    @classmethod
    def load(cls, folder: Path, options: MindOptions | None = None, *, name: str = "") -> RwkvPolicy:
        """The checkpoint in `folder`, with its own tokenizer."""
        from rusty_r2.lm import patch
        from rusty_r2.lm.engine import Engine
        from rusty_r2.lm.tokenizer import VOCAB, Tokenizer

        options = options or MindOptions()
        own = folder / "tokenizer.json"
        tokenizer = Tokenizer.load(own if own.is_file() else VOCAB)
        engine = Engine.load(folder, device=options.device)
        digest = patch.promised(folder)[:16] or digest_of(folder)
        return cls(engine, tokenizer, options, name=name or str(folder), digest=digest)

    def sampling(self) -> dict[str, object]:
        chosen = self.options
        return {
            "temperature": chosen.temperature,
            "top_k": chosen.top_k,
            "top_p": chosen.top_p,
            "seed": chosen.seed,
            "max_new_tokens": chosen.max_new_tokens,
            "grammar": chosen.grammar,
            "weights": self.engine.weights,
        }

    def reply(self, trace: ExecutionTrace, *, listen: Listener | None = None) -> Reply:
        with self._lock:
            return self._reply(tuple(conversation(trace)), listen)

    def _reply(self, turns: tuple[Turn, ...], listen: Listener | None) -> Reply:
        from rusty_r2.lm.chat import encode_turn, open_reply
        from rusty_r2.lm.decoding import Decoder
        from rusty_r2.lm.tokenizer import END

        started = time.perf_counter()
        known = self._recall(turns)
        fresh = [t for turn in turns[len(known.turns) :] for t in encode_turn(self.tokenizer, *turn)]
        prompt = [*known.unread, *fresh, *open_reply()]
        self._replies += 1
        decoder = Decoder(
            self.engine,
            [prompt],
            self._sampling,
            self.options.max_new_tokens,
            grammar=self._grammar,
            state=self.engine.select(known.state, [0]),
            seeds=[self.options.seed + self._replies],
        )
        first, closing = self._speak(decoder, listen)
        said = decoder.completions()[0]
        tokens = (*said.tokens, *closing)
        text = self.tokenizer.decode(tokens)
        self._remember(_Memory((*turns, Turn("assistant", text)), decoder.state, (*closing, END)), known)
        return Reply(
            text,
            tokens,
            (*said.logp, *(0.0 for _ in closing)),
            tokens_in=len(prompt),
            tokens_out=len(tokens),
            seconds_to_first=first - started,
            seconds=time.perf_counter() - started,
            facts={"finish": said.reason},
        )

    def _speak(self, decoder: Any, listen: Listener | None) -> tuple[float, tuple[int, ...]]:
        """Run to the end, telling each piece of text; returns when the first came, and what was added."""
        pieces = codecs.getincrementaldecoder("utf-8")("replace")
        first, spoken = 0.0, False

        def tell(tokens: Iterable[int], *, last: bool = False) -> None:
            nonlocal spoken
            text = pieces.decode(b"".join(self.tokenizer.token_bytes[token] for token in tokens), last)
            if text and not spoken:
                text, spoken = text.removeprefix(" "), True
            if text and listen is not None:
                listen(text)

        news = decoder.news()  # what the grammar forced before anything was read
        while news or not decoder.done:
            news += decoder.advance()
            first = first or time.perf_counter()
            tell(token for _, token in news)
            news = []
        closing = self._closing(decoder.completions()[0])
        tell(closing, last=True)
        return first or time.perf_counter(), closing

    def _closing(self, said: Any) -> tuple[int, ...]:
        """What ends a message that reached the longest reply. A cut command or file is never completed."""
        if self._grammar is None or said.reason != "length":
            return ()
        words = self.tokenizer.token_bytes
        ending = closing(self.tokenizer.decode(said.tokens))
        return tuple(words.index(bytes([byte])) for byte in ending.encode())

    def _recall(self, turns: tuple[Turn, ...]) -> _Memory:
        """The longest conversation remembered that these turns go on from; at least the system prompt."""
        fitting = [m for m in self._memories.values() if m.turns == turns[: len(m.turns)]]
        if fitting:
            return max(fitting, key=lambda memory: len(memory.turns))
        return self._opening(turns[:1] if turns[0].role == "system" else ())

    def _opening(self, turns: tuple[Turn, ...]) -> _Memory:
        """Every conversation of one agent begins alike: that part is read once."""
        from rusty_r2.lm.chat import encode_turn, open_chat

        state = self.engine.new_state()
        words = [token for turn in turns for token in encode_turn(self.tokenizer, *turn)]
        self.engine.prefill([[*open_chat(), *words]], state)
        memory = _Memory(turns, state, ())
        self._remember(memory)
        return memory

    def _remember(self, memory: _Memory, instead_of: _Memory | None = None) -> None:
        """Keep it as the newest; a conversation that went on is kept once, its opening stays."""
        if instead_of is not None and instead_of.unread:
            self._memories.pop(instead_of.turns, None)
        self._memories[memory.turns] = memory
        self._memories.move_to_end(memory.turns)
        while len(self._memories) > REMEMBERED:
            self._memories.popitem(last=False)

    def _make_grammar(self) -> ActionGrammar:
        need("llguidance", extra="train")
        from rusty_r2.lm.grammar import ActionGrammar

        return ActionGrammar(self.tokenizer, vocab_size=self.engine.shape.words)
