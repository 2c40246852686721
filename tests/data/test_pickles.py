"""Pickles are data or they are refused; nothing in them ever runs. The payloads are real."""

import builtins
import codecs
import collections
import datetime
import decimal
import enum
import functools
import importlib
import json
import operator
import os
import pathlib
import pickle
import runpy
import shutil
import struct
import subprocess
import types
import webbrowser
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rusty_r2.data import pickles, records
from rusty_r2.data.pickles import PickleRefused, load, loads

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class Reduced:
    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


def payloads(mark):
    """Everything we know that runs something when a pickle is loaded; each would make the file `mark`."""
    touch, code = f"touch {mark}", f"open({str(mark)!r}, 'w').close()"
    return {
        "os.system": Reduced(os.system, (touch,)),
        "eval": Reduced(eval, (code,)),
        "exec": Reduced(exec, (code,)),
        "Popen": Reduced(subprocess.Popen, (["touch", str(mark)],)),
        "check_output": Reduced(subprocess.check_output, (["touch", str(mark)],)),
        "open": Reduced(open, (str(mark), "w")),
        "import": Reduced(__import__, ("os",)),
        "import_module": Reduced(importlib.import_module, ("os",)),
        "chain": Reduced(Reduced, (Reduced(Reduced, (Reduced(os.system, (touch,)),)),)),
        "getattr": Reduced(getattr, (Reduced(__import__, ("os",)), "system")),
        "partial": functools.partial(os.system, touch),
        "attrgetter": Reduced(operator.attrgetter("system"), (1,)),
        "methodcaller": operator.methodcaller("touch"),
        "map": Reduced(list, (Reduced(map, (os.system, [touch])),)),
        "runpy": Reduced(runpy.run_path, (str(mark),)),
        "rmtree": Reduced(shutil.rmtree, (str(mark.parent),)),
        "codecs": Reduced(codecs.decode, (b"x", "zlib")),
        "webbrowser": Reduced(webbrowser.open, ("http://127.0.0.1",)),
        "lambda code": Reduced(types.FunctionType, ()),
        "in a dict": {"session_data": {"s": {"history": [Reduced(os.system, (touch,))]}}},
        "as state": Reduced(collections.OrderedDict, (), {"x": Reduced(os.system, (touch,))}),
        "as list items": Reduced(list, (), None, iter([Reduced(eval, (code,))])),
        "as dict items": Reduced(dict, (), None, None, iter([("k", Reduced(eval, (code,)))])),
        "builtin as value": {"f": builtins.print},
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_hostile_gets_through(protocol, tmp_path):
    mark = tmp_path / "mark"
    for name, payload in payloads(mark).items():
        path = tmp_path / "bad.pkl"
        try:
            path.write_bytes(pickle.dumps(payload, protocol))
        except (pickle.PicklingError, TypeError, AttributeError):
            continue  # this Python cannot write it in that protocol
        with pytest.raises(PickleRefused) as told:
            load(path)
        said = str(told.value)
        assert said.startswith(f"{path}: refused: ") and said.endswith("nothing in it was run"), name
        assert "\n" not in said
        assert not mark.exists(), name


HAND_MADE = {
    "posix.system by GLOBAL": b"cposix\nsystem\n(S'touch MARK'\ntR.",
    "nt on Linux": b"cnt\nsystem\n(S'touch MARK'\ntR.",
    "Python 2's names": b"ccommands\ngetoutput\n(S'touch MARK'\ntR.",
    "__builtin__": b"c__builtin__\neval\n(S'1'\ntR.",
    "INST": b"(S'touch MARK'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'touch MARK'\no.",
    "a dunder path": b"\x80\x04\x8c\x01a\x8c\x1cC.__class__.__subclasses__xx\x93.",
    "a function of another package": b"cpip\nmain\n(S'install'\ntR.",
    "third-party exec": b"cnumpy.testing._private.utils\nrunstring\n(S'1'\n}tR.",
    "STACK_GLOBAL with numbers": b"\x80\x04K\x01K\x02\x93.",
    "call of a text": b"S'os.system'\n(S'touch MARK'\ntR.",
    "call of a record": b"capp\nThing\n)R(S'touch MARK'\ntR.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent id": b"Pid\n.",
    "state for a number": b"K\x01}b.",
    "reconstructor without a class": b"ccopyreg\n_reconstructor\n(K\x01K\x02K\x03tR.",
    "newobj of a function": b"\x80\x02cos\nsystem\n(U\ntouch MARK\x85\x81.",
    "empty": b"",
    "no end": b"\x80\x04K\x01",
    "no stack": b".",
    "no mark": b"\x80\x02K\x01t.",
    "unknown memo": b"h\x07.",
    "a huge text that is not there": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.",
    "odd dict": b"(K\x01d.",
    "a mark as value": b"(.",
    "a number of a million digits": b"I" + b"9" * 10**6 + b"\n.",
    "not a pickle": b"PK\x03\x04 something",
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made_files_are_refused_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PickleRefused, match="refused") as told:
        loads(HAND_MADE[name])
    assert "\n" not in str(told.value) and len(str(told.value)) < 400
    assert not (tmp_path / "MARK").exists()


def bomb(levels, width):
    """A list of lists of lists: a few hundred bytes that would be `width ** levels` values."""
    return b"\x80\x02]q\x00" + b"".join(
        b"](" + b"h" + bytes([level]) + (b"h" + bytes([level])) * (width - 1) + b"eq" + bytes([level + 1])
        for level in range(levels)
    ) + b"."  # fmt: skip


def test_bombs_do_not_go_off(monkeypatch):
    for module in (pickles, records):
        monkeypatch.setattr(module, "MAX_VALUES", 100_000)
    with pytest.raises(PickleRefused, match="more than 100,000 values"):
        loads(bomb(30, 10))
    with pytest.raises(PickleRefused, match="nests deeper than 100"):
        loads(b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".")
    itself = []
    itself.append(itself)
    with pytest.raises(PickleRefused, match="holds itself"):
        loads(pickle.dumps(itself))
    big_memo = b"\x80\x02K\x01r\xff\xff\xff\x7f."  # pickle's own loader would make room for 2**31 entries
    assert loads(big_memo) == 1
    copies = (
        b"\x80\x02cbuiltins\nlist\nq\x01]("
        + b"K\x01" * 5000
        + b"eq\x02"
        + b"h\x01h\x02\x85R0" * 5000
        + b"h\x02."
    )
    with pytest.raises(PickleRefused, match="copies more than"):
        loads(copies)
    text = b"\x80\x02X" + struct.pack("<I", 2**16) + b"x" * 2**16 + b"q\x01](" + b"h\x01" * 5000 + b"e."
    with pytest.raises(PickleRefused, match="values"):
        loads(text)
    monkeypatch.setattr(pickles, "MAX_OPCODES", 100)
    with pytest.raises(PickleRefused, match="more than 100 opcodes"):
        loads(b"K\x010" * 200 + b"K\x01.")
    monkeypatch.setattr(pickles, "MAX_BYTES", 10)
    with pytest.raises(PickleRefused, match="MB"):
        loads(b"x" * 11)


class Color(enum.Enum):
    RED = "red"


@dataclass
class Checkpoint:
    name: str
    when: datetime.datetime
    more: dict = field(default_factory=dict)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_of_an_enum_is_its_name_where_no_more_was_written(protocol):
    """As Python 3.11.2 writes it."""
    assert loads(pickle.dumps(Reduced(getattr, (Color, "RED")), protocol)) == "RED"


@pytest.mark.parametrize(
    "asked",
    [
        b"(cm\nColor\nV__subclasses__\ntR(tR",
        b"(cm\nColor\nI5\ntR",
        b"(cm\nColor\ntR",
        b"(cm\nrun\nVRED\ntR",
        b"(Vtext\nVformat\ntR",
        b"(cos\nsystem\nVRED\ntR",
    ],
    ids=["called", "a number", "no name", "of a function", "of a text", "of the library"],
)
def test_nothing_else_is_asked_of_anything(asked):
    with pytest.raises(PickleRefused):
        loads(b"cbuiltins\ngetattr\n" + asked + b".")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_objects_become_dicts_of_their_attributes(protocol):
    utc = datetime.timezone.utc
    member = "RED" if Color.RED.__reduce_ex__(2)[0] is getattr else "red"
    more = {
        "color": Color.RED,
        "days": datetime.timedelta(days=1),
        "day": datetime.date(2026, 1, 2),
        "path": pathlib.Path("/a/b"),
        "money": decimal.Decimal("1.50"),
        "ordered": collections.OrderedDict(a=[1]),
        "default": collections.defaultdict(list, {"k": [2]}),
        "set": {3},
        "frozen": frozenset([4]),
        "deque": collections.deque([5]),
        "bytes": b"six",
        (7, "seven"): None,
        8: 2.5,
        "name": types.SimpleNamespace(a=1),
    }
    made = loads(
        pickle.dumps(Checkpoint("c", datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=utc), more), protocol)
    )
    assert made["__class__"].endswith(".Checkpoint") and made["when"] == "2026-01-02T03:04:05+00:00"
    name = made["more"].pop("name")
    assert name["a"] == 1
    assert made["more"] == {
        "color": member, "days": 86400.0, "day": "2026-01-02", "path": "/a/b", "money": "1.50",
        "ordered": {"a": [1]}, "default": {"k": [2]}, "set": [3], "frozen": [4], "deque": [5],
        "bytes": "six", "7, seven": None, "8": 2.5,
    }  # fmt: skip


DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


@settings(max_examples=60, deadline=None)
@given(DATA, st.sampled_from(PROTOCOLS))
def test_plain_data_comes_back_as_it_was(data, protocol):
    assert loads(pickle.dumps(data, protocol)) == data


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_is_data_or_refused(data):
    whole = bytearray(
        pickle.dumps(Checkpoint("c", datetime.datetime(2026, 1, 2), {"a": [1, {"b": (2, 3)}]}), 4)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        json.dumps(loads(bytes(whole)), allow_nan=False)
    except PickleRefused:
        pass


def test_an_ordinary_checkpoint_is_no_bomb():
    history = [
        {"role": "user", "content": f"question {n} " * 20, "timestamp": "2026-01-01"} for n in range(2000)
    ]
    assert (
        loads(pickle.dumps({"session_data": {"s": {"history": history}}}))["session_data"]["s"]["history"]
        == history
    )
    assert records.MAX_VALUES > 10**6
