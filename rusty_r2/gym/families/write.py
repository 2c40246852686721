# SPDX-License-Identifier: AGPL-3.0-or-later
"""Write a function: the file holds its first line, the prompt says what it returns, hidden calls decide."""

from __future__ import annotations

from collections.abc import Callable
from string import Template

from rusty_r2.gym.families import names
from rusty_r2.gym.families.base import Draw, Family
from rusty_r2.gym.families.functions import function, recipes
from rusty_r2.gym.families.wordings import of, then
from rusty_r2.task import Calls, Task

EMPTY = ("pass", "...", "return None", "raise NotImplementedError")


def writer(table: str) -> Callable[[Draw], Task]:
    """A drawer of tasks from one table of recipes."""

    def draw_task(draw: Draw) -> Task:
        made = function(draw, recipes()[table])
        file = f"{names.module(draw)}.py"
        asked = Template(draw.say(of("write.ask"))).substitute(
            f=made.name, call=made.call, file=file, says=made.says
        )
        if draw.chance(0.5):
            shown, value = made.shown(made.example), repr(made.example.expected)
            example = Template(draw.say(of("write.example"))).substitute(shown=shown, value=value)
            asked = then(asked, example)
        return Task(
            name="",
            prompt=asked,
            files={file: f"def {made.call}:\n    {draw.any(EMPTY)}\n"},
            check=Calls(file, made.name, made.cases),
            solution={file: made.source},
        )

    return draw_task


FAMILIES = (
    Family("arithmetic", "return a sum, product, rest or bound of numbers", "write", writer("arithmetic")),
    Family("booleans", "return True or False about numbers and texts", "write", writer("booleans")),
    Family("strings", "change, measure or search a text", "write", writer("strings")),
    Family("lists", "sum, sort, map and filter a list", "write", writer("lists")),
    Family("dicts", "look things up, count and filter in a dictionary", "write", writer("dicts")),
    Family("choices", "return one of several words or numbers", "write", writer("choices")),
    Family("units", "convert hours to minutes, feet to inches and the like", "write", writer("units")),
    Family("slices", "take a part of a list or a text", "write", writer("slices"), split="heldout"),
    Family("formats", "build a text from parts", "write", writer("formats"), split="heldout"),
)
