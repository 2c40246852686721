# SPDX-License-Identifier: AGPL-3.0-or-later
"""A borrowed model in this process as a mind; gguf.py and hf.py open the two kinds there are.

The conversation is put in the words of the model's own chat template. Tokens said and read are remembered,
and so is what was computed for them: a reply reads only what is new. With the grammar every reply is a valid
action, unless a command or a file was cut at the longest reply. A conversation that does not fit the context
is an error that says so; nothing is ever cut from it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from rusty_r2.agent.address import MindOptions
from rusty_r2.agent.policy import Listener, Reply
from rusty_r2.agent.prompt import conversation
from rusty_r2.agent.speech import Message, Tokens, closing, rendered
from rusty_r2.lm.llama import Said
from rusty_r2.lm.sampling import Sampling
from rusty_r2.trace import ExecutionTrace

DRAWN = ("temperature", "top_k", "top_p", "seed", "max_new_tokens", "grammar")


class Model(Protocol):
    """What lm/llama.py and lm/transformer.py have in common."""

    @property
    def context(self) -> int: ...

    @property
    def facts(self) -> dict[str, Any]: ...

    def tokenize(self, text: str, special: bool = ...) -> list[int]: ...

    def render(self, messages: Sequence[Message]) -> str: ...

    def close(self) -> None: ...


class BorrowedPolicy:
    """Everything but how the model is asked to go on."""

    def __init__(self, model: Model, options: MindOptions | None, *, name: str, digest: str) -> None:
        self.model, self.options = model, options or MindOptions()
        self.name, self.digest = name, digest
        chosen = self.options
        self._sampling = Sampling(chosen.temperature, chosen.top_k, chosen.top_p, seed=chosen.seed)
        self._tokens = Tokens(self._encode)
        self._replies = 0
        self._lock = threading.Lock()

    def sampling(self) -> dict[str, object]:
        chosen = asdict(self.options)
        drawn = {name: chosen[name] for name in DRAWN}
        return {**drawn, "context": self.model.context, "weights": self.model.facts.get("ftype", "")}

    def reply(self, trace: ExecutionTrace, *, listen: Listener | None = None) -> Reply:
        with self._lock:
            started = time.perf_counter()
            prompt = rendered(conversation(trace), self.model.render)
            ids = self._tokens.of(prompt)
            self._replies += 1
            sampling = replace(self._sampling, seed=self.options.seed + self._replies)
            before = time.perf_counter() - started
            said = self._complete(ids, sampling, listen)
            ending = closing(said.text) if self.options.grammar and said.finish == "length" else ""
            if ending and listen is not None:
                listen(ending)
            ends = tuple(self.model.tokenize(ending)) if ending and said.tokens else ()
            tokens, text = (*said.tokens, *ends), said.text + ending
            if tokens:
                self._tokens.keep(prompt + text, [*ids, *tokens])
        return Reply(
            text,
            tokens,
            (*said.logprobs, *(0.0 for _ in ends)),
            tokens_in=said.read,
            tokens_out=len(tokens) or int(said.timings.get("predicted_n", 0)),
            seconds_to_first=before + said.seconds_to_first,
            seconds=before + said.seconds,
            facts={"finish": said.finish, "tokens_kept": said.kept},
        )

    def close(self) -> None:
        """Give the model's memory back."""
        self.model.close()

    def _encode(self, text: str, begins: bool) -> list[int]:
        return self.model.tokenize(text, special=True)

    def _complete(self, ids: Sequence[int], sampling: Sampling, listen: Listener | None) -> Said:
        raise NotImplementedError
