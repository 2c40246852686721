# SPDX-License-Identifier: AGPL-3.0-or-later
"""Names that nobody can know by heart, and texts with such names and with choices in them.

    namer = Namer(vocabulary(Tokenizer.load()), random.Random(0))
    write = Phrases({"verb": ["delete", "remove"]}, namer)
    write("(please |)@verb $file")           "please remove quark_Lantern7.sh"

(a|b) is one of them, @verb a line of the table `verb`, $file a made-up name, $$ a dollar. A table or a name
is drawn once and stays the same for all that one Phrases writes: a reply names what the request named.
"""

from __future__ import annotations

import keyword
import random
import re
import string
from collections.abc import Mapping, Sequence
from functools import cache

from rusty_r2.gym.families.base import is_held
from rusty_r2.lm.tokenizer import CONTROL, Tokenizer

ENDS = tuple("txt md py sh csv log json ini cfg yml html c h js conf dat xml sql toml rs go".split())  # noqa: SIM905
_USUAL = """
app apple archive articles assets backup bin book bugs build cache cars cats cities code colors
config contacts copy countries data demo diary dir docs draft emails example exports files final
first fruits game hello home ideas images index info input inventory invoice items jobs keys letter
lib links list log logs main me memo music names new news notes numbers old orders out output pages
people photos pictures plan poem prices private project public readme recipe report results run
sales sample scores script second server settings shop site songs sorted src staff stats status
story students summary table tasks team temp test text things tmp todo tools update urls users utils
video web words work year
""".split()  # noqa: SIM905
USUAL = tuple(word for word in _USUAL if not is_held(word))
"""what people call their files; words that the gym holds out are not among them"""
SHELL = frozenset("case do done elif else esac fi for if in select then until while".split())  # noqa: SIM905
"""words that a shell keeps for itself where a command begins"""
PLEASE = (".", ".", ".", "!", " please", " pls", ", please.", ", thanks")
"""how people end what they ask for"""
_WORD = re.compile(r" ?[A-Za-z]{2,14}")
_MARK = re.compile(r"\$(\$|[a-z]+\d*)|@([a-z]+\d*)|\(([^()|]*(?:\|[^()|]*)+)\)")
_HEX = "0123456789abcdef"


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    """Every token that is a word, each once, in a fixed order."""
    said = (tokenizer.decode([token]) for token in range(len(CONTROL), len(tokenizer)))
    return sorted({text.strip() for text in said if _WORD.fullmatch(text)})


class Namer:
    """`namer["file"]` is a file's name, another one each time; `file2` is the same kind."""

    def __init__(self, words: Sequence[str], rng: random.Random) -> None:
        self._words, self.rng = words, rng

    def __getitem__(self, slot: str) -> str:
        kind = slot.rstrip("0123456789")
        return str(getattr(self, kind)())

    def word(self) -> str:
        """Any word at all; now and then one that people use for names, or a letter."""
        chance = self.rng.random()
        if chance < 0.15:
            return self.rng.choice(USUAL if chance < 0.12 else string.ascii_lowercase)
        word = self._words[int(self.rng.random() * len(self._words))]
        return word.lower() if self.rng.random() < 0.8 else word

    def number(self) -> str:
        return str(self.rng.randrange(10 ** self.rng.choice((1, 1, 2, 2, 2, 3, 4, 5))))

    def name(self) -> str:
        """A word, two words, a word with a number."""
        chance, word = self.rng.random(), self.word()
        if chance < 0.5:
            return word
        if chance < 0.75:
            return word + self.rng.choice("___-") + self.word()
        return (
            word + self.rng.choice(("", "", "_", "-", "-v")) + self.number()
            if chance < 0.9
            else word + self.word()
        )

    def identifier(self) -> str:
        """A name that Python takes."""
        chance, word = self.rng.random(), self.word().lower()
        if chance < 0.5:
            return word + "_" * keyword.iskeyword(word)
        return f"{word}_{self.word().lower()}" if chance < 0.85 else f"{word}{self.number()}"

    def file(self) -> str:
        usual = self.rng.random() < 0.8
        return f"{self.name()}.{self.rng.choice(ENDS) if usual else self.word().lower()[:4]}"

    def module(self) -> str:
        return f"{self.identifier()}.py"

    def folder(self) -> str:
        return self.name() if self.rng.random() < 0.8 else f"{self.name()}/{self.word()}"

    def path(self) -> str:
        return f"{self.folder()}/{self.file()}"

    def words(self) -> str:
        return " ".join(self.word() for _ in range(self.rng.randint(2, 6)))

    def pid(self) -> str:
        return str(self.rng.randint(100, 65_000))

    def port(self) -> str:
        return str(self.rng.randint(1024, 65_000))

    def ip(self) -> str:
        first = self.rng.choice(("10", "172.20", "192.168", str(self.rng.randint(11, 190))))
        parts = first.split(".")
        return ".".join(parts + [str(self.rng.randint(0, 254)) for _ in range(4 - len(parts))])

    def host(self) -> str:
        ends = ("com", "org", "net", "io", "de", "dev", "local", "example")
        more = f"-{self.word().lower()}" if self.rng.random() < 0.3 else ""
        return f"{self.word().lower()}{more}.{self.rng.choice(ends)}"

    def opaque(self) -> str:
        """Something that says nothing and must be copied sign by sign: a digest, an id, an address."""
        rng = self.rng
        kind = rng.randrange(6)
        if kind == 0:
            return "".join(rng.choices(_HEX, k=rng.randint(6, 16)))
        if kind == 1:
            return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz234567", k=rng.randint(8, 20)))
        if kind == 2:
            return ":".join("".join(rng.choices(_HEX, k=rng.randint(1, 4))) for _ in range(rng.randint(3, 6)))
        if kind == 3:
            return f"v{rng.randint(0, 20)}.{rng.randint(0, 30)}.{rng.randint(0, 99)}"
        if kind == 4:
            return "-".join("".join(rng.choices(_HEX, k=4)) for _ in range(rng.randint(2, 4)))
        return f"{rng.randint(1970, 2040)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


class Phrases:
    """Writes texts; what it has named once it names so again."""

    def __init__(self, tables: Mapping[str, Sequence[str]], namer: Namer) -> None:
        self._tables, self._namer = tables, namer
        self._named: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        return "".join([part if isinstance(part, str) else self._drawn(part) for part in _parts(text)])

    def one_of(self, table: str) -> str:
        """A line of a table, drawn anew and written."""
        return self(self._namer.rng.choice(self._tables[table]))

    def _drawn(self, part: tuple[str, ...]) -> str:
        if len(part) > 1:
            return self(part[int(self._namer.rng.random() * len(part))])
        mark = part[0]
        said = self._named.get(mark)
        if said is None:
            name = mark[1:]
            if mark[0] == "$":
                said = self._namer[name]
            else:
                said = self.one_of(name if name in self._tables else name.rstrip("0123456789"))
            self._named[mark] = said
        return said


@cache
def _parts(text: str) -> tuple[str | tuple[str, ...], ...]:
    """A text as pieces: plain, one mark, or several choices."""
    parts: list[str | tuple[str, ...]] = []
    end = 0
    for mark in _MARK.finditer(text):
        slot, table, choices = mark.groups()
        parts.append(text[end : mark.start()])
        end = mark.end()
        if slot == "$":
            parts.append("$")
        elif slot or table:
            parts.append((mark.group(),))
        else:
            parts.append(tuple(choices.split("|")))
    return (*parts, text[end:])
