# SPDX-License-Identifier: AGPL-3.0-or-later
"""How many held-out tasks are solved: pass@1 greedily, pass@k from several tries, by family.

The tasks come from families, names and numbers that training never draws; the seed is fixed, so any two
minds (and PPO's own before and after) meet the same tasks. Decoding is constrained to actions. pass@k is
the unbiased estimator over `--samples` tries at `--temperature`; its interval is a bootstrap over tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rusty_r2.errors import TaskError
from rusty_r2.eval.figures import Figure, mean, share
from rusty_r2.eval.job import MOST_TRIES, Job
from rusty_r2.eval.kept import Kept, Row
from rusty_r2.eval.mind import Played, Shot, Speech, open_mind
from rusty_r2.eval.rates import pass_at_k
from rusty_r2.gym import catalog
from rusty_r2.gym.env import EnvConfig, opening
from rusty_r2.gym.proof import gold
from rusty_r2.protocol import render
from rusty_r2.task import Task

SEED = 20_261
"""of the held-out tasks; never a seed of training"""
COUNT = 312
"""tasks where no limit is given"""
LONGEST = 256
"""tokens of one reply"""


def tasks(count: int, *, families: Sequence[str] = (), max_difficulty: int = 3) -> list[Task]:
    """The fixed held-out tasks, every family and level in turn."""
    levels = list(range(1, max_difficulty + 1))
    found = list(
        catalog.tasks("heldout", seed=SEED, count=count, families=list(families) or None, difficulty=levels)
    )
    if not found:
        raise TaskError("there are no held-out tasks to evaluate on. Type: rusty gym list")
    return found


def shots(count: int, seed: int) -> list[Shot]:
    """Gold first moves of easy training tasks, one a family."""
    made = catalog.tasks("train", seed=seed, count=count, difficulty=1) if count else ()
    return [(opening(task, EnvConfig()), render(gold(task)[0])) for task in made]


def counted(address: str, count: int, *, shown: int, longest: int, turns: int) -> list[Played]:
    """What a mind makes of held-out tasks; those on which the sandbox broke are left aside."""
    mind = open_mind(address)
    examples = () if mind.ours else shots(shown, 0)
    played = mind.play(
        list(enumerate(tasks(count))), Speech(max_new_tokens=longest), EnvConfig(max_turns=turns), examples
    )
    return [one for one in played if not one.masked]


def measure(job: Job) -> list[Figure]:
    config = job.config
    wanted = tasks(config.limit or COUNT)
    env = EnvConfig(max_turns=config.max_turns)
    asked = {"shots": job.shots, "max_turns": config.max_turns, "longest": LONGEST}
    with job.kept("gym", **asked) as kept:
        played = _play(job, kept, wanted, 1, job.speech(LONGEST), env)
    figures = [_once(wanted, played, job.how), *_by_newness(wanted, played)]
    figures += [*_families(wanted, played), _valid(played)]
    if config.samples > 1:
        hot = job.speech(LONGEST, temperature=config.temperature, seed=config.seed * 1_000_003)
        with job.kept("gym_sampled", temperature=config.temperature, **asked) as kept:
            tried = _play(job, kept, wanted, config.samples, hot, env)
        figures += _sampled(wanted, tried, config.samples)
    return figures


def _play(
    job: Job, kept: Kept, wanted: Sequence[Task], tries: int, speech: Speech, env: EnvConfig
) -> dict[str, list[Row]]:
    """Rows of every task, one a try; what was played before is not played again."""
    number_of = {(n, k): n * MOST_TRIES + k for n in range(len(wanted)) for k in range(tries)}
    todo = [(at, wanted[n]) for (n, k), at in number_of.items() if not kept.counts(f"{wanted[n].name}#{k}")]
    with job.bar("gym" if tries == 1 else f"gym x {tries}", len(todo)) as bar:
        for one in job.mind.play(todo, speech, env, shots(job.shots, job.config.seed)):
            row = {
                "family": one.task.family,
                "passed": one.passed,
                "masked": one.masked,
                "valid": one.valid,
                "asked": opening(one.task, env),
                "replies": list(one.replies),
            }
            kept.add(f"{one.task.name}#{one.number % MOST_TRIES}", row)
            bar.advance()
    found = {task.name: [kept.rows[f"{task.name}#{k}"] for k in range(tries)] for task in wanted}
    return {name: [row for row in rows if not row["masked"]] for name, rows in found.items()}


def _once(wanted: Sequence[Task], played: dict[str, list[Row]], how: str) -> Figure:
    rows = [row for task in wanted for row in played[task.name]]
    return share("gym pass@1", sum(row["passed"] for row in rows), len(rows), note=how)


def newness(task: Task) -> str:
    """The most that is new in a held-out task, against those of training."""
    if catalog.families()[task.family].split != "train":
        return "the family is new"
    return "the wording is new" if "new_wording" in task.tags else "only names and numbers are new"


def _by_newness(wanted: Sequence[Task], played: dict[str, list[Row]]) -> list[Figure]:
    found: dict[str, list[bool]] = defaultdict(list)
    for task in wanted:
        found[newness(task)] += [row["passed"] for row in played[task.name]]
    return [
        share(f"gym pass@1 where {what}", sum(passed), len(passed), detail=True)
        for what, passed in sorted(found.items(), reverse=True)
    ]


def _families(wanted: Sequence[Task], played: dict[str, list[Row]]) -> list[Figure]:
    by_family: dict[str, list[bool]] = defaultdict(list)
    for task in wanted:
        by_family[task.family] += [row["passed"] for row in played[task.name]]
    return [
        share(f"gym pass@1: {name}", sum(passed), len(passed), detail=True)
        for name, passed in by_family.items()
    ]


def _valid(played: dict[str, list[Row]]) -> Figure:
    rows = [row for found in played.values() for row in found]
    replies = sum(len(row["replies"]) for row in rows)
    return share("gym valid replies", sum(row["valid"] for row in rows), replies, detail=True)


def _sampled(wanted: Sequence[Task], tried: dict[str, list[Row]], samples: int) -> list[Figure]:
    """pass@1 and pass@k over the tries that the sandbox did not spoil."""
    figures = []
    for k in (1, samples):
        name = f"gym pass@{k}" + (", sampled" if k == 1 else "")
        whole = [task for task in wanted if len(tried[task.name]) >= k]
        found = {
            task.name: pass_at_k(len(rows), sum(row["passed"] for row in rows), k)
            for task in whole
            if (rows := tried[task.name])
        }
        note = f"unbiased, from {samples} tries a task"
        figures.append(_mean(name, list(found.values()), detail=k == 1, note=note))
        by_family: dict[str, list[float]] = defaultdict(list)
        for task in whole:
            by_family[task.family].append(found[task.name])
        figures += [_mean(f"{name}: {f}", values, detail=True) for f, values in by_family.items()]
    return figures


def _mean(name: str, values: Sequence[float], **more: Any) -> Figure:
    """A bootstrap over tasks; where each is solved or not a plain rate, honest at 0 and at 100%."""
    if all(value in (0.0, 1.0) for value in values):
        return share(name, int(sum(values)), len(values), **more)
    return mean(name, values, scale=100, **more)
