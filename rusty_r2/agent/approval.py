# SPDX-License-Identifier: AGPL-3.0-or-later
"""Two dials that a person sets: what the sandbox allows, and when to be asked.

allow   read         commands see the folder and cannot change it; files are not edited
        workspace    changes stay inside the folder; protected paths stay as they are
        network      the same, and commands reach whatever this machine can reach
ask     always       before every command and every edit
        writes       before anything in the folder changes; with a network before every command, too
        never        not at all

A question is answered with yes, no, always for this kind, or an edited command. A no with a reason is words
for the model, which goes on; a bare one ends the request, and so does a question that nobody is there to
answer (`nobody`). How it is put to a person is for keyboard.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from rusty_r2.protocol import Cmd, Edit

Allow = Literal["read", "workspace", "network"]
Ask = Literal["always", "writes", "never"]

_COMPOUND = re.compile(r"[;&|<>$`(){}\n\\*?#!~\[\]]")


@dataclass(frozen=True)
class Question:
    """What is about to be done, for a person to decide."""

    action: Cmd | Edit
    about: Literal["run", "write", "keep"]
    """run the command, write the file, or keep what the command changed"""
    kind: str
    """what "always" would cover"""


@dataclass(frozen=True)
class Answer:
    yes: bool
    always: bool = False
    note: str = ""
    """why not, in words for the model"""
    command: str | None = None
    """run this instead"""
    asked: bool = True
    """False where nobody was there to be asked"""

    @property
    def ended(self) -> str:
        """How a request ends with this answer; "" where it goes on."""
        return "" if self.yes or self.note else "refused" if self.asked else "unasked"


Asker = Callable[[Question], Answer]
YES = Answer(True)


def nobody(question: Question) -> Answer:
    """Where there is no terminal, what would need a yes gets none."""
    return Answer(False, asked=False)


@dataclass
class Approval:
    """The dial `ask`, whom to ask, and what was granted for good."""

    ask: Ask = "writes"
    asker: Asker = nobody
    granted: set[str] = field(default_factory=set)
    """kinds that need no more asking in this session"""

    def before_running(self, action: Cmd, *, harmless: bool) -> Answer:
        """`harmless`: it runs on a copy or read-only, so nothing changes without another question."""
        if self.ask == "never" or (self.ask == "writes" and harmless):
            return YES
        return self._decide(Question(action, "run", kind_of(action)))

    def before_writing(self, action: Edit) -> Answer:
        return YES if self.ask == "never" else self._decide(Question(action, "write", kind_of(action)))

    def before_keeping(self, action: Cmd) -> Answer:
        """Asked after a command ran on a copy; whoever said yes before it ran is not asked twice."""
        return YES if self.ask != "writes" else self._decide(Question(action, "keep", kind_of(action)))

    def _decide(self, question: Question) -> Answer:
        if question.kind in self.granted:
            return YES
        answer = self.asker(question)
        if answer.yes and answer.always:
            self.granted.add(question.kind)
        return answer


def kind_of(action: Cmd | Edit) -> str:
    """What "always" covers: all edits; one program; or, for anything composed, exactly this text."""
    if isinstance(action, Edit):
        return "EDIT"
    try:
        words = [] if _COMPOUND.search(action.command) else shlex.split(action.command)
    except ValueError:
        words = []
    kind = words[0] if words and "=" not in words[0] else action.command
    return f"$ {kind}" if kind == "EDIT" else kind  # a program of that name is no leave to edit
