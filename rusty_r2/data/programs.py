# SPDX-License-Identifier: AGPL-3.0-or-later
# ruff: noqa: E501
"""Writing small functions, as benchmarks and people ask for them; every reply is proved by tests.

    Complete the function tally in solution.py: def tally(xs): \"\"\" Return the sum of the even numbers in xs …
    Write a function to find the greatest common divisor … Your code should pass these tests: assert …

What is to be written comes from data/pipelines.py and data/branches.py (put together from pieces) or from
programs.toml (written by hand: description, body, proof). Examples in a request are the answers of the proof, not of the body. A
docstring of one line is kept in the reply; a longer one is not said again. Nothing here is taken from
HumanEval or MBPP: their prompts and solutions are compared with these lessons in the tests.
"""

from __future__ import annotations

import calendar
import collections
import itertools
import keyword
import math
import random
import re
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from rusty_r2.data.arguments import KINDS, TAKEN, named, value
from rusty_r2.data.branches import branch, judged
from rusty_r2.data.episode import Episode, ask
from rusty_r2.data.names import Namer
from rusty_r2.data.pipelines import Program, pipeline
from rusty_r2.protocol import Edit

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE = "programs"
FILE = "solution.py"
FILES = (FILE, FILE, "main.py", "tools.py", "helpers.py", "utils.py", "lib.py")
LONGEST = 90
"""characters of an example's answer"""
SENTENCES = {
    "noun": (
        "Return {it}", "Return {it}", "Return {it}", "Returns {it}", "Find {it}", "Compute {it}", "Calculate {it}", "Get {it}", "Give back {it}",
        "Given {args}, return {it}", "Given {args}, find {it}", "You are given {args}. Return {it}", "You're given {args}. Your job is to return {it}",
        "Write a function that gets {args} and returns {it}", "Write a function which, given {args}, returns {it}", "This function takes {args} and should return {it}",
        "Create a function that returns {it}", "The function should return {it}", "For a given input, return {it}", "Implement a function that computes {it}", "Takes {args}, returns {it}",
    ),
    "whether": (
        "Check if {it}", "Check if {it}", "Check whether {it}", "Return True if {it}, False otherwise", "Return True if {it}", "Return True if {it} and False otherwise", "Returns True if {it}",
        "Determine whether {it}", "Test if {it}", "Given {args}, return True if {it}, otherwise return False", "Write a function that gives True if {it}, and False if not",
        "You are given {args}. Check if {it}", "Tell whether {it}", "Find out if {it}", "Write a function that gets {args} and checks whether {it}", "Evaluate whether {it}",
    ),
    "do": (
        "{It}", "{It}", "{It}", "{It} and return the result", "Given {args}, {it}", "Write a function to {it}", "Write a function that gets {args}. It should {it}", "Your job is to {it}", "This function should {it}",
        "You are given {args}. {It}", "Implement a function to {it}", "{It}. Return the outcome",
    ),
}  # fmt: skip
"""what a docstring says first"""
ORDERS = {
    "noun": ("find {it}", "find {it}", "find {it}", "return {it}", "compute {it}", "calculate {it}", "get {it}", "determine {it}"),
    "whether": ("check whether {it}", "check whether {it} or not", "check if {it}", "check if {it} or not", "find whether {it} or not", "determine if {it}"),
    "do": ("{it}", "{it}", "{it}"),
}  # fmt: skip
"""behind "write a function to" """
NOTES = ("Assume that the input is valid.", "Do not print anything.", "The input must not be changed.", "Keep it simple.", "You may assume that the arguments have the right types.", "Use only the standard library.", "Note: the arguments are always valid.")  # fmt: skip
PLAIN = (
    "Write $call in $file: $says",
    "In $file, write the function $name with the arguments $args. $says",
    "Implement $call in $file. $says",
    "$file needs a function $call. $says",
    "Write a function $name($args). $says Put it in $file.",
    "Make $file with a function $call. $says",
    "I need $call. $says Save it in $file.",
    "Create $file. It holds the function $call. $says",
    "Please write a Python function $call into $file. $says",
    "define $call in $file. $says",
)
SYNONYMS = {
    "largest": ("biggest", "greatest", "highest"),
    "smallest": ("lowest", "smallest"),
    "characters": ("chars", "symbols"),
    "elements": ("items", "entries", "members"),
    "numbers": ("integers", "values"),
    "the list": ("the array", "the sequence", "the given list", "the list"),
    "dictionary": ("dict", "mapping", "map"),
    "occurs": ("appears", "is found", "occurs"),
    "different": ("distinct", "unique"),
    "in ascending order": ("in increasing order", "from the smallest to the largest", "in ascending order"),
    "in descending order": ("in decreasing order", "from the largest to the smallest"),
    "upper case": ("uppercase", "capital letters", "upper-case letters"),
    "lower case": ("lowercase", "small letters"),
    "greater than": ("above", "bigger than", "more than", "over"),
    "less than": ("below", "under", "smaller than"),
    "contains": ("has", "includes", "contains"),
    "the string": ("the text", "the given string", "the string"),
    "position": ("index", "place"),
    "joined": ("put together", "concatenated", "joined"),
    "average": ("mean", "arithmetic mean"),
    "the sum of": ("the total of", "the sum of"),
    "without duplicates": ("with duplicates removed", "each only once"),
    "how often": ("how many times", "the number of times"),
    "backwards": ("in reverse", "from the end to the beginning"),
    "remove": ("delete", "drop", "take away", "strip"),
    "matrix": ("matrix", "grid", "table", "2D list"),
}
_SAME = re.compile(rf"\b({'|'.join(SYNONYMS)})\b")
_PLACES = {module.__name__: module for module in (math, itertools, collections, statistics, calendar, re)}


@dataclass(frozen=True)
class Asked:
    """A program under its name, with what it answers to some arguments."""

    name: str
    program: Program
    tries: list[tuple[str, str]]
    """arguments and answer, both as Python"""
    hints: str
    """the type of the answer, where all answers have one"""


def program(namer: Namer) -> Episode:
    """A function asked for in one of three ways, and the file that holds it."""
    rng = namer.rng
    chance = rng.random()
    told = chance > 0.35
    (make,) = rng.choices(MAKERS, SHARES)
    one = _named(make(namer, told=told), namer)
    if chance < 0.35 and one.tries:
        return _by_tests(one, rng)
    return _by_stub(one, rng) if chance < 0.8 else _by_words(one, rng)


# ── programs written by hand ────────────────────────────────────────────────────────────────────


@cache
def texts() -> list[dict[str, Any]]:
    path = Path(__file__).with_name("programs.toml")
    read = tomllib.loads(path.read_text(encoding="utf-8"))
    return [{"mood": mood, **one} for mood in SENTENCES for one in read[mood]]


def written(namer: Namer, *, told: bool) -> Program:
    """A program of programs.toml, its arguments renamed where the request tells their names."""
    one = namer.rng.choice(texts())
    kinds = [arg.split() for arg in one["args"]]
    inside = _identifiers(one["do"])
    names: dict[str, str] = {}
    for kind, usual in kinds:
        name = named(kind, usual, namer, inside) if told and namer.rng.random() < 0.7 else usual
        names[usual] = usual if name in names.values() else name
    if len(set(names.values())) < len(names):
        names = {usual: usual for usual in names}
    says = Template(namer.rng.choice(one["say"])).substitute(names)
    body = Template(one["do"]).substitute(names, f="$f")
    args = tuple((names[usual], kind) for kind, usual in kinds)
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    answer = _proof(one["proof"], tuple(usual for _, usual in kinds))
    return Program(says, one["mood"], args, lines, answer, "", (one["key"],), one.get("head", ""))


@cache
def _identifiers(code: str) -> frozenset[str]:
    return frozenset(re.findall(r"(?<!\$)\b[a-z_]\w*", code))


@cache
def _proof(code: str, names: tuple[str, ...]) -> Callable[..., Any]:
    made: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {code}", dict(_PLACES))
    return made


# ── names and examples ──────────────────────────────────────────────────────────────────────────


def _named(made: Program, namer: Namer) -> Asked:
    """A name for the function, and up to three answers."""
    rng = namer.rng
    made = replace(made, says=_reworded(made, rng))
    name = _telling(made.key, rng) if rng.random() < 0.6 else namer.identifier().lower()
    if name in TAKEN or keyword.iskeyword(name) or name in {arg for arg, _ in made.args}:
        name += "_"
    tries, answers = list[tuple[str, str]](), list[Any]()
    for _ in range(5):
        values = [value(kind, rng) for _, kind in made.args]
        answer = made.answer(*values)
        shown = ", ".join(map(repr, values)), _shown(answer)
        if len(shown[0]) + len(shown[1]) <= LONGEST and shown not in tries:
            tries.append(shown)
            answers.append(answer)
        if len(tries) == 3:
            break
    return Asked(name, made, tries, _hint(answers))


def _reworded(made: Program, rng: random.Random) -> str:
    """The description with other words for some of its words; names of arguments stay."""
    names = {name for name, _ in made.args}

    def other(found: re.Match[str]) -> str:
        word = found.group()
        return word if word in names or rng.random() < 0.6 else rng.choice(SYNONYMS[word])

    return _SAME.sub(other, made.says)


def _shown(answer: Any) -> str:
    """An answer as Python, the same in every process: sets have no order of their own."""
    return (
        f"{{{', '.join(map(repr, sorted(answer)))}}}" if isinstance(answer, set) and answer else repr(answer)
    )


def _telling(key: tuple[str, ...], rng: random.Random) -> str:
    """A name that says what a function does."""
    words = list(key)
    if len(words) > 1 and rng.random() < 0.5:
        words[1:] = words[:0:-1]
    name = "_".join(words)
    chance = rng.random()
    if chance < 0.2:
        return f"{rng.choice(('find', 'get', 'my', 'compute', 'do', 'check', 'make'))}_{name}"
    if chance < 0.3:
        first, *rest = name.split("_")
        return first + "".join(word.capitalize() for word in rest)
    return name


def _hint(answers: list[Any]) -> str:
    kinds = {type(one).__name__ for one in answers}
    if len(kinds) != 1:
        return ""
    (kind,) = kinds
    inner = {type(item).__name__ for one in answers for item in one} if kind == "list" else set()
    if inner in ({"int"}, {"str"}):
        return f"List[{inner.pop()}]"
    return kind.replace("NoneType", "")


# ── three ways of asking ────────────────────────────────────────────────────────────────────────


def _by_tests(one: Asked, rng: random.Random) -> Episode:
    """As MBPP asks: a sentence, and asserts that tell the name."""
    order = rng.choice(ORDERS[one.program.mood]).format(it=one.program.says)
    begin = f"Write a {rng.choice(('', '', 'python ', 'Python '))}function to"
    equals = rng.choice((" == ", " == ", "=="))
    tests = "\n".join(f"assert {one.name}({args}){equals}{answer}" for args, answer in one.tries)
    request = f"{begin} {order}.\nWrite it in {FILE}. Your code should pass these tests:\n{tests}"
    return _episode(f"{request}\n\nCURRENT_FILE: {FILE}", FILE, _file(one, _head(one, ""), ""))


def _by_stub(one: Asked, rng: random.Random) -> Episode:
    """As HumanEval asks: the head of a function with a docstring, to be completed."""
    typed = rng.choice(("", "", "", "", "List", "List", "List", "list", "list"))
    head, sentence = _head(one, typed), _sentence(one, rng)
    brief = not one.tries or rng.random() < 0.2
    quotes = "'''" if rng.random() < 0.1 else '"""'
    doc = f"    {quotes}{sentence}{quotes}\n" if brief else _docstring(one, sentence, quotes, rng)
    file = FILE if rng.random() < 0.8 else rng.choice(FILES)
    stub = _file(one, head, doc, body=False)
    space = "\n" * rng.choice((0, 0, 1, 2))
    request = f"Complete the function {one.name} in {file}:\n\n{space}{stub}".strip()
    return _episode(f"{request}\n\nCURRENT_FILE: {file}", file, _file(one, head, doc if brief else ""))


def _by_words(one: Asked, rng: random.Random) -> Episode:
    """As people ask: the name, the arguments and a sentence; at times an empty stub is there."""
    file, head = rng.choice(FILES), _head(one, "")
    args = ", ".join(name for name, _ in one.program.args)
    says = _sentence(one, rng).rstrip(".") + "."
    words = {"name": one.name, "args": args, "call": f"{one.name}({args})", "file": file, "says": says}
    request = Template(rng.choice(PLAIN)).substitute(words)
    if one.tries and rng.random() < 0.5:
        given, answer = one.tries[0]
        request += (
            rng.choice((" Example: ", " For example, ", "\n", " So ")) + f"{one.name}({given}) == {answer}"
        )
    if rng.random() < 0.3:
        request += (
            f"\n\nCURRENT_FILE: {file}\n{head}    {rng.choice(('pass', '...', 'raise NotImplementedError'))}"
        )
    return _episode(request, file, _file(one, head, ""))


def _episode(request: str, file: str, content: str) -> Episode:
    return ask("EDIT", SOURCE, request, Edit(file, content))


def _sentence(one: Asked, rng: random.Random) -> str:
    it = one.program.says
    args = " and ".join(f"{KINDS[kind].said} {name}" for name, kind in one.program.args)
    made = rng.choice(SENTENCES[one.program.mood]).format(it=it, It=it[:1].upper() + it[1:], args=args)
    return made + ("." if rng.random() < 0.7 else "")


def _docstring(one: Asked, sentence: str, quotes: str, rng: random.Random) -> str:
    """A docstring of several lines: the sentence, perhaps a note, and examples in one of the common looks."""
    lines = _wrapped(sentence) if len(sentence) > 90 or rng.random() < 0.2 else [sentence]
    if rng.random() < 0.15:
        lines.append(rng.choice(NOTES))
    look = rng.choice(
        (">>>", ">>>", ">>>", ">>>", " == ", " => ", " -> ", " ➞ ", " = ", " should return ", " # => ")
    )
    lines += [""] * (rng.random() < 0.25)
    lines += [rng.choice(("Example:", "Examples:", "For example:", "Example"))] * (
        rng.random() < (0.15 if look == ">>>" else 0.6)
    )
    for args, answer in one.tries[: rng.randint(1, 3)]:
        call = f"{one.name}({args})"
        lines += [f">>> {call}", answer] if look == ">>>" else [call + look + answer]
    first = rng.choice(("", " ", "\n    "))
    return (
        f"    {quotes}{first}"
        + "\n".join(f"    {line}".rstrip() for line in lines).strip()
        + f"\n    {quotes}\n"
    )


def _wrapped(sentence: str) -> list[str]:
    words, lines = sentence.split(" "), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 76:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def _head(one: Asked, typed: str) -> str:
    """The function's first line; `typed` is List, list or nothing."""
    args = [f"{name}: {KINDS[kind].hint}" if typed else name for name, kind in one.program.args]
    gives = f" -> {one.hints}" if typed and one.hints else ""
    line = f"def {one.name}({', '.join(args)}){gives}:\n"
    return line if typed != "list" else line.replace("List[", "list[")


def _file(one: Asked, head: str, doc: str, *, body: bool = True) -> str:
    """The whole file; without its body it is the stub."""
    imports = [one.program.head] if one.program.head and body else []
    imports += ["from typing import List"] if "List[" in head else []
    before = "".join(f"{line}\n" for line in imports) + "\n\n" * bool(imports)
    return before + head + doc + (one.program.body.replace("$f", one.name) if body else "")


MAKERS = (pipeline, judged, branch, written)
SHARES = (40, 7, 13, 40)
