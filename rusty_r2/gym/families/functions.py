# SPDX-License-Identifier: AGPL-3.0-or-later
"""From a recipe (recipes.toml) to a function of our own: its text, what it is said to do, and its cases.

Expected values come from running the gold body here; it is our own text, never a model's. Cases begin
at the edges of the recipe's numbers; those are kept that tell the gold from its near misses (mutate.py). A
set that the argument itself, or one constant, would satisfy is thrown away.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from string import Template
from typing import Any

from rusty_r2.errors import TaskError
from rusty_r2.gym.families import mutate, names, words
from rusty_r2.gym.families.base import Draw, Wordings
from rusty_r2.task import Case

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CASES = 8
TRIED = 28
"""cases made, of which the sharpest are kept"""
NEAR_MISSES = (mutate.operator, mutate.constant, mutate.comparison, mutate.call)
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
MANY = ("ints", "words", "dict")


@dataclass(frozen=True)
class Recipe:
    level: int
    takes: tuple[str, ...]
    body: str
    stems: tuple[str, ...]
    says: Wordings


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
            Recipe(
                *(row["level"], tuple(row["takes"]), row["body"], tuple(row["stems"])),
                Wordings(row["says"], row.get("more", ())),
            )
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


@lru_cache(512)
def run(source: str) -> Callable[..., Any]:
    """The function that our own `source` defines; what it prints is dropped."""
    space: dict[str, Any] = {"print": lambda *_: None}
    exec(compile(source, "gold", "exec"), space)
    return space[source.partition("def ")[2].partition("(")[0]]  # type: ignore[no-any-return]


def _from_recipe(draw: Draw, recipe: Recipe) -> Function | None:
    kinds = [kind.rstrip("+") for kind in recipe.takes]
    taken = set(re.findall(r"\w+", recipe.body))
    params: tuple[str, ...] = ()
    for place, kind in enumerate(kinds):
        usual, many = NAMES[kind][place], kind in MANY
        params += (names.parameter(draw, usual, taken | set(params), many=many),)
    chosen = _constants(draw)
    filled = chosen | dict(zip(("x", "y"), params, strict=False))
    told = Template(draw.any(recipe.stems)).substitute(filled)
    name = names.function(draw, told, taken | set(params))
    source = _source(name, params, Template(recipe.body).substitute(filled))
    cases = _cases(draw, recipe.takes, chosen, source)
    if cases is None:
        return None
    says = Template(draw.say(recipe.says)).substitute(filled)
    return Function(name, params, source, says, tuple(cases[1:]), cases[0])


def sample(recipe: Recipe) -> str:
    """A recipe's text with names and numbers of no meaning."""
    filled = {**dict.fromkeys("wvucd", "w"), "x": "x", "y": "y", "n": 7, "m": 5, "k": 3}
    return _source("f", ["x", "y"], Template(recipe.body).substitute(filled))


def _constants(draw: Draw) -> dict[str, Any]:
    w, v, u = draw.words(words.WORDS, 3)
    c, d = draw.shuffled(LETTERS)[:2]
    n = draw.number(2, 99) if draw.chance(0.8) else draw.number(100, 999)
    numbers = {"n": n, "m": draw.number(2, 60), "k": draw.integer(2, 9)}
    return {**numbers, "w": w, "v": v, "u": u, "c": c, "d": d}


def _source(name: str, params: Sequence[str], body: str) -> str:
    lines = body.splitlines() if "return" in body else [f"return {body}"]
    text = f"def {name}({', '.join(params)}):\n" + "\n".join(f"    {line}" for line in lines)
    return mutate.written(ast.parse(text))


def _cases(draw: Draw, takes: Sequence[str], chosen: Mapping[str, Any], source: str) -> list[Case] | None:
    """An example and then the hidden cases, all different; None where they would decide nothing."""
    gold = run(source)
    edges = _edges(source)
    made: dict[str, Case] = {}
    for place in range(TRIED):
        args = [_argument(draw, kind, chosen, edges, place + 3 * i) for i, kind in enumerate(takes)]
        if takes == ("int", "int") and place % 8 == 5:
            args[1] = args[0]
        if takes == ("int", "int") and place % 4 == 2:  # one at an edge, the other well above it
            side = place // 4 % 2
            args[side], args[1 - side] = edges[place // 8 % 3], 2 * abs(edges[0]) + draw.below(30)
        made.setdefault(repr(args), Case(tuple(args), gold(*args)))
    # the example is the last one made, an ordinary one: the edges stay hidden
    *others, example = made.values()
    hidden = _sharpest(others, source) if draw.how.judged else others[:CASES]
    if len(hidden) < CASES or len({repr(case.expected) for case in hidden}) < 2:
        return None
    if any(all(case.args[i] == case.expected for case in hidden) for i in range(len(takes))):
        return None
    return [example, *hidden]


def _sharpest(cases: Sequence[Case], source: str) -> list[Case]:
    """The cases that tell the gold from its near misses, filled up with the first of the others."""
    alive = [text for way in NEAR_MISSES for text in way(source)]
    chosen: list[Case] = []
    for case in cases:
        caught = {text for text in alive if outcome(text, case) != repr(case.expected)}
        if caught and len(chosen) < CASES:
            chosen.append(case)
            alive = [text for text in alive if text not in caught]
    return (chosen + [case for case in cases if case not in chosen])[:CASES]


def outcome(source: str, case: Case) -> str:
    """What a call gives, as a person would see it: a value, or the name of an error."""
    try:
        return repr(run(source)(*case.args))
    except SyntaxError:  # also its kinds, such as IndentationError, which differ from version to version
        return "a SyntaxError"
    except Exception as error:
        return f"a {type(error).__name__}"


def _edges(source: str) -> list[int]:
    """Whole numbers around which the gold changes its mind."""
    found = re.findall(r"(?<![\w'])\d+(?![\w'])", source)
    numbers = [int(number) for number in dict.fromkeys(found)][:2]
    around = [n + offset for n in [*numbers, sum(numbers)] for offset in (0, 1, -1)]
    return list(dict.fromkeys([*around, 0, -1, *(2 * n for n in numbers), *(3 * n - 1 for n in numbers)]))


def _argument(draw: Draw, kind: str, chosen: Mapping[str, Any], edges: Sequence[int], place: int) -> Any:
    """A value for a parameter; the first places are edges of the recipe's numbers and words."""
    least = 1 if kind.endswith("+") else 0
    high = max(80, 2 * chosen["n"])  # so that a large number is passed as often as not
    match kind.rstrip("+"):
        case "int":
            return edges[place] if place < len(edges) else draw.integer(-30, high)
        case "nat":
            return abs(edges[place]) if place < len(edges) else draw.integer(2, 12)
        case "str":
            return _text(draw, place, chosen["w"], chosen["c"], chosen["k"])
        case "ints":
            if place % 6 == 4:  # nothing below the edge
                return [draw.any([edges[0], edges[1], high]) for _ in range(draw.integer(1, 3))]
            count = least + draw.below(6) if place > 2 else 5
            return [draw.any(edges) if draw.chance(0.4) else draw.integer(-20, high) for _ in range(count)]
        case "words":
            few = draw.words(words.WORDS if place > 3 else words.SHORT_WORDS, 4)
            return [draw.any(few) for _ in range(draw.integer(0, 6) if place > 2 else 5)]
        case _:
            keys = draw.words(words.WORDS, least + draw.below(4))
            keys += [chosen["w"]] if draw.chance(0.5) else []
            values = (draw.any([*edges[:4], draw.integer(0, 90)]) for _ in keys)
            return dict(zip(keys, values, strict=True))


def _text(draw: Draw, place: int, w: str, c: str, k: int) -> str:
    first, second = draw.word(words.WORDS), draw.word(words.WORDS)
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
