# SPDX-License-Identifier: AGPL-3.0-or-later
"""Many episodes played side by side: one model writes all the replies, the gym's threads carry them out.

`Players.play` keeps every slot busy: while some rows write their next tokens together, others wait for
the sandbox, and a finished slot takes the next task. A row's memory is its state, so nothing is read
twice; the system prompt is read once and its state copied. Tokens, their log-probabilities and which
words were possible are kept as they were sampled: training never decodes and encodes again.
What an episode says depends on its task, its number and the weights alone, not on who else is playing.
Two pens write: a plain one, a token at a time with any mask, and on a GPU lm/scribe.py, a stretch at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.gym.env import EnvConfig
from rusty_r2.gym.farm import open_envs
from rusty_r2.gym.vector import Step
from rusty_r2.lm.chat import encode_turn, open_chat, open_reply
from rusty_r2.lm.decoding import Pen, PlainPen
from rusty_r2.lm.engine import Engine
from rusty_r2.lm.sampling import Mask, Sampling
from rusty_r2.lm.tokenizer import END, EOS, PAD, Tokenizer
from rusty_r2.task import Task

if TYPE_CHECKING:
    from rusty_r2.lm.grammar import ActionGrammar, Matcher

STOPS = frozenset({PAD, EOS, END})


@dataclass
class Episode:
    """One task played to its end, token by token."""

    number: int
    task: Task
    ids: list[int] = field(default_factory=list)
    acted: list[bool] = field(default_factory=list)
    """True where the model chose this token from several"""
    logp: list[float] = field(default_factory=list)
    """of the token under the distribution it was sampled from; 0 where nothing was chosen"""
    value: list[float] = field(default_factory=list)
    """what the value head expected where the token was chosen"""
    reward: list[float] = field(default_factory=list)
    """the reward of a reply stands on its last chosen token"""
    kept: list[Mask] = field(default_factory=list)
    """which words were possible, a bit mask for each chosen token, where not all were"""
    replies: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """what was shown: the task first, then the answer to each reply"""
    valid: int = 0
    """replies that were actions"""
    passed: bool = False
    masked: bool = False
    """the sandbox failed: this episode teaches nothing"""

    @property
    def total(self) -> float:
        return sum(self.reward)

    def read(self, ids: Sequence[int]) -> None:
        """Tokens the model did not choose."""
        self.ids += ids
        self.acted += [False] * len(ids)
        for numbers in (self.logp, self.value, self.reward):
            numbers += [0.0] * len(ids)

    def chose(self, tokens: Sequence[int], logp: Sequence[float], values: Sequence[float]) -> None:
        self.ids += tokens
        self.acted += [True] * len(tokens)
        self.logp += logp
        self.value += values
        self.reward += [0.0] * len(tokens)

    def earn(self, reward: float) -> None:
        """Put a reward on the newest chosen token; one for a reply without any is nobody's doing."""
        for at in range(len(self.acted) - 1, -1, -1):
            if self.acted[at]:
                self.reward[at] += reward
                return


@dataclass
class _Slot:
    """One row of the batch and the episode it plays now."""

    row: int
    episode: Episode
    pending: list[int]
    """to be read before the next token can be chosen"""
    writing: bool = False
    """the reply is the model's to go on with; else the gym's to answer"""
    matcher: Matcher | None = None
    words: list[int] = field(default_factory=list)
    """the reply so far"""


class Players:
    """`slots` episodes at a time."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        slots: int,
        sampling: Sampling,
        max_new_tokens: int,
        env: EnvConfig | None = None,
        grammar: ActionGrammar | None = None,
        workers: int = 0,
    ) -> None:
        self.tokenizer, self.sampling, self.limit, self.grammar = tokenizer, sampling, max_new_tokens, grammar
        self.envs = open_envs(slots, env, workers=workers)
        self.opening = [*open_chat(), *encode_turn(tokenizer, "system", SYSTEM)]
        self.seconds = {"model": 0.0, "sandbox": 0.0, "host": 0.0}
        """where the time went: reading and choosing tokens, waiting for the gym with nothing to choose,
        and all between (texts to tokens, tokens to texts)"""
        self._narrow = grammar is not None or sampling.top_k > 0 or sampling.top_p < 1
        self._engine: Engine | None = None
        self._made: Pen

    def play(self, engine: Engine, tasks: Iterable[tuple[int, Task]]) -> Iterator[Episode]:
        """Play every (number, task), in whatever order they end."""
        queue, pen = iter(tasks), self._pen(engine)
        began, before = time.perf_counter(), sum(self.seconds.values())
        fresh = engine.new_state(1)
        engine.prefill([self.opening], fresh)
        pen.fork(fresh, range(len(self.envs)))
        slots: dict[int, _Slot] = {}
        for row in range(len(self.envs)):
            self._refill(row, queue, slots)
        while slots:
            writing = [slot for slot in slots.values() if slot.writing]
            if writing:
                self._write(pen, writing)
            over = []
            for step in self._answers(wait=not any(slot.writing for slot in writing)):
                slot = slots[step.slot]
                if self._hear(slot, step):
                    over.append(step.slot)
                    yield slots.pop(step.slot).episode
            if over:
                pen.fork(fresh, over)
                for row in over:
                    self._refill(row, queue, slots)
        self.seconds["host"] += time.perf_counter() - began - (sum(self.seconds.values()) - before)

    def _pen(self, engine: Engine) -> Pen:
        """What writes; one that was made for this engine is kept, with what it recorded."""
        if self._engine is not engine:
            make = None if self._narrow else getattr(engine.model, "scribe", None)
            fast = make and make(len(self.envs), self.sampling, self.limit, STOPS)
            self._made = fast or PlainPen(engine, len(self.envs), self.sampling, keep=self._narrow)
            self._engine = engine
        return self._made

    def close(self) -> None:
        self.envs.close()

    def _refill(self, row: int, queue: Iterator[tuple[int, Task]], slots: dict[int, _Slot]) -> None:
        number, task = next(queue, (0, None))
        if task is None:
            return
        wanted, _ = self.envs.reset(row, task)
        episode = Episode(number, task, seen=[wanted])
        episode.read(self.opening)
        slots[row] = _Slot(row, episode, [])
        self._open_reply(slots[row], encode_turn(self.tokenizer, "user", wanted))

    def _open_reply(self, slot: _Slot, before: list[int]) -> None:
        slot.pending = [*before, *open_reply()]
        slot.episode.read(slot.pending)
        slot.words, slot.writing = [], True
        slot.matcher = self.grammar.start() if self.grammar else None
        self._force(slot)

    def _write(self, pen: Pen, writing: list[_Slot]) -> None:
        """One round: every writing row reads what it has to and goes on with its reply."""
        began = time.perf_counter()
        unread = [slot for slot in writing if slot.pending]
        if unread:
            pen.read(
                [slot.row for slot in unread],
                [slot.pending for slot in unread],
                seeds=[self.sampling.seed + slot.episode.number for slot in unread],
                counts=[len(slot.episode.ids) for slot in unread],
                masks=[slot.matcher.mask() for slot in unread if slot.matcher is not None],
            )
        found = pen.write()
        self.seconds["model"] += time.perf_counter() - began
        for slot in writing:
            said = found[slot.row]
            slot.episode.chose(said.tokens, said.logp, said.values)
            slot.episode.kept += said.kept
            slot.pending = said.unread
            self._said(slot, said.tokens)

    def _said(self, slot: _Slot, tokens: list[int]) -> None:
        """Go on with the reply, or hand it to the gym where it is over."""
        last = tokens[-1]
        slot.words += tokens if last not in STOPS else tokens[:-1]
        if last in STOPS:
            self._submit(slot, ended=last == END)
            return
        if slot.matcher is not None:
            slot.matcher.accept(last)
            self._force(slot)
        if len(slot.words) >= self.limit or (slot.matcher is not None and slot.matcher.done):
            self._submit(slot, ended=False)

    def _force(self, slot: _Slot) -> None:
        """Say what the grammar leaves no choice about."""
        if slot.matcher is not None:
            forced = slot.matcher.forced()
            slot.words += forced
            slot.pending = [*slot.pending, *forced]
            slot.episode.read(forced)

    def _submit(self, slot: _Slot, *, ended: bool) -> None:
        if not ended:  # cut off, or closed by the grammar: the turn is closed for it
            slot.pending = [*slot.pending, END]
            slot.episode.read([END])
        reply = self.tokenizer.decode(slot.words)
        slot.episode.replies.append(reply)
        self.envs.submit(slot.row, reply)
        slot.words, slot.matcher = slot.pending, None  # what the next turn has to read first
        slot.pending, slot.writing = [], False

    def _answers(self, *, wait: bool) -> list[Step]:
        began = time.perf_counter()
        steps = self.envs.poll(wait=wait)
        if wait:
            self.seconds["sandbox"] += time.perf_counter() - began
        return steps

    def _hear(self, slot: _Slot, step: Step) -> bool:
        """Take the gym's answer; True where the episode is over."""
        episode, info = slot.episode, step.info
        episode.earn(step.reward)
        episode.seen.append(step.observation)
        episode.valid += bool(info["valid"])
        episode.passed, episode.masked = bool(info["passed"]), bool(info["masked"])
        if step.done:
            return True
        unread = slot.words
        turn = encode_turn(self.tokenizer, "observation", step.observation)
        self._open_reply(slot, turn)
        slot.pending = [*unread, *slot.pending]
        return False


def facts(episodes: Sequence[Episode]) -> dict[str, Any]:
    """What a round of play was like, in numbers: overall, by family and by difficulty."""
    counted = [episode for episode in episodes if not episode.masked]
    replies = sum(len(episode.replies) for episode in counted)
    told = {
        "reward/mean": _mean([episode.total for episode in counted]),
        "play/pass_rate": _mean([episode.passed for episode in counted]),
        "play/valid_rate": sum(episode.valid for episode in counted) / max(1, replies),
        "play/replies": replies / max(1, len(counted)),
        "play/masked": len(episodes) - len(counted),
        "play/tokens": sum(sum(episode.acted) for episode in counted),
    }
    for name, key in (("family", lambda t: t.family), ("difficulty", lambda t: str(t.difficulty))):
        for value in sorted({key(episode.task) for episode in counted}):
            some = [episode for episode in counted if key(episode.task) == value]
            told[f"reward_by_{name}/{value}"] = _mean([episode.total for episode in some])
    return told


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers)) if numbers else 0.0
