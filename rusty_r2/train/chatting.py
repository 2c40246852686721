# SPDX-License-Identifier: AGPL-3.0-or-later
"""Tokens of a conversation with a Hugging Face model: what it reads, what it writes, and how likely that was.

`Chat` turns words into ids by the model's own template, once each: what the model wrote is kept as the
ids it wrote and never encoded again, and what stands between two of its turns comes from the template
alone. `write` draws replies for many prompts together: equal prompts are read once, a row that has ended
costs nothing more, and what a row says depends on its prompt, its seed and the weights, not on its
neighbours. Playing with it is playing.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rusty_r2.agent import speech
from rusty_r2.agent.prompt import SYSTEM, Turn
from rusty_r2.errors import ConfigError

MARK = "\u2063rusty\u2063"
"""stands for a text while the template is taken apart; no template changes it"""


class Chat:
    """The words of a conversation as ids of one tokenizer."""

    def __init__(self, tokenizer: Any, *, system: str = SYSTEM) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "the base model has no chat template. Take an instruct model: --base-model smollm2"
            )
        self.tokenizer, self.system = tokenizer, system
        self._close, self._turn = self._take_apart()
        close = self._encode(self._close)
        self.end = close[0] if close else int(tokenizer.eos_token_id)
        """the id with which a reply ends"""
        self._after_end = close[1:]
        self.stops = frozenset({self.end, *_ids(tokenizer.eos_token_id)})

    def messages(self, wanted: str) -> list[dict[str, str]]:
        """What a task is asked with."""
        head = [Turn("system", self.system)] if self.system else []
        return speech.messages([*head, Turn("user", wanted)])

    def opening(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """The ids before the first reply."""
        return self._encode(self.prompt(messages))

    def prompt(self, messages: Sequence[dict[str, Any]]) -> str:
        """The same as text."""
        try:
            return self._rendered(list(messages), more=True)
        except Exception:  # templates raise what they like; some know no system role
            return self._rendered(speech.without_system(messages), more=True)

    def between(self, reply: Sequence[int], observation: str) -> list[int]:
        """The ids from the end of one reply to the beginning of the next."""
        before, after = self._turn
        ended = bool(reply) and reply[-1] in self.stops
        glue = self._after_end if ended else [self.end, *self._after_end]
        return [*glue, *self._encode(before + speech.disarmed(observation) + after)]

    def words(self, text: str) -> list[int]:
        """A reply known only as text, as the model would have written it, its end included."""
        return [*self._encode(text), self.end]

    def text(self, ids: Sequence[int]) -> str:
        """What the ids of a reply say."""
        kept = [word for word in ids if word not in self.stops]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False)).removeprefix(" ")

    def _encode(self, text: str) -> list[int]:
        return [int(word) for word in self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def _take_apart(self) -> tuple[str, tuple[str, str]]:
        """What closes an assistant's turn, and what stands before and after an observation."""
        said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": MARK}]
        whole = self._rendered([*said], more=False)
        # as in use: our own model has a role for what came of an action, borrowed ones hear it from the user
        role = "tool" if "<|observation|>" in self.tokenizer.chat_template else "user"
        longer = self._rendered([*said, {"role": role, "content": MARK}], more=True)
        _, first, rest = longer.partition(MARK)
        between, second, after = rest.partition(MARK)
        close = whole.partition(MARK)[2]
        if not (first and second and between.startswith(close)):
            raise ConfigError(
                "the base model's chat template changes what was said before. "
                "Take another: --base-model smollm2"
            )
        return close, (between[len(close) :], after)

    def _rendered(self, messages: list[dict[str, str]], *, more: bool) -> str:
        return str(self.tokenizer.apply_chat_template(messages, add_generation_prompt=more, tokenize=False))


def _ids(value: Any) -> list[int]:
    return [] if value is None else [int(value)] if isinstance(value, int) else [int(one) for one in value]


@dataclass(frozen=True)
class Drawing:
    """How replies are drawn."""

    max_new_tokens: int = 64
    temperature: float = 1.0
    """0 takes the likeliest word"""
    rows: int = 32
    """replies written at once; more prompts wait for the next round"""


@dataclass
class Written:
    """One reply, token by token."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """under the distribution they were drawn from: the whole one, at the drawing's temperature"""


def write(
    model: Any, prompts: Sequence[Sequence[int]], chat: Chat, drawing: Drawing, seeds: Sequence[int]
) -> list[Written]:
    """A reply to every prompt."""
    replies: list[Written] = []
    with thinking(model):
        for at in range(0, len(prompts), drawing.rows):
            some, theirs = prompts[at : at + drawing.rows], seeds[at : at + drawing.rows]
            replies += _write_together(model, some, chat, drawing, theirs)
    return replies


@contextmanager
def thinking(model: Any) -> Any:
    """Without gradients and without dropout; the model's mode is put back."""
    learning = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(learning)


def _write_together(
    model: Any, prompts: Sequence[Sequence[int]], chat: Chat, drawing: Drawing, seeds: Sequence[int]
) -> list[Written]:
    device = next(model.parameters()).device
    chances = [torch.Generator().manual_seed(seed) for seed in seeds]
    replies = [Written() for _ in prompts]
    different = list(dict.fromkeys(tuple(prompt) for prompt in prompts))
    ids, mask = _padded(different, int(chat.tokenizer.pad_token_id or 0), device)
    memory = _Memory(model)
    logits = memory.read(ids, mask)
    rows = [different.index(tuple(prompt)) for prompt in prompts]
    alive, mask, logits = list(range(len(prompts))), mask[rows], logits[rows]
    memory.select(rows)
    for step in range(drawing.max_new_tokens):
        chosen, logp = _draw(logits, drawing.temperature, [chances[row] for row in alive])
        for row, word, likely in zip(alive, chosen.tolist(), logp.tolist(), strict=True):
            replies[row].ids.append(word)
            replies[row].logprobs.append(likely)
        kept = [i for i, word in enumerate(chosen.tolist()) if word not in chat.stops]
        if not kept or step + 1 == drawing.max_new_tokens:
            break
        if len(kept) < len(alive):
            memory.select(kept)
            alive, mask, chosen = [alive[i] for i in kept], mask[kept], chosen[kept]
        mask = torch.cat([mask, mask.new_ones(len(alive), 1)], 1)
        logits = memory.read(chosen[:, None].to(device), mask)
    return replies


def _draw(logits: Tensor, temperature: float, chances: Sequence[torch.Generator]) -> tuple[Tensor, Tensor]:
    """One word a row, and its log-probability. Each row has a source of chance of its own."""
    likely = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    if temperature:
        share = likely.exp().double().cumsum(-1)  # in float, the sum of many small shares would drift
        point = torch.stack([torch.rand(1, generator=chance, dtype=torch.float64) for chance in chances])
        found = torch.searchsorted(share, point.to(share.device) * share[:, -1:], right=True)
        chosen = found[:, 0].clamp_max(likely.shape[1] - 1)
    else:
        chosen = likely.argmax(-1)
    return chosen.cpu(), likely.gather(1, chosen[:, None])[:, 0].cpu()


def _padded(prompts: Sequence[Sequence[int]], pad: int, device: Any) -> tuple[Tensor, Tensor]:
    """Prompts that end together: padded on the left."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids.to(device), mask.to(device)


class _Memory:
    """What a model remembers between two calls: an attention cache, or the state of our own model."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.held: Any = None
        self._recurrent = bool(
            getattr(model, "_is_stateful", False) or getattr(_base(model), "_is_stateful", False)
        )

    def read(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Read ids (rows x words); the logits after the last of them."""
        if self._recurrent:
            seen = mask if self.held is None else None
            out = self.model(
                input_ids=ids, attention_mask=seen, state=self.held, use_cache=True, logits_to_keep=1
            )
            self.held = out.state
        else:
            places = (mask.cumsum(1) - 1).clamp_min(0)[:, -ids.shape[1] :]
            out = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=places,
                past_key_values=self.held,
                use_cache=True,
                logits_to_keep=1,
            )
            self.held = out.past_key_values
        logits: Tensor = out.logits[:, -1]
        return logits

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these rows, each as often as it is named."""
        if self._recurrent:
            self.held = self.held[:, :, list(rows)]
        else:
            device = next(self.model.parameters()).device
            self.held.batch_select_indices(torch.tensor(list(rows), device=device))


def _base(model: Any) -> Any:
    """The model inside a PEFT wrapper."""
    inner = getattr(model, "get_base_model", None)
    return inner() if callable(inner) else model
