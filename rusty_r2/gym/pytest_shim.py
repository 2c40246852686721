# SPDX-License-Identifier: AGPL-3.0-or-later
"""The part of pytest that task tests use, for a sandbox in which pytest is not installed.

`raises` (with match), `approx`, `mark.parametrize` (stacked, with `param`), `fixture` (by argument name, with
`yield`, no scopes), `capsys`, `fail` and `skip`. Other marks are accepted and do nothing; a skipped test
counts as not passed. Everything else raises AttributeError where the tests are read, which `rusty gym check`
shows. tester.py installs this module as `pytest`.
"""

from __future__ import annotations

import inspect
import io
import itertools
import math
import re
import sys
import types
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Filled = Iterator[tuple[str, Callable[[], Any]]]


class raises:  # noqa: N801  (pytest's own name)
    """`with raises(ValueError, match="..."):`, or `raises(ValueError, function, *args)`."""

    def __init__(self, kind: Any, *args: Any, match: str | None = None, **kwargs: Any) -> None:
        self.kind, self.match = kind, match
        if args:
            with self:
                args[0](*args[1:], **kwargs)

    def __enter__(self) -> raises:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> bool:
        if error is None or kind is None:
            raise AssertionError("did not raise")
        if not issubclass(kind, self.kind):
            return False
        if self.match is not None and not re.search(self.match, str(error)):
            raise AssertionError("raised with other words")
        self.value, self.type = error, kind
        return True


class approx:  # noqa: N801
    """Equal within rel=1e-6 or abs=1e-12: numbers, and lists, tuples and dicts of them."""

    def __init__(self, expected: Any, rel: float = 1e-6, abs: float = 1e-12) -> None:  # noqa: A002
        self.expected, self.rel, self.abs = expected, rel, abs

    def __eq__(self, other: object) -> bool:
        return self._near(self.expected, other)

    __hash__ = None  # type: ignore[assignment]

    def _near(self, mine: Any, theirs: Any) -> bool:
        if isinstance(mine, bool) or not isinstance(mine, (int, float, list, tuple, dict)):
            return bool(mine == theirs)
        if isinstance(mine, (int, float)):
            known = type(theirs) in (int, float)
            return known and math.isclose(mine, theirs, rel_tol=self.rel, abs_tol=self.abs)
        if type(mine) is not type(theirs) or len(mine) != len(theirs):
            return False
        if isinstance(mine, dict):
            return all(key in theirs and self._near(mine[key], theirs[key]) for key in mine)
        return all(self._near(*pair) for pair in zip(mine, theirs, strict=True))


def fail(reason: str = "") -> None:
    raise AssertionError(reason)


def skip(reason: str = "") -> None:
    raise unittest.SkipTest(reason)


def param(*values: Any, id: str = "") -> tuple[Any, ...]:  # noqa: A002
    return values


class _Mark:
    def parametrize(self, names: str | Sequence[str], rows: Any, ids: Any = None) -> Callable[[Any], Any]:
        """Run the test once for each row."""
        words = [word.strip() for word in names.split(",")] if isinstance(names, str) else list(names)

        def note(function: Any) -> Any:
            filled = [dict(zip(words, row if len(words) > 1 else _single(row), strict=True)) for row in rows]
            function.__rows__ = [*getattr(function, "__rows__", []), filled]
            return function

        return note

    def __getattr__(self, name: str) -> Any:
        if name in ("skip", "skipif", "xfail"):
            raise AttributeError(f"pytest.mark.{name} has no place in a task's tests")
        return lambda *args, **kwargs: args[0] if args and callable(args[0]) else (lambda function: function)


def _single(row: Any) -> tuple[Any, ...]:
    return row if isinstance(row, tuple) and len(row) == 1 else (row,)


mark = _Mark()


def fixture(function: Any = None, **_options: Any) -> Any:
    """A value a test asks for by naming it as an argument."""
    if function is None:
        return fixture
    function.__fixture__ = True
    return function


class _Captured:
    """pytest's `capsys`, as far as `readouterr().out`."""

    def __init__(self) -> None:
        self.stream = sys.stdout = io.StringIO()

    def readouterr(self) -> Any:
        out = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return types.SimpleNamespace(out=out, err="")


@fixture
def capsys() -> Iterator[_Captured]:
    before = sys.stdout
    yield _Captured()
    sys.stdout = before


def expand(module: Any, name: str, function: Callable[..., Any] | None, owner: Any) -> Filled:
    """Every run of one test: its rows crossed, its fixtures looked up in the module."""
    plain = function if function is not None else vars(owner)[name]
    for number, rows in enumerate(itertools.product(*getattr(plain, "__rows__", []))):
        given: dict[str, Any] = {key: value for row in rows for key, value in row.items()}
        label = f"{name}[{number}]" if rows else name
        yield label, _bind(module, plain, owner, given)


def _bind(module: Any, plain: Callable[..., Any], owner: Any, given: Mapping[str, Any]) -> Callable[[], None]:
    def run() -> None:
        open_fixtures: list[Iterator[Any]] = []
        target: Callable[..., Any] = plain
        if owner is not None and not isinstance(plain, staticmethod):
            instance = owner()
            getattr(instance, "setup_method", lambda: None)()
            target = getattr(instance, plain.__name__)
        try:
            target(**_arguments(module, target, given, open_fixtures))
        finally:
            for stream in reversed(open_fixtures):
                next(stream, None)

    return run


def _arguments(
    module: Any, target: Callable[..., Any], given: Mapping[str, Any], streams: list[Iterator[Any]]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if name in given:
            found[name] = given[name]
            continue
        maker: Any = capsys if name == "capsys" else getattr(module, name, None)
        if not getattr(maker, "__fixture__", False):
            if parameter.default is inspect.Parameter.empty:
                raise LookupError(f"no fixture is called {name}")
            continue
        value = maker(**_arguments(module, maker, given, streams))
        if inspect.isgenerator(value):
            streams.append(value)
            value = next(value)
        found[name] = value
    return found
