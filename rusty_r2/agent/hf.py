# SPDX-License-Identifier: AGPL-3.0-or-later
"""A Hugging Face model as a mind: `hf:smollm2`, `hf:FOLDER` (a model, or a LoRA adapter), `hf:OWNER/NAME`.

    policy = HFPolicy(Transformer.load("runs/kto-3/best"), MindOptions(temperature=0))
    policy.reply(trace)

How it remembers and when it refuses is in borrowed.py. A folder needs no network; a name on the hub is asked
for there only if it was not downloaded before. Tokens and log-probabilities are kept as they were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rusty_r2.agent.address import MindOptions, borrowed
from rusty_r2.agent.borrowed import BorrowedPolicy
from rusty_r2.agent.policy import Listener
from rusty_r2.agent.speech import digest_of
from rusty_r2.lm.llama import Said
from rusty_r2.lm.sampling import Sampling
from rusty_r2.lm.transformer import Transformer


def from_address(rest: str, options: MindOptions) -> HFPolicy:
    """What follows `hf:`."""
    folder = borrowed(Path(rest).expanduser())
    model = Transformer.load(str(folder or rest), context=options.context, device=options.device)
    return HFPolicy(model, options, name=f"hf:{rest}")


class HFPolicy(BorrowedPolicy):
    model: Transformer

    def __init__(self, model: Transformer, options: MindOptions | None = None, *, name: str = "hf") -> None:
        digest = digest_of(model.source, "*model*.safetensors") if model.source else ""
        super().__init__(model, options, name=name, digest=digest)
        self._grammar = model.grammar() if self.options.grammar else None

    def _complete(self, ids: Sequence[int], sampling: Sampling, listen: Listener | None) -> Said:
        return self.model.complete(
            ids,
            max_new_tokens=self.options.max_new_tokens,
            sampling=sampling,
            grammar=self._grammar,
            on_text=listen,
        )
