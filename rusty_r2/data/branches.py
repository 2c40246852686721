# SPDX-License-Identifier: AGPL-3.0-or-later
# ruff: noqa: E501
"""Small programs that decide: "twice n if n is even, otherwise n plus 3"; "whether the sum of … is even".

`branch` puts a condition of data/pieces.py before two results of one argument; `judged` asks something of the
number that a pipeline gives. Like the pipelines they say themselves in English, in Python and as a plain
function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rusty_r2.data.arguments import Arguments
from rusty_r2.data.names import Namer
from rusty_r2.data.pieces import KEEPS
from rusty_r2.data.pipelines import Program, pipeline


class Outcome(NamedTuple):
    """What one argument becomes; {a} is its name, {k} a constant."""

    says: str
    code: str
    ref: Callable[..., Any]
    k: str = ""


OUTCOMES = {
    "num": (
        Outcome("{a} squared", "{a} * {a}", lambda a: a**2),
        Outcome("twice {a}", "{a} * 2", lambda a: a + a),
        Outcome("{a} plus {k}", "{a} + {k}", lambda a, k: a - -k, "small"),
        Outcome("{a} minus {k}", "{a} - {k}", lambda a, k: a + -k, "small"),
        Outcome("{a} times {k}", "{a} * {k}", lambda a, k: sum([a] * k), "small"),
        Outcome("{a} divided by {k}, rounded down", "{a} // {k}", lambda a, k: (a - a % k) // k, "small"),
        Outcome("the remainder of {a} divided by {k}", "{a} % {k}", lambda a, k: a - a // k * k, "small"),
        Outcome("the absolute value of {a}", "abs({a})", lambda a: max(a, -a)),
        Outcome("the negative of {a}", "-{a}", lambda a: 0 - a),
        Outcome("{a} itself", "{a}", lambda a: a),
        Outcome("{a} as a string", "str({a})", lambda a: f"{a}"),
        Outcome("{k}", "{k}", lambda a, k: k, "digit"),
        Outcome("the text {k}", "{k}", lambda a, k: k, "lower"),
        Outcome("None", "None", lambda a: None),
    ),
    "str": (
        Outcome("{a} in upper case", "{a}.upper()", lambda a: "".join(c.upper() for c in a)),
        Outcome("{a} in lower case", "{a}.lower()", lambda a: "".join(c.lower() for c in a)),
        Outcome("{a} backwards", "{a}[::-1]", lambda a: "".join(reversed(a))),
        Outcome("{a} written twice", "{a} * 2", lambda a: a + a),
        Outcome("the first letter of {a}", "{a}[:1]", lambda a: "".join(c for i, c in enumerate(a) if i == 0)),
        Outcome("{a} without its first letter", "{a}[1:]", lambda a: "".join(c for i, c in enumerate(a) if i)),
        Outcome("{a} without its last letter", "{a}[:-1]", lambda a: "".join(c for i, c in enumerate(a, 1) if i < len(a))),
        Outcome("{a} followed by {k}", "{a} + {k}", lambda a, k: f"{a}{k}", "bit"),
        Outcome("the length of {a}", "len({a})", lambda a: sum(1 for _ in a)),
        Outcome("{a} unchanged", "{a}", lambda a: a),
        Outcome("an empty string", "''", lambda a: a[:0]),
        Outcome("the text {k}", "{k}", lambda a, k: k, "lower"),
        Outcome("the first {k} letters of {a}", "{a}[:{k}]", lambda a, k: "".join(c for i, c in enumerate(a) if i < k), "small"),
    ),
}  # fmt: skip
SINGULAR = {"are": "is", "have": "has", "start": "starts", "begin": "begins", "end": "ends", "contain": "contains", "do": "does", "read": "reads"}  # fmt: skip
FORMS = ("{yes} if {it}, otherwise {no}", "{yes} if {it}, and {no} otherwise", "{yes} if {it} and {no} if not", "{yes} when {it}, else {no}")  # fmt: skip


class Question(NamedTuple):
    """Something asked of a number."""

    says: str
    code: str
    ref: Callable[..., Any]
    k: str = ""


QUESTIONS = (
    Question("is even", "% 2 == 0", lambda a: not a & 1),
    Question("is odd", "% 2 == 1", lambda a: bool(a & 1)),
    Question("is greater than {k}", "> {k}", lambda a, k: a - k > 0, "int"),
    Question("is more than {k}", "> {k}", lambda a, k: a - k > 0, "int"),
    Question("is less than {k}", "< {k}", lambda a, k: k - a > 0, "int"),
    Question("is at least {k}", ">= {k}", lambda a, k: a - k >= 0, "int"),
    Question("is equal to {k}", "== {k}", lambda a, k: a - k == 0, "int"),
    Question("is divisible by {k}", "% {k} == 0", lambda a, k: a // k * k == a, "small"),
    Question("is positive", "> 0", lambda a: not a <= 0),
    Question("is not zero", "!= 0", bool),
)


def branch(namer: Namer, *, told: bool) -> Program:
    """One argument, a condition, two results."""
    rng, made = namer.rng, Arguments(namer, told=told)
    gives = rng.choice(("num", "num", "str"))
    name = made.add("whole" if gives == "num" else "word")
    keep = rng.choice(
        [one for one in KEEPS[gives] if one.clause.split()[-1] not in ("palindromes", "prime", "squares")]
    )
    yes, no = rng.sample(OUTCOMES[gives], 2)
    codes, finds = {}, {}
    for part in (keep, yes, no):
        if part.k:
            codes[part], finds[part] = made.constant(part.k)
    verb, _, rest = keep.clause.partition(" ")
    it = f"{name} {SINGULAR[verb]} {rest}".replace("multiples", "a multiple").format(k=codes.get(keep))
    first, second = (part.says.format(a=name, k=codes.get(part)) for part in (yes, no))
    says = rng.choice(FORMS).format(yes=first, it=it, no=second)
    test = keep.code.format(v=name, k=codes.get(keep))
    one, other = (part.code.format(a=name, k=codes.get(part)) for part in (yes, no))
    if rng.random() < 0.25:
        body = f"    return {one} if {test} else {other}\n"
    else:
        body = f"    if {test}:\n        return {one}\n    return {other}\n"

    def answer(*values: Any) -> Any:
        more = {part: (find(values),) for part, find in finds.items()}
        chosen = yes if keep.ref(values[0], *more.get(keep, ())) else no
        return chosen.ref(values[0], *more.get(chosen, ()))

    key = ("pick", (keep.adjective or rest.split()[0]).split("-")[0].strip("{}"))
    return Program(says, "noun", tuple(made.args), body, answer, "", key)


def judged(namer: Namer, *, told: bool) -> Program:
    """A question about the number that a pipeline gives."""
    made = pipeline(namer, told=told)
    while not _askable(made):
        made = pipeline(namer, told=told)
    question = namer.rng.choice(QUESTIONS)
    args = Arguments(namer, told=told)
    args.args = list(made.args)
    code, find = args.constant(question.k) if question.k else ("", None)
    body = f"{made.body.rstrip()} {question.code.format(k=code)}\n"
    count = len(made.args)

    def answer(*values: Any) -> Any:
        return question.ref(made.answer(*values[:count]), *([find(values)] if find else []))

    says = f"{made.says} {question.says.format(k=code)}"
    return Program(
        says, "whether", tuple(args.args), body, answer, "bool", (*made.key, question.says.split()[1])
    )


def _askable(made: Program) -> bool:
    """Whether a program gives a number in one expression, and says so in a phrase that "is even" can follow."""
    once = made.body.startswith("    return ") and made.body.endswith(")\n")
    return once and made.gives == "num" and made.says.startswith("the ") and ", or " not in made.says
