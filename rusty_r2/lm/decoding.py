# SPDX-License-Identifier: AGPL-3.0-or-later
"""Many answers written side by side: `Decoder` is the loop behind Engine.generate and generate_batch.

Each round reads what every row still has to read (its prompt, its last word, words the grammar forced) in one
call, and chooses one word a row in another. Rows that end leave the batch; nothing is padded, and what a row
says depends on its own prompt and seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rusty_r2.errors import ConfigError
from rusty_r2.lm.engine import STOP, Completion, Engine, State
from rusty_r2.lm.sampling import Mask, Sampling

if TYPE_CHECKING:
    from rusty_r2.lm.grammar import ActionGrammar, Matcher


@dataclass
class _Row:
    """One answer in the making."""

    number: int
    seed: int
    pending: list[int]
    """to be read before the next word can be chosen"""
    matcher: Matcher | None
    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    reason: str = ""
    told: int = 0
    """tokens that `advance` has reported"""

    def say(self, token: int, logp: float, value: float, *, forced: bool) -> None:
        self.tokens.append(token)
        self.logp.append(logp)
        self.values.append(value)
        self.forced.append(forced)
        self.pending.append(token)


class Decoder:
    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        max_new_tokens: int,
        *,
        stop: Sequence[int] = STOP,
        grammar: ActionGrammar | None = None,
        state: State | None = None,
        seeds: Sequence[int] | None = None,
    ) -> None:
        if not all(len(prompt) for prompt in prompts):
            raise ConfigError("a prompt is empty: begin it with <bos> at least")
        self.engine, self.sampling, self.limit, self.stop = engine, sampling, max_new_tokens, frozenset(stop)
        numbers = range(len(prompts))
        given = [sampling.seed + number for number in numbers] if seeds is None else list(seeds)
        self.rows = [
            _Row(number, given[number], list(prompts[number]), grammar.start() if grammar else None)
            for number in numbers
        ]
        self.active = [row for row in self.rows if max_new_tokens > 0]
        self.shared = state
        self.state = engine.new_state(len(prompts)) if state is None else state
        for row in self.active:
            self._force(row)
        self._drop_finished()

    @property
    def done(self) -> bool:
        return not self.active

    def advance(self) -> list[tuple[int, int]]:
        """One round: (row, token) for everything newly said, forced words included."""
        rows = self.active
        if not rows:
            return []
        output = self.engine.prefill([row.pending for row in rows], self.state)
        chosen = self.engine.pick(
            output,
            self.sampling,
            seeds=[row.seed for row in rows],
            counts=[len(row.tokens) for row in rows],
            mask=_masks(rows),
            history=[row.tokens for row in rows],
        )
        for i, row in enumerate(rows):
            row.pending = []
            self._hear(row, int(chosen.tokens[i]), float(chosen.logp[i]), float(chosen.values[i]))
        self._drop_finished()
        return self.news()

    def news(self) -> list[tuple[int, int]]:
        """(row, token) for what was said since the last time."""
        found = [(row.number, token) for row in self.rows for token in row.tokens[row.told :]]
        for row in self.rows:
            row.told = len(row.tokens)
        return found

    def completions(self) -> list[Completion]:
        return [Completion(row.tokens, row.logp, row.values, row.forced, row.reason) for row in self.rows]

    def _hear(self, row: _Row, token: int, logp: float, value: float) -> None:
        if token in self.stop:
            row.reason = "stop"
            return
        row.say(token, logp, value, forced=False)
        if row.matcher is not None:
            row.matcher.accept(token)
        self._force(row)

    def _force(self, row: _Row) -> None:
        """Say what the grammar leaves no choice about, and see whether the row has come to its end."""
        if row.matcher is not None:
            for token in row.matcher.forced():
                if len(row.tokens) < self.limit:
                    row.say(token, 0.0, float("nan"), forced=True)
            if row.matcher.done:
                row.reason = "grammar"
        if len(row.tokens) >= self.limit:
            row.reason = row.reason or "length"

    def _drop_finished(self) -> None:
        """Rows that ended read their last words, if someone keeps their state, and leave."""
        stay = [i for i, row in enumerate(self.active) if not row.reason]
        if len(stay) == len(self.active):
            return
        if self.shared is not None:
            for row in self.active:
                if row.reason and row.pending:
                    self.engine.prefill([row.pending], self.state)
        self.active = [self.active[i] for i in stay]
        if self.active:
            self.state = self.engine.select(self.state, stay)


def _masks(rows: list[_Row]) -> Mask | None:
    masks = [row.matcher.mask() for row in rows if row.matcher is not None]
    return np.stack(masks) if masks else None
