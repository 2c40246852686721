# SPDX-License-Identifier: AGPL-3.0-or-later
"""Many environments side by side: what one by one would give, and nothing left behind."""

import gc
import os
import tempfile
from pathlib import Path

import pytest

from rusty_r2.errors import TaskError
from rusty_r2.gym import catalog
from rusty_r2.gym.env import CodingEnv
from rusty_r2.gym.proof import gold
from rusty_r2.gym.vector import VectorEnv
from rusty_r2.protocol import Cmd, Edit, Msg, render
from rusty_r2.task import Task, Tree

NAPPING = Task("nap", "Rename a.txt to b.txt.", Tree({"a.txt": None, "b.txt": "1\n"}), {"a.txt": "1\n"})


pytestmark = pytest.mark.usefixtures("confined")


def run(command: str) -> str:
    return render(Cmd(command))


def played(task: Task, reply: str):
    """The first step of an episode."""
    with CodingEnv() as env:
        env.reset(options={"task": task})
        return env.step(reply)


NAP = 10_000_000 + os.getpid()
"""seconds that no other process here sleeps"""


def script(task: Task, kind: int) -> list[str]:
    """Four ways to go through an episode: right, wrong, rambling, and leaving things behind."""
    if kind == 0:
        return [render(action) for action in gold(task)]
    if kind == 1:
        return [render(Edit("junk.py", "def f(: pass")), render(Msg("no idea")), "not json", run("false")]
    if kind == 2:
        return [
            run(f"sleep {NAP} & setsid sleep {NAP} & echo started"),
            run("head -c 200000 /dev/zero | tr '\\0' x > big"),
        ]
    return [run("mkdir -p a/b && touch a/b/c"), render(Edit("a/b/d", "text"))]


def left_behind(envs: VectorEnv) -> tuple[int, int]:
    """Open descriptors and children of this process when no episode is under way."""
    for env in envs.envs:
        env.close()
    gc.collect()
    children = Path("/proc/self/task").glob("*/children")
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(NAP) in told(path)]
    return len(list(Path("/proc/self/fd").iterdir())), sum(len(path.read_text().split()) for path in children)


def told(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process ended while we looked
        return ""


def play_all(envs: VectorEnv, numbers: range) -> int:
    """Play scripted episodes in all slots at once, refilling each as it ends; how many were played."""
    tasks = list(catalog.tasks("train", count=min(len(numbers), 200)))
    waiting, scripts, played_out = iter(numbers), {}, 0

    def refill(slot: int) -> None:
        number = next(waiting, None)
        if number is not None:
            task = tasks[number % len(tasks)]
            envs.reset(slot, task)
            scripts[slot] = iter(script(task, number % 5))
            envs.submit(slot, next(scripts[slot]))

    for slot in range(len(envs)):
        refill(slot)
    while envs.busy:
        for step in envs.poll():
            assert not step.info["masked"]
            reply = None if step.done else next(scripts[step.slot], None)
            if reply is None:
                played_out += 1
                refill(step.slot)
            else:
                envs.submit(step.slot, reply)
    return played_out


@pytest.mark.parametrize("episodes", [24, pytest.param(1000, marks=pytest.mark.slow)])
def test_episodes_leave_nothing_behind(episodes, tmp_path, alone):
    alone("play_and_count", episodes)
    assert list(tmp_path.iterdir()) == []


def play_and_count(episodes: int) -> None:
    with VectorEnv(4) as envs:
        play_all(envs, range(8))  # what is made once is made now
        before = left_behind(envs)
        assert play_all(envs, range(episodes)) == episodes
        after = left_behind(envs)
        assert after == before, (before, after)
    assert not list(Path(tempfile.gettempdir()).iterdir())


def test_many_episodes_side_by_side_give_what_one_by_one_gives():
    tasks = list(catalog.tasks("train", count=8, difficulty=1))
    replies = [render(gold(task)[0]) for task in tasks]
    alone = [played(task, reply) for task, reply in zip(tasks, replies, strict=True)]
    with VectorEnv(8, workers=4) as envs:
        for slot, task in enumerate(tasks):
            envs.reset(slot, task)
        together = envs.step(replies)
    assert [tuple(step)[1:] for step in together] == alone


def test_a_slot_takes_one_reply_at_a_time():
    with VectorEnv(2) as envs:
        envs.reset(0, NAPPING)
        envs.submit(0, run("sleep 0.2"))
        assert envs.busy == 1
        with pytest.raises(TaskError, match="poll"):
            envs.submit(0, run("true"))
        with pytest.raises(TaskError, match="2 slots"):
            envs.step(["x"])
        assert [step.slot for step in envs.poll()] == [0]
        assert envs.poll() == []
