# SPDX-License-Identifier: AGPL-3.0-or-later
"""How tasks are asked for: in many ways, each of which says everything, and none of which comes twice."""

import re
from collections import Counter

import pytest

from rusty_r2.gym.families import FAMILIES, Draw
from rusty_r2.gym.families.base import part
from rusty_r2.gym.families.functions import recipes
from rusty_r2.gym.families.wordings import then, wordings
from rusty_r2.gym.proof import lint

PARTS = {
    "move.new_folder": 16,
    "copy.name": 16,
    "everywhere.where": 16,
    "sort.up": 16,
    "sort.down": 16,
    "sort.number": 16,
    "sort.once": 16,
    "pick_lines.has": 16,
    "pick_lines.any_case": 16,
    "pick_lines.lacks": 16,
    "columns.headless": 16,
    "replace.everywhere": 16,
    "write.example": 24,
    "fix.symptom": 24,
}
"""lists of what is added to or filled into a request; every other list is of whole requests"""
EVERY = [pytest.param(name, lines, id=name) for name, lines in wordings().items()]
RECIPES = [
    pytest.param(recipe, id=f"{table}-{i}")
    for table, rows in recipes().items()
    for i, recipe in enumerate(rows)
]


def fields(wording):
    """What a wording names; a function by its name alone, or with its parameters."""
    return {"call" if name == "f" else name for name in re.findall(r"\$([a-z]+)", wording)}


def bare(wording):
    return " ".join(re.findall(r"[$\w.*#]+", wording.lower().replace(". ", " ").rstrip(".?!")))


def test_every_family_that_asks_in_its_own_words_has_a_list():
    own = {name for name, family in FAMILIES.items() if family.kind == "shell"} | {"write", "fix"}
    assert {name.partition(".")[0] for name in wordings()} == own | {"everywhere"}


@pytest.mark.parametrize(("name", "lines"), EVERY)
def test_there_are_many_wordings(name, lines):
    assert len(lines) >= PARTS.get(name, 48)


@pytest.mark.parametrize(("name", "lines"), EVERY)
def test_every_wording_says_everything_once(name, lines):
    every = [*lines, *lines.more]
    assert [line for line in every if fields(line) != fields(lines[0])] == []
    assert all(max(Counter(re.findall(r"\$[a-z]+", line)).values(), default=1) == 1 for line in every)


@pytest.mark.parametrize(("name", "lines"), EVERY)
def test_no_wording_comes_twice(name, lines):
    """So none that only training hears is a held-out one in other dress, either."""
    every = map(bare, [*lines, *lines.more])
    assert [line for line, count in Counter(every).items() if count > 1] == []


@pytest.mark.parametrize(("name", "lines"), [p for p in EVERY if p.id not in PARTS])
def test_styles_are_mixed_over_both_parts(name, lines):
    """Lower-case starts, questions and missing full stops are heard in training and in held-out tasks."""
    for held in (False, True):
        mine = part(lines, held=held)
        assert any(line[0].isupper() for line in mine)
        assert any(not line[0].isupper() for line in mine)
        assert any(line[-1] not in ".?" for line in mine)


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_a_function_returns_is_said_in_many_ways(recipe):
    assert len(recipe.says) >= 12
    every = [*recipe.says, *recipe.says.more]
    assert len(set(map(bare, every))) == len(every)
    assert [said for said in every if fields(said) != fields(recipe.says[0])] == []


def test_training_hears_more_wordings_than_those_that_have_a_held_out_part():
    """But for families that are held out as a whole."""
    kept = {name for name, family in FAMILIES.items() if family.split == "heldout"}
    for name, lines in wordings().items():
        assert bool(lines.more) == (name.partition(".")[0] not in kept), name
    for table, rows in recipes().items():
        assert all(bool(recipe.says.more) == (table not in kept) for recipe in rows), table


@pytest.mark.parametrize("name", ["write.example", "fix.symptom"])
def test_an_example_does_not_spell_the_line_to_write(name):
    """`return 'red'` may be a line of the solution; "gives 'red'" is not."""
    assert [line for line in wordings()[name] if "return $value" in line] == []


def test_two_sentences_stay_two():
    assert then("move it to a", "The folder is new.") == "move it to a. The folder is new."
    assert then("Can you?", "It is new.") == "Can you? It is new."
    assert then("Do it.", "It is new.") == "Do it. It is new."


SPEAKS_FOR = {"everywhere": "count_files", "write": "strings", "fix": "fix_operator"}
"""a family that asks from a list which is not named after it"""


@pytest.mark.parametrize(("name", "lines"), EVERY)
def test_every_wording_makes_a_fair_task(name, lines, monkeypatch):
    """Said in a task, each line leaves nothing to fill in and gives nothing away."""
    family = FAMILIES[SPEAKS_FOR.get(name.partition(".")[0], name.partition(".")[0])]
    unsaid = [*lines, *lines.more]

    def say(_, options):
        return unsaid.pop() if options == lines and unsaid else options[0]

    monkeypatch.setattr(Draw, "say", say)
    for seed in range(8 * len(unsaid)):
        for level in family.levels if unsaid else ():
            task = family.make(seed, level, family.splits[0])
            assert "$" not in task.prompt
            assert list(lint(task)) == [], task.prompt
    assert unsaid == []
