# SPDX-License-Identifier: AGPL-3.0-or-later
"""Reading pickles as data. Nothing in the file is imported and nothing in it is called.

A pickle is a small program. Here it is played on a stack of our own (the opcodes come from pickletools):
lists, dicts, texts and numbers are built, an object of any class becomes a dict of its attributes with its
class's name under `__class__`, and dates become ISO texts. A file that asks for more than data (a function of
the standard library, a function called with arguments, an extension) is refused in one line, and so is one
that would grow beyond the bounds below. What comes back is plain JSON data: keys are texts, sets are lists.

Not covered: a big honest file costs about a second a million opcodes; pickle itself is faster.
"""

from __future__ import annotations

import io
import pickletools
import sys
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rusty_r2.data.records import (
    MAX_VALUES,
    Name,
    PickleRefused,
    Record,
    known,
    refuse,
    text_key,
    written_out,
)
from rusty_r2.errors import DataError

MAX_BYTES = 256 * 2**20
MAX_OPCODES = 8_000_000
_DATA_MODULES = {
    "builtins": {"object", "set", "frozenset", "bytearray", "bytes", "complex", "list", "dict", "tuple"}
    | {"str", "int", "float", "bool", "range", "slice", "getattr"},
    "collections": {"OrderedDict", "defaultdict", "deque", "Counter"},
    "copyreg": {"_reconstructor", "__newobj__", "__newobj_ex__"},
    "_codecs": {"encode"},
    "datetime": {"datetime", "date", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "fractions": {"Fraction"},
    "pathlib": {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path"},
    "pathlib._local": {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"},
    "types": {"SimpleNamespace"},
    "uuid": {"UUID", "SafeUUID"},
}
_NUMBERS = {"_reconstruct", "scalar", "_frombuffer", "dtype", "ndarray"}
"""numpy's makers: kept as records, as everything else that is not ours to build"""


class _Mark:
    pass


def load(path: Path) -> Any:
    """The data in a pickle file."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise PickleRefused(f"{path}: refused: {size >> 20} MB; at most {MAX_BYTES >> 20} are read")
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return loads(data, name=str(path))


def loads(data: bytes, *, name: str = "pickle") -> Any:
    """The data in a pickle."""
    if len(data) > MAX_BYTES:
        raise PickleRefused(f"{name}: refused: more than {MAX_BYTES >> 20} MB")
    try:
        return written_out(_Machine().play(data))
    except PickleRefused as error:
        raise PickleRefused(f"{name}: refused: {error}; nothing in it was run") from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        said = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise PickleRefused(
            f"{name}: refused: not a whole pickle ({said!a}); nothing in it was run"
        ) from None


class _Machine:
    """Pickle's stack machine without its power."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.copies = MAX_VALUES

    def play(self, data: bytes) -> Any:
        for number, (opcode, arg, _) in enumerate(pickletools.genops(io.BytesIO(data))):
            if number >= MAX_OPCODES:
                refuse(f"more than {MAX_OPCODES:,} opcodes")
            name = opcode.name
            if name == "STOP":
                return self.stack.pop()
            act = _ACTS.get(name)
            if act is not None:
                act(self, arg)
            elif name in _VALUES:
                self.stack.append(arg)
            else:
                refuse(f"it uses the opcode {name}, which is more than data")
        raise PickleRefused("it has no end")

    def since_mark(self) -> list[Any]:
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _Mark:
                items = self.stack[at + 1 :]
                del self.stack[at:]
                return items
        raise PickleRefused("a mark is missing")

    def put(self, index: int) -> None:
        self.memo[int(index)] = self.stack[-1]

    def charge(self, *values: Any) -> None:
        """A file may say "that again" as often as it likes, yet not have everything copied each time."""
        self.copies -= 1 + sum(len(value) for value in values if isinstance(value, (list, tuple, dict)))
        self.copies -= sum(len(value) >> 6 for value in values if isinstance(value, (str, bytes)))
        if self.copies < 0:
            refuse(f"it copies more than {MAX_VALUES:,} values")

    def call(self, what: Any, args: Any) -> Any:
        """What a call stands for. Only data is made; nothing is called."""
        if not isinstance(what, Name) or not isinstance(args, (tuple, list)):
            refuse("it calls something that is no class")
        self.charge(args, *args)
        given = list(args)
        if what.module == "copyreg":
            if not given or not isinstance(given[0], Name):
                refuse(f"it calls {what} without a class")
            return self.rebuilt(given) if what.name == "_reconstructor" else self.make(given)
        if what.module in _DATA_MODULES:
            return known(what, given)
        if not what.name[:1].isupper() and not (what.module.startswith("numpy") and what.name in _NUMBERS):
            refuse(f"it asks to run {what}")
        return Record(what, given)

    def rebuilt(self, given: list[Any]) -> Any:
        """An old protocol's object: a class, the base it was built on, and what the base held."""
        made, held = self.call(given[0], []), given[2] if len(given) > 2 else None
        if isinstance(made, Record) and isinstance(held, (list, tuple)):
            made.items.extend(held)
        elif isinstance(made, Record) and isinstance(held, dict):
            made.pairs.extend(held.items())
        return made

    def make(self, given: list[Any]) -> Any:
        kind, rest = given[0], given[1:]
        if len(rest) == 1 and isinstance(rest[0], tuple):
            rest = list(rest[0])
        return self.call(kind, rest)


# ── the opcodes ─────────────────────────────────────────────────────────────────────────────────────


def _global(machine: _Machine, module: Any, name: Any) -> None:
    if not isinstance(module, str) or not isinstance(name, str):
        refuse("it names a class by something that is no text")
    module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    what = Name(module[:200], name[:200])
    allowed = name in _DATA_MODULES.get(module, ())
    top = module.partition(".")[0]
    if not allowed and (top in sys.stdlib_module_names or module in _DATA_MODULES):
        refuse(f"it asks for {what}, which is more than data")
    if not allowed and "__" in name:
        refuse(f"it asks for {what}, which is more than data")
    machine.stack.append(what)


def _stack_global(machine: _Machine, _: Any) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    _global(machine, module, name)


def _text_global(machine: _Machine, arg: str) -> None:
    module, _, name = arg.partition(" ")
    _global(machine, module, name)


def _inst(machine: _Machine, arg: str) -> None:
    args = machine.since_mark()
    _text_global(machine, arg)
    machine.stack.append(machine.call(machine.stack.pop(), args))


def _obj(machine: _Machine, _: Any) -> None:
    kind, *args = machine.since_mark()
    machine.stack.append(machine.call(kind, args))


def _reduce(machine: _Machine, _: Any) -> None:
    args, what = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(machine.call(what, args))


def _newobj(machine: _Machine, _: Any) -> None:
    args, kind = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(machine.call(kind, args))


def _newobj_ex(machine: _Machine, _: Any) -> None:
    named, args, kind = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    made = machine.call(kind, args)
    machine.charge(named)
    if isinstance(made, Record) and isinstance(named, dict):
        made.state.update(named)
    machine.stack.append(made)


def _build(machine: _Machine, _: Any) -> None:
    state, target = machine.stack.pop(), machine.stack[-1]
    if not isinstance(target, (Record, dict, list)):
        refuse("it gives a state to something that has none")
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    for part in parts:
        machine.charge(part)
        if isinstance(part, dict) and isinstance(target, Record):
            target.state.update(part)
        elif part is not None and isinstance(target, Record):
            target.state.setdefault("__state__", part)


def _append(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if isinstance(target, Record):
        target.items.extend(items)
    elif isinstance(target, list):
        target.extend(items)
    else:
        refuse("it adds to something that is no list")


def _set(machine: _Machine, items: list[Any]) -> None:
    target, pairs = machine.stack[-1], list(zip(items[::2], items[1::2], strict=True))
    if isinstance(target, Record):
        target.pairs.extend(pairs)
    elif isinstance(target, dict):
        target.update((text_key(key), value) for key, value in pairs)
    else:
        refuse("it sets keys of something that is no dict")


def _dict(machine: _Machine, _: Any) -> None:
    items = machine.since_mark()
    machine.stack.append({})
    _set(machine, items)


def _tuple(size: int) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, _: Any) -> None:
        if len(machine.stack) < size:
            refuse("its stack is empty")
        items = machine.stack[len(machine.stack) - size :]
        del machine.stack[len(machine.stack) - size :]
        machine.stack.append(tuple(items))

    return act


def _forget(machine: _Machine, _: Any) -> None:
    machine.since_mark()


def _pop_pair(machine: _Machine) -> list[Any]:
    value, key = machine.stack.pop(), machine.stack.pop()
    return [key, value]


_VALUES = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING",
    "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_ACTS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda m, a: None,
    "FRAME": lambda m, a: None,
    "NONE": lambda m, a: m.stack.append(None),
    "NEWTRUE": lambda m, a: m.stack.append(True),
    "NEWFALSE": lambda m, a: m.stack.append(False),
    "MARK": lambda m, a: m.stack.append(_Mark),
    "POP": lambda m, a: m.stack.__delitem__(-1),
    "POP_MARK": _forget,
    "DUP": lambda m, a: m.stack.append(m.stack[-1]),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda m, a: m.put(a)),
    "MEMOIZE": lambda m, a: m.put(len(m.memo)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda m, a: m.stack.append(m.memo[int(a)])),
    "EMPTY_LIST": lambda m, a: m.stack.append([]),
    "EMPTY_TUPLE": lambda m, a: m.stack.append(()),
    "EMPTY_DICT": lambda m, a: m.stack.append({}),
    "EMPTY_SET": lambda m, a: m.stack.append([]),
    "LIST": lambda m, a: m.stack.append(m.since_mark()),
    "FROZENSET": lambda m, a: m.stack.append(m.since_mark()),
    "TUPLE": lambda m, a: m.stack.append(tuple(m.since_mark())),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "DICT": _dict,
    "APPEND": lambda m, a: _append(m, [m.stack.pop()]),
    **dict.fromkeys(("APPENDS", "ADDITEMS"), lambda m, a: _append(m, m.since_mark())),
    "SETITEM": lambda m, a: _set(m, _pop_pair(m)),
    "SETITEMS": lambda m, a: _set(m, m.since_mark()),
    "GLOBAL": _text_global,
    "STACK_GLOBAL": _stack_global,
    "INST": _inst,
    "OBJ": _obj,
    "REDUCE": _reduce,
    "NEWOBJ": _newobj,
    "NEWOBJ_EX": _newobj_ex,
    "BUILD": _build,
}
