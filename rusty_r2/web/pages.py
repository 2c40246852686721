# SPDX-License-Identifier: AGPL-3.0-or-later
"""How a page becomes HTML: one template engine with escaping always on, and one gate for every word.

Whatever a template prints goes through `shown`: control characters, bidirectional marks and other invisible
ones are spelt out, then everything is escaped. No template switches that off, and a test looks for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from rusty_r2 import __version__
from rusty_r2.agent.telling import short
from rusty_r2.gym.safetext import neutral, one_line
from rusty_r2.web import curves
from rusty_r2.web.guard import Keys
from rusty_r2.web.shelf import anchor

HERE = Path(__file__).parent
STATIC = {"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127) if chr(code) not in "\n\t"}
"""spelt in letters: not every font has pictures of them"""
ROOMS = (
    ("1", "/traces", "Traces"),
    ("2", "/label", "Label"),
    ("3", "/agreement", "Agreement"),
    ("4", "/runs", "Runs"),
    ("5", "/shelf", "Models"),
)


@dataclass(frozen=True)
class Ask:
    """One request, read."""

    path: str
    query: Mapping[str, str]
    keys: tuple[str, ...]
    """every `key` of the query: the numbers to draw"""
    form: Mapping[str, str]
    who: str
    """the person at the keyboard, by the name they gave"""


@dataclass
class Templates:
    keys: Keys
    static: dict[str, bytes] = field(init=False)
    environment: Environment = field(init=False)

    def __post_init__(self) -> None:
        self.static = {name: (HERE / "static" / name).read_bytes() for name in STATIC}
        self.environment = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.environment.filters |= {
            "short": short,
            "brief": brief,
            "lead": lead,
            "request": request,
            "size": size,
            "number": curves.number,
            "anchor": anchor,
        }
        self.environment.globals |= {
            "rooms": ROOMS,
            "version": __version__,
            "stamp": hashlib.sha256(b"".join(self.static.values())).hexdigest()[:10],
            "form_key": self.keys.form,
            "to": to,
            "W": curves.WIDTH,
            "H": curves.HEIGHT,
            "LEFT": curves.LEFT,
            "RIGHT": curves.RIGHT,
            "BOTTOM": curves.BOTTOM,
        }

    def page(self, name: str, ask: Ask, status: int = 200, **values: Any) -> HTMLResponse:
        template = self.environment.get_template(f"{name}.jinja")
        return HTMLResponse(template.render(ask=ask, **values), status)


def shown(value: Any) -> Any:
    """The gate: words of others made visible; what a macro of ours made is whole already."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return neutral(spelt(value))
    return value


def to(path: str, **query: str) -> str:
    """An address on this page."""
    return f"{path}?{urlencode(query, quote_via=quote, errors='replace')}" if query else path


def spelt(text: str) -> str:
    return text.replace("\r\n", "\n").translate(CONTROLS)


def brief(text: str, width: int = 200) -> str:
    """On one line, the middle cut where it is long."""
    return one_line(spelt(text), width)


def request(text: str) -> str:
    """A request alone, without the files that were shown below it."""
    return re.split(r"\n\n(?:FILES|CURRENT_FILE): ", text, maxsplit=1)[0]


def lead(text: str, width: int) -> str:
    """How a text begins, on one line."""
    start = " ".join(text[: 4 * width].split())
    return start if len(start) <= width else f"{start[:width]}…"


def size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count} bytes"
