# SPDX-License-Identifier: AGPL-3.0-or-later
"""Fix a broken function: the file holds a gold function with one fault; the prompt says what it should do.

The broken text is run on the hidden cases while the task is drawn, and dropped if it passes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from string import Template

from rusty_r2.errors import TaskError
from rusty_r2.gym.families import mutate, names
from rusty_r2.gym.families.base import Draw, Family
from rusty_r2.gym.families.functions import Function, Recipe, function, outcome, recipes, sample
from rusty_r2.gym.families.wordings import of, then
from rusty_r2.task import Calls, Task

TABLES = ("arithmetic", "booleans", "strings", "lists", "dicts", "choices", "units")
TRIES = 80


def fixer(mutation: mutate.Mutation) -> Callable[[Draw], Task]:
    """A drawer of tasks whose functions are broken in one way."""

    def draw_task(draw: Draw) -> Task:
        made, broken = _broken(draw, mutation)
        file = f"{names.module(draw)}.py"
        asked = Template(draw.say(of("fix.ask"))).substitute(
            f=made.name, call=made.call, file=file, says=made.says
        )
        wrong = outcome(broken, made.example)
        if wrong != repr(made.example.expected) and draw.chance(0.5):
            symptom = Template(draw.say(of("fix.symptom"))).substitute(
                shown=made.shown(made.example), wrong=wrong, value=repr(made.example.expected)
            )
            asked = then(asked, symptom)
        return Task(
            name="",
            prompt=asked,
            files={file: broken},
            check=Calls(file, made.name, made.cases),
            solution={file: made.source},
        )

    return draw_task


@cache
def _breakable(mutation: mutate.Mutation) -> list[Recipe]:
    """The recipes that have what this mutation changes."""
    pool = (recipe for table in TABLES for recipe in recipes()[table])
    return [recipe for recipe in pool if any(text != sample(recipe) for text in mutation(sample(recipe)))]


def _broken(draw: Draw, mutation: mutate.Mutation) -> tuple[Function, str]:
    """A function and a broken text of it that fails at least one hidden case."""
    for _ in range(TRIES):
        made = function(draw, _breakable(mutation))
        for text in draw.shuffled([text for text in mutation(made.source) if text != made.source]):
            if any(outcome(text, case) != repr(case.expected) for case in made.cases):
                return made, text
    raise TaskError(f"no function of level {draw.level} can be broken by {mutation.__name__}")


FAMILIES = (
    Family("fix_operator", "a wrong arithmetic operator", "fix", fixer(mutate.operator)),
    Family("fix_constant", "a wrong number", "fix", fixer(mutate.constant)),
    Family(
        "fix_comparison",
        "a comparison turned round or off at its edge",
        "fix",
        fixer(mutate.comparison),
    ),
    Family("fix_call", "the wrong builtin or method", "fix", fixer(mutate.call)),
    Family("fix_return", "a value that is not returned", "fix", fixer(mutate.returned)),
    Family("fix_grammar", "a file that Python cannot read", "fix", fixer(mutate.grammar)),
    Family("fix_name", "a misspelt name", "fix", fixer(mutate.name), split="heldout"),
    Family("fix_order", "two things the wrong way round", "fix", fixer(mutate.order), split="heldout"),
)
