# SPDX-License-Identifier: AGPL-3.0-or-later
"""How often a reply is an action at all: freely, and with the grammar that allows nothing else.

The questions are first moves: held-out gym tasks, held-out descriptions of commands, and small talk. Greedy.
A reply that was cut at its longest is counted as it stands, so even constrained replies can fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from rusty_r2.eval import commands, gym
from rusty_r2.eval.figures import Figure, share
from rusty_r2.eval.job import Job, instead
from rusty_r2.eval.mind import Ask, Speech, is_action
from rusty_r2.gym.env import EnvConfig, opening

COUNT = 400
"""questions where no limit is given"""
LONGEST = 256
TALK = (
    "hello",
    "Who are you?",
    "What can you do?",
    "thanks, that was all",
    "What is a pipe?",
    "explain what chmod does",
    "I am stuck.",
    "what time is it",
    "tell me a joke",
    "What is the difference between a file and a folder?",
)


def questions(job: Job) -> list[str]:
    """A third gym, two thirds descriptions, and a little small talk."""
    count = job.config.limit or COUNT
    described = commands.pairs_of(job.config, "tldr") or commands.pairs_of(job.config, "shipped") or []
    few = list(TALK[: max(1, count // 10)])
    tasks = [opening(task, EnvConfig()) for task in gym.tasks(max(1, count // 3))]
    rest = max(0, count - len(few) - len(tasks))
    return list(dict.fromkeys([*few, *tasks, *(pair.request for pair in job.take(described)[:rest])]))


def measure(job: Job) -> list[Figure]:
    wanted = questions(job)
    return [
        _valid(job, wanted, "valid actions, free", grammar=False),
        _valid(job, wanted, "valid actions, constrained", grammar=True),
    ]


def _valid(job: Job, wanted: Sequence[str], name: str, *, grammar: bool) -> Figure:
    half = job.shots // 2
    given = (*gym.shots(half, job.config.seed), *commands.shots(job.config, "tldr", job.shots - half))
    with job.kept("actions", grammar=grammar, shots=given, longest=LONGEST) as kept:
        todo = [asked for asked in wanted if asked not in kept.rows]
        with job.bar(name, len(todo)) as bar:
            asks = [Ask(asked, given) for asked in todo]
            for place, text in job.mind.answer(asks, Speech(grammar=grammar, max_new_tokens=LONGEST)):
                kept.add(todo[place], {"reply": text, "valid": is_action(text)})
                bar.advance()
        rows = [kept.rows[asked] for asked in wanted]
    said = {"note": "first replies, greedy", "caveat": instead(job.config, "tldr")}
    return share(name, sum(row["valid"] for row in rows), len(rows), **said)
