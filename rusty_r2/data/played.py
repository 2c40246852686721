# SPDX-License-Identifier: AGPL-3.0-or-later
"""Episodes that were really played: gold solutions go through the gym, and the gym answers.

Observations are therefore exactly what PPO and the terminal show: in some episodes what the tests say, in the
others, as in a chat, nothing of them, and a message ends the work. Now and then Rusty first makes a mistake
(slips.py, a wrong edit, a reply that is no action, a message too early) and puts it right; the mistake is in
the episode but not learned. An episode that does not end with passing tests is thrown away. They are played
side by side, in threads or on many cores in processes (gym/farm.py), and come out in their tasks' order.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.data import voice
from rusty_r2.data.episode import Episode, Turn, ask, say
from rusty_r2.data.slips import slip
from rusty_r2.errors import DataError, ProtocolError
from rusty_r2.gym.env import CodingEnv, EnvConfig, asks, opening, waits
from rusty_r2.gym.families import mutate
from rusty_r2.gym.farm import WORTH, Farm, open_envs
from rusty_r2.gym.proof import gold
from rusty_r2.gym.shown import Shown
from rusty_r2.gym.vector import Step, VectorEnv
from rusty_r2.protocol import Action, Cmd, Edit, Msg, parse
from rusty_r2.task import Task, Tree

MUTATIONS: dict[str, mutate.Mutation] = {
    "fix_operator": mutate.operator,
    "fix_constant": mutate.constant,
    "fix_comparison": mutate.comparison,
    "fix_call": mutate.call,
    "fix_return": mutate.returned,
    "fix_grammar": mutate.grammar,
}
"""faults of the training families, by family: those of held-out families must stay unseen"""
EARLY = ("Done.", "Should work now.", "On it.", "That looks easy.", "Which file?", "Let me think.")
ENV = EnvConfig(max_turns=8, quiet=0.4)
PATIENCE = 20
"""tasks in a row that could not be played before we say that the sandbox is broken"""
TRIES = 3
"""of a task whose sandbox, or its process, fails"""
SLOTS = 4
"""tasks under way for each worker"""


@dataclass(frozen=True)
class Chances:
    """How often a played episode begins with something other than gold."""

    malformed: float = 0.06
    early: float = 0.03
    wrong: float = 0.3
    look: float = 0.02
    faults: tuple[mutate.Mutation, ...] = tuple(MUTATIONS.values())
    """what a wrong edit may have"""

    @classmethod
    def among(cls, some: Shown) -> Chances:
        """The usual ones, with faults of families that are demonstrated alone."""
        return cls(faults=tuple(way for name, way in MUTATIONS.items() if some.has(name)))


class Spoilt(Exception):
    """The sandbox of an episode, or its process, failed: what came of it does not count."""


Line = Generator[None, Step, Episode | None]
"""the play of one task in one slot: it is sent what came of each reply, and returns the episode"""


def play(
    tasks: Iterable[Task],
    *,
    seed: int,
    source: str,
    licence: str = "AGPL-3.0-or-later",
    workers: int = 2,
    chances: Chances | None = None,
) -> Iterator[Episode]:
    """One episode a task, in the tasks' order; those that cannot be solved here are left out."""
    waiting = iter(tasks)
    first = list(itertools.islice(waiting, max(WORTH, SLOTS * workers)))
    if not first:
        return
    ways = (chances or Chances(), Chances(0, 0, 0, 0))
    missed = 0
    with open_envs(len(first), ENV, workers=workers) as envs:

        def begin(slot: int, task: Task) -> Line:
            attempt = partial(_attempt, envs, slot, task, source=source, licence=licence)
            return _line(attempt, f"{seed}/{task.name}", ways)

        for episode in _in_order(envs, itertools.chain(first, waiting), begin):
            missed = 0 if episode else missed + 1
            if episode:
                yield episode
            if missed > PATIENCE:
                raise DataError(f"{missed} tasks in a row could not be played. Type: rusty doctor")


def _in_order(
    envs: VectorEnv | Farm, tasks: Iterator[Task], begin: Callable[[int, Task], Line]
) -> Iterator[Episode | None]:
    """What came of each task, in the tasks' order, whichever ends first; a free slot takes the next one."""
    numbered = enumerate(tasks)
    free = list(range(len(envs)))
    lines: dict[int, tuple[int, Line]] = {}
    ended: dict[int, Episode | None] = {}
    due = 0
    while True:
        for number, task in itertools.islice(numbered, len(free)):
            slot = free.pop()
            lines[slot] = number, begin(slot, task)
            next(lines[slot][1])
        if not lines:
            return
        for step in envs.poll():
            number, line = lines[step.slot]
            try:
                line.send(step)
            except StopIteration as end:
                ended[number] = end.value
                free.append(step.slot)
                del lines[step.slot]
        while due in ended:
            yield ended.pop(due)
            due += 1


def _line(attempt: Callable[..., Line], key: str, ways: tuple[Chances, Chances]) -> Line:
    """Play one task as chance will have it, or else plainly; None where neither ended well."""
    for _ in range(TRIES):
        rng = random.Random(key)
        try:
            return (yield from attempt(rng, ways[0])) or (yield from attempt(rng, ways[1]))
        except Spoilt:
            continue  # from the beginning: what came of it must not depend on the machine
    return None


def _attempt(
    envs: VectorEnv | Farm,
    slot: int,
    task: Task,
    rng: random.Random,
    chances: Chances,
    *,
    source: str,
    licence: str,
) -> Line:
    first, _ = envs.reset(slot, task)
    turns: list[Turn] = [("system", SYSTEM), ("user", first)]
    kind, script = _script(task, rng, chances)
    step: Step | None = None
    for turn in script:
        if step is not None and (step.done or (len(turns[-2]) == 3 and not _seen(step.observation))):
            return None  # over too soon, or a mistake that nobody can see
        envs.submit(slot, turn[1])
        step = yield
        if step.info["masked"]:
            raise Spoilt(step.info["why"])
        turns += [turn, ("observation", step.observation)]
    if step is None or not step.info["passed"]:
        return None
    if waits(task, ENV):
        turns.pop()  # a message ends the turn: nobody answers it
    elif rng.random() < 0.8:
        turns.append(say(Msg(voice.done(rng, "again" if kind == "DEBUG" else "done"))))
    return Episode(kind, source, tuple(turns), licence)


def _seen(observation: str) -> bool:
    """Whether a mistake shows: in what the tests say, or in how a command ended."""
    return "TEST_RESULT:" in observation or not observation.startswith(("exit 0", "wrote "))


def repairs(base: Iterable[Episode], rng: random.Random) -> Iterator[Episode]:
    """Episodes of one reply, said wrongly first, told so by the gym, and said rightly then."""
    task = Task("repair", "-", Tree())
    with CodingEnv([task]) as env:
        for episode in base:
            request, right = episode.turns[1], episode.turns[2]
            wrong = malformed(right[1], rng)
            env.reset(options={"task": task})
            hint = env.step(wrong)[0]
            turns = (episode.turns[0], request, ("assistant", wrong, False), ("observation", hint), right)
            yield Episode("REPAIR", episode.source, turns, episode.licence, episode.split)


def malformed(reply: str, rng: random.Random) -> str:
    """A reply that a small model might have written instead: never an action."""
    for breaking in rng.sample(BREAKS, len(BREAKS)):
        broken = breaking(reply)
        try:
            parse(broken)
        except ProtocolError:
            return broken
    return "{"


BREAKS: tuple[Callable[[str], str], ...] = (
    lambda reply: reply[:-1],
    lambda reply: reply[: max(12, len(reply) * 2 // 3)],
    lambda reply: reply.replace('"action"', "action", 1),
    lambda reply: reply.replace('"', "'"),
    lambda reply: reply.replace(": ", " ", 1),
    lambda reply: reply.replace('"action": ', '"act": ', 1),
    lambda reply: reply.replace('"CMD"', '"RUN"').replace('"MSG"', '"SAY"').replace('"EDIT"', '"WRITE"'),
    lambda reply: reply.replace('"command"', '"cmd"').replace('"message"', '"text"'),
    lambda reply: reply.replace('"content"', '"body"').replace('"message"', '"msg"'),
    lambda reply: reply.replace("\\n", "\n") if "\\n" in reply else reply[1:],
    lambda reply: " ".join(str(part) for part in vars(parse(reply)).values()),
)


def _script(task: Task, rng: random.Random, chances: Chances) -> tuple[str, list[Turn]]:
    """What to do, in order, and what kind of episode that makes."""
    actions = gold(task)
    kind = "STEPS" if len(actions) > 1 else actions[0].kind
    if not asks(task):
        actions += [Msg(voice.done(rng, "untested"))] if waits(task, ENV) else []
    elif rng.random() < 0.3:
        actions[-1] = Msg(voice.answer(task.message, rng))
    script = [say(action) for action in actions]
    chance = rng.random()
    if chance < chances.malformed:
        return "REPAIR", [("assistant", malformed(script[0][1], rng), False), *script]
    chance -= chances.malformed
    if chance < chances.early:
        early: list[Turn] = [] if waits(task, ENV) else [say(Msg(rng.choice(EARLY)), learned=False)]
        return ("REPAIR" if early else kind), [*early, *script]
    chance -= chances.early
    if chance < chances.wrong:
        wrong = _wrong(task, actions[0], rng, chances.faults)
        if wrong is not None:
            mistake, remedy = wrong
            return "DEBUG", [say(mistake, learned=False), say(remedy), *script[1:]]
        return kind, script
    chance -= chances.wrong
    if chance < chances.look and isinstance(task.check, Tree):
        return "STEPS", [say(Cmd("ls -R" if any("/" in path for path in task.files) else "ls")), *script]
    return kind, script


def _wrong(
    task: Task, first: Action, rng: random.Random, faults: tuple[mutate.Mutation, ...]
) -> tuple[Action, Action] | None:
    """A plausible mistake in place of the first action, and what puts it right."""
    if isinstance(first, Edit) and first.path.endswith(".py") and rng.random() < 0.6:
        for mutation in rng.sample(faults, len(faults)):
            broken = [text for text in itertools.islice(mutation(first.content), 8) if text != first.content]
            broken = [text for text in broken if text != task.files.get(first.path)]
            if broken:
                return Edit(first.path, rng.choice(broken)), first
    return None if isinstance(first, Msg) else slip(task, first, rng)


def asked(task: Task, source: str, licence: str) -> Episode:
    """A task's opening and its gold edit, not played: for code whose tests we do not have."""
    (action,) = gold(task)
    return ask(action.kind, source, opening(task, EnvConfig()), action, licence)
