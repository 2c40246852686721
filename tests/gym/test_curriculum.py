# SPDX-License-Identifier: AGPL-3.0-or-later
"""The curriculum: easy first, further by measured success, and the same future after a stop."""

import json
import pickle
from collections import Counter

import pytest

from rusty_r2.errors import ConfigError
from rusty_r2.gym.curriculum import Curriculum, CurriculumConfig, worth
from rusty_r2.gym.families import FAMILIES
from rusty_r2.gym.shown import wording_rank

FEW = ("rename", "sort", "find_file")


def learn(curriculum: Curriculum, draws: int, chance=lambda task: True) -> list:
    tasks = []
    for _ in range(draws):
        tasks.append(curriculum.next())
        curriculum.report(tasks[-1], chance(tasks[-1]))
    return tasks


def test_it_starts_with_every_family_at_its_easiest():
    curriculum = Curriculum()
    open_now = {(lesson.family, lesson.level) for lesson in curriculum.open()}
    assert open_now == {(f.name, f.levels[0]) for f in FAMILIES.values() if f.split == "train"}


def test_success_opens_the_next_level_and_failure_does_not():
    curriculum = Curriculum(CurriculumConfig(families=FEW, after=8))
    tasks = learn(curriculum, 120, lambda task: task.family == "rename")
    assert max(task.difficulty for task in tasks if task.family == "rename") == 3
    assert max(task.difficulty for task in tasks if task.family != "rename") == 1


def test_it_draws_where_success_is_neither_rare_nor_certain():
    curriculum = Curriculum(CurriculumConfig(families=FEW, max_difficulty=1, after=8))
    flip = iter(range(10_000))
    outcomes = {"rename": lambda: True, "sort": lambda: next(flip) % 2 == 0, "find_file": lambda: False}
    learn(curriculum, 100, lambda task: outcomes[task.family]())
    drawn = Counter(task.family for task in learn(curriculum, 200, lambda task: outcomes[task.family]()))
    assert drawn["sort"] > 2 * drawn["rename"] > 0
    assert drawn["sort"] > 2 * drawn["find_file"] > 0


def test_rare_success_is_worth_more_than_rare_failure_and_certainty_nothing():
    assert worth(1 / 3) == pytest.approx(1)
    assert worth(0.05) > 3 * worth(0.95) > 0
    assert worth(0) == worth(1) == 0


def test_wordings_that_fail_at_times_come_more_often_than_those_that_never_do():
    """As after demonstrations of half the wordings."""
    curriculum = Curriculum(CurriculumConfig(families=("rename",), max_difficulty=1))
    flip = iter(range(10_000))

    def passes(task):
        return wording_rank(task) < 0.5 or next(flip) % 3 == 0

    learn(curriculum, 120, passes)
    new = sum(wording_rank(task) >= 0.5 for task in learn(curriculum, 200, passes))
    plain = sum(wording_rank(FAMILIES["rename"].make(seed, 1)) >= 0.5 for seed in range(200))
    assert new > 1.4 * plain


def test_nothing_is_given_up_for_good():
    curriculum = Curriculum(CurriculumConfig(families=FEW, max_difficulty=1))
    learn(curriculum, 600, lambda task: task.family != "sort")
    drawn = Counter(task.family for task in learn(curriculum, 400, lambda task: task.family != "sort"))
    assert min(drawn[family] for family in FEW) > 0


def test_a_state_from_before_there_were_parts_is_read():
    curriculum = Curriculum(CurriculumConfig(families=FEW))
    old = {"family": "sort", "level": 1, "seen": 30, "rate": 0.5}
    curriculum.load_state_dict({"drawn": 30, "lessons": [old]})
    assert curriculum.lessons["sort", 1].rate == 0.5 and curriculum.next()


def test_names_may_come_from_more_words():
    wider = tuple(f"zz{letter}{other}" for letter in "abcdefghij" for other in "abcdefghij")
    tasks = learn(Curriculum(CurriculumConfig(families=("rename",)), wider=wider), 20)
    assert sum("zz" in task.prompt for task in tasks) > 10


def test_stopping_and_going_on_is_never_having_stopped():
    config = CurriculumConfig(seed=3, families=FEW, after=4)
    whole = Curriculum(config)
    expected = learn(whole, 60, lambda task: hash(task.prompt) % 3 > 0)
    first = Curriculum(config)
    learn(first, 25, lambda task: hash(task.prompt) % 3 > 0)
    second = Curriculum(config)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert learn(second, 35, lambda task: hash(task.prompt) % 3 > 0) == expected[25:]
    assert second.state_dict() == whole.state_dict()
    assert pickle.loads(pickle.dumps(second)).next() == whole.next()


def test_another_seed_is_another_lesson_plan():
    plans = [learn(Curriculum(CurriculumConfig(seed=seed)), 5) for seed in (0, 1)]
    assert plans[0] != plans[1]


def test_the_rate_is_a_running_mean():
    curriculum = Curriculum(CurriculumConfig(families=("rename",), memory=0.5))
    task = curriculum.next()
    rates = []
    for passed in (True, False, False):
        curriculum.report(task, passed)
        rates.append(curriculum.lessons["rename", 1].rate)
    assert rates == [1.0, 0.5, 0.25]
    assert curriculum.rates() == {"rename/1": 0.25}


def test_a_task_from_elsewhere_changes_nothing():
    curriculum = Curriculum(CurriculumConfig(families=("rename",)))
    before = curriculum.state_dict()
    curriculum.report(FAMILIES["copy"].make(0, 1, "heldout"), True)
    assert curriculum.state_dict() == before


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"families": ("copy",)}, "held out"),
        ({"families": ("nope",)}, "nope"),
        ({"max_difficulty": 0}, "level"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(options, word):
    with pytest.raises(ConfigError, match=word):
        Curriculum(CurriculumConfig(**options))


def test_only_training_tasks_are_drawn():
    assert {task.split for task in learn(Curriculum(), 60)} == {"train"}


def test_what_always_passes_is_not_given_up():
    curriculum = Curriculum(CurriculumConfig(families=("rename",)))
    lesson = curriculum.lessons["rename", 1]
    for pace in (lesson, *lesson.parts):
        pace.seen, pace.rate = 1000, 1.0
    assert curriculum.weight(lesson) == curriculum.config.seldom > 0
