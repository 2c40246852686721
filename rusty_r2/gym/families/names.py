# SPDX-License-Identifier: AGPL-3.0-or-later
"""How things in a task are called: files, folders, settings, users, functions and their parameters.

Some names are what people really use (the small pools of words.py), most are words from the long list, some
are made of two words or carry a number: report, river_stone, my_notes, data-v2, invoice_2024. All parts are
of the draw's split. Families ask here for names, so that no family has a short list of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rusty_r2.gym.families import words
from rusty_r2.gym.families.base import Draw


def stem(draw: Draw) -> str:
    """The name of a file without its ending."""
    plain = draw.word(words.STEMS if draw.chance(0.2) else words.WORDS)
    form = draw.below(20)
    if form < 11:
        return plain
    if form < 14:
        return pair(draw, "_")
    if form == 14:
        return pair(draw, "-")
    if form == 15:
        return f"{draw.word(words.FRONTS)}_{plain}"
    if form == 16:
        return f"{plain}-{draw.word(words.MARKS)}"
    if form == 17:
        return f"{plain}_{draw.number(1990, 2039)}"
    return f"{plain}{draw.number(2, 99)}" if form == 18 else plain.capitalize()


def pair(draw: Draw, glue: str) -> str:
    """Two short words."""
    return glue.join(draw.words(words.SHORT_WORDS, 2))


def stems(draw: Draw, count: int) -> list[str]:
    return distinct(lambda: stem(draw), count)


def file(draw: Draw, end: str = "") -> str:
    """A file name; without `end` mostly with a common ending, at times with any of this split."""
    ends = words.COMMON_ENDS if draw.chance(0.7) else [draw.word(words.TEXT_ENDS)]
    return f"{stem(draw)}.{end or draw.any(ends)}"


def folder(draw: Draw) -> str:
    form = draw.below(10)
    if form < 2:
        return draw.word(words.FOLDERS)
    return pair(draw, "_") if form == 2 else draw.word(words.WORDS)


def folders(draw: Draw, count: int) -> list[str]:
    return distinct(lambda: folder(draw), count)


def module(draw: Draw) -> str:
    """The name of a Python file without its ending."""
    form = draw.below(10)
    if form < 2:
        return draw.word(words.MODULES)
    if form == 2:
        return f"{draw.word(words.WORDS)}{draw.number(2, 30)}"
    return pair(draw, "_") if form < 5 else draw.word(words.WORDS)


def key(draw: Draw) -> str:
    """The name of a setting or a column."""
    form = draw.below(10)
    if form < 4:
        return draw.word(words.KEYS)
    return pair(draw, "_") if form < 6 else draw.word(words.WORDS)


def user(draw: Draw) -> str:
    return draw.word(words.PEOPLE if draw.chance(0.6) else words.WORDS)


def parameter(draw: Draw, usual: Sequence[str], taken: Collection[str], *, many: bool) -> str:
    """A parameter: one of the usual names, or any word; several things get an s at times."""
    while True:
        form = draw.below(10)
        name = draw.word(usual) if form < 4 else draw.word(words.WORDS) if form < 8 else pair(draw, "_")
        if many and form > 3 and draw.chance(0.6):
            name = f"{name.removesuffix('s')}s"
        if name not in taken:
            return name


def function(draw: Draw, told: str, taken: Collection[str]) -> str:
    """A function's name: at times one that tells what it does (never just that when held out)."""
    while True:
        word, verb = draw.word(words.WORDS), draw.word(words.VERBS)
        telling = [f"{verb}_{told}", f"{told}_{word}", *([] if draw.held else [told])]
        free = [word, pair(draw, "_"), f"{verb}_{word}"]
        name = draw.any(telling if draw.chance(0.3) else free)
        if name not in taken:
            return name


def distinct(make: Callable[[], str], count: int) -> list[str]:
    """`count` different ones of what `make` makes."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[make()] = None
    return list(found)


def apart(make: Callable[[], str], count: int, avoid: Sequence[str] = ()) -> list[str]:
    """`count` of what `make` makes, none a part of another or of `avoid`: a search for one finds only it."""
    found: list[str] = []
    while len(found) < count:
        new = make()
        if not any(new in old or old in new for old in (*avoid, *found)):
            found.append(new)
    return found
