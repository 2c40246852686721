# SPDX-License-Identifier: AGPL-3.0-or-later
"""What crosses the wire comes back the same, and nothing else can cross."""

from __future__ import annotations

import enum
import json
import math
import pickle
import socket
import struct
import time
from collections import Counter, OrderedDict, namedtuple
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rusty_r2.gym import wire

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**60, max_value=2**200)
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.decimals().filter(lambda number: not number.is_snan())
    | st.fractions()
)
keys = st.booleans() | st.integers() | st.text() | st.binary() | st.tuples(st.integers(), st.text())
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.sets(keys)
        | st.frozensets(keys)
        | st.binary().map(bytearray)
        | st.builds(range, st.integers(), st.integers())
    ),
    max_leaves=20,
)
EXACT = {
    Decimal,
    Fraction,
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    list,
    tuple,
    dict,
    set,
    frozenset,
    range,
}


def same(left: object, right: object) -> bool:
    """Equality that also wants the same types all the way down, in the same order, and knows NaN and -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right) or (math.isnan(left) and math.isnan(right))
    if isinstance(left, Decimal):
        return str(left) == str(right)
    if isinstance(left, complex):
        return same([left.real, left.imag], [right.real, right.imag])
    return left == right


def exact(value: object) -> bool:
    inner = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    many = isinstance(value, (list, tuple, dict, set, frozenset))
    return type(value) in EXACT and (not many or all(map(exact, inner)))


@settings(deadline=None)
@given(values)
def test_plain_values_come_back_the_same(value):
    assert same(wire.loads(wire.dumps(value)), value)


json_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(list("itdszbycrehknqD")) | st.text(max_size=2), inner)
    ),
    max_leaves=15,
)


@settings(deadline=None)
@given(json_trees)
def test_any_json_is_a_plain_value_or_refused(tree):
    try:
        value = wire.loads(json.dumps(tree).encode())
    except wire.WireError:
        return
    assert value is Ellipsis or exact(value) or Ellipsis in _leaves(value)


def _leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(data):
    try:
        wire.loads(data)
    except wire.WireError:
        pass


class Liar(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Liar(3), 3),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(x=1), {"x": 1}),
        (namedtuple("P", "x y")(1, 2), (1, 2)),
    ],
)
def test_a_subclass_is_sent_as_what_it_holds(value, plain):
    assert same(wire.loads(wire.dumps(value)), plain)


@pytest.mark.parametrize(
    "value", [object(), print, int, Colour.RED, ValueError("x"), (n for n in ()), Colour]
)
def test_what_is_no_data_does_not_cross(value):
    with pytest.raises(wire.WireError, match="is not plain data"):
        wire.dumps(value)
    with pytest.raises(wire.WireError, match="is not plain data"):
        wire.loads(wire.dumps([value], lambda thing: {"h": 1, "k": "object", "n": type(thing).__name__}))


def test_objects_cross_as_numbers_where_asked_for():
    sent = wire.dumps([object()], lambda thing: {"h": 7, "k": "object", "n": "o\x1b[31m"})
    assert wire.loads(sent, lambda *handle: handle) == [(7, "object", "o�[31m")]


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b"9" * 5000,
        b'{"i":"zz"}',
        b'{"r":[0,1,0]}',
        b'{"q":[1,0]}',
        b'{"D":"sNaN"}',
        b'{"D":"1e99999999999999999999999"}',
        b'{"s":[[1]]}',
        b'{"d":[[1]]}',
        b'{"t":1}',
        b'{"t":[],"s":[]}',
        b"{}",
        b'{"h":"1","k":"object","n":"x"}',
        b'{"x":[1]}',
        b"\xff\xfe",
        pickle.dumps({"a": 1}),
        json.dumps({"s": [n * (2**61 - 1) for n in range(200)]}).encode().replace(b", ", b","),
    ],
)
def test_nonsense_is_refused(data):
    with pytest.raises(wire.WireError):
        wire.loads(data)


@pytest.mark.parametrize("tag", ["s", "z", "d"])
@pytest.mark.parametrize("honest", [0, 5000])
def test_keys_that_were_chosen_to_collide_are_refused(tag, honest):
    """Also among many that do not: what they cost is the square of their own number."""
    modulus = (1 << 61) - 1
    keys = [{"i": format(number * modulus, "x")} for number in range(1, 200)] + list(range(1, honest))
    packed = {tag: [[key, 0] for key in keys] if tag == "d" else keys}
    with pytest.raises(wire.WireError, match="collide"):
        wire.loads(wire.text(packed))


def test_many_honest_keys_cross():
    for value in ({number * 1024 for number in range(-5000, 5000)}, {(n, n % 7): n for n in range(5000)}):
        assert wire.loads(wire.dumps(value)) == value


def test_depth_is_bounded_both_ways():
    deep: list[object] = []
    for _ in range(wire.MAX_DEPTH + 5):
        deep = [deep]
    with pytest.raises(wire.WireError, match="too deep"):
        wire.dumps(deep)
    with pytest.raises(wire.WireError, match="too deep"):
        wire.loads(json.dumps(deep).encode())


@settings(deadline=None, max_examples=20)
@given(st.lists(st.binary(max_size=3000), max_size=4))
def test_frames_keep_their_borders(frames):
    left, right = socket.socketpair()
    with left, right:
        for frame in frames:
            wire.send(left, frame)
        left.close()
        assert [wire.receive(right) for _ in frames] == frames
        with pytest.raises(EOFError):
            wire.receive(right)


def test_a_frame_is_bounded_in_size_and_time():
    left, right = socket.socketpair()
    with left, right:
        with pytest.raises(wire.WireError, match="too big"):
            wire.send(left, bytes(wire.MAX_BYTES + 1))
        left.sendall(b"\xff\xff\xff\x7f")
        with pytest.raises(wire.WireError, match="too big"):
            wire.receive(right)
        left.sendall(b"\x09\x00\x00\x00half")
        with pytest.raises(TimeoutError):
            wire.receive(right, time.monotonic() + 0.02)
        with pytest.raises(TimeoutError):
            wire.receive(right, time.monotonic() - 1)


def test_text_for_reports_cannot_steer_a_terminal():
    assert wire.printable("a\x1b[31m\nb\u202ec", 40) == "a�[31m�b�c"
    assert wire.printable("x" * 50, 10) == "x" * 9 + "…"
