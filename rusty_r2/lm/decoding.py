# SPDX-License-Identifier: AGPL-3.0-or-later
"""Many answers written side by side: `Decoder` is the loop behind Engine.generate and generate_batch.

Each round reads what every row still has to read (its prompt, its last word, words the grammar forced) in one
call, and chooses one word a row in another. Rows that end leave the batch; nothing is padded, and what a row
says depends on its own prompt and seed alone.

A `Pen` is for those who keep many answers going themselves (agent/players.py): rows are read and written in
place. `PlainPen` does it on any engine, a word at a time; scribe.py on a GPU, many words at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

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


# ── pens ────────────────────────────────────────────────────────────────────────────────────────


class Words(NamedTuple):
    """What one row said at a stretch: one word at least."""

    tokens: list[int]
    logp: list[float]
    values: list[float]
    unread: list[int]
    """chosen, but not read yet: to be read before the row can go on"""
    kept: list[Mask]
    """which words were possible at each place, where asked for"""


class Pen(Protocol):
    """Rows that read and write, each from its own state."""

    def fork(self, source: State, rows: Sequence[int]) -> None:
        """Let these rows go on from a state of one row."""

    def read(
        self,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        counts: Sequence[int],
        masks: Sequence[Mask] = (),
    ) -> None:
        """Give rows something to read; their next word draws the counts-th number of their seed."""

    def write(self) -> dict[int, Words]:
        """What every row says that was given something to read and has not ended since."""


class PlainPen:
    """One word at a time, on any engine."""

    def __init__(self, engine: Engine, rows: int, sampling: Sampling, *, keep: bool = False) -> None:
        self.engine, self.sampling, self.keep = engine, sampling, keep
        self.state = engine.new_state(rows)

    def fork(self, source: State, rows: Sequence[int]) -> None:
        for row in rows:  # plain slices are much faster than a list of places
            self.state[:, :, row] = source[:, :, 0]

    def read(
        self,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        counts: Sequence[int],
        masks: Sequence[Mask] = (),
    ) -> None:
        self._rows, self._tokens = list(rows), list(tokens)
        self._seeds, self._counts, self._masks = list(seeds), list(counts), list(masks)

    def write(self) -> dict[int, Words]:
        part = self.engine.select(self.state, self._rows)
        output = self.engine.prefill(self._tokens, part)
        self.state[:, :, self._rows] = part
        chosen = self.engine.pick(
            output,
            self.sampling,
            seeds=self._seeds,
            counts=self._counts,
            mask=np.stack(self._masks) if self._masks else None,
            keep=self.keep,
        )
        words, logp, values = chosen.tokens.tolist(), chosen.logp.tolist(), chosen.values.tolist()
        kept = [[]] * len(words) if chosen.kept is None else [[mask] for mask in chosen.kept]
        return {
            row: Words([words[i]], [logp[i]], [values[i]], [words[i]], kept[i])
            for i, row in enumerate(self._rows)
        }
