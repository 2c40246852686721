# SPDX-License-Identifier: AGPL-3.0-or-later
"""Mistakes: each is one, says nothing that is held out, and what is taught after it really puts it right."""

import random
import re

from rusty_r2.data.episode import Episode
from rusty_r2.data.played import Chances, play
from rusty_r2.data.slips import slip
from rusty_r2.gym import catalog
from rusty_r2.gym.env import asks
from rusty_r2.gym.families.base import is_held
from rusty_r2.gym.families.words import WORDS
from rusty_r2.gym.proof import gold
from rusty_r2.protocol import Cmd, Edit, Msg, parse, render
from rusty_r2.task import Task, Tree

TASKS = list(catalog.tasks("train", seed=11, count=300))


def slips():
    """Every action that begins a gold solution, what was said in its place, and what to do then."""
    for number, task in enumerate(TASKS):
        first = gold(task)[0]
        found = None if isinstance(first, Msg) else slip(task, first, random.Random(number))
        if found is not None:
            yield task, first, *found


def test_a_slip_is_never_the_right_action():
    made = list(slips())
    assert len(made) > 200
    assert {type(wrong) for _, _, wrong, _ in made} == {Cmd, Edit}
    assert all(wrong != right for _, right, wrong, _ in made)


def test_a_slip_says_no_held_out_word():
    for task, right, wrong, _ in slips():
        known = f"{right} {task.prompt} {' '.join(task.files)}"
        new = set(re.findall("[a-z]+", str(wrong))) - set(re.findall("[a-z]+", known))
        assert not any(is_held(word) for word in new & set(WORDS))


def test_work_under_a_wrong_name_is_moved():
    task = Task("t", "Sort a.txt into sorted.txt.", Tree({"sorted.txt": "1\n"}), {"a.txt": "1\n"})
    found = [slip(task, Cmd("sort a.txt > sorted.txt"), random.Random(seed)) for seed in range(40)]
    made = {(wrong.command, remedy.command) for wrong, remedy in filter(None, found)}
    moved = {(wrong, remedy) for wrong, remedy in made if not wrong.endswith("> sorted.txt")}
    assert moved
    assert all(remedy == f"mv {wrong.rpartition(' ')[2]} sorted.txt" for wrong, remedy in moved)
    assert all(remedy == "sort a.txt > sorted.txt" for _, remedy in made - moved)


def test_a_wrong_number_is_one_that_training_may_say():
    task = Task("t", "Rename data47.txt to list56.txt.", Tree({"data47.txt": None, "list56.txt": "x\n"}))
    slips = [slip(task, Cmd("mv data47.txt list56.txt"), random.Random(seed)) for seed in range(400)]
    said = {number for made in slips if made for number in re.findall(r"\d+", made[0].command)}
    assert len(said) > 20 and not any(int(number) % 5 == 3 for number in said)


def test_what_is_taught_was_played_and_every_mistake_can_be_seen():
    every = Chances(malformed=0, early=0, wrong=1, look=0)
    episodes = [one for one in play(TASKS[:90], seed=0, source="gym", chances=every) if one.kind == "DEBUG"]
    assert len(episodes) > 30
    for episode in episodes:
        mistake, seen = episode.turns[2:4]
        assert mistake[2] is False
        assert "TEST_RESULT:" in seen[1] or not seen[1].startswith(("exit 0", "wrote "))
        assert "TEST_RESULT: all pass" in said(episode) or isinstance(parse(episode.turns[-1][1]), Msg)
    assert {type(parse(one.turns[2][1])) for one in episodes} == {Cmd, Edit}


def test_nearly_every_task_can_be_played_questions_too():
    questions = [task for task in TASKS if asks(task)][:30]
    for some in (questions, TASKS[:60]):
        made = list(play(some, seed=0, source="gym", chances=Chances(0, 0, 0, 0)))
        assert len(made) == len(some)
    assert {one.turns[-1][1] for one in play(questions, seed=0, source="gym")} & {
        render(Msg(task.message)) for task in questions
    }, "mostly the bare answer"


def said(episode: Episode) -> str:
    return "\n".join(turn[1] for turn in episode.turns)
