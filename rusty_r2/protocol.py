# SPDX-License-Identifier: AGPL-3.0-or-later
"""The words Rusty can say: one JSON object a turn, one of three kinds.

    {"action": "MSG",  "message": "Tests pass. You're welcome."}
    {"action": "CMD",  "command": "pytest -q"}
    {"action": "EDIT", "path": "total.py", "content": "def total(xs): return sum(xs)\\n"}

`parse` reads a model's text, `render` writes it, and each undoes the other. The terminal, the gym
and the rewards all come through here, so Rusty speaks in use as it learned to in training.
An action is a flat object of strings, so `parse` is a flat scanner: no recursion, no numbers, one
pass, and a quoted object inside a broken one is never mistaken for the action itself.
Whether an action is safe is for gym/sandbox.py; whether it helped is for rewards/.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, ClassVar

from rusty_r2.errors import ProtocolError

MAX_REPLY = 1_000_000
"""characters; a longer reply is refused unread"""


@dataclass(frozen=True)
class Msg:
    """Say something to the user. Ends the turn."""

    kind: ClassVar[str] = "MSG"
    message: str


@dataclass(frozen=True)
class Cmd:
    """Run a shell command in the sandbox."""

    kind: ClassVar[str] = "CMD"
    command: str


@dataclass(frozen=True)
class Edit:
    """Write a whole file in the sandbox."""

    kind: ClassVar[str] = "EDIT"
    path: str
    content: str


Action = Msg | Cmd | Edit
KINDS: dict[str, type[Action]] = {kind.kind: kind for kind in (Msg, Cmd, Edit)}

_OPENING = re.compile(r'\{\s*(?=["}])')
_SPACE = re.compile(r"[ \t\r\n]*")


def parse(text: str) -> Action:
    """Read the first JSON object in `text`. Words around it are forgiven: small models ramble."""
    if len(text) > MAX_REPLY:
        raise _refuse(f"the reply is {len(text):,} characters long; {MAX_REPLY:,} is the most")
    opening = _OPENING.search(text)
    if opening is None:
        raise _refuse("the reply holds no JSON object")
    said = _flat_object(text, opening.end())
    kind = said.pop("action", None)
    if kind is None:
        raise _refuse('the object has no "action" key')
    if kind not in KINDS:
        raise _refuse(f"{_brief(kind)} is no action; say {', '.join(KINDS)}")
    wanted = [field.name for field in fields(KINDS[kind])]
    if said.keys() != set(wanted):
        raise _refuse(f"{kind} takes {_names(wanted)} beside action, not {_names(said)}", kind)
    for name, value in said.items():
        if name != "content" and "\0" in value:
            raise _refuse(f"{name} holds a NUL character", kind)
    return KINDS[kind](**said)


def render(action: Action) -> str:
    """Write an action as the model should have written it."""
    return json.dumps({"action": action.kind, **asdict(action)}, ensure_ascii=False)


def example(kind: str) -> str:
    """What a correct reply of this kind looks like, in words the model can copy."""
    shape = {"action": kind} | {field.name: "..." for field in fields(KINDS[kind])}
    return f"Answer with one JSON object, like {json.dumps(shape)}"


def schema() -> dict[str, Any]:
    """The JSON Schema of an action, for grammars and for other tools (protocol.schema.json)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Action",
        "description": "One reply of Rusty-R2.",
        "anyOf": [_schema_of(kind) for kind in KINDS.values()],
    }


def _schema_of(kind: type[Action]) -> dict[str, Any]:
    names = [field.name for field in fields(kind)]
    return {
        "type": "object",
        "description": kind.__doc__,
        "properties": {"action": {"const": kind.kind}} | {name: {"type": "string"} for name in names},
        "required": ["action", *names],
        "additionalProperties": False,
    }


def _flat_object(text: str, at: int) -> dict[str, str]:
    """The strings of the object whose first key or closing brace stands at `at`."""
    said: dict[str, str] = {}
    if text[at] == "}":
        return said
    while True:
        key, at = _string(text, at, "a key")
        at = _expect(text, at, ":")
        value, at = _string(text, at, f"the value of {_brief(key)}")
        if key in said:
            raise _refuse(f"the key {_brief(key)} stands twice")
        said[key] = value
        if text[at : at + 1] == "}":
            return said
        at = _expect(text, at, ",")


def _string(text: str, at: int, what: str) -> tuple[str, int]:
    """The JSON string at `at`, and where the next word begins."""
    if text[at : at + 1] != '"':
        raise _refuse(f"{what} must be a string in double quotes")
    try:
        value, end = scanstring(text, at + 1, True)
        value.encode()
    except UnicodeEncodeError as error:
        raise _refuse(f"{what} holds half a character (a lone surrogate)") from error
    except ValueError as error:
        raise _refuse(f"{what} is no whole JSON string: {str(error).partition(':')[0]}") from error
    return value, _skip(text, end)


def _expect(text: str, at: int, wanted: str) -> int:
    if text[at : at + 1] != wanted:
        found = f"not {text[at]!a}" if at < len(text) else "but the reply ends"
        raise _refuse(f"expected {wanted} at character {at}, {found}")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _refuse(problem: str, kind: str = "MSG") -> ProtocolError:
    return ProtocolError(problem, example(kind))


def _brief(value: str) -> str:
    return ascii(value if len(value) <= 40 else value[:37] + "...")


def _names(names: Any) -> str:
    return ", ".join(_brief(name) for name in list(names)[:8]) or "nothing"
