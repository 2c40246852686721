# SPDX-License-Identifier: AGPL-3.0-or-later
# ruff: noqa: E501
"""Small programs put together from pieces: "the sum of the squares of the even numbers in the list".

A source, perhaps a condition, perhaps a change of each item, and an end (data/pieces.py): tens of thousands of
programs, each with its English, its Python and a plain function that answers the same. How a program is asked
for is data/programs.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rusty_r2.data.arguments import KINDS, Arguments
from rusty_r2.data.names import Namer
from rusty_r2.data.pieces import CHANGES, ENDS, KEEPS, SOURCES, Change, End, Keep, Source

VARIABLES = {"num": ("x", "y"), "str": ("s", "t"), "char": ("c", "d")}


@dataclass(frozen=True)
class Program:
    """A function to write; `answer(*arguments)` is what it must give."""

    says: str
    """what it gives, as a noun phrase; a statement for `whether`, an order for `do`"""
    mood: str
    """noun, whether or do"""
    args: tuple[tuple[str, str], ...]
    """name and kind"""
    body: str
    answer: Callable[..., Any]
    gives: str
    key: tuple[str, ...]
    """words for a telling name"""
    head: str = ""
    """imports it needs"""


def pipeline(namer: Namer, *, told: bool) -> Program:
    """A program; `told` says whether the request will name the arguments."""
    rng, made = namer.rng, Arguments(namer, told=told)
    source = rng.choice(SOURCES)
    name = made.add(source.arg)
    if rng.random() < 0.12:
        return _whether(source, name, made, rng)
    keep = rng.choice(KEEPS[source.gives]) if rng.random() < 0.65 else None
    change = rng.choice(CHANGES[source.gives]) if rng.random() < 0.45 or keep is None else None
    gives = change.gives if change else source.gives
    end = rng.choice([one for one in ENDS if gives in one.takes])
    if end.key == "count":  # what becomes of an item does not change how many there are
        change, keep = None, keep or rng.choice(KEEPS[source.gives])
    return _assembled(source, name, keep, change, end, made, rng)


def _assembled(
    source: Source,
    name: str,
    keep: Keep | None,
    change: Change | None,
    end: End,
    made: Arguments,
    rng: random.Random,
) -> Program:
    """All the pieces as English, Python and answer."""
    pieces = [piece for piece in (keep, change, end) if piece is not None and piece.k]
    codes, finds = {}, {}
    for piece in pieces:
        codes[piece], finds[piece] = made.constant(piece.k)
    variable = _variable(source.gives, made.args)
    conditions = [source.only.format(x=name, v=variable)] if source.only else []
    if keep:
        conditions.append(keep.code.format(v=variable, k=codes.get(keep)))
    expression = change.code.format(v=variable, k=codes.get(change)) if change else variable
    loops = [loop.format(x=name, v=variable) for loop in source.loop]
    body = _body(end, loops, conditions, expression, variable, codes.get(end, ""), rng)
    says = _said(source, name, keep, change, end, codes, rng)

    def answer(*values: Any) -> Any:
        found = source.ref(values[0])
        more = {piece: (find(values),) for piece, find in finds.items()}
        if keep:
            found = [one for one in found if keep.ref(one, *more.get(keep, ()))]
        if change:
            found = [change.ref(one, *more.get(change, ())) for one in found]
        return end.ref(found, *more.get(end, ()))

    key = [
        end.key,
        *([change.key] if change else []),
        *([keep.adjective.split("-")[0]] if keep and keep.adjective else []),
    ]
    return Program(says, "noun", tuple(made.args), body, answer, end.gives, tuple(key))


def _whether(source: Source, name: str, made: Arguments, rng: random.Random) -> Program:
    """Whether all items, some or none are so."""
    keep = rng.choice(KEEPS[source.gives])
    code, find = made.constant(keep.k) if keep.k else ("", lambda values: None)
    word = rng.choice(("all", "all", "any", "any", "no"))
    variable = _variable(source.gives, made.args)
    call = "all" if word == "all" else "any"
    loops = " for ".join(loop.format(x=name, v=variable) for loop in source.loop)
    only = f" if {source.only.format(x=name, v=variable)}" if source.only else ""
    test = keep.code.format(v=variable, k=code)
    body = f"    return {'not ' * (word == 'no')}{call}({test} for {loops}{only})\n"
    items = rng.choice(source.items) + rng.choice(source.of).format(x=_reference(source, name, rng))
    begin = {
        "all": ("all of the", "all the"),
        "any": ("some", "any of the", "some of the"),
        "no": ("no", "none of the"),
    }[word]
    says = f"{rng.choice(begin)} {items} {keep.clause.format(k=code)}"

    def answer(*values: Any) -> Any:
        more = [find(values)] if keep.k else []
        tests = [bool(keep.ref(one, *more)) for one in source.ref(values[0])]
        return False not in tests if word == "all" else (True in tests) == (word == "any")

    return Program(
        says,
        "whether",
        tuple(made.args),
        body,
        answer,
        "bool",
        (word, *(keep.adjective or keep.clause.split()[0]).split("-")[:1]),
    )


def _variable(gives: str, args: Sequence[tuple[str, str]]) -> str:
    taken = {name for name, _ in args}
    return next((one for one in VARIABLES[gives] if one not in taken), "item")


def _reference(source: Source, name: str, rng: random.Random) -> str:
    return rng.choice(KINDS[source.arg].called).format(a=name)


def _said(
    source: Source,
    name: str,
    keep: Keep | None,
    change: Change | None,
    end: End,
    codes: dict[Any, str],
    rng: random.Random,
) -> str:
    """The noun phrase: "the sum of the squares of the even numbers in the list"."""
    items, of = rng.choice(source.items), rng.choice(source.of).format(x=_reference(source, name, rng))
    bare = items + of
    if keep and keep.adjective and rng.random() < 0.6:
        bare = f"{keep.adjective} {bare}"
    elif keep:
        bare = f"{bare} which {keep.clause.format(k=codes.get(keep))}"
    phrase = f"the {bare}"
    if change:
        phrase = rng.choice(change.says).format(np=phrase, k=codes.get(change))
        bare = phrase.removeprefix("the ") if phrase.startswith("the ") else f"values among {phrase}"
    return rng.choice(end.says).format(np=phrase, bare=bare, k=codes.get(end))


def _body(
    end: End,
    loops: Sequence[str],
    conditions: Sequence[str],
    expression: str,
    variable: str,
    k: str,
    rng: random.Random,
) -> str:
    """The function's lines: in one expression where the end can, at times in a loop."""
    if end.loop and (not end.code or rng.random() < 0.2):
        return _looped(end.loop, loops, conditions, expression)
    clauses = " for ".join(loops) + (f" if {' and '.join(conditions)}" if conditions else "")
    plain = expression == variable and not conditions and len(loops) == 1
    direct = loops[0].partition(" in ")[2]
    gen = direct if plain else f"{expression} for {clauses}"
    par, made = (direct, f"list({direct})") if plain else (f"({gen})", f"[{gen}]")
    filled = end.code.replace("{gen}", gen).replace("{par}", par).replace("{list}", made)
    return "    " + filled.replace("{for}", clauses).replace("{k}", k) + "\n"


def _looped(
    parts: tuple[str, str, str], loops: Sequence[str], conditions: Sequence[str], expression: str
) -> str:
    """The same as a loop, deeper by one for each clause."""
    before, step, after = parts
    lines = [f"    {before}"] if before else []
    depth = 1
    for head in [
        *(f"for {loop}:" for loop in loops),
        *([f"if {' and '.join(conditions)}:"] if conditions else []),
    ]:
        lines.append("    " * depth + head)
        depth += 1
    pad = "    " * depth
    lines += [pad + step.replace("{e}", expression).replace("{pad}", pad), f"    {after}"]
    return "\n".join(lines).replace("{{}}", "{}") + "\n"
