# SPDX-License-Identifier: AGPL-3.0-or-later
"""A Hugging Face model on the bench, many questions side by side: what a GPU is for.

The words are those that agent/hf.py would get one by one (same template, same grammar, same draws); what is
saved is time. Examples that all questions share are read once and kept once (lm/beginnings.py); words are
chosen where the model computes; rows that end leave the batch. In the gym a batch of episodes goes on turn by
turn together.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rusty_r2.agent.address import MindOptions
from rusty_r2.agent.prompt import SYSTEM, Turn
from rusty_r2.agent.speech import closing, rendered
from rusty_r2.eval.mind import Ask, Played, Shot, Speech, is_action
from rusty_r2.gym.env import EnvConfig
from rusty_r2.gym.vector import VectorEnv
from rusty_r2.lm.beginnings import Beginning, Repeated, Rows, fits, pick
from rusty_r2.lm.sampling import Sampling, uniform
from rusty_r2.task import Task

if TYPE_CHECKING:
    import torch

    from rusty_r2.lm.grammar import ActionGrammar, Matcher
    from rusty_r2.lm.transformer import Transformer

CONTEXT = 8192
SMALL = 2 << 30
"""bytes of weights; up to here every machine computes in float32, and says the same"""


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
        self._shared: Beginning | None = None

    @classmethod
    def load(cls, name: str, address: str = "", *, device: str = "cpu", batch: int = 64) -> Batched:
        """`name` is what follows hf: in an address."""
        from rusty_r2.lm.transformer import Transformer, dtype_for, locate

        weights = [path.stat().st_size for path in locate(name).glob("model*.safetensors")]
        dtype = "float32" if 0 < sum(weights) <= SMALL else dtype_for(device)
        model = Transformer.load(name, context=CONTEXT, device=device, dtype=dtype)
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
        """Let the rows speak to their end, all together."""
        if not rows:
            return
        common, reader = self._reader(prompts)
        fresh = [[*ids[common:], *row.tokens] for ids, row in zip(prompts, rows, strict=True)]
        for row in rows:
            row.read = len(row.tokens)
        logits = reader.begin(fresh, rows[0].most)
        while True:
            self._choose(rows, logits, sampling)
            stay = [at for at, row in enumerate(rows) if not row.finish]
            if not stay:
                return
            if 8 * len(stay) <= 7 * len(rows):
                reader.keep(stay)
                rows = [rows[at] for at in stay]
            logits = reader.step([_next(row) for row in rows])

    def _choose(self, rows: Sequence[_Row], logits: torch.Tensor, sampling: Sampling) -> None:
        """The next word of every row that has nothing left to read."""
        ready = [at for at, row in enumerate(rows) if not row.finish and row.read == len(row.tokens)]
        if not ready:
            return
        some = [rows[at] for at in ready]
        masks = [row.matcher.mask() for row in some if row.matcher is not None]
        mask = np.stack(masks) if masks else None
        chance = uniform([row.seed for row in some], [len(row.tokens) for row in some])
        for row, token in zip(some, pick(logits[ready], sampling, chance, mask), strict=True):
            if token in self.model.ends:
                row.finish = "stop"
            else:
                row.say(token)

    def _reader(self, prompts: Sequence[list[int]]) -> tuple[int, Rows | Repeated]:
        """How many tokens all prompts begin with alike, and what reads the rest."""
        first, last = min(prompts), max(prompts)
        pairs = zip(first, last, strict=False)
        same = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(last)))
        common = min(same, min(map(len, prompts)) - 1)
        if not fits(self.model.model):
            return common, Repeated(self.model.model, first[:common])
        if self._shared is None or self._shared.ids != tuple(first[:common]):
            self._shared = Beginning.read(self.model.model, first[:common])
        return common, Rows(self.model.model, self._shared)

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
