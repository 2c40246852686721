# SPDX-License-Identifier: AGPL-3.0-or-later
"""Whether two commands do the same: both run in equal sandboxes over a small made-up tree.

    can_run("sort -u notes.txt")                 True: harmless programs only, all of them here
    Twin("sort -u notes.txt").same("sort notes.txt | uniq")      True

The tree holds text, tables, logs and folders, and where need be a made-up file for every name that the gold
command mentions. What is compared is the output and the tree afterwards, rights included. A gold command that
fails there, differs from one run to the next, or leaves no trace at all proves nothing: not `is_telling`.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
from dataclasses import dataclass

from rusty_r2.gym.sandbox import Limits, open_sandbox

_HARMLESS = (
    "awk base64 basename cat cd chmod cksum cmp column comm cp cut diff dirname du echo egrep expand expr "
    "false fgrep file find fmt fold grep gunzip gzip head join ln ls md5sum mkdir mv nl od paste pr printf "
    "pwd rev rm rmdir sed seq sha1sum sha256sum sort split stat strings sum tac tail tar tee test touch tr "
    "true tsort uniq unexpand wc xargs xxd zcat"
)
HARMLESS = frozenset(_HARMLESS.split())
"""programs that read and write files and nothing else"""
_BUILTIN = frozenset({"cd", "echo", "false", "printf", "pwd", "test", "true"})
LIMITS = Limits(wall_s=5.0, cpu_s=5, disk=8 << 20)
TREE = {
    "notes.txt": "buy bolts\noil the hinges\nTODO: fix the lamp\nbuy bolts\n\ncall Erin\n",
    "todo.txt": "TODO sort scrap\ndone paint\nTODO weld frame\n",
    "data.csv": "name,count,price\nbolt,12,0.40\nnut,7,0.10\ngear,3,4.25\n",
    "scores.csv": "alice,31\nbob,17\ncarol,24\n",
    "app.log": "2026-01-02 INFO start\n2026-01-02 ERROR disk full\n2026-01-03 INFO stop\n",
    "script.sh": "#!/bin/sh\necho hello\n",
    "main.py": "import sys\n\n\ndef main():\n    print('hello')\n",
    "src/main.c": "int main(void) { return 0; }\n",
    "src/util.py": "import os\n# TODO tidy\n",
    "docs/readme.md": "# Scrap\n\nSome text.\n",
    "logs/old.log": "error one\nwarning two\nerror three\n",
    "backup/notes.txt": "buy bolts\noil the hinges\n",
}
LISTING = r"find . -printf '%y %m %p %l\n' | sort"
_ENDING = re.compile(r"\*(\.\w{1,5})\b")
_WORD = re.compile(r"^[\w.@%+-][\w./@%+-]*$")
_GLUE = frozenset({"|", "||", "&&", ";", "&", "|&", "(", ")", "{", "}", "!"})
_SUBSTITUTED = re.compile(r"\$\(|`|<\(|>\(")


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    ended: tuple[str, int | None]
    output: bytes
    listing: bytes
    """kind, rights and name of everything, empty folders and links too"""
    files: dict[str, bytes]
    changed: bool
    """the workspace is not what it was before"""

    @property
    def is_something(self) -> bool:
        return self.ended == ("exit", 0) and (bool(self.output.strip()) or self.changed)


class Twin:
    """A gold command's outcome, to compare others with."""

    def __init__(self, gold: str) -> None:
        self.gold = gold
        # in the plain tree where that is enough; else with every name it mentions
        for self.files in (TREE, tree_for(gold)):
            self._outcome = self._run(gold)
            if self._outcome.is_something:
                break

    @property
    def is_telling(self) -> bool:
        """The gold command works here, always the same way, and something comes of it."""
        return self._outcome.is_something and self._outcome == self._run(self.gold)

    def same(self, command: str) -> bool:
        """Whether `command` does what the gold one does."""
        return command == self.gold or (can_run(command) and self._run(command) == self._outcome)

    def _run(self, command: str) -> Outcome:
        with open_sandbox(limits=LIMITS, files=self.files) as box:
            before = (box.run(LISTING).stdout, box.files())
            result = box.run(command)
            try:
                after = (box.run(LISTING).stdout, box.files())
            except OSError:  # more than a workspace can hold: like nothing else
                return Outcome(("too much", None), b"", b"", {}, changed=False)
            return Outcome((result.reason, result.code), result.stdout, *after, changed=before != after)


def tree_for(command: str) -> dict[str, str]:
    """The made-up tree, with every name that `command` mentions."""
    files = dict(TREE)
    for word in _words(command)[1:]:
        name = word.removeprefix("./").rstrip("/")
        if not _WORD.match(name) or not name.strip("./") or ".." in name or len(name) > 80:
            continue
        taken = name in files or any(path.startswith(name + "/") for path in files)
        inside = any(path == name[: len(path)] and name[len(path) :].startswith("/") for path in files)
        if taken or inside:
            continue
        if word.endswith("/") or "director" in name or name in ("src", "dir", "folder"):
            files[f"{name}/a.txt"], files[f"{name}/b.log"] = "one\ntwo\n", "error\n"
        elif "." in name or name in ("file", "input", "output", "source", "target"):
            files[name] = f"{hashlib.sha256(name.encode()).hexdigest()[:8]}\nb 2\na 1\nerror here\nb 2\n"
    for ending in dict.fromkeys(_ENDING.findall(command)):
        files[f"one{ending}"], files[f"src/two{ending}"] = "1 one\nerror\n", "2 two\n"
    return files


def can_run(command: str) -> bool:
    """Whether a command is made of harmless programs that this machine has, and of nothing hidden."""
    if _SUBSTITUTED.search(command) or "\n" in command or "/dev/" in command.replace("/dev/null", ""):
        return False
    programs = _programs(command)
    return bool(programs) and all(
        name in HARMLESS and (name in _BUILTIN or shutil.which(name) is not None) for name in programs
    )


def _programs(command: str) -> list[str]:
    """The first word of every part of a pipeline or list, and what find and xargs would start."""
    found, expecting = [], True
    words = _words(command)
    for at, word in enumerate(words):
        if word in _GLUE or set(word) <= set("|&;()"):
            expecting = True
        elif expecting and not re.match(r"^\w+=", word):
            found.append(word)
            expecting = False
        elif word in ("-exec", "-execdir", "-ok", "-okdir") and at + 1 < len(words):
            found.append(words[at + 1])
        elif "xargs" in words[max(0, at - 1) : at] and not word.startswith("-"):
            found.append(word)
    return found


def _words(command: str) -> list[str]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        return []
