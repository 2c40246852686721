# SPDX-License-Identifier: AGPL-3.0-or-later
"""What is demonstrated and what is only played: a fixed part, the same everywhere, never a held-out thing."""

import itertools

import pytest

from rusty_r2.errors import ConfigError
from rusty_r2.gym import catalog
from rusty_r2.gym.families import FAMILIES
from rusty_r2.gym.families.base import Draw, How, Wordings, part, ranks
from rusty_r2.gym.families.functions import recipes
from rusty_r2.gym.families.wordings import wordings
from rusty_r2.gym.shown import Shown, family_rank, shown, wording_rank

TRAINED = [family for family in FAMILIES.values() if family.split == "train"]


def test_everything_is_shown_unless_asked_otherwise():
    tasks = [family.make(seed, family.levels[0]) for family in TRAINED for seed in range(3)]
    assert all(shown(task, Shown()) for task in tasks)
    assert Shown().names == [family.name for family in TRAINED]
    assert [*catalog.tasks(count=90, some=Shown())] == [*catalog.tasks(count=90)]


def test_a_part_of_every_kind_of_family_is_shown_and_a_larger_share_holds_the_smaller():
    assert len(Shown(0.7).names) == pytest.approx(0.7 * len(TRAINED), abs=3)
    assert {FAMILIES[name].kind for name in Shown(0.1).names} == {"write", "fix", "shell"}
    assert set(Shown(0.4).names) < set(Shown(0.7).names)
    assert family_rank("rename") == family_rank("rename") > 0.7, "the same on every machine"


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_a_part_of_every_list_of_wordings_is_shown(share):
    for lines in wordings().values():
        rank = ranks(lines)
        assert [*rank] == [*part(lines, held=False), *lines.more], "held-out wordings have no rank"
        some = [line for line, place in rank.items() if place < share]
        assert 1 <= len(some) <= share * len(rank) + 1
        order = sorted(rank, key=rank.__getitem__)
        assert order != [*rank], "by hash, not as they were written down"
        assert set(order[: len(rank) - len(lines.more)]).isdisjoint(lines.more), "those stand behind"


def test_a_small_share_shows_no_wording_that_is_for_training_alone():
    """The number stands in docs/gym.md and in the help of --shown-wordings."""
    every = [*wordings().values(), *(recipe.says for table in recipes().values() for recipe in table)]
    assert all(ranks(lines)[more] >= 0.06 for lines in every for more in lines.more)


def test_tasks_made_to_be_shown_are_and_the_others_are_known_by_their_tag():
    some = Shown(1.0, 0.5)
    for family in TRAINED:
        made = [family.make(seed, family.levels[0], "train", How(shown=0.5)) for seed in range(8)]
        assert all(shown(task, some) for task in made)
    open_tasks = [family.make(seed, family.levels[0]) for family in TRAINED for seed in range(8)]
    hidden = [task for task in open_tasks if not shown(task, some)]
    assert len(open_tasks) * 0.4 < len(hidden) < len(open_tasks)
    said = {task.prompt for task in open_tasks if wording_rank(task) < 0.5}
    assert not said & {task.prompt for task in hidden}


def test_the_catalogue_gives_only_what_is_shown():
    some = Shown(0.6, 0.5)
    made = list(itertools.islice(catalog.tasks("train", some=some), 120))
    assert all(shown(task, some) for task in made)
    assert {task.family for task in made} == set(some.names)


def test_held_out_tasks_are_the_same_whatever_is_shown():
    asked = {"split": "heldout", "count": 60}
    assert [*catalog.tasks(**asked, some=Shown(0.3, 0.3))] == [*catalog.tasks(**asked)]


@pytest.mark.parametrize("shares", [(0.0, 1.0), (1.0, 1.1)])
def test_what_is_no_share_is_refused(shares):
    with pytest.raises(ConfigError, match="--shown-families"):
        Shown(*shares)


def test_lists_that_differ_in_their_training_lines_alone_keep_them():
    for more in ("first", "second"):
        lines = Wordings(["one", "two", "three"], [more])
        assert {Draw(str(seed), "train", 1).say(lines) for seed in range(60)} == {*lines, more}
