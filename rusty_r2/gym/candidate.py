# SPDX-License-Identifier: AGPL-3.0-or-later
"""The candidate's side of a verdict: runs inside its sandbox and only ever returns values.

The supervisor ships this text together with wire.py and talks to it over file descriptor 3. It says that it
is up, then whether the file parses, then whether it could be imported, then answers call after call. From the
moment the candidate's file runs, everything in this process is the candidate's to forge, and nothing here is
worth forging: no expected value, no test and no verdict ever enters it (see verdict.py).

Messages to it: [number, function, arguments, keyword arguments], where function is ["h", object, name...] for
an attribute of an object (0 is the candidate's module), ["o", name] for an operator, ["a", object] for the
ancestry of an error class. Answers: [number, "v", value, changed arguments, printed text], or [number, "x",
error classes, its arguments, its text, printed text], or [callback, "c", arguments, keyword arguments] to
call a function of the tests.
"""

from __future__ import annotations

import builtins
import copy
import io
import operator
import os
import socket
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from rusty_r2.gym import wire

MAX_PRINTED = 1 << 16
TOO_BIG = "the answer is too big or too deep to judge"


class Printed(io.StringIO):
    """What a call prints, up to a point: the tests may be about that."""

    def write(self, words: str) -> int:
        room = MAX_PRINTED - self.tell()
        return super().write(words[: max(room, 0)])


class Hall:
    """The candidate's module and every object of it that the other side has a number for."""

    def __init__(self, channel: socket.socket, module: types.ModuleType) -> None:
        self.channel = channel
        self.objects: list[Any] = [module]
        self.numbers = {id(module): 0}

    def keep(self, thing: Any) -> dict[str, Any]:
        """Hand out a number for an object that is no plain data."""
        item = getattr(thing, "item", None)
        if type(thing).__module__ == "numpy" and getattr(thing, "shape", None) == () and callable(item):
            packed: dict[str, Any] = wire.pack(item())
            return packed
        name = str(getattr(thing, "__name__", type(thing).__name__))
        return {"h": self.number(thing), "k": _kind(thing), "n": name}

    def number(self, thing: Any) -> int:
        """The same object has the same number every time."""
        if id(thing) not in self.numbers:
            self.numbers[id(thing)] = len(self.objects)
            self.objects.append(thing)
        return self.numbers[id(thing)]

    def find(self, where: list[Any]) -> Any:
        """The function a message names."""
        if where[0] == "o":
            return OPERATORS[where[1]]
        thing = self.objects[where[1]]
        if where[0] == "a":
            return lambda: self.ancestry(thing)
        for name in where[2:]:
            thing = getattr(thing, name)
        return thing

    def handle(self, number: int, kind: str, _name: str) -> Any:
        """What a number in a message stands for: one of our objects, or a function of the tests."""
        return self.callback(number) if kind == "callback" else self.objects[number]

    def callback(self, number: int) -> Callable[..., Any]:
        """A function of the tests, called where it lives."""

        def call(*args: Any, **kwargs: Any) -> Any:
            packed = [wire.pack(list(args), self.keep), wire.pack(kwargs, self.keep)]
            wire.send(self.channel, wire.text([number, "c", *packed]))
            answer = wire.parse(wire.receive(self.channel))
            while type(answer[0]) is int:
                self.reply(answer)
                answer = wire.parse(wire.receive(self.channel))
            if answer[0] == "x":
                raise getattr(builtins, answer[1], Exception)(answer[2])
            return wire.unpack(answer[1], self.handle)

        return call

    def reply(self, message: list[Any]) -> None:
        """Answer one message, or say that the answer cannot cross."""
        answer = self.answer(message)
        if len(answer) > wire.MAX_BYTES:
            answer = _too_big(message[0])
        wire.send(self.channel, answer)

    def answer(self, message: list[Any]) -> bytes:
        """Do one call; whatever it raises is an answer too."""
        number, where, packed_args, packed_kwargs = message
        before, printed = sys.stdout, Printed()
        sys.stdout = printed
        try:
            function = self.find(where)
            args = wire.unpack(packed_args, self.handle)
            kwargs = wire.unpack(packed_kwargs, self.handle)
            value = wire.pack(function(*args, **kwargs), self.keep)
            changed = wire.pack(args, self.keep) if _mutable(args) else packed_args
            same = changed == packed_args
            return wire.text([number, "v", value, None if same else changed, printed.getvalue()])
        except wire.WireError:
            return _too_big(number)
        except BaseException as error:
            return wire.text([number, "x", self.ancestry(type(error)), *_words(error), printed.getvalue()])
        finally:
            sys.stdout = before

    def ancestry(self, kind: type) -> list[list[Any]]:
        """An error's classes, nearest first: builtin ones by name, the candidate's own by number."""
        found: list[list[Any]] = []
        for base in kind.__mro__[:20]:
            if base.__module__ == "builtins":
                found.append(["b", base.__name__])
            else:
                found.append(["h", self.number(base), base.__name__])
        return found


def _too_big(number: int) -> bytes:
    return wire.text([number, "x", [["b", "OverflowError"]], [TOO_BIG], TOO_BIG, ""])


def _enter(thing: Any) -> Any:
    return type(thing).__enter__(thing)


def _leave(thing: Any) -> Any:
    return type(thing).__exit__(thing, None, None, None)


def _draw(stream: Iterator[Any]) -> list[Any]:
    for item in stream:
        return [item]
    return []


OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: value for name, value in vars(operator).items() if callable(value) and name[0] != "_"},
    **{f.__name__: f for f in (abs, bool, divmod, format, hash, isinstance, issubclass, iter, len, repr)},
    **{f.__name__: f for f in (getattr, setattr, delattr, reversed, round, str, pow, int, float, dir)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "draw": _draw,
    "enter": _enter,
    "leave": _leave,
}


def _kind(thing: Any) -> str:
    if isinstance(thing, type):
        return "error" if issubclass(thing, BaseException) else "class"
    if isinstance(thing, types.ModuleType):
        return "module"
    if isinstance(thing, Iterator):
        return "iterator"
    return "function" if callable(thing) else "object"


def _mutable(args: list[Any]) -> bool:
    return any(type(arg) not in (int, str, float, bool, bytes, type(None)) for arg in args)


def _words(error: BaseException) -> tuple[list[Any], str]:
    """An error's arguments (where plain) and its text."""
    try:
        said = str(error)[:300]
        args = wire.pack(list(error.args))
    except BaseException:
        said, args = "", []
    return (args if len(wire.text(args)) < 2000 else [said]), said


def load(path: str) -> types.CodeType:
    """Compile the candidate's file; nothing of it has run yet."""
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def enter(path: str, code: types.CodeType) -> types.ModuleType:
    """Run the file as the module its path names, so that it can import its neighbours."""
    root = os.getcwd()  # noqa: PTH109  (pathlib is not warm in a sandbox)
    folder, _, file = path.rpartition("/")
    sys.path[:0] = [root, f"{root}/{folder}"] if folder else [root]
    module = types.ModuleType((f"{folder}/" if folder else "").replace("/", ".") + file.removesuffix(".py"))
    module.__file__ = f"{root}/{path}"
    module.__package__ = folder.replace("/", ".")
    module.__builtins__ = builtins  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    if folder:
        __import__(module.__package__)
    exec(code, module.__dict__)
    return module


def main() -> None:
    """Serve the supervisor until it hangs up."""
    channel = socket.socket(fileno=3)
    wire.send(channel, wire.text(["up"]))
    path = wire.parse(wire.receive(channel))
    try:
        code = load(path)
        wire.send(channel, wire.text(["parses", ""]))
    except BaseException as error:
        wire.send(channel, wire.text(["broken", f"{type(error).__name__}: {_words(error)[1]}"]))
        os._exit(0)
    try:
        hall = Hall(channel, enter(path, code))
        wire.send(channel, wire.text(["ready", ""]))
    except BaseException as error:
        wire.send(channel, wire.text(["failed", f"{type(error).__name__}: {_words(error)[1]}"]))
        os._exit(0)
    while True:
        try:
            message = wire.parse(wire.receive(channel))
        except EOFError:
            os._exit(0)
        hall.reply(message)
