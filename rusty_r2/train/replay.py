# SPDX-License-Identifier: AGPL-3.0-or-later
"""Offline GRPO: learn from answers that were recorded, by whomever, instead of making new ones.

    rusty data grpo --output grpo.jsonl
    rusty train replay --data grpo.jsonl --base-model smollm2

A row is a group: {prompt, completions, rewards}, and where known the tokens of each turn and their
log-probabilities under the policy that spoke. Advantages are worked out within the group. Where the
log-probabilities are known, each token counts by the ratio of the two policies, clipped as in PPO: what the
model would say anyway counts as it is, what it would never say counts little. Tokens are used only where
they are this model's own words; otherwise the text is encoded anew, and the ratio begins at 1. What the gym
or a tool said between two turns is read, never trained. The trainer is grpo_trainer.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rusty_r2.errors import ConfigError, DataError, need
from rusty_r2.train.grpo import GroupOptions

if TYPE_CHECKING:
    from rusty_r2.train.chatting import Chat

UNKNOWN = float("nan")
"""a log-probability nobody recorded"""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(GroupOptions):
    """Learn from recorded groups of answers and their rewards."""

    data: Path
    """rows {prompt, completions, rewards} of rusty data grpo or rusty trace collect"""
    eval_data: Path | None = None
    """held-out rows; default: NAME.eval.jsonl beside --data, else one prompt in ten"""
    trust_logprobs: bool = True
    """weigh recorded tokens by how likely they are now; off: take them as this model's own"""
    max_group: int = 8
    """completions compared at once; larger groups are cut into even parts"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_group < 2:
            raise ConfigError("--max-group must be at least 2: a group is compared with itself")


@dataclass(frozen=True)
class Recorded:
    """One completion as tokens."""

    ids: tuple[int, ...]
    own: tuple[int, ...]
    """1 where the model wrote the token"""
    logprobs: tuple[float, ...]
    """under the policy that wrote it; NaN where that is not known"""
    reward: float

    @property
    def known(self) -> bool:
        """Whether any of its own tokens came with a log-probability."""
        return any(own and p == p for own, p in zip(self.own, self.logprobs, strict=True))


@dataclass(frozen=True)
class Group:
    """One prompt and what was answered."""

    prompt: tuple[int, ...]
    answers: tuple[Recorded, ...]

    @property
    def flat(self) -> bool:
        paid = [one.reward for one in self.answers]
        return max(paid) - min(paid) < 1e-6

    @property
    def length(self) -> int:
        return len(self.prompt) + max(len(one.ids) for one in self.answers)


@dataclass
class Groups:
    """What a file of recorded groups came to."""

    kept: list[Group] = field(default_factory=list)
    flat: int = 0
    long: int = 0
    """completions over the length"""
    traces: set[str] = field(default_factory=set)
    """ids of the traces they come from, where known"""
    known: int = 0
    """completions whose log-probabilities are known"""

    def told(self) -> str:
        answers = sum(len(group.answers) for group in self.kept)
        said = f"{len(self.kept)} groups, {answers} completions, {self.known} with known probabilities"
        said += f"; {self.flat} flat groups teach nothing and were left out" if self.flat else ""
        return said + (f"; {self.long} completions are longer than --max-length" if self.long else "")


def read_groups(rows: Iterable[dict[str, Any]], chat: Chat, config: ReplayConfig) -> Groups:
    """Recorded groups as tokens of this model."""
    found = Groups()
    for row in rows:
        found.traces.update(str(one) for one in row.get("trace_ids") or ())
        prompt = _prompt(row["prompt"], chat)
        rewards = row.get("raw_rewards") or row["rewards"]
        answers = [
            _recorded(row, number, float(rewards[number]), chat, config.trust_logprobs)
            for number in range(len(row["completions"]))
        ]
        short = [one for one in answers if len(prompt) + len(one.ids) <= config.max_length]
        found.long += len(answers) - len(short)
        for part in _parts(short, config.max_group):
            group = Group(tuple(prompt), tuple(part))
            if len(part) < 2 or group.flat:
                found.flat += 1
            else:
                found.kept.append(group)
                found.known += sum(one.known for one in part)
    return found


def lesson(config: ReplayConfig) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(groups to learn from, groups held out) of a file that holds nothing else; a faulty line is named."""
    from rusty_r2.data import rows
    from rusty_r2.data.validate import check_file
    from rusty_r2.train.encoded import split

    path = config.data
    if not path.is_file():
        raise DataError(f"there is no file {path}. Type: rusty data grpo --output {path}")
    found = check_file(path)
    if found.kind != "grpo" and not found.faults:
        raise DataError(f"{path} holds {found.kind} rows, not groups of answers. Type: rusty data grpo")
    if found.faults:
        raise DataError(f"{found.faults[0]}. Type: rusty data validate {path}")
    learned, held = split(path, rows.load(path), config.eval_data, "grpo", config.seed)
    if not learned:
        raise DataError(f"every prompt of {path} is among the held-out ones. Name others: --eval-data FILE")
    return learned, held


def _prompt(prompt: Any, chat: Chat) -> list[int]:
    if isinstance(prompt, str):
        return [int(word) for word in chat.tokenizer(prompt)["input_ids"]]
    return chat.opening(prompt)


def _recorded(row: dict[str, Any], number: int, reward: float, chat: Chat, trust: bool) -> Recorded:
    """One completion: its turns as they were said, and what stood between them."""
    completion = row["completions"][number]
    turns = [completion] if isinstance(completion, str) else completion
    words, likely = ((row.get(name) or {number: None})[number] for name in ("token_ids", "logprobs"))
    ids: list[int] = []
    own: list[int] = []
    logprobs: list[float] = []
    said = 0
    for turn in turns:
        text = turn if isinstance(turn, str) else str(turn["content"])
        if not isinstance(turn, str) and turn["role"] != "assistant":
            glue = chat.between(ids, text)
            ids, own, logprobs = ids + glue, own + [0] * len(glue), logprobs + [0.0] * len(glue)
            continue
        known = [int(word) for word in _of_turn(words, said)]
        chances = [UNKNOWN if p is None else float(p) for p in _of_turn(likely if trust else None, said)]
        reply, chances = _reply(text, known, chances, chat)
        ids, own, logprobs = ids + reply, own + [1] * len(reply), logprobs + chances
        said += 1
    return Recorded(tuple(ids), tuple(own), tuple(logprobs), reward)


def _reply(text: str, known: list[int], chances: list[float], chat: Chat) -> tuple[list[int], list[float]]:
    """A turn's tokens and their log-probabilities; recorded ones only where they are this model's words."""
    if not known or not _says(known, text, chat):
        fresh = chat.words(text)
        return fresh, [UNKNOWN] * len(fresh)
    if len(chances) != len(known):
        chances = [UNKNOWN] * len(known)
    if known[-1] in chat.stops:
        return known, chances
    return [*known, chat.end], [*chances, UNKNOWN]


def _of_turn(kept: Any, turn: int) -> list[Any]:
    """What was recorded about one turn; nothing where a recorder kept it for none, or for fewer turns."""
    found = kept[turn] if isinstance(kept, list) and turn < len(kept) else []
    return found if isinstance(found, list) else []


def _says(ids: Sequence[int], text: str, chat: Chat) -> bool:
    if min(ids) < 0 or max(ids) >= len(chat.tokenizer):
        return False
    return chat.text(ids) == text.removeprefix(" ")


def _parts(answers: Sequence[Recorded], most: int) -> Iterator[Sequence[Recorded]]:
    """At most `most` at a time, as even as can be."""
    count = -(-len(answers) // most)
    edges = [round(part * len(answers) / count) for part in range(count + 1)] if count else []
    yield from (answers[low:high] for low, high in pairwise(edges))


def train(config: ReplayConfig) -> Path | str:
    """Learn from recorded groups; base and result are compared on groups kept out."""
    need("trl", extra="lora")
    learned, held = lesson(config)  # what is wrong with it is said before anything heavy is loaded
    from rusty_r2.train.replay_run import Replay

    with ExitStack() as stack:
        return Replay(config, stack).train(learned, held)
