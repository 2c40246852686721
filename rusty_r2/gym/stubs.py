# SPDX-License-Identifier: AGPL-3.0-or-later
"""What the tests hold in their hands instead of the candidate: stand-ins that call into another sandbox.

Runs inside the tester's sandbox (tester.py). Functions, classes, methods, constants, iterators, the
candidate's own exceptions, changed arguments and callbacks all cross. The candidate answers only for itself:

* a plain value is compared here, by Python, as an exact builtin;
* an object (`Handle`) is never equal to plain data, has no order and no arithmetic with it, whatever its
  class claims; two objects of the candidate may be compared by the candidate's own `==`;
* only an instance (`Subject`) of a class the *tests* spell with a capital letter (`Stack()`) is a thing under
  test, so its `in`, `<`, `+`, `hash` … are the candidate's to answer. `==` with plain data stays False;
* a call that raises StopIteration, GeneratorExit or KeyboardInterrupt becomes a RuntimeError, for a `for`
  loop or a `map` in the tests would take it as an honest end.
"""

from __future__ import annotations

import builtins
import socket
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from rusty_r2.gym import wire

_SWALLOWED = (StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt)
_VERDICTS = {"startswith", "endswith", "issubset", "issuperset", "isdisjoint", "__contains__", "__eq__"}
"""methods of plain data that take what is expected and answer yes or no"""
MODULE = {"h": 0, "k": "module", "n": ""}


class CannotCross(TypeError):
    """The tests pass something that is neither plain data nor the candidate's nor a function."""


class Link:
    """The line to the candidate: one question, one answer, strictly in turn."""

    def __init__(self, channel: socket.socket, give_up: Callable[[str], NoReturn]) -> None:
        self.channel = channel
        self.give_up = give_up
        self.number = 0
        self.callbacks: list[Callable[..., Any]] = []
        self.errors: dict[int, type[BaseException]] = {}
        self.last_error: BaseException | None = None

    def keep(self, thing: Any) -> dict[str, Any]:
        """How an argument that is no plain data crosses."""
        if isinstance(thing, Handle):
            return {"h": thing._number, "k": "object", "n": ""}
        if isinstance(thing, Module):
            return MODULE
        if callable(thing):
            self.callbacks.append(thing)
            return {"h": len(self.callbacks) - 1, "k": "callback", "n": ""}
        raise CannotCross(f"the tests hand over a {type(thing).__name__}, which cannot cross")

    def make(self, number: int, kind: str, name: str) -> Any:
        """The stand-in for one of the candidate's objects."""
        if kind == "error":
            return self.mirror(self.call(["a", number], ()))
        return KINDS.get(kind, Handle)(self, number, name)

    def call(self, where: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Ask, wait, copy changed arguments back, return or raise what came."""
        self.number += 1
        number = self.number
        packed = [wire.pack(list(args), self.keep), wire.pack(kwargs or {}, self.keep)]
        wire.send(self.channel, b"C" + wire.text([number, where, *packed]))
        answer = self.listen()
        while len(answer) == 4 and answer[1] == "c":
            self.run_callback(answer)
            answer = self.listen()
        if answer[0] != number or (answer[1], len(answer)) not in (("v", 5), ("x", 6)):
            self.give_up("the candidate answered out of turn")
        if type(answer[-1]) is str and sys.stdout is not sys.__stdout__:
            sys.stdout.write(answer[-1])  # the tests are listening
        try:
            if answer[1] == "x":
                error = self.rebuild(answer)
            else:
                value = wire.unpack(answer[2], self.make)
                if answer[3] is not None:
                    merged(list(args), wire.unpack(answer[3], self.make))
                return value
        except (wire.WireError, IndexError, TypeError, ValueError, KeyError, OverflowError):
            self.give_up("the candidate's answer is not a value")
        self.last_error = error
        raise error

    def listen(self) -> list[Any]:
        """The next frame: the candidate's words, or the supervisor's that there will be none."""
        data = wire.receive(self.channel)
        if data[:1] != b"R":
            self.give_up(data[1:].decode())
        try:
            answer = wire.parse(data[1:])
        except wire.WireError:
            answer = None
        if type(answer) is not list or len(answer) not in (4, 5, 6):
            self.give_up("the candidate's answer is not a value")
        return answer

    def run_callback(self, message: list[Any]) -> None:
        """A function of the tests, called by the candidate it was handed to."""
        try:
            function = self.callbacks[message[0]]
            args, kwargs = (wire.unpack(part, self.make) for part in message[2:])
        except (wire.WireError, IndexError, TypeError):
            self.give_up("the candidate's answer is not a value")
        try:
            value = wire.pack(function(*args, **kwargs), self.keep)
        except Exception as error:
            name = next(k.__name__ for k in type(error).__mro__ if k.__module__ == "builtins")
            wire.send(self.channel, b"C" + wire.text(["x", name, str(error)[:300]]))
        else:
            wire.send(self.channel, b"C" + wire.text(["v", value]))

    def rebuild(self, answer: list[Any]) -> BaseException:
        """The exception a call ended with, as one the tests can catch."""
        kind = self.mirror(answer[2])
        args = wire.unpack(answer[3])
        said = wire.printable(str(answer[4]), 300)
        if issubclass(kind, _SWALLOWED):
            return RuntimeError(f"the candidate raised {kind.__name__}")
        error = kind.__new__(kind)
        try:
            error.__init__(*args)  # type: ignore[misc]
        except Exception:
            error.args = (said,)
        return error

    def mirror(self, ancestry: Any) -> type[BaseException]:
        """A local exception class for the candidate's: the same builtin parents, one class per number."""
        found: type[BaseException] = Exception
        if len(ancestry) > 40:
            raise ValueError("no class has so many ancestors")
        for entry in reversed(ancestry):
            if entry[0] == "b":
                known = getattr(builtins, str(entry[1]), None)
                if isinstance(known, type) and issubclass(known, BaseException):
                    found = known
            elif int(entry[1]) in self.errors:
                found = self.errors[int(entry[1])]
            else:
                found = type(wire.printable(str(entry[2]), 80), (found,), {})
                self.errors[int(entry[1])] = found
        return found


class Handle:
    """One of the candidate's objects."""

    __slots__ = ("_link", "_name", "_number")

    def __init__(self, link: Link, number: int, name: str) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_name", name)

    def _do(self, name: str, *args: Any) -> Any:
        return self._link.call(["o", name], args)

    def __getattr__(self, name: str) -> Any:
        if name in _VERDICTS and not isinstance(self, Subject):
            raise CannotCross(f"{name} would let an object of the candidate judge itself")
        return self._do("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._do("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._do("delattr", self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.call(["h", self._number], args, kwargs)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Handle):
            return self._number == other._number or self._do("eq", self, other) is True
        return NotImplemented

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        size: int = self._do("len", self)
        return size

    def __getitem__(self, key: Any) -> Any:
        return self._do("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._do("setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        self._do("delitem", self, key)

    def __iter__(self) -> Iterator[Any]:
        stream: Iterator[Any] = self._do("iter", self)
        return stream

    __contains__: Any = None

    def __str__(self) -> str:
        return _text(self._do("str", self))

    def __repr__(self) -> str:
        return _text(self._do("repr", self))

    def __copy__(self) -> Any:
        return self._do("copy", self)

    def __deepcopy__(self, _memo: object) -> Any:
        return self._do("deepcopy", self)

    def __enter__(self) -> Any:
        return self._do("enter", self)

    def __exit__(self, *_exc: object) -> None:
        self._do("leave", self)


class Stream(Handle):
    """An iterator of the candidate: a generator, a map, a zip."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        pair = self._do("draw", self)
        if type(pair) is not list or len(pair) > 1:
            self._link.give_up("the candidate's answer is not a value")
        if not pair:
            raise StopIteration
        return pair[0]


class Class(Handle):
    """A class of the candidate; the instances of one the tests name like a class are the thing under test."""

    __slots__ = ("_subject",)

    def __init__(self, link: Link, number: int, name: str) -> None:
        super().__init__(link, number, name)
        object.__setattr__(self, "_subject", False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        return under_test(made) if self._subject else made

    def __instancecheck__(self, thing: object) -> bool:
        return isinstance(thing, Handle) and self._do("isinstance", thing, self) is True

    def __subclasscheck__(self, thing: object) -> bool:
        return isinstance(thing, Class) and self._do("issubclass", thing, self) is True


class Subject(Handle):
    """A thing under test: its operators are the candidate's to answer, `==` with plain data excepted."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return self._do("bool", self) is True

    def __hash__(self) -> int:
        number: int = self._do("hash", self)
        return number

    def __contains__(self, item: Any) -> bool:
        return self._do("contains", self, item) is True

    def __reversed__(self) -> Any:
        return self._do("reversed", self)

    def __format__(self, spec: str) -> str:
        return _text(self._do("format", self, spec))


def _operator(name: str, *, swapped: bool = False) -> Callable[..., Any]:
    def method(self: Subject, *others: Any) -> Any:
        return under_test(self._do(name, *others, self) if swapped else self._do(name, self, *others))

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift"):
    setattr(Subject, f"__{_name}__", _operator(_name))
    setattr(Subject, f"__r{_name}__", _operator(_name, swapped=True))
    setattr(Subject, f"__i{_name}__", _operator(f"i{_name}"))
for _name in ("and", "or", "xor"):
    _word = {"and": "and_", "or": "or_"}.get(_name, _name)
    setattr(Subject, f"__{_name}__", _operator(_word))
    setattr(Subject, f"__r{_name}__", _operator(_word, swapped=True))
for _name in ("lt", "le", "gt", "ge", "neg", "pos", "invert", "abs", "round", "divmod", "int", "float"):
    setattr(Subject, f"__{_name}__", _operator(_name))

KINDS: dict[str, type[Handle]] = {"class": Class, "iterator": Stream}


class Module(types.ModuleType):
    """The candidate's module as the tests import it."""

    _link: Link
    _wanted: frozenset[str]
    """what `from it import *` brings: names the tests use and have from nowhere else"""
    _functions: frozenset[str]
    """names that are functions however they are spelt"""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            there = self._link.call(["o", "dir"], (self,))
            return [word for word in there if word in self._wanted] if type(there) is list else []
        if name.startswith("__"):
            raise AttributeError(name)
        found = self._link.call(["o", "getattr"], (self, name))
        if isinstance(found, Class):
            is_class = name[:1].isupper() and name not in self._functions
            object.__setattr__(found, "_subject", is_class)
        return found


def module(name: str, link: Link, wanted: Iterable[str], functions: Iterable[str]) -> Module:
    """A stub module that `import` will find."""
    made = Module(name)
    made._link, made._wanted, made._functions = link, frozenset(wanted), frozenset(functions)
    return made


def under_test(thing: Any) -> Any:
    """The same object, seen as the thing under test."""
    if type(thing) is Handle:
        return Subject(thing._link, thing._number, thing._name)
    return thing


def merged(mine: Any, theirs: Any) -> Any:
    """The tests' own object, made to hold what the call left in its copy of it."""
    if isinstance(mine, Handle) and isinstance(theirs, Handle) and mine._number == theirs._number:
        return mine
    if type(mine) is not type(theirs):
        return theirs
    if isinstance(mine, list):
        mine[:] = [merged(*pair) for pair in zip(mine, theirs, strict=False)] + theirs[len(mine) :]
    elif isinstance(mine, dict):
        fresh = {key: merged(mine[key], theirs[key]) if key in mine else theirs[key] for key in theirs}
        mine.clear()
        mine.update(fresh)
    elif isinstance(mine, set):
        mine.clear()
        mine.update(theirs)
    elif isinstance(mine, bytearray):
        mine[:] = theirs
    elif isinstance(mine, tuple) and len(mine) == len(theirs):
        return tuple(merged(*pair) for pair in zip(mine, theirs, strict=True))
    else:
        return theirs
    return mine


def _text(words: Any) -> str:
    if type(words) is not str:
        raise TypeError("the candidate's text is not text")
    return words
