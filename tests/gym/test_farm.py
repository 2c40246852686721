# SPDX-License-Identifier: AGPL-3.0-or-later
"""A gym in several processes does what one in threads does."""

import pytest

from rusty_r2.errors import SandboxError, TaskError
from rusty_r2.gym import catalog, farm
from rusty_r2.gym.curriculum import Curriculum, CurriculumConfig
from rusty_r2.gym.env import EnvConfig
from rusty_r2.gym.farm import Farm, Makers, open_envs
from rusty_r2.gym.proof import gold
from rusty_r2.gym.vector import VectorEnv
from rusty_r2.protocol import render

CONFIG = EnvConfig(max_turns=2)


def outcomes(envs, tasks):
    """What gold, and then nonsense, come to in every slot."""
    shown = [envs.reset(slot, task)[0] for slot, task in enumerate(tasks)]
    found = {slot: [] for slot in range(len(tasks))}
    for slot, task in enumerate(tasks):
        envs.submit(slot, render(gold(task)[0]) if slot % 2 else "nonsense")
    while envs.busy:
        for step in envs.poll():
            info = {key: value for key, value in step.info.items() if key != "degraded"}
            found[step.slot].append((step.observation, step.reward, step.done, info))
            if not step.done:
                envs.submit(step.slot, "nonsense")
    return shown, found


def test_processes_say_what_threads_say():
    tasks = list(catalog.tasks("train", seed=9, count=4))
    with VectorEnv(4, config=CONFIG) as threads:
        expected = outcomes(threads, tasks)
    with Farm(4, CONFIG, processes=2) as processes:
        assert outcomes(processes, tasks) == expected
        assert outcomes(processes, tasks) == expected, "slots can be used again"
        processes.submit(0, "x")
        with pytest.raises(TaskError, match="still carrying out"):
            processes.submit(0, "x")
        with pytest.raises(TaskError, match="over"):
            processes.poll()


def test_a_process_that_died_is_replaced_and_its_episodes_do_not_count(monkeypatch):
    tasks = list(catalog.tasks("train", seed=9, count=4))
    with Farm(4, CONFIG, processes=2) as envs:
        for slot, task in enumerate(tasks):
            envs.reset(slot, task)
        envs.hands[0].process.kill()
        envs.hands[0].process.wait()
        for slot in range(4):
            envs.submit(slot, "nonsense")
        steps = []
        while envs.busy:
            steps += envs.poll()
        steps.sort()
        assert [(step.slot, step.info["masked"]) for step in steps] == list(enumerate([True, False] * 2))
        assert steps[0].done and not steps[1].done
        assert outcomes(envs, tasks)[1][2][0][3]["masked"] is False, "the new process plays on"
        envs.reset(0, tasks[0])
        envs.submit(0, "nonsense")
        assert envs.hands[0].line.poll(60)
        envs.hands[0].process.kill()
        envs.hands[0].process.wait()
        assert [step.info["masked"] for step in envs.poll()] == [False], "it had answered before it died"
        monkeypatch.setattr(farm, "DEATHS", 2)
        envs.reset(0, tasks[0])
        envs.hands[0].process.kill()
        envs.hands[0].process.wait()
        with pytest.raises(SandboxError, match="rusty doctor"):
            envs.submit(0, "nonsense")
            envs.poll()
        envs._busy.clear()


def test_a_process_ends_with_the_one_that_asked():
    hand = farm.Hand(CONFIG)
    hand.line.close()
    assert hand.process.wait(60) == 0


def test_few_slots_and_few_cores_keep_threads(monkeypatch):
    monkeypatch.setattr(farm, "cores", lambda: 2)
    with open_envs(200, CONFIG) as envs:
        assert isinstance(envs, VectorEnv)
    monkeypatch.setattr(farm, "cores", lambda: 16)
    with open_envs(8, CONFIG) as envs:
        assert isinstance(envs, VectorEnv)


def test_drawn_elsewhere_is_drawn_here():
    def curriculum():
        made = Curriculum(CurriculumConfig(seed=4, families=("rename", "remove")))
        for passed in (True, True, False) * 8:
            made.report(made.next(), passed)
        return made

    here, there, makers = curriculum(), curriculum(), Makers(2)
    try:
        drawn = makers.draw(there, 70)
        assert drawn == Makers(0).draw(here, 70) == [curriculum().next(), *drawn[1:]]
        assert here.state_dict() == there.state_dict()
        makers.hands[0].process.kill()
        makers.hands[0].process.wait()
        assert makers.draw(there, 70) == Makers(0).draw(here, 70), "also where a process is gone"
    finally:
        makers.close()
