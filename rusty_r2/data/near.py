# SPDX-License-Identifier: AGPL-3.0-or-later
"""Training pairs that are nearly held-out ones, so that a benchmark's dev part stays news.

    held = NearHeldOut.of(paths)               rows of the sources whose split is not train
    held.meets("List all files", "ls -la")     True: leave this pair out

A pair of description and command (or question and answer) is near where 13 words in a row of either stand
in a held-out item, as eval/contamination.py counts, or where the command is the same but for quotes and
capitals and the descriptions share most of their words. Splits by page or by command, as the public sets
have them, prevent neither.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rusty_r2.lm.documents import records

GRAM = 13
ALIKE = 0.6
"""share of the words of two descriptions that are in both"""
FIELDS = (("description", "command"), ("question", "answer"))
_WORD = re.compile(r"\w+")
_COMMAND = re.compile(r"\w+|[^\w\s'\"]")


class NearHeldOut:
    """What is held out, and how many pairs came too near."""

    def __init__(self, items: Iterable[tuple[str, str]] = ()) -> None:
        self._runs: set[tuple[str, ...]] = set()
        self._commands: dict[tuple[str, ...], list[set[str]]] = defaultdict(list)
        self.met = 0
        for description, command in items:
            self._runs.update(_runs(description))
            self._runs.update(_runs(command))
            self._commands[_command(command)].append(set(_words(description)))

    @classmethod
    def of(cls, paths: Iterable[Path]) -> NearHeldOut:
        """The held-out rows of files whose rows are pairs."""
        rows = (row for path in paths for row in records(path) if row.get("split", "train") != "train")
        return cls(filter(None, map(pair_of, rows)))

    def meets(self, description: str, command: str) -> bool:
        """Whether this pair is nearly a held-out one; counts those that are."""
        found = self._meets(description, command)
        self.met += found
        return found

    def _meets(self, description: str, command: str) -> bool:
        if any(run in self._runs for said in (description, command) for run in _runs(said)):
            return True
        mine = set(_words(description))
        return any(
            len(mine & theirs) >= ALIKE * len(mine | theirs)
            for theirs in self._commands.get(_command(command), ())
        )


def pair_of(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """The two texts of a row that is a pair."""
    for first, second in FIELDS:
        if first in row and second in row:
            return str(row[first]), str(row[second])
    return None


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _command(text: str) -> tuple[str, ...]:
    return tuple(_COMMAND.findall(text.lower()))


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = _words(text)
    return (tuple(words[at : at + GRAM]) for at in range(len(words) - GRAM + 1))
