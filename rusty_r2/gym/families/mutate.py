# SPDX-License-Identifier: AGPL-3.0-or-later
"""Ways to break a small function, one fault at a time. Text in, broken texts out.

Each mutation is named after what a person would say is wrong. Whether a broken text really fails is for
the caller to find out by its cases; fix.py throws survivors away.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any

Mutation = Callable[[str], Iterator[str]]

_LOOSE = re.compile(r"\bfor \((\w+(?:, \w+)*)\) in\b")
"""Python 3.10 writes brackets around the names of a loop, later versions do not"""


def written(tree: ast.AST) -> str:
    """The tree as text, the same in every version of Python."""
    return _LOOSE.sub(r"for \1 in", ast.unparse(tree)) + "\n"


OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Gt: (ast.Lt, ast.GtE),
    ast.GtE: (ast.LtE, ast.Gt),
    ast.Lt: (ast.Gt, ast.LtE),
    ast.LtE: (ast.GtE, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
CALLS = {
    left: right
    for pair in (
        "values keys",
        "max min, min max, sum len, len sum, sorted list, abs int, upper lower, lower upper, all any",
        "any all, startswith endswith, endswith startswith, strip lower, title upper, count find",
    )
    for left, right in (words.split() for words in pair.split(", "))
}


def operator(source: str) -> Iterator[str]:
    """Another arithmetic operator: + for -, and so on."""
    for tree, node in _each(source, ast.BinOp, ast.AugAssign):
        if type(node.op) in OPERATORS:
            node.op = OPERATORS[type(node.op)]()
            yield written(tree)


def constant(source: str) -> Iterator[str]:
    """A number that is off by one or by ten."""
    for offset in (1, -1, 10):
        for tree, node in _each(source, ast.Constant):
            if type(node.value) is int:
                node.value += offset
                yield written(tree)


def comparison(source: str) -> Iterator[str]:
    """A comparison turned round or off at its edge, `and` for `or`."""
    for place in (0, 1):
        for tree, node in _each(source, ast.Compare):
            others = COMPARISONS.get(type(node.ops[0]), ())
            if place < len(others):
                node.ops[0] = others[place]()
                yield written(tree)
    for tree, node in _each(source, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield written(tree)


def call(source: str) -> Iterator[str]:
    """The wrong builtin or method: min for max, lower for upper."""
    for tree, node in _each(source, ast.Call):
        name = node.func
        if isinstance(name, ast.Name) and name.id in CALLS:
            name.id = CALLS[name.id]
            yield written(tree)
        elif isinstance(name, ast.Attribute) and name.attr in CALLS:
            name.attr = CALLS[name.attr]
            yield written(tree)


def returned(source: str) -> Iterator[str]:
    """The value is worked out and then printed, kept or dropped instead of returned."""
    head, _, value = source.rstrip("\n").rpartition("return ")
    yield f"{head}print({value})\n"
    yield f"{head}result = {value}\n"
    yield f"{head}{value}\n"


def grammar(source: str) -> Iterator[str]:
    """Text that Python cannot read: a colon, a bracket or a quote is missing, a word is misspelt."""
    for at in (match.end() - 1 for match in re.finditer(r":(?=\n)|\)|\]|'", source)):
        yield source[:at] + source[at + 1 :]
    yield source.replace("return ", "retrun ", 1)
    yield source.replace("def ", "df ", 1)
    yield re.sub(r"\n    ", "\n", source, count=1)


def name(source: str) -> Iterator[str]:
    """A parameter misspelt where it is used, so that Python does not know it."""
    head, _, body = source.partition("\n")
    for param in re.findall(r"\w+", head.partition("(")[2]):
        for wrong in (param + "s", param + "_", param[:-1] + param[-1] * 2):
            yield head + "\n" + re.sub(rf"\b{param}\b", wrong, body, count=1)


def order(source: str) -> Iterator[str]:
    """The two sides of an operation, or the two results of a choice, stand the wrong way round."""
    for tree, node in _each(source, ast.BinOp):
        node.left, node.right = node.right, node.left
        yield written(tree)
    for tree, node in _each(source, ast.IfExp):
        node.body, node.orelse = node.orelse, node.body
        yield written(tree)


def _each(source: str, *kinds: type[ast.AST]) -> Iterator[tuple[ast.AST, Any]]:
    """Every node of these kinds, each in a fresh copy of the tree."""
    tree = ast.parse(source)
    places = [i for i, node in enumerate(ast.walk(tree)) if isinstance(node, kinds)]
    for place in places:
        fresh = ast.parse(source)  # faster than a copy
        yield fresh, next(node for i, node in enumerate(ast.walk(fresh)) if i == place)
