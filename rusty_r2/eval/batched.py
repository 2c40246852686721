# SPDX-License-Identifier: AGPL-3.0-or-later
"""A Hugging Face model on the bench, many questions side by side: what a GPU is for.

The words are those that agent/hf.py would get one by one (same template, same grammar, same draws); what is
saved is time. Examples that all questions share are read once and their keys and values copied to every row;
rows that end leave the batch. In the gym a batch of episodes goes on turn by turn together.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rusty_r2.agent.address import MindOptions
from rusty_r2.agent.prompt import SYSTEM, Turn
from rusty_r2.agent.speech import closing, rendered
from rusty_r2.eval.mind import Ask, Played, Shot, Speech, is_action
from rusty_r2.gym.env import EnvConfig
from rusty_r2.gym.vector import VectorEnv
from rusty_r2.lm.sampling import Sampling, choose, uniform
from rusty_r2.task import Task

if TYPE_CHECKING:
    from rusty_r2.lm.grammar import ActionGrammar, Matcher
    from rusty_r2.lm.transformer import Transformer

CONTEXT = 8192


@dataclass
class _Row:
    """One answer in the making."""

    place: int
    seed: int
    matcher: Matcher | None
    most: int
    tokens: list[int] = field(default_factory=list)
    read: int = 0
    """tokens of the answer that the model has been given"""
    finish: str = ""

    def go_on(self) -> None:
        """Say what the grammar leaves no choice about."""
        if self.matcher is not None:
            self.tokens += self.matcher.forced()[: self.most - len(self.tokens)]
            self.finish = "stop" if self.matcher.done else ""
        if len(self.tokens) >= self.most:
            self.finish = self.finish or "length"

    def say(self, token: int) -> None:
        self.tokens.append(token)
        if self.matcher is not None:
            self.matcher.accept(token)
        self.go_on()


class Batched:
    ours = False

    def __init__(self, model: Transformer, address: str, batch: int = 64) -> None:
        from rusty_r2.agent.hf import HFPolicy

        self.model, self.address, self.batch = model, address, batch
        self.digest = HFPolicy(model, MindOptions(grammar=False)).digest
        self._grammar: ActionGrammar | None = None
        self._shared: tuple[list[int], Any] = ([], None)

    @classmethod
    def load(cls, name: str, address: str = "", *, device: str = "cpu", batch: int = 64) -> Batched:
        """`name` is what follows hf: in an address."""
        from rusty_r2.lm.transformer import Transformer

        model = Transformer.load(name, context=CONTEXT, device=device)
        return cls(model, address or f"hf:{name}", batch)

    def answer(self, asks: Sequence[Ask], speech: Speech) -> Iterator[tuple[int, str]]:
        prompts = [self._ids([*opening(ask.shots), Turn("user", ask.request)]) for ask in asks]
        order = sorted(range(len(asks)), key=lambda place: len(prompts[place]))
        for at in range(0, len(order), self.batch):
            places = order[at : at + self.batch]
            seeds = [speech.seed + place for place in places]
            yield from zip(places, self.complete([prompts[p] for p in places], speech, seeds), strict=True)

    def play(
        self, tasks: Iterable[tuple[int, Task]], speech: Speech, env: EnvConfig, shots: Sequence[Shot] = ()
    ) -> Iterator[Played]:
        wanted = list(tasks)
        for at in range(0, len(wanted), self.batch):
            yield from self._play(wanted[at : at + self.batch], speech, env, shots)

    def _play(
        self, wanted: Sequence[tuple[int, Task]], speech: Speech, env: EnvConfig, shots: Sequence[Shot]
    ) -> Iterator[Played]:
        """One batch of episodes, turn by turn together."""
        with VectorEnv(len(wanted), config=env, workers=os.cpu_count() or 1) as rooms:
            said = [
                [*opening(shots), Turn("user", rooms.reset(slot, task)[0])]
                for slot, (_, task) in enumerate(wanted)
            ]
            active, rounds = list(range(len(wanted))), 0
            while active:
                seeds = [speech.seed + 64 * wanted[slot][0] + rounds for slot in active]
                replies = self.complete([self._ids(said[slot]) for slot in active], speech, seeds)
                for slot, reply in zip(active, replies, strict=True):
                    said[slot].append(Turn("assistant", reply))
                    rooms.submit(slot, reply)
                active, rounds = [], rounds + 1
                while rooms.busy:
                    for step in rooms.poll():
                        if not step.done:
                            said[step.slot].append(Turn("observation", step.observation))
                            active.append(step.slot)
                            continue
                        own = said[step.slot][2 * len(shots) + 1 :]
                        replies = [turn.text for turn in own if turn.role == "assistant"]
                        number, task = wanted[step.slot]
                        valid = sum(map(is_action, replies))
                        info = step.info
                        yield Played(number, task, tuple(replies), valid, info["passed"], info["masked"])
                active.sort()

    def complete(self, prompts: Sequence[list[int]], speech: Speech, seeds: Sequence[int]) -> list[str]:
        """The answer to every prompt; a prompt that does not fit the context gets an empty one."""
        grammar = self._actions() if speech.grammar else None
        most = speech.max_new_tokens
        fitting = [place for place, ids in enumerate(prompts) if len(ids) + most <= self.model.context]
        rows = [_Row(place, seeds[place], grammar.start() if grammar else None, most) for place in fitting]
        for row in rows:
            row.go_on()
        self._write(rows, [prompts[row.place] for row in rows], Sampling(speech.temperature))
        texts = [""] * len(prompts)
        for row in rows:
            text = self.model.detokenize(row.tokens)
            texts[row.place] = text + (closing(text) if speech.grammar and row.finish == "length" else "")
        return texts

    def _write(self, rows: list[_Row], prompts: Sequence[list[int]], sampling: Sampling) -> None:
        import torch

        if not rows:
            return
        device = self.model.model.device
        with torch.inference_mode():
            common, cache = self._prefix(prompts)
            fresh = [[*ids[common:], *row.tokens] for ids, row in zip(prompts, rows, strict=True)]
            for row in rows:
                row.read = len(row.tokens)
            wide = max(map(len, fresh))
            pad = [wide - len(ids) for ids in fresh]
            ids = torch.tensor([[0] * p + f for p, f in zip(pad, fresh, strict=True)], device=device)
            seen = torch.tensor([[1] * common + [0] * p + [1] * (wide - p) for p in pad], device=device)
            if cache is not None:
                cache.batch_repeat_interleave(len(rows))
            active = [row for row in rows if not row.finish]
            while active:
                place = (seen.cumsum(1) - 1)[:, -ids.shape[1] :].clamp(min=0)
                out = self.model.model(
                    ids, attention_mask=seen, position_ids=place, past_key_values=cache, use_cache=True,
                    logits_to_keep=1,
                )  # fmt: skip
                cache = out.past_key_values
                self._choose(rows, out.logits[:, -1], sampling)
                stay = [at for at, row in enumerate(rows) if not row.finish]
                active = [rows[at] for at in stay]
                if active and 4 * len(active) <= 3 * len(rows):
                    chosen = torch.tensor(stay, device=device)
                    cache.batch_select_indices(chosen)
                    seen, rows = seen[chosen], active
                ids = torch.tensor([[_next(row)] for row in rows], device=device)
                seen = torch.cat([seen, torch.ones_like(seen[:, :1])], 1)

    def _choose(self, rows: Sequence[_Row], logits: Any, sampling: Sampling) -> None:
        """The next word of every row that has nothing left to read."""
        ready = [at for at, row in enumerate(rows) if not row.finish and row.read == len(row.tokens)]
        if not ready:
            return
        some = [rows[at] for at in ready]
        masks = [row.matcher.mask() for row in some if row.matcher is not None]
        chance = uniform([row.seed for row in some], [len(row.tokens) for row in some])
        numbers = np.asarray(logits[ready].float().cpu().numpy(), np.float32)
        mask = np.stack(masks) if masks else None
        tokens, _, _ = choose(numbers, sampling, chance, mask, [row.tokens for row in some])
        for row, token in zip(some, tokens, strict=True):
            if int(token) in self.model.ends:
                row.finish = "stop"
            else:
                row.say(int(token))

    def _prefix(self, prompts: Sequence[list[int]]) -> tuple[int, Any]:
        """How many tokens all prompts begin with alike, and a copy of what the model made of them."""
        import torch
        from transformers import DynamicCache

        first, last = min(prompts), max(prompts)
        pairs = zip(first, last, strict=False)
        same = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(last)))
        common = min(same, min(map(len, prompts)) - 1)
        if common < 16:
            return 0, DynamicCache(config=self.model.model.config)
        if self._shared[0] != first[:common]:
            cache = DynamicCache(config=self.model.model.config)
            ids = torch.tensor([first[:common]], device=self.model.model.device)
            self.model.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            self._shared = (first[:common], cache)
        return common, copy.deepcopy(self._shared[1])

    def _ids(self, turns: Sequence[Turn]) -> list[int]:
        return self.model.tokenize(rendered(turns, self.model.render))

    def _actions(self) -> ActionGrammar:
        self._grammar = self._grammar or self.model.grammar()
        return self._grammar


def _next(row: _Row) -> int:
    """The token to read next; any will do where the row is over."""
    if row.read < len(row.tokens) and not row.finish:
        row.read += 1
        return row.tokens[row.read - 1]
    return 0


def opening(shots: Sequence[Shot]) -> list[Turn]:
    """The system prompt and the examples, as turns."""
    said = [turn for asked, reply in shots for turn in (Turn("user", asked), Turn("assistant", reply))]
    return [Turn("system", SYSTEM), *said]
