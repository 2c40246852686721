# SPDX-License-Identifier: AGPL-3.0-or-later
"""All tasks by name: the hand-made ones and those of every family. `rusty gym list`, `check` and `play`.

    catalog.get("sum_list")                  a hand-made task
    catalog.get("rename-1-train-7")          a family's task: family, level, split, seed
    catalog.tasks("heldout", count=200)      different tasks of all families, the same every time

What makes a task fair is in proof.py; how one is played in env.py.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import tyro

from rusty_r2.errors import TaskError
from rusty_r2.gym.env import TASKS, CodingEnv, EnvConfig
from rusty_r2.gym.families import FAMILIES, SPLITS, Family, fingerprint
from rusty_r2.gym.families.base import How
from rusty_r2.gym.proof import faults, gold
from rusty_r2.gym.shown import Shown
from rusty_r2.protocol import render
from rusty_r2.task import Task, index

PATIENCE = 40
"""draws in a row that bring nothing new before a lesson counts as exhausted"""


def families() -> dict[str, Family]:
    """Every procedural family by name."""
    return dict(FAMILIES)


@cache
def _handmade() -> tuple[Task, ...]:
    return tuple(Task.load(folder) for folder in index(TASKS))


def handmade() -> list[Task]:
    """The tasks that stand in folders, in a fixed order."""
    return list(_handmade())


def get(name: str) -> Task:
    """The task of this name, wherever it comes from."""
    for task in _handmade():
        if task.name == name:
            return task
    family, *rest = name.rsplit("-", 3)
    if family in FAMILIES and len(rest) == 3 and rest[0].isdecimal() and rest[2].isdecimal():
        return FAMILIES[family].make(int(rest[2]), int(rest[0]), rest[1])
    raise TaskError(f"there is no task {name!a}. Type: rusty gym list")


def tasks(
    split: str = "train",
    *,
    seed: int = 0,
    count: int | None = None,
    families: Sequence[str] | None = None,
    difficulty: int | Sequence[int] | None = None,
    some: Shown | None = None,
    wider: tuple[str, ...] = (),
) -> Iterator[Task]:
    """Different tasks of a split, families and levels in turn; endless without `count`, until none is new.

    With `some`, only training tasks that may be demonstrated, with names of the words in `wider`.
    """
    if some is not None and split == "train":
        wanted = [name for name in families or some.names if name in FAMILIES and some.has(name)]
        lessons = _lessons(split, wanted, difficulty)
        return itertools.islice(_distinct(lessons, split, seed, How(wider, some.wordings)), count)
    lessons = _lessons(split, families, difficulty)
    return itertools.islice(_distinct(lessons, split, seed), count)


def _lessons(
    split: str, names: Sequence[str] | None, difficulty: int | Sequence[int] | None
) -> list[tuple[Family, int]]:
    if split not in SPLITS:
        raise TaskError(f"the split {split!a} is unknown; say {' or '.join(SPLITS)}")
    unknown = [name for name in names or () if name not in FAMILIES]
    if unknown:
        raise TaskError(f"there is no family {unknown[0]!a}. Type: rusty gym list")
    wanted = {difficulty} if isinstance(difficulty, int) else set(difficulty or ())
    chosen = [FAMILIES[name] for name in names or FAMILIES if split in FAMILIES[name].splits]
    # level by level, so that a short list already holds every family's easiest tasks
    levels = sorted({level for family in chosen for level in family.levels if not wanted or level in wanted})
    lessons = [(family, level) for level in levels for family in chosen if level in family.levels]
    if not lessons:
        raise TaskError(f"no family makes {split} tasks of difficulty {difficulty}. Type: rusty gym list")
    return lessons


def _distinct(
    lessons: list[tuple[Family, int]], split: str, seed: int, how: How | None = None
) -> Iterator[Task]:
    seen: set[str] = set()
    places = dict.fromkeys(lessons, seed * 1_000_003)
    while places:
        for family, level in list(places):
            for _ in range(PATIENCE):
                task = family.make(places[family, level], level, split, how)
                places[family, level] += 1
                mark = fingerprint(task)
                if mark not in seen:
                    seen.add(mark)
                    yield task
                    break
            else:
                del places[family, level]


# ── rusty gym list ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ShowConfig:
    split: Literal["all", "train", "heldout"] = "all"
    """only families and tasks of this split"""
    json: bool = False
    """print for scripts"""


def show(config: ShowConfig) -> str | None:
    """Print the tasks and families of the gym."""
    rows = [_row(task) for task in _handmade() if config.split in ("all", task.split)]
    rows += [_family_row(family) for family in FAMILIES.values() if config.split in ("all", *family.splits)]
    if config.json:
        return json.dumps(rows, indent=2)
    _print_rows(rows)
    made = sum(row["kind"] == "folder" for row in rows)
    return f"{made} folders, {len(rows) - made} families\nnext: rusty gym play sum_list"


def _print_rows(rows: list[dict[str, str]]) -> None:
    """One line a row; on a terminal the last column is cut where the line would break."""
    *heads, last = rows[0]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in heads}
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in [dict(zip(rows[0], rows[0], strict=True)), *rows]:
        line = "  ".join(row[name].ljust(widths[name]) for name in heads) + "  " + row[last]
        print(line[:room])


def _row(task: Task) -> dict[str, str]:
    about = " ".join(task.prompt.split())
    return {
        "name": task.name,
        "kind": "folder",
        "levels": str(task.difficulty),
        "split": task.split,
        "about": about,
    }


def _family_row(family: Family) -> dict[str, str]:
    levels = " ".join(map(str, family.levels))
    split = "train, heldout" if family.split == "train" else "heldout"
    return {"name": family.name, "kind": family.kind, "levels": levels, "split": split, "about": family.about}


# ── rusty gym check ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class CheckConfig:
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """tasks or families; none means all"""
    count: int = 2
    """tasks of each family at each level and in each split"""
    split: Literal["all", "train", "heldout"] = "all"
    """only this split"""
    seed: int = 0
    """which tasks are drawn"""
    workers: int = 2
    """tasks tried side by side"""
    level: str = "auto"
    """sandbox level: auto, ns, bwrap or landlock"""
    json: bool = False
    """print for scripts"""


def check(config: CheckConfig) -> str | None:
    """Prove that every task can be solved, is not solved yet, and gives nothing away."""
    from rich.console import Console
    from rich.progress import Progress

    chosen = list(_chosen(config))
    env = EnvConfig(level=config.level)
    found: list[tuple[Task, list[str]]] = []
    with (
        ThreadPoolExecutor(config.workers) as pool,
        Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar,
    ):
        line = bar.add_task("checking", total=len(chosen))
        for pair in zip(chosen, pool.map(lambda task: faults(task, env), chosen), strict=True):
            found.append(pair)
            bar.advance(line)
    wrong = [(task, problems) for task, problems in found if problems]
    if config.json:
        print(json.dumps({"checked": len(found), "faults": {task.name: said for task, said in wrong}}))
    else:
        _report(found)
    if wrong:
        first, problems = wrong[0]
        raise TaskError(f"{len(wrong)} of {len(found)} tasks are not fair; {first.name}: {problems[0]}")
    return None if config.json else f"{len(found)} tasks are fair\nnext: rusty gym play {found[0][0].name}"


def _chosen(config: CheckConfig) -> Iterator[Task]:
    splits = SPLITS if config.split == "all" else (config.split,)
    made = {task.name: task for task in _handmade()}
    for name in config.names or (*made, *FAMILIES):
        if name in FAMILIES:
            family = FAMILIES[name]
            for split in splits:
                if split in family.splits:
                    count = config.count * len(family.levels)
                    yield from tasks(split, seed=config.seed, count=count, families=[name])
        elif not config.names and made[name].split not in splits:
            continue
        else:
            yield get(name)


def _report(found: list[tuple[Task, list[str]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    tried, failed = Counter[str](), Counter[str]()
    for task, problems in found:
        tried[task.family] += 1
        failed[task.family] += bool(problems)
    table = Table("family", "tasks", "not fair", box=None, pad_edge=False)
    for family, count in tried.items():
        table.add_row(family, str(count), str(failed[family] or ""))
    console = Console()
    console.print(table)
    for task, problems in found:
        for problem in problems:
            console.print(f"{task.name}: {problem}", markup=False)


# ── rusty gym play ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class PlayConfig:
    name: Annotated[str, tyro.conf.Positional] = "sum_list"
    """a task, or a family"""
    by: Literal["gold", "hand"] = "gold"
    """gold plays the known solution; hand reads your replies, one JSON object a line"""
    difficulty: int = 0
    """level of a family's task; 0 means its easiest"""
    split: Literal["train", "heldout"] = "train"
    """split of a family's task"""
    seed: int = 0
    """which task of a family"""
    max_turns: int = 8
    """replies in an episode"""
    level: str = "auto"
    """sandbox level: auto, ns, bwrap or landlock"""


def play(config: PlayConfig) -> str | None:
    """Play one task and print what was said on both sides."""
    task = _to_play(config)
    script = iter([render(action) for action in gold(task)])
    reply: Callable[[], str] = (lambda: next(script, "")) if config.by == "gold" else _typed
    total = 0.0
    with CodingEnv([task], EnvConfig(max_turns=config.max_turns, level=config.level)) as env:
        seen, info = env.reset(options={"task": task})
        _say("user", seen)
        for _ in range(config.max_turns):
            said = reply()
            if not said:
                break
            if config.by == "gold":
                _say("assistant", said)
            seen, reward, terminated, truncated, info = env.step(said)
            total += reward
            _say("observation", seen)
            if terminated or truncated:
                break
    ending = "passed" if info["passed"] else "not passed"
    return f"{task.name}: {ending}, reward {total:.1f}\nnext: rusty gym play {task.name} --by hand"


def _to_play(config: PlayConfig) -> Task:
    if config.name not in FAMILIES:
        return get(config.name)
    family = FAMILIES[config.name]
    split = config.split if config.split in family.splits else "heldout"
    return family.make(config.seed, config.difficulty or family.levels[0], split)


def _typed() -> str:
    print("> ", end="", flush=True, file=sys.stderr)
    return sys.stdin.readline().strip()


def _say(role: str, text: str) -> None:
    print(f"[{role}]\n{text}\n")
