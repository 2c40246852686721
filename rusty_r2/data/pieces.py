# SPDX-License-Identifier: AGPL-3.0-or-later
# ruff: noqa: E501, C416, C419, PLW0108, RUF015, RUF100, SIM401
"""What small programs are put together from: where the items come from, which are kept, what becomes of each,
and what is made of all of them. data/pipelines.py puts them together.

Every piece says itself in English, in Python ({v} is the item, {k} a number or a text that the piece needs) and
once more as a plain function, written another way: the first two are the lesson, the third is its proof. A piece
is a row of a table and stays on one line, however long.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple


class Source(NamedTuple):
    """Where the items come from; `of` follows the word for them: "even numbers" + " in the list"."""

    arg: str
    """kind of the argument that is read"""
    items: tuple[str, ...]
    of: tuple[str, ...]
    loop: tuple[str, ...]
    """what stands behind `for`; {x} is the argument"""
    gives: str
    """num, str or char"""
    ref: Callable[[Any], Any]
    only: str = ""
    """a condition that the source itself makes"""


class Keep(NamedTuple):
    """Which items are kept: "numbers that" + clause."""

    clause: str
    code: str
    ref: Callable[..., Any]
    adjective: str = ""
    """one word that says the same: "even numbers" """
    k: str = ""
    """kind of the constant it needs"""


class Change(NamedTuple):
    """What becomes of each item; {np} is "the even numbers in the list"."""

    says: tuple[str, ...]
    code: str
    ref: Callable[..., Any]
    key: str
    gives: str
    k: str = ""


class End(NamedTuple):
    """What is made of all of them. {gen} is `x * x for x in xs`, {par} the same in brackets, {list} a list."""

    says: tuple[str, ...]
    code: str
    ref: Callable[..., Any]
    key: str
    takes: tuple[str, ...]
    gives: str
    loop: tuple[str, str, str] | None = None
    """the same with a loop: before it, in it ({e} is the item), after it"""
    k: str = ""


NUMBERS = ("numbers", "numbers", "integers", "elements", "values", "items")
STRINGS = ("strings", "strings", "words", "elements", "names", "items")
CHARS = ("characters", "characters", "chars")
VOWELS = "aeiou"

SOURCES = (
    Source("nums", NUMBERS, (" in {x}", " in {x}", " of {x}", " from {x}"), ("{v} in {x}",), "num", list),
    Source("nums", NUMBERS, (" in {x}", " in {x}", " of {x}"), ("{v} in {x}",), "num", list),
    Source("strs", STRINGS, (" in {x}", " in {x}", " of {x}", " from {x}"), ("{v} in {x}",), "str", list),
    Source("strs", STRINGS, (" in {x}", " of {x}"), ("{v} in {x}",), "str", list),
    Source("text", CHARS, (" in {x}", " of {x}", " in {x}"), ("{v} in {x}",), "char", list),
    Source("sentence", ("words",), (" in {x}", " of {x}", " in {x}"), ("{v} in {x}.split()",), "str", lambda text: text.split()),
    Source("n", ("numbers", "integers", "whole numbers"), (" from 1 to {x}", " from 1 up to {x}", " between 1 and {x}, both included"), ("{v} in range(1, {x} + 1)",), "num", lambda n: [i + 1 for i in range(n)]),
    Source("n", ("numbers", "integers"), (" below {x}, from 0 on", " from 0 to {x} - 1", " from 0 up to but not including {x}"), ("{v} in range({x})",), "num", lambda n: [i for i in range(n + 1) if i < n]),
    Source("n", ("digits",), (" of {x}", " in {x}"), ("{v} in map(int, str({x}))",), "num", lambda n: [ord(c) - 48 for c in f"{n}"]),
    Source("n", ("divisors", "factors"), (" of {x}",), ("{v} in range(1, {x} + 1)",), "num", lambda n: [d for d in range(1, n + 1) if n // d * d == n], "{x} % {v} == 0"),
    Source("prices", ("values",), (" of {x}", " in {x}"), ("{v} in {x}.values()",), "num", lambda d: [d[key] for key in d]),
    Source("prices", ("keys",), (" of {x}", " in {x}"), ("{v} in {x}",), "str", lambda d: list(d.keys())),
    Source("grid", NUMBERS, (" in all rows of {x}", " of {x}", " anywhere in {x}"), ("row in {x}", "{v} in row"), "num", lambda rows: list(itertools.chain(*rows))),
    Source("tup", NUMBERS, (" in {x}", " of {x}"), ("{v} in {x}",), "num", list),
    Source("nums", NUMBERS, (" at even positions of {x}", " at even indices of {x}"), ("{v} in {x}[::2]",), "num", lambda xs: [x for i, x in enumerate(xs) if i % 2 == 0]),
    Source("nums", NUMBERS, (" at odd positions of {x}", " at odd indices of {x}"), ("{v} in {x}[1::2]",), "num", lambda xs: [x for i, x in enumerate(xs) if i % 2]),
    Source("nums", NUMBERS, (" after the first one in {x}", " of {x} without the first one"), ("{v} in {x}[1:]",), "num", lambda xs: [x for i, x in enumerate(xs) if i > 0]),
)  # fmt: skip

KEEPS: dict[str, tuple[Keep, ...]] = {
    "num": (
        Keep("are even", "{v} % 2 == 0", lambda v: not v & 1, "even"),
        Keep("are odd", "{v} % 2 == 1", lambda v: bool(v & 1), "odd"),
        Keep("are even", "{v} % 2 == 0", lambda v: not v & 1, "even"),
        Keep("are odd", "{v} % 2 != 0", lambda v: bool(v & 1), "odd"),
        Keep("are positive", "{v} > 0", lambda v: not v <= 0, "positive"),
        Keep("are negative", "{v} < 0", lambda v: not v >= 0, "negative"),
        Keep("are not negative", "{v} >= 0", lambda v: not v < 0, "non-negative"),
        Keep("are not zero", "{v} != 0", bool, "non-zero"),
        Keep("are greater than {k}", "{v} > {k}", lambda v, k: v - k > 0, k="int"),
        Keep("are larger than {k}", "{v} > {k}", lambda v, k: v - k > 0, k="int"),
        Keep("are less than {k}", "{v} < {k}", lambda v, k: k - v > 0, k="int"),
        Keep("are smaller than {k}", "{v} < {k}", lambda v, k: k - v > 0, k="int"),
        Keep("are at least {k}", "{v} >= {k}", lambda v, k: v - k >= 0, k="int"),
        Keep("are at most {k}", "{v} <= {k}", lambda v, k: k - v >= 0, k="int"),
        Keep("are equal to {k}", "{v} == {k}", lambda v, k: v - k == 0, k="int"),
        Keep("are different from {k}", "{v} != {k}", lambda v, k: v - k != 0, k="int"),
        Keep("are divisible by {k}", "{v} % {k} == 0", lambda v, k: v // k * k == v, k="small"),
        Keep("are multiples of {k}", "{v} % {k} == 0", lambda v, k: v // k * k == v, k="small"),
        Keep("are not divisible by {k}", "{v} % {k} != 0", lambda v, k: v // k * k != v, k="small"),
        Keep("end in the digit {k}", "abs({v}) % 10 == {k}", lambda v, k: str(v)[-1] == str(k), k="digit"),
        Keep("have more than one digit", "abs({v}) > 9", lambda v: len(str(v).strip("-")) > 1),
        Keep("have only one digit", "abs({v}) < 10", lambda v: len(str(v).strip("-")) == 1, "single-digit"),
        Keep("are prime", "{v} > 1 and all({v} % d for d in range(2, {v}))", lambda v: v > 1 and [d for d in range(1, v + 1) if v % d == 0] == [1, v], "prime"),
        Keep("are perfect squares", "{v} >= 0 and int({v} ** 0.5) ** 2 == {v}", lambda v: v in [i * i for i in range(60)], "square"),
        Keep("have an even digit sum", "sum(map(int, str(abs({v})))) % 2 == 0", lambda v: sum(int(c) for c in str(v).strip("-")) % 2 == 0),
    ),
    "str": (
        Keep("are longer than {k} characters", "len({v}) > {k}", lambda v, k: v[k:] != "", k="small"),
        Keep("are shorter than {k} characters", "len({v}) < {k}", lambda v, k: v[k - 1 :] == "", k="small"),
        Keep("have exactly {k} characters", "len({v}) == {k}", lambda v, k: v[:k] == v and v[k - 1 :] != "", k="small"),
        Keep("have at least {k} letters", "len({v}) >= {k}", lambda v, k: v[k - 1 :] != "", k="small"),
        Keep("start with {k}", "{v}.startswith({k})", lambda v, k: v[: len(k)] == k, k="bit"),
        Keep("begin with {k}", "{v}.startswith({k})", lambda v, k: v[: len(k)] == k, k="bit"),
        Keep("end with {k}", "{v}.endswith({k})", lambda v, k: v[::-1][: len(k)] == k[::-1], k="bit"),
        Keep("contain {k}", "{k} in {v}", lambda v, k: v.find(k) >= 0, k="bit"),
        Keep("do not contain {k}", "{k} not in {v}", lambda v, k: v.find(k) < 0, k="bit"),
        Keep("are palindromes", "{v} == {v}[::-1]", lambda v: list(v) == list(reversed(v))),
        Keep("read the same backwards", "{v} == {v}[::-1]", lambda v: list(v) == list(reversed(v))),
        Keep("have an even length", "len({v}) % 2 == 0", lambda v: not len(v) & 1, "even-length"),
        Keep("have an odd length", "len({v}) % 2 == 1", lambda v: bool(len(v) & 1), "odd-length"),
        Keep("are in upper case", "{v}.isupper()", lambda v: v.upper() == v and v.lower() != v, "upper-case"),
        Keep("are in lower case", "{v}.islower()", lambda v: v.lower() == v and v.upper() != v, "lower-case"),
        Keep("start with a vowel", "{v}[:1].lower() in tuple('aeiou')", lambda v: any(v.lower().startswith(c) for c in VOWELS)),
        Keep("start with a capital letter", "{v}[:1].isupper()", lambda v: v[:1] != v[:1].lower(), "capitalized"),
        Keep("are not empty", "{v}", lambda v: v != "", "non-empty"),
    ),
    "char": (
        Keep("are vowels", "{v}.lower() in 'aeiou'", lambda v: v in "aeiouAEIOU"),
        Keep("are vowels", "{v} in 'aeiouAEIOU'", lambda v: v.lower() in VOWELS),
        Keep("are not vowels", "{v}.lower() not in 'aeiou'", lambda v: v not in "aeiouAEIOU"),
        Keep("are digits", "{v}.isdigit()", lambda v: "0" <= v <= "9"),
        Keep("are not digits", "not {v}.isdigit()", lambda v: not "0" <= v <= "9"),
        Keep("are letters", "{v}.isalpha()", lambda v: v.upper() != v.lower()),
        Keep("are upper-case letters", "{v}.isupper()", lambda v: "A" <= v <= "Z", "upper-case"),
        Keep("are lower-case letters", "{v}.islower()", lambda v: "a" <= v <= "z", "lower-case"),
        Keep("are not spaces", "{v} != ' '", lambda v: v != chr(32)),
        Keep("are letters or digits", "{v}.isalnum()", lambda v: v.upper() != v.lower() or "0" <= v <= "9", "alphanumeric"),
        Keep("are equal to {k}", "{v} == {k}", lambda v, k: v in k, k="char"),
        Keep("are different from {k}", "{v} != {k}", lambda v, k: v not in k, k="char"),
    ),
}  # fmt: skip

CHANGES: dict[str, tuple[Change, ...]] = {
    "num": (
        Change(("the squares of {np}", "{np}, squared", "the square of each of {np}"), "{v} * {v}", lambda v: v**2, "squares", "num"),
        Change(("the squares of {np}", "{np} squared"), "{v} ** 2", lambda v: v * v, "squares", "num"),
        Change(("the cubes of {np}", "{np}, cubed"), "{v} ** 3", lambda v: v * v * v, "cubes", "num"),
        Change(("the doubles of {np}", "twice {np}", "{np}, doubled"), "{v} * 2", lambda v: v + v, "doubled", "num"),
        Change(("the absolute values of {np}",), "abs({v})", lambda v: max(v, -v), "abs", "num"),
        Change(("the negatives of {np}", "{np} with the sign changed"), "-{v}", lambda v: 0 - v, "negated", "num"),
        Change(("{np}, each increased by {k}",), "{v} + {k}", lambda v, k: v - -k, "plus", "num", "int"),
        Change(("{np}, each reduced by {k}",), "{v} - {k}", lambda v, k: v + -k, "minus", "num", "int"),
        Change(("{np}, each multiplied by {k}", "{k} times each of {np}"), "{v} * {k}", lambda v, k: sum([v] * k), "times", "num", "small"),
        Change(("the remainders of {np} after division by {k}", "{np} modulo {k}"), "{v} % {k}", lambda v, k: v - v // k * k, "mod", "num", "small"),
        Change(("{np} divided by {k}, rounded down",), "{v} // {k}", lambda v, k: (v - v % k) // k, "div", "num", "small"),
        Change(("the halves of {np}, rounded down",), "{v} // 2", lambda v: (v - v % 2) // 2, "halves", "num"),
        Change(("the digit sums of {np}", "the sums of the digits of {np}"), "sum(map(int, str(abs({v}))))", lambda v: sum(int(c) for c in str(v).strip("-")), "digit_sums", "num"),
        Change(("the last digits of {np}",), "abs({v}) % 10", lambda v: int(str(v)[-1]), "last_digits", "num"),
        Change(("the numbers of digits of {np}",), "len(str(abs({v})))", lambda v: len(str(v).strip("-")), "digit_counts", "num"),
        Change(("{np} as strings", "{np} turned into strings"), "str({v})", lambda v: f"{v}", "strings", "str"),
        Change(("{np}, each capped at {k}",), "min({v}, {k})", lambda v, k: k if v > k else v, "capped", "num", "int"),
    ),
    "str": (
        Change(("the lengths of {np}", "the length of each of {np}"), "len({v})", lambda v: sum(1 for _ in v), "lengths", "num"),
        Change(("the lengths of {np}",), "len({v})", lambda v: sum(1 for _ in v), "lengths", "num"),
        Change(("{np} in upper case", "{np}, all in capital letters"), "{v}.upper()", lambda v: "".join(c.upper() for c in v), "upper", "str"),
        Change(("{np} in lower case",), "{v}.lower()", lambda v: "".join(c.lower() for c in v), "lower", "str"),
        Change(("{np}, each reversed", "{np} spelled backwards"), "{v}[::-1]", lambda v: "".join(reversed(v)), "reversed", "str"),
        Change(("{np} with a capital first letter", "{np}, capitalized"), "{v}.capitalize()", lambda v: v[:1].upper() + v[1:].lower(), "capitalized", "str"),
        Change(("the first letters of {np}", "the first character of each of {np}"), "{v}[:1]", lambda v: "".join(c for i, c in enumerate(v) if i == 0), "initials", "str"),
        Change(("the last letters of {np}", "the last character of each of {np}"), "{v}[-1:]", lambda v: v[len(v) - 1 :] if v else "", "last_letters", "str"),
        Change(("{np}, each with {k} added at its end", "{np} followed by {k}"), "{v} + {k}", lambda v, k: f"{v}{k}", "suffixed", "str", "bit"),
        Change(("{np}, each with {k} put in front", "{np} with the prefix {k}"), "{k} + {v}", lambda v, k: f"{k}{v}", "prefixed", "str", "bit"),
        Change(("{np}, each written twice",), "{v} * 2", lambda v: v + v, "twice", "str"),
        Change(("the first {k} letters of {np}",), "{v}[:{k}]", lambda v, k: "".join(c for i, c in enumerate(v) if i < k), "heads", "str", "small"),
        Change(("the numbers of vowels in {np}",), "sum(c in 'aeiou' for c in {v}.lower())", lambda v: len([c for c in v if c in "aeiouAEIOU"]), "vowel_counts", "num"),
        Change(("how often {k} occurs in {np}",), "{v}.count({k})", lambda v, k: len([c for c in v if c == k]), "counts", "num", "char"),
    ),
    "char": (
        Change(("{np} in upper case",), "{v}.upper()", lambda v: chr(ord(v) - 32) if "a" <= v <= "z" else v, "upper", "char"),
        Change(("{np} in lower case",), "{v}.lower()", lambda v: chr(ord(v) + 32) if "A" <= v <= "Z" else v, "lower", "char"),
        Change(("{np}, each written twice", "{np}, doubled"), "{v} * 2", lambda v: v + v, "doubled", "char"),
        Change(("{np} with upper and lower case swapped",), "{v}.swapcase()", lambda v: v.lower() if v != v.lower() else v.upper(), "swapped", "char"),
        Change(("the codes of {np}", "the ASCII codes of {np}"), "ord({v})", lambda v: v.encode()[0], "codes", "num"),
    ),
}  # fmt: skip

ANY = ("num", "str", "char")
ENDS = (
    End(("a list of {np}", "the list of {np}", "{np}", "{np} as a list", "a list with {np}", "all of {np} in a list"), "return {list}", list, "list", ANY, "list", ("result = []", "result.append({e})", "return result")),
    End(("a list of {np}", "the list of {np}", "{np}", "{np} in their order"), "return {list}", list, "list", ANY, "list", ("result = []", "result.append({e})", "return result")),
    End(("the sum of {np}", "the total of {np}", "the sum of all {bare}"), "return sum({gen})", lambda xs: sum(xs, 0), "sum", ("num",), "num", ("total = 0", "total += {e}", "return total")),
    End(("the sum of {np}", "{np}, added up"), "return sum({gen})", lambda xs: sum(xs, 0), "sum", ("num",), "num", ("total = 0", "total += {e}", "return total")),
    End(("the product of {np}", "{np} multiplied together", "the product of all {bare}"), "", lambda xs: [1, *itertools.accumulate([1, *xs], lambda a, b: a * b)][-1], "product", ("num",), "num", ("product = 1", "product *= {e}", "return product")),
    End(("the number of {bare}", "how many {bare} there are", "the count of {bare}"), "return sum(1 for {for})", len, "count", ANY, "num", ("count = 0", "count += 1", "return count")),
    End(("the number of {bare}", "how many {bare} there are"), "return len({list})", len, "count", ANY, "num", ("count = 0", "count += 1", "return count")),
    End(("the largest of {np}, or None if there is none", "the maximum of {np} (None if there are none)", "the biggest of {np}, None without any"), "return max({par}, default=None)", lambda xs: sorted(xs)[-1] if xs else None, "max", ("num",), "num?", ("best = None", "if best is None or {e} > best:\n{pad}    best = {e}", "return best")),
    End(("the smallest of {np}, or None if there is none", "the minimum of {np} (None if there are none)"), "return min({par}, default=None)", lambda xs: sorted(xs)[0] if xs else None, "min", ("num",), "num?", ("best = None", "if best is None or {e} < best:\n{pad}    best = {e}", "return best")),
    End(("the largest of {np}, or {k} if there is none",), "return max({par}, default={k})", lambda xs, k: sorted(xs)[-1] if xs else k, "max_or", ("num",), "num", k="zero"),
    End(("the average of {np}, or 0 if there are none", "the mean of {np} (0 for none)"), "found = {list}\n    return sum(found) / len(found) if found else 0", lambda xs: sum(xs) / len(xs) if xs else 0, "average", ("num",), "float"),
    End(("{np}, in ascending order", "a sorted list of {np}", "{np}, sorted from small to large", "{np}, sorted"), "return sorted({gen})", lambda xs: sorted(xs), "sorted", ANY, "list"),
    End(("{np}, in descending order", "{np}, sorted from large to small", "{np}, sorted in reverse"), "return sorted({par}, reverse=True)", lambda xs: sorted(xs)[::-1], "sorted_desc", ANY, "list"),
    End(("{np}, in reverse order", "{np}, the last one first", "a list of {np} from back to front"), "return {list}[::-1]", lambda xs: list(reversed(xs)), "reversed", ANY, "list"),
    End(("{np} without duplicates, in their order", "the distinct values among {np}, in order of first appearance"), "return list(dict.fromkeys({gen}))", lambda xs: [x for i, x in enumerate(xs) if x not in xs[:i]], "unique", ANY, "list", ("seen = []", "if {e} not in seen:\n{pad}    seen.append({e})", "return seen")),
    End(("the set of {np}", "{np} as a set"), "return set({gen})", set, "set", ANY, "set"),
    End(("the number of different {bare}", "how many distinct values there are among {np}"), "return len(set({gen}))", lambda xs: len([x for i, x in enumerate(xs) if x not in xs[:i]]), "distinct", ANY, "num"),
    End(("the first of {np}, or None if there is none", "the first one of {np} (None if there is none)"), "", lambda xs: xs[0] if xs else None, "first", ANY, "item?", ("", "return {e}", "return None")),
    End(("the last of {np}, or None if there is none",), "", lambda xs: xs[-1] if xs else None, "last", ANY, "item?", ("last = None", "last = {e}", "return last")),
    End(("the first {k} of {np}", "at most {k} of {np}, from the front"), "return {list}[:{k}]", lambda xs, k: [x for i, x in enumerate(xs) if i < k], "first_few", ANY, "list", k="small"),
    End(("the last {k} of {np}",), "return {list}[-{k}:]", lambda xs, k: [x for i, x in enumerate(xs) if i >= len(xs) - k], "last_few", ANY, "list", k="small"),
    End(("the {k} largest of {np}, the largest first",), "return sorted({par}, reverse=True)[:{k}]", lambda xs, k: sorted(xs)[::-1][:k], "largest_few", ("num",), "list", k="small"),
    End(("the {k} smallest of {np} in ascending order",), "return sorted({gen})[:{k}]", lambda xs, k: sorted(xs)[:k], "smallest_few", ("num",), "list", k="small"),
    End(("the running sums of {np}", "the cumulative sums of {np}"), "", lambda xs: list(itertools.accumulate(xs)), "running_sum", ("num",), "list", ("total = 0\n    result = []", "total += {e}\n{pad}result.append(total)", "return result")),
    End(("the range of {np}, that is the largest minus the smallest, or 0 if there are none",), "found = {list}\n    return max(found) - min(found) if found else 0", lambda xs: sorted(xs)[-1] - sorted(xs)[0] if xs else 0, "spread", ("num",), "num"),
    End(("{np} joined into one string", "one string made of {np}", "a string of {np}"), "return ''.join({gen})", lambda xs: "".join(xs), "joined", ("str", "char"), "str", ("result = ''", "result += {e}", "return result")),
    End(("{np} joined by {k}", "{np} as one string with {k} between them"), "return {k}.join({gen})", lambda xs, k: "".join(x if i == 0 else k + x for i, x in enumerate(xs)), "joined_by", ("str", "char"), "str", k="mark"),
    End(("the longest of {np}, or None if there is none",), "return max({par}, key=len, default=None)", lambda xs: [x for x in xs if len(x) == max(map(len, xs))][0] if xs else None, "longest", ("str",), "item?", ("best = None", "if best is None or len({e}) > len(best):\n{pad}    best = {e}", "return best")),
    End(("the shortest of {np}, or None if there is none",), "return min({par}, key=len, default=None)", lambda xs: [x for x in xs if len(x) == min(map(len, xs))][0] if xs else None, "shortest", ("str",), "item?"),
    End(("how often each of {np} occurs, as a dictionary", "a dictionary that counts {np}"), "", lambda xs: {x: sum(1 for y in xs if y == x) for x in xs}, "counts", ANY, "dict", ("counts = {{}}", "counts[{e}] = counts.get({e}, 0) + 1", "return counts")),
    End(("{np}, sorted by length, the shortest first",), "return sorted({par}, key=len)", lambda xs: [x for size in range(99) for x in xs if len(x) == size], "by_length", ("str",), "list"),
)  # fmt: skip
