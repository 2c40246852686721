# SPDX-License-Identifier: AGPL-3.0-or-later
"""One run of offline GRPO: recorded groups (replay.py) as rollouts of TRL's trainer, before and after.

Base and result are compared on groups kept out of training: of every two answers that were paid differently,
how often is the better one the likelier, by the mean log-probability of its own tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rusty_r2 import files
from rusty_r2.config import resolved
from rusty_r2.data import rows
from rusty_r2.errors import DataError
from rusty_r2.train.agent_grpo import paid, rolled_out
from rusty_r2.train.before_after import Comparison, Drawn, Scores, both, compare
from rusty_r2.train.encoded import Said, order
from rusty_r2.train.grpo_run import GroupRun
from rusty_r2.train.grpo_trainer import FLAT
from rusty_r2.train.lora import Shape
from rusty_r2.train.replay import Group, ReplayConfig, read_groups


class Recordings:
    """A rollout function that says what was said before."""

    def __init__(self, groups: Sequence[Group], size: int, end: int) -> None:
        self.groups, self.size, self.end = groups, size, end

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        first = trainer.accelerator.process_index * len(prompts)
        said = [self._answer(int(name), (first + row) % self.size) for row, name in enumerate(prompts)]
        rolled = rolled_out(
            [list(self.groups[int(name)].prompt) for name in prompts],
            [list(one[0]) for one in said],
            [list(one[2]) for one in said],
        )
        return rolled | {"env_mask": [list(one[1]) for one in said], "paid": [one[3] for one in said]}

    def _answer(
        self, group: int, place: int
    ) -> tuple[Sequence[int], Sequence[int], Sequence[float], float | None]:
        """The answer at this place; a group that is too small is filled with words that are left out."""
        answers = self.groups[group].answers
        if place >= len(answers):
            return (self.end,), (0,), (0.0,), None
        one = answers[place]
        return one.ids, one.own, one.logprobs, one.reward


class Replay(GroupRun):
    """Groups are read from a file."""

    method = "replay"
    config: ReplayConfig

    def train(self, learned: Sequence[dict[str, Any]], held: Sequence[dict[str, Any]]) -> Path | str:
        config = self.config
        found = read_groups(learned, self.chat, config)
        if not found.kept:
            raise DataError(
                f"{config.data} holds no group whose answers were paid differently: {found.told()}. "
                "Record more: rusty trace collect"
            )
        size = max(len(group.answers) for group in found.kept)
        shape = self.shape(size)
        self._steps = config.max_steps or self._count(found.kept, shape, size)
        lengths = [group.length for group in found.kept]
        plan = self.plan(shape, lengths, found.told())
        if config.dry_run:
            return json.dumps(resolved(config), indent=2) + f"\n{plan}"
        facts = {"dataset": files.digest(config.data), "rows_a_step": shape.rows}
        lineage = {"rows": len(found.kept), "traces": len(found.traces), "data": str(config.data)}
        lineage["traces_digest"] = rows.digest(sorted(found.traces))[:16] if found.traces else ""
        self.begin({**facts, "lineage": lineage}, plan)
        trainer = self.trainer(
            shape,
            size,
            max(lengths),
            self._order(found.kept, shape, size),
            reward_funcs=paid,
            rollout_func=Recordings(found.kept, size, self.chat.end),
        )
        away = read_groups(held, self.chat, config).kept
        pairs = Pairs.of((away or found.kept)[: config.eval_rows])
        if self.interrupted(self.fit(trainer)):
            return self.folder
        model = trainer.accelerator.unwrap_model(trainer.model)
        pad = int(self.tokenizer.pad_token_id)
        found_out = pairs.compare(model, pad=pad, held_out=bool(away)) if len(pairs.better) else None
        return self.conclude(found_out)

    @property
    def steps(self) -> int:
        return self._steps

    def _count(self, groups: Sequence[Group], shape: Shape, size: int) -> int:
        each = shape.rows // size
        return max(1, round(self.config.epochs * len(groups) / each))

    def _order(self, groups: Sequence[Group], shape: Shape, size: int) -> list[dict[str, Any]]:
        """The number of a group for each place of the run; the largest first, where memory would run out."""
        lengths = [group.length for group in groups]
        places = order(
            lengths,
            [str(place) for place in range(len(groups))],
            count=self.steps * shape.rows // size,
            seed=self.config.seed,
        )
        return [{"prompt": str(place)} for place in places]


@dataclass(frozen=True)
class Pairs:
    """Every two answers of a group that were paid differently."""

    said: list[Said]
    better: NDArray[np.int64]
    worse: NDArray[np.int64]
    group: NDArray[np.int64]
    """which group a pair is of: pairs of one group are no independent witnesses, so groups are drawn"""

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Pairs:
        said: list[Said] = []
        pairs: list[tuple[int, int, int]] = []
        for number, group in enumerate(groups):
            first = len(said)
            said += [
                Said([*group.prompt], [*one.ids], [own == 1 for own in one.own]) for one in group.answers
            ]
            for a, b in permutations(range(len(group.answers)), 2):
                if group.answers[a].reward > group.answers[b].reward + FLAT:
                    pairs.append((first + a, first + b, number))
        return cls(said, *np.array(pairs, np.int64).reshape(-1, 3).T)

    def compare(self, model: Any, *, pad: int, held_out: bool = True) -> Comparison:
        """Base and result: which of two answers is the likelier, by its mean log-probability a token."""
        return self.compared(*both(model, self.said, pad=pad), held_out=held_out)

    def compared(self, before: Scores, after: Scores, *, held_out: bool) -> Comparison:
        def right(scores: Scores, drawn: Drawn) -> float:
            return self._mean(scores.mean[self.better] > scores.mean[self.worse], drawn)

        def margin(scores: Scores, drawn: Drawn) -> float:
            return self._mean(scores.mean[self.better] - scores.mean[self.worse], drawn)

        measures: dict[str, Callable[[Scores, Drawn], float]] = {
            "better answer is likelier": right,
            "margin, nats a token": margin,
        }
        groups = range(int(self.group.max()) + 1)
        return compare(measures, before, after, [groups], held_out=held_out)

    def _mean(self, values: NDArray[Any], drawn: Drawn) -> float:
        """Over the pairs of the groups that were drawn."""
        sums, counts = np.bincount(self.group, weights=values), np.bincount(self.group)
        return float(sums[drawn[0]].sum() / counts[drawn[0]].sum())
