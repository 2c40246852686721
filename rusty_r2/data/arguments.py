# SPDX-License-Identifier: AGPL-3.0-or-later
# ruff: noqa: E501
"""The arguments of small programs: what people call them, how they speak of them, and values to try them with.

A kind is a row of a table and stays on one line, however long.
"""

from __future__ import annotations

import keyword
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rusty_r2.data.names import Namer


class Kind(NamedTuple):
    usual: tuple[str, ...]
    """names; the first is taken where a request does not tell them"""
    value: Callable[[random.Random], Any]
    hint: str
    """its type"""
    said: str
    """ "a list of integers" """
    called: tuple[str, ...] = ("{a}",)
    """how a sentence speaks of it"""


WORDS = ("apple", "level", "Stone", "tree", "RED", "noon", "river", "ant", "Ice", "banana", "sun", "ox", "Eve", "kayak", "paper", "code", "unit", "star", "blue", "rest")  # fmt: skip
_LISTS = (
    "the list",
    "a list",
    "the given list",
    "the list {a}",
    "{a}",
    "a given list",
    "the input list",
    "the array",
)


def _several(rng: random.Random, low: int, high: int, fewest: int = 3, most: int = 6) -> list[int]:
    return [rng.randint(low, high) for _ in range(rng.randint(fewest, most))]


def _gap(rng: random.Random) -> list[int]:
    numbers = list(range(1, rng.randint(4, 8)))
    numbers.remove(rng.choice(numbers))
    return rng.sample(numbers, len(numbers))


def _nested(rng: random.Random, depth: int = 2) -> list[Any]:
    return [
        _nested(rng, depth - 1) if depth and rng.random() < 0.4 else rng.randint(0, 20)
        for _ in range(rng.randint(2, 3))
    ]


KINDS = {
    "nums": Kind(("nums", "numbers", "lst", "arr", "values", "xs", "data", "l", "items", "test_list", "list1", "array"), lambda rng: _several(rng, -9, 30), "List[int]", "a list of integers", (*_LISTS, "the list of numbers")),
    "strs": Kind(("words", "strings", "lst", "names", "items", "texts", "arr", "list1"), lambda rng: rng.sample(WORDS, rng.randint(3, 5)), "List[str]", "a list of strings", (*_LISTS, "the list of strings")),
    "text": Kind(("text", "s", "string", "str1", "line", "txt", "test_str"), lambda rng: rng.choice(("Hello World", "abc123", "Python 3", "a-b_C", *WORDS)) + rng.choice(("", "", "7", " Ai")), "str", "a string", ("the string", "a string", "the string {a}", "{a}", "the given string", "the text")),
    "sentence": Kind(("text", "sentence", "s", "line", "string"), lambda rng: " ".join(rng.sample(WORDS, rng.randint(2, 5))), "str", "a string of words", ("the sentence", "the text", "the string {a}", "{a}", "a sentence", "the given sentence")),
    "n": Kind(("n", "num", "number", "m", "limit", "N"), lambda rng: rng.choice((rng.randint(1, 12), rng.randint(1, 99))), "int", "a positive number", ("{a}", "{a}", "{a}", "the number {a}")),
    "prices": Kind(("d", "prices", "scores", "table", "dct", "test_dict"), lambda rng: {word: rng.randint(-5, 40) for word in rng.sample(WORDS, rng.randint(2, 3))}, "dict", "a dictionary", ("the dictionary", "the dictionary {a}", "{a}", "a dictionary", "the given dictionary")),
    "grid": Kind(("grid", "matrix", "rows", "m", "mat"), lambda rng: [[rng.randint(0, 9) for _ in range(size)] for size in [rng.randint(2, 3)] for _ in range(size)], "List[List[int]]", "a list of lists of integers", ("the matrix", "the matrix {a}", "a matrix", "the given matrix", "the list of lists", "the list of lists {a}")),
    "tup": Kind(("t", "tup", "values", "point", "test_tup"), lambda rng: tuple(_several(rng, -5, 20, 2, 4)), "tuple", "a tuple of integers", ("the tuple", "the tuple {a}", "a tuple", "the given tuple")),
    "int": Kind(("k", "threshold", "limit", "m", "bound", "value", "x0"), lambda rng: rng.choice((rng.randint(0, 10), rng.randint(-5, 30))), "int", "a number"),
    "whole": Kind(("n", "x", "num", "value", "number"), lambda rng: rng.randint(-20, 50), "int", "a whole number"),
    "above": Kind(("high", "upper"), lambda rng: rng.randint(31, 60), "int", "a number"),
    "small": Kind(("k", "m", "size", "step"), lambda rng: rng.randint(2, 7), "int", "a positive number"),
    "two": Kind(("k", "m", "size", "i"), lambda rng: rng.randint(1, 3), "int", "a positive number"),
    "tiny": Kind(("n", "num", "count", "m"), lambda rng: rng.randint(1, 9), "int", "a positive number"),
    "big": Kind(("n", "num", "number", "value"), lambda rng: rng.choice((rng.randint(2, 99), rng.randint(100, 9999), rng.randint(1, 9) * 111)), "int", "a positive number"),
    "year": Kind(("year", "y"), lambda rng: rng.choice((1900, 2000, 2100, rng.randint(1950, 2030))), "int", "a year"),
    "bit01": Kind(("k", "value", "bit"), lambda rng: rng.randint(0, 1), "int", "0 or 1"),
    "digit": Kind(("k", "digit"), lambda rng: rng.randint(0, 9), "int", "a digit"),
    "bit": Kind(("part", "prefix", "sub", "p", "key"), lambda rng: rng.choice(("a", "b", "st", "re", "e", "an", "s", "p", "co", "in", "er", "t", "un", "x")), "str", "a string"),
    "char": Kind(("ch", "letter", "char", "sign"), lambda rng: rng.choice("aeostlnr"), "str", "a character"),
    "mark": Kind(("sep", "glue", "mark"), lambda rng: rng.choice((" ", ", ", "-", "_", ":", "/", "; ", "+")), "str", "a string"),
    "zero": Kind(("default", "fallback"), lambda rng: rng.choice((0, 0, -1)), "int", "a default"),
    "word": Kind(("word", "text", "s", "name", "string"), lambda rng: rng.choice(WORDS), "str", "a string", ("the string {a}", "{a}")),
    "lower": Kind(("text", "word", "s"), lambda rng: rng.choice(WORDS).lower(), "str", "a string of lower-case letters", ("the string {a}", "{a}")),
    "runs": Kind(("text", "s", "string"), lambda rng: "".join(rng.choice("abcd") * rng.randint(1, 3) for _ in range(rng.randint(2, 5))), "str", "a string", ("the string {a}", "{a}")),
    "bits": Kind(("bits", "s", "text"), lambda rng: "".join(rng.choices("01", k=rng.randint(3, 5))), "str", "a string of zeros and ones", ("the string {a}", "{a}")),
    "brackets": Kind(("text", "brackets", "s"), lambda rng: rng.choice(("()", "(())", "()()", "(()", "())(", "(()())", ")(", "((()))", "(", "()(())")), "str", "a string of brackets", ("the string {a}", "{a}")),
    "numtext": Kind(("text", "line", "s"), lambda rng: rng.choice((" ".join(map(str, _several(rng, 0, 50))), str(rng.randint(0, 9999)))), "str", "a string of numbers", ("the string {a}", "{a}")),
    "zeros": Kind(("nums", "items", "lst", "values", "arr"), lambda rng: _several(rng, 0, 3, 3, 7), "List[int]", "a list of integers", _LISTS),
    "sorted": Kind(("nums", "lst", "arr", "values"), lambda rng: sorted(_several(rng, -5, 30)) if rng.random() < 0.8 else [3, 1, 2], "List[int]", "a list of integers", _LISTS),
    "ordered": Kind(("nums", "lst", "arr", "values"), lambda rng: sorted({*_several(rng, -5, 15)}), "List[int]", "a sorted list of integers", _LISTS),
    "three": Kind(("nums", "a", "xs", "values"), lambda rng: _several(rng, -5, 20, 3, 3), "List[int]", "a list of integers", _LISTS),
    "gap": Kind(("nums", "arr", "lst"), _gap, "List[int]", "a list of integers", _LISTS),
    "numerals": Kind(("texts", "strings", "parts"), lambda rng: [str(one) for one in _several(rng, 0, 99)], "List[str]", "a list of strings", _LISTS),
    "point": Kind(("a", "p", "point"), lambda rng: (rng.randint(-9, 9), rng.randint(-9, 9)), "tuple", "a pair of numbers"),
    "longer": Kind(("text", "word", "s"), lambda rng: rng.choice(WORDS) + rng.choice("abc"), "str", "a string", ("the string {a}", "{a}")),
    "nested": Kind(("nested", "items", "lst"), _nested, "list", "a nested list"),
    "pairs": Kind(("pairs", "items", "tuples", "records"), lambda rng: [(word, rng.randint(0, 30)) for word in rng.sample(WORDS, rng.randint(2, 4))], "List[tuple]", "a list of tuples", _LISTS),
}  # fmt: skip
TAKEN = frozenset(
    "total result count best product found seen last counts row d x y s t c i j list str sum len max min set abs map int dict sorted "  # noqa: SIM905
    "all any range ord chr bin zip enumerate isinstance filter reversed tuple print type input id math text words".split()
)
"""names that bodies use themselves"""


def value(kind: str, rng: random.Random) -> Any:
    """An argument of a kind, to try a program with."""
    return KINDS[kind].value(rng)


def named(kind: str, usual: str, namer: Namer, avoid: Sequence[str] | frozenset[str]) -> str:
    """Another name for an argument, one that a request tells: common, or made up."""
    name = namer.rng.choice(KINDS[kind].usual) if namer.rng.random() < 0.6 else namer.identifier().lower()
    if keyword.iskeyword(name) or name in avoid or (name in TAKEN and name not in KINDS[kind].usual):
        return usual
    return name


class Arguments:
    """The arguments of a program, as they turn out to be needed."""

    def __init__(self, namer: Namer, *, told: bool) -> None:
        self._namer, self._told = namer, told
        self.args: list[tuple[str, str]] = []

    def add(self, kind: str) -> str:
        """The name of another argument: one that the request tells, or the usual one."""
        name = KINDS[kind].usual[0]
        if self._told:
            name = named(kind, name, self._namer, ())
        while name in [known for known, _ in self.args]:
            name += "2"
        self.args.append((name, kind))
        return name

    def constant(self, kind: str) -> tuple[str, Callable[[Sequence[Any]], Any]]:
        """A constant of a kind as Python, and how to find it among the values of the arguments."""
        if kind != "lower" and len(self.args) < 3 and self._namer.rng.random() < 0.35:
            place = len(self.args)
            return self.add(kind), lambda values: values[place]
        fixed = value(kind, self._namer.rng)
        return repr(fixed), lambda values: fixed
