# SPDX-License-Identifier: AGPL-3.0-or-later
"""Families: one seed is one task, splits never meet, golds are right, and there are many of them."""

import builtins
import hashlib
import keyword
import re
import sys

import pytest

from rusty_r2.errors import TaskError
from rusty_r2.gym.families import FAMILIES, Draw, fingerprint, mutate, words
from rusty_r2.gym.families.base import Wordings, is_held, part
from rusty_r2.gym.families.functions import outcome
from rusty_r2.gym.proof import gold
from rusty_r2.protocol import render
from rusty_r2.task import Calls, Task, Tree

EVERY = [
    pytest.param(family, level, split, id=f"{family.name}-{level}-{split}")
    for family in FAMILIES.values()
    for level in family.levels
    for split in family.splits
]
ONE_EACH = [pytest.param(family, id=family.name) for family in FAMILIES.values()]


def test_there_are_enough_of_every_kind():
    kinds = [family.kind for family in FAMILIES.values()]
    assert len(kinds) >= 20
    assert {kind: kinds.count(kind) >= 5 for kind in ("write", "fix", "shell")} == {
        "write": True,
        "fix": True,
        "shell": True,
    }
    held = [family.kind for family in FAMILIES.values() if family.split == "heldout"]
    assert {"write", "fix", "shell"} <= set(held)


@pytest.mark.parametrize(("family", "level", "split"), EVERY)
def test_a_seed_is_a_task(family, level, split):
    tasks = [family.make(seed, level, split) for seed in range(3)]
    assert tasks == [family.make(seed, level, split) for seed in range(3)]
    assert len({fingerprint(task) for task in tasks}) == 3
    for task in tasks:
        assert (task.family, task.difficulty, task.split) == (family.name, level, split)
        assert Task.from_dict(task.to_dict()) == task


@pytest.mark.parametrize("family", ONE_EACH)
def test_there_are_thousands(family):
    """By the birthday rule: among 3,000 different ones, 80 draws bring about one pair."""
    made = {fingerprint(family.make(seed, family.levels[0], family.splits[0])) for seed in range(80)}
    assert len(made) >= 78


@pytest.mark.parametrize(("split", "known"), [("train", "b53762e7ccf90ef2"), ("heldout", "5b491e9458d1ab91")])
def test_tasks_are_the_same_on_every_machine(split, known):
    """If the second changes, figures on held-out tasks can no longer be compared with older ones: say so."""
    digest = hashlib.blake2b(digest_size=8)
    for family in FAMILIES.values():
        for level in family.levels if split in family.splits else ():
            digest.update(fingerprint(family.make(3, level, split)).encode())
    assert digest.hexdigest() == known


@pytest.mark.parametrize("family", ONE_EACH)
def test_splits_share_no_prompt(family):
    if family.split == "heldout":
        with pytest.raises(TaskError, match="heldout only"):
            family.make(0, family.levels[0], "train")
        return
    train = {family.make(seed, level, "train").prompt for level in family.levels for seed in range(15)}
    held = {family.make(seed, level, "heldout").prompt for level in family.levels for seed in range(15)}
    assert not train & held


def test_words_and_numbers_of_one_split_never_come_up_in_the_other():
    pool = [f"w{i}" for i in range(20)]
    drawn = {}
    for split in ("train", "heldout"):
        draw = Draw("key", split, 1)
        drawn[split] = {draw.word(pool) for _ in range(400)}, {draw.number(1, 50) for _ in range(900)}
    assert not drawn["train"][0] & drawn["heldout"][0]
    assert not drawn["train"][1] & drawn["heldout"][1]
    assert drawn["train"][0] | drawn["heldout"][0] == set(pool)
    assert drawn["train"][1] | drawn["heldout"][1] == set(range(1, 51))


def test_names_are_too_many_to_know_by_heart():
    """With few names a model learns the list instead of copying, and fails on every new name."""
    assert sum(not is_held(word) for word in words.WORDS) > 2000
    assert sum(is_held(word) for word in words.WORDS) > 600
    for pool in (value for name, value in vars(words).items() if name.isupper()):
        assert len(set(pool)) == len(pool)
    for pool in (
        words.ENDS,
        words.PEOPLE,
        words.KEYS,
        words.STEMS,
        words.FOLDERS,
        words.MODULES,
        words.VERBS,
    ):
        assert sum(map(is_held, pool)) > 6


def test_words_can_be_names_anywhere():
    spoken_for = {*keyword.kwlist, *dir(builtins), *sys.stdlib_module_names}
    for word in words.WORDS:
        assert re.fullmatch("[a-z]{3,10}", word)
        assert word not in spoken_for
        assert "return" not in word, "recipes tell a body from an expression by it"


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_every_level_one_file_name_is_new(split):
    """Among 200 tasks about one file, hardly a name comes twice."""
    seen = [next(iter(FAMILIES["rename"].make(seed, 1, split).files)) for seed in range(200)]
    assert len(set(seen)) > 170


def test_training_never_hears_a_held_out_wording():
    wordings = Wordings([f"wording {i}" for i in range(8)], ["for practice"])
    heard = {Draw(str(seed), "train", 1).say(wordings) for seed in range(200)}
    assert heard == {*part(wordings, held=False), "for practice"}
    assert {Draw(str(seed), "heldout", 1).say(wordings) for seed in range(200)} == set(wordings)


@pytest.mark.parametrize("bad", [{"difficulty": 9}, {"split": "test"}])
def test_what_a_family_cannot_make_is_refused(bad):
    with pytest.raises(TaskError):
        FAMILIES["arithmetic"].make(0, **bad)


@pytest.mark.parametrize(("family", "level", "split"), [p for p in EVERY if p.values[0].kind != "shell"])
def test_gold_returns_what_is_expected_and_the_start_does_not(family, level, split):
    for seed in range(2):
        task = family.make(seed, level, split)
        assert isinstance(task.check, Calls)
        (source,), (start,) = task.solution.values(), task.files.values()
        assert all(outcome(source, case) == repr(case.expected) for case in task.check.cases)
        assert any(outcome(start, case) != repr(case.expected) for case in task.check.cases)


def test_hidden_cases_catch_near_misses():
    """Off by one, another operator, a comparison turned round: nearly all are caught."""
    tried = missed = 0
    for family in FAMILIES.values():
        for level in family.levels if family.kind == "write" else ():
            for seed in range(4):
                task = family.make(seed, level, family.splits[0])
                assert isinstance(task.check, Calls)
                (source,) = task.solution.values()
                for way in (mutate.operator, mutate.constant, mutate.comparison, mutate.call):
                    for text in way(source):
                        tried += 1
                        missed += all(outcome(text, case) == repr(case.expected) for case in task.check.cases)
    assert tried > 300
    assert missed / tried < 0.05


def test_a_constant_or_an_argument_does_not_pass():
    for family in FAMILIES.values():
        for seed in range(8) if family.kind == "write" else ():
            cases = family.make(seed, 1, family.splits[0]).check.cases
            assert len({repr(case.expected) for case in cases}) > 1
            for place in range(len(cases[0].args)):
                assert any(case.args[place] != case.expected for case in cases)


@pytest.mark.parametrize("family", ONE_EACH)
def test_the_first_level_is_short(family):
    """A model of 32 million words reads and writes these: one or two lines, one command, one answer."""
    for seed in range(5):
        task = family.make(seed, family.levels[0], family.splits[0])
        assert len(task.prompt) < 300
        assert sum(len(text) for text in task.files.values()) < 1600
        assert sum(len(render(action)) for action in gold(task)) < 240
        if isinstance(task.check, Tree):
            assert len(task.commands) == 1


def test_a_prompt_names_what_it_is_about():
    """Every file that is to be made or changed at level 1 is named in the prompt."""
    for name in ("rename", "move", "create", "sort", "pick_lines", "config", "join", "columns"):
        for seed in range(10):
            task = FAMILIES[name].make(seed, 1, "train")
            assert isinstance(task.check, Tree)
            for path in task.check.expect:
                assert re.search(re.escape(path.rpartition("/")[2]), task.prompt)


MUTATIONS = (
    mutate.operator,
    mutate.constant,
    mutate.comparison,
    mutate.call,
    mutate.returned,
    mutate.grammar,
)


@pytest.mark.parametrize("way", MUTATIONS, ids=lambda way: way.__name__)
def test_a_mutation_changes_one_thing(way):
    source = "def f(x, y):\n    if x > 3:\n        return max(x + 1, y)\n    return len('ab')\n"
    made = list(way(source))
    assert made
    assert source not in made
