# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a person types on a terminal: requests of one or many lines, and answers to questions.

Enter sends, Alt-Enter (or Esc, Enter) begins a new line; pasted text keeps its lines. Up and down walk
through earlier requests, Tab completes `:commands` and paths. A question first throws away what was typed
before it appeared: nobody says yes to what they have not seen. Only loaded where there is a terminal.
"""

from __future__ import annotations

import sys
import termios
from collections.abc import Iterable, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from rusty_r2.agent.approval import Answer, Question
from rusty_r2.agent.screen import Screen
from rusty_r2.gym.safetext import one_line


class Keyboard:
    def __init__(
        self, screen: Screen, commands: Sequence[str], folder: Path, history: Path | None = None
    ) -> None:
        self.screen = screen
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            completer=Words(commands, folder),
            complete_while_typing=False,
            multiline=True,
            key_bindings=_keys(),
            prompt_continuation="… ",
        )
        self._questions: PromptSession[str] = PromptSession(history=InMemoryHistory())

    def request(self, *, dry: bool) -> str:
        """The next request. EOFError at Ctrl-D, KeyboardInterrupt at Ctrl-C."""
        mark = "(dry) you> " if dry else "you> "
        return self._session.prompt(FormattedText([("bold ansicyan", mark)]))

    def ask(self, question: Question) -> Answer:
        """Put a question until it has an answer. KeyboardInterrupt and Ctrl-D stop the whole request."""
        while True:
            self._forget_typed()
            said = self._questions.prompt(FormattedText([("bold ansiyellow", self._words(question))])).strip()
            word, _, rest = said.partition(" ")
            match word.lower():
                case "y" | "yes":
                    return Answer(True)
                case "n" | "no":
                    return Answer(False, note=rest.strip())
                case "a" | "always":
                    return Answer(True, always=True)
                case "e" | "edit" if question.about == "run":
                    return self._edited(question)
                case "v" | "view" if self.screen.hidden:
                    self.screen.all_of_it()

    def _forget_typed(self) -> None:
        clear_typeahead(self._questions.app.input)
        termios.tcflush(sys.stdin, termios.TCIFLUSH)

    def _edited(self, question: Question) -> Answer:
        command: str = getattr(question.action, "command", "")
        said = self._questions.prompt("$ ", default=command, multiline="\n" in command)
        return Answer(True, command=said) if said.strip() else Answer(False)

    def _words(self, question: Question) -> str:
        verb = {"run": "run it?", "write": "write it?", "keep": "keep these changes?"}[question.about]
        edit = " [e]dit" if question.about == "run" else ""
        view = " [v]iew all" if self.screen.hidden else ""
        return f"{verb} [y]es [n]o (n WHY: go on) [a]lways “{one_line(question.kind, 40)}”{edit}{view} > "


class Words(Completer):
    """`:commands` at the start of a line, paths of the folder anywhere else."""

    def __init__(self, commands: Sequence[str], folder: Path) -> None:
        self.commands = commands
        self._paths = PathCompleter(get_paths=lambda: [str(folder)])

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        if before.startswith(":") and " " not in before:
            yield from (Completion(name, -len(before)) for name in self.commands if name.startswith(before))
            return
        word = document.get_word_before_cursor(WORD=True)
        if word:
            yield from self._paths.get_completions(Document(word), complete_event)


def _history(path: Path | None) -> History:
    if path is None:
        return InMemoryHistory()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    return FileHistory(str(path))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
