# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a person can type that is not a request: `:q`, `:dry`, `:undo`, `:good`, … (`COMMANDS`).

Each is a function of the conversation and the rest of the line; its docstring is its line in `:help`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, get_args

from rusty_r2.agent.address import open_policy
from rusty_r2.agent.approval import Allow, Ask
from rusty_r2.agent.policy import remembered
from rusty_r2.agent.telling import counted
from rusty_r2.closing import shut
from rusty_r2.errors import ConfigError, RustyError
from rusty_r2.gym.safetext import one_line
from rusty_r2.protocol import Cmd, Edit, Msg
from rusty_r2.trace import Step

if TYPE_CHECKING:
    from rusty_r2.agent.terminal import Talk

Command = Callable[["Talk", str], None]


def carry_out(talk: Talk, line: str) -> bool:
    """Do what the line says; False where it says goodbye."""
    said = line.strip()
    if said in (":q", ":quit", "exit", "quit"):
        return False
    if said.lower() in ("y", "n", "a", "e", "v"):  # a mind would make something of it
        talk.screen.error(f"no question is open, so {said} answers nothing. Type a request, or :help")
        return True
    if not said.startswith(":"):
        talk.request(said)
        return True
    name, _, rest = said.partition(" ")
    try:
        if name not in COMMANDS:
            raise ConfigError(f"there is no {one_line(name, 40)}. Type :help")
        COMMANDS[name](talk, rest.strip())
    except RustyError as error:
        talk.screen.error(str(error))
    return True


def greeting(talk: Talk) -> str:
    place = talk.place
    return (
        f"Rusty-R2, fresh off the Scrapyard. Mind: {talk.policy.name}. Folder: {place.folder}\n"
        f"allow {place.allow}, ask {place.approval.ask}{', dry run' if place.dry else ''}"
        f"{'' if talk.store else ', nothing is stored'}. :help if you must, :q to leave."
        f"{_forgetful(talk)}"
    )


def _forgetful(talk: Talk) -> str:
    """A person who says "now rename it" should know that nobody remembers what."""
    anything = [{"role": "user", "content": ""}]
    if remembered(talk.policy, anything, talk.config.remember):
        return ""
    return "\nEach request is read alone, so name the file every time."


def _help(talk: Talk, rest: str) -> None:
    """this list"""
    width = max(map(len, COMMANDS))
    for name, command in COMMANDS.items():
        talk.screen.say(f"  {name:<{width}}  {command.__doc__}")
    talk.screen.say("  Enter sends, Alt-Enter begins a new line, Tab completes, Ctrl-C stops the answer")


def _dry(talk: Talk, rest: str) -> None:
    """dry run on or off: show what would change, touch nothing"""
    talk.place.dry = not talk.place.dry
    talk.screen.say("dry run: nothing is touched" if talk.place.dry else "dry run is over")


def _undo(talk: Talk, rest: str) -> None:
    """take back what the newest request changed; again for the one before it"""
    undone = talk.place.undo()
    if not undone.restored and not undone.left:
        talk.screen.say("nothing to undo")
        return
    talk.screen.say(f"undone: {one_line(undone.what, 80)}")
    for path in sorted(set(undone.restored)):
        there = os.path.lexists(talk.place.folder / path)
        talk.screen.notice(f"{'restored' if there else 'removed'} {path}")
    for path in sorted(set(undone.left)):
        kept = f"; what stood there before: {undone.kept[path]}" if path in undone.kept else ""
        talk.screen.error(f"{path} was changed since; left as it is{kept}")


def _good(talk: Talk, rest: str) -> None:
    """the last answer was good [and why]"""
    _label(talk, True, rest)


def _bad(talk: Talk, rest: str) -> None:
    """the last answer was bad [and why]"""
    _label(talk, False, rest)


def _label(talk: Talk, label: bool, note: str) -> None:
    from rusty_r2.agent.terminal import who

    if talk.last is None:
        raise ConfigError("there is no answer to label yet")
    if talk.store is None:
        raise ConfigError("nothing is stored here, so no label either (--no-store)")
    talk.store.label(talk.last.trace_id, label, note=note, who=who())
    talk.screen.say(f"{'good' if label else 'bad'}: {talk.last.trace_id}")


def _trace(talk: Talk, rest: str) -> None:
    """the last exchange, step by step"""
    if talk.last is None:
        raise ConfigError("there is no trace yet")
    trace = talk.last
    talk.screen.say(f"{trace.trace_id}  {trace.ended}, {counted(len(trace.steps), 'step')}, {trace.model}")
    for step in trace.steps:
        talk.screen.notice(f"{'ok ' if step.ok else 'not'} {_in_a_line(step)}")


def _in_a_line(step: Step) -> str:
    action = step.action
    if isinstance(action, Msg):
        return f"MSG {one_line(action.message, 100)}"
    if isinstance(action, Cmd):
        return f"CMD {one_line(action.command, 100)}"
    if isinstance(action, Edit):
        return f"EDIT {one_line(action.path, 60)} ({len(action.content):,} characters)"
    return f"malformed {one_line(step.reply, 100)}"


def _model(talk: Talk, rest: str) -> None:
    """which mind this is; with an address, another one"""
    if rest:
        before, talk.policy = talk.policy, open_policy(rest, talk.config)
        shut(before)
    digest = f" ({talk.policy.digest})" if talk.policy.digest else ""
    drawn = ", ".join(f"{name} {value}" for name, value in talk.policy.sampling().items())
    talk.screen.say(f"{talk.policy.name}{digest}{'  ' + drawn if drawn else ''}")


def _reset(talk: Talk, rest: str) -> None:
    """forget the conversation; files stay as they are"""
    talk.history = []
    talk.screen.say("forgotten")


def _reward(talk: Talk, rest: str) -> None:
    """what the last answer was worth, in its parts"""
    if talk.last is None:
        raise ConfigError("there is no answer to score yet")
    if talk.score is None:
        raise ConfigError("no rewards are connected here. Type: rusty chat")
    talk.screen.say(talk.score(talk.last))


def _ask(talk: Talk, rest: str) -> None:
    """when to be asked: always, writes or never"""
    approval = talk.place.approval
    if rest:
        approval.ask = _one_of(rest, get_args(Ask))  # type: ignore[assignment]
    granted = f"; always yes: {', '.join(sorted(approval.granted))}" if approval.granted else ""
    talk.screen.say(one_line(f"ask {approval.ask}{granted}", 400))


def _allow(talk: Talk, rest: str) -> None:
    """what commands may do: read, workspace or network"""
    if rest:
        talk.place.allow = _one_of(rest, get_args(Allow))  # type: ignore[assignment]
    talk.screen.say(f"allow {talk.place.allow}")


def _one_of(word: str, known: tuple[str, ...]) -> str:
    if word not in known:
        raise ConfigError(f"{one_line(word, 40)} is not one of {', '.join(known)}")
    return word


def _quit(talk: Talk, rest: str) -> None:
    """leave (also: exit, Ctrl-D)"""


COMMANDS: dict[str, Command] = {
    ":help": _help, ":dry": _dry, ":undo": _undo, ":good": _good, ":bad": _bad, ":trace": _trace,
    ":reward": _reward, ":model": _model, ":ask": _ask, ":allow": _allow, ":reset": _reset, ":q": _quit,
}  # fmt: skip
