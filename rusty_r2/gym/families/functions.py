# SPDX-License-Identifier: AGPL-3.0-or-later
"""From a recipe (recipes.toml) to a function of our own: its text, what it is said to do, and its cases.

Expected values come from running the gold body here; it is our own text, never a model's. Cases begin
at the edges of the recipe's numbers, so that an off-by-one is caught, and a set of cases that the
argument itself, or one constant, would satisfy is thrown away.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from rusty_r2.errors import TaskError
from rusty_r2.gym.families import words
from rusty_r2.gym.families.base import Draw
from rusty_r2.task import Case

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CASES = 8
TRIES = 60
LETTERS = "aeioulnrst"
PHRASES = ("level", "noon", "radar", "Big Red Robot", "  spare parts ", "Rusty", "a b c", "")
NAMES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "int": (words.INT_NAMES, words.OTHER_INT_NAMES),
    "nat": (words.INT_NAMES, words.OTHER_INT_NAMES),
    "str": (words.STR_NAMES, words.OTHER_STR_NAMES),
    "ints": (words.LIST_NAMES, words.LIST_NAMES),
    "words": (words.WORDS_NAMES, words.WORDS_NAMES),
    "dict": (words.DICT_NAMES, words.DICT_NAMES),
}


@dataclass(frozen=True)
class Recipe:
    level: int
    takes: tuple[str, ...]
    body: str
    stems: tuple[str, ...]
    says: tuple[str, ...]


@dataclass(frozen=True)
class Function:
    name: str
    params: tuple[str, ...]
    source: str
    """the gold text"""
    says: str
    """what it returns, in words"""
    cases: tuple[Case, ...]
    """hidden: these decide"""
    example: Case
    """may be shown: not one of the hidden ones"""

    @property
    def call(self) -> str:
        return f"{self.name}({', '.join(self.params)})"

    def shown(self, case: Case) -> str:
        return f"{self.name}({', '.join(map(repr, case.args))})"


@cache
def recipes() -> dict[str, tuple[Recipe, ...]]:
    """Every recipe by the name of its table."""
    tables = tomllib.loads((Path(__file__).parent / "recipes.toml").read_text(encoding="utf-8"))
    return {
        name: tuple(
            Recipe(row["level"], tuple(row["takes"]), row["body"], tuple(row["stems"]), tuple(row["says"]))
            for row in rows
        )
        for name, rows in tables.items()
    }


def function(draw: Draw, pool: Sequence[Recipe]) -> Function:
    """A function of this level from `pool`, with names, numbers and words of the draw's split."""
    fitting = [recipe for recipe in pool if recipe.level == draw.level]
    for _ in range(TRIES):
        made = _from_recipe(draw, draw.any(fitting))
        if made is not None:
            return made
    raise TaskError(f"no recipe of level {draw.level} gave cases that decide anything")


def run(source: str, name: str) -> Callable[..., Any]:
    """The function `name` of our own `source`; what it prints is dropped."""
    space: dict[str, Any] = {"print": lambda *_: None}
    exec(compile(source, name, "exec"), space)
    return space[name]  # type: ignore[no-any-return]


def _from_recipe(draw: Draw, recipe: Recipe) -> Function | None:
    kinds = [kind.rstrip("+") for kind in recipe.takes]
    params = tuple(draw.word(NAMES[kind][place]) for place, kind in enumerate(kinds))
    chosen = _constants(draw)
    filled = chosen | dict(zip(("x", "y"), params, strict=False))
    name = _name(draw, Template(draw.any(recipe.stems)).substitute(filled), params)
    source = _source(name, params, Template(recipe.body).substitute(filled))
    cases = _cases(draw, recipe.takes, chosen, run(source, name))
    if cases is None or len(set(params)) < len(params):
        return None
    says = Template(draw.say(*recipe.says)).substitute(filled)
    return Function(name, params, source, says, tuple(cases[1:]), cases[0])


def _constants(draw: Draw) -> dict[str, Any]:
    w, v, u = draw.words(words.WORDS, 3)
    c, d = draw.shuffled(LETTERS)[:2]
    numbers = {"n": draw.number(2, 60), "m": draw.number(2, 30), "k": draw.integer(2, 6)}
    return {**numbers, "w": w, "v": v, "u": u, "c": c, "d": d}


def _name(draw: Draw, stem: str, params: Sequence[str]) -> str:
    plain = [] if draw.held or stem in params else [stem]
    return draw.any([*plain, f"{draw.word(words.VERBS)}_{stem}", f"{stem}_{draw.word(words.NOUNS)}"])


def _source(name: str, params: Sequence[str], body: str) -> str:
    lines = body.splitlines() if "return" in body else [f"return {body}"]
    text = f"def {name}({', '.join(params)}):\n" + "\n".join(f"    {line}" for line in lines)
    return ast.unparse(ast.parse(text)) + "\n"


def _cases(
    draw: Draw, takes: Sequence[str], chosen: Mapping[str, Any], gold: Callable[..., Any]
) -> list[Case] | None:
    """An example and then the hidden cases, all different; None where they would decide nothing."""
    made: dict[str, Case] = {}
    for place in range(4 * CASES):
        args = tuple(_argument(draw, kind, chosen, place + 2 * i) for i, kind in enumerate(takes))
        made.setdefault(repr(args), Case(args, gold(*args)))
    # the example is the last made, an ordinary one: the edges stay hidden
    cases = [*list(made.values())[-1:], *list(made.values())[:CASES]]
    hidden = cases[1:]
    if len(made) <= CASES or len({repr(case.expected) for case in hidden}) < 2:
        return None
    if any(all(case.args[i] == case.expected for case in hidden) for i in range(len(takes))):
        return None
    return cases


def _argument(draw: Draw, kind: str, chosen: Mapping[str, Any], place: int) -> Any:
    """A value for a parameter; the first few places are the edges of the recipe's numbers and words."""
    n, w, k = chosen["n"], chosen["w"], chosen["k"]
    least = 1 if kind.endswith("+") else 0
    match kind.rstrip("+"):
        case "int":
            edges = (n + 1, n, n - 1, -3, n + chosen["m"], n + chosen["m"] + 1, 2 * n)
            return edges[place] if place < len(edges) else draw.integer(-30, 90)
        case "nat":
            return (n, n + 1, 0, 1)[place] if place < 4 else draw.integer(2, 12)
        case "str":
            return _text(draw, place, w, chosen["c"], k)
        case "ints":
            count = least + draw.below(6) if place > 2 else 5
            near = (n + 1, n, n - 1, 2 * n, n)
            return [draw.any(near) if draw.chance(0.4) else draw.integer(-20, 80) for _ in range(count)]
        case "words":
            few = draw.shuffled([word for word in words.WORDS if place > 3 or len(word) < 7])[:4]
            return [draw.any(few) for _ in range(draw.integer(0, 6) if place > 2 else 5)]
        case _:
            keys = draw.shuffled(words.WORDS)[: least + draw.below(4)] + ([w] if draw.chance(0.5) else [])
            return {key: draw.any((n + 1, n, n - 1, draw.integer(0, 90))) for key in dict.fromkeys(keys)}


def _text(draw: Draw, place: int, w: str, c: str, k: int) -> str:
    first, second = draw.any(words.WORDS), draw.any(words.WORDS)
    shapes = (
        f"{w} {first}",
        f"{first} {w}",
        draw.any(PHRASES),
        f"{first}{c}{c} {second}"[: k + draw.below(3)],
        f"{first.title()} {second} {c}",
        draw.any(PHRASES),
        f" {first} ",
    )
    return shapes[place] if place < len(shapes) else draw.any((first, f"{first} {second}", second + c))
