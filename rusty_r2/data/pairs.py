# SPDX-License-Identifier: AGPL-3.0-or-later
"""Descriptions and commands become requests and CMDs.

Rows are like those of tldr pages (page, about, description, template, command) or of NL2Bash (description,
command). A request names its tool where the description does not give it away, and the names that stand in
the command: "Extract an archive with tar (source.tar)". `request` makes the plain wording, which is also
the one to measure with; training rows vary the wording and some of the names.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from string import Template
from typing import Any

from rusty_r2.data.episode import Episode, ask, say
from rusty_r2.data.lessons import Namer
from rusty_r2.data.voice import dangerous_command, done, dress
from rusty_r2.gym.families.words import WORDS
from rusty_r2.lm.documents import Document
from rusty_r2.protocol import Cmd, Msg

_CORE = (
    "ls cat grep find wc sort cut sed awk tar chmod chown mkdir mv cp rm rmdir touch head tail uniq tr echo "
    "printf diff du df ps kill ln stat file xargs tee date env pwd basename dirname which gzip gunzip zip "
    "unzip curl wget ssh scp rsync git python pip make man history less more tree seq sleep test nl paste "
    "join comm split od xxd md5sum sha256sum base64 column rev tac fold cmp patch realpath id whoami uname "
    "hostname uptime free top pgrep pkill nohup time jq bash sh crontab export alias source"
)
CORE = frozenset(_CORE.split())
"""tools that a request need not name"""
WORDINGS = (
    "How do I $low?",
    "$low, please",
    "I need to $low.",
    "Give me the command to $low.",
    "$tool: $low",
    "$Full.",
    "Use $tool to $low.",
)
ABOUT = ("What is $page?", "what does $page do?", "$page?", "explain $page", "What is $page for?")
MADE_UP = {
    **dict.fromkeys(("file", "filename", "input_file", "output_file"), "file"),
    **dict.fromkeys(("directory", "folder", "dir"), "folder"),
    **dict.fromkeys(("username", "user", "group", "pattern", "search_pattern", "string", "word"), "word"),
    **dict.fromkeys(
        ("package", "branch", "branch_name", "name", "service", "container", "host", "tag"), "name"
    ),
    **dict.fromkeys(("number", "n", "port", "pid", "process_id", "id", "count", "line_number"), "number"),
    **dict.fromkeys(("message", "text", "description", "comment"), "words"),
}
"""slots that take any name, and which kind of name that is in data/lessons.py"""
NAMES = {
    "file": ("notes.txt", "report.md", "data.csv", "todo.txt", "main.py", "app.log", "scores.csv"),
    "directory": ("src", "docs", "build", "logs", "backup", "photos", "project", "music"),
    "username": ("alice", "bob", "carol", "dave", "erin", "rusty"),
    "user": ("alice", "bob", "carol", "dave"),
    "host": ("server1", "example.com", "10.0.0.7", "pi.local"),
    "hostname": ("server1", "example.com", "10.0.0.7", "pi.local"),
    "number": ("3", "5", "10", "20", "42"),
    "n": ("3", "5", "10", "20"),
    "port": ("22", "80", "8080", "5432"),
    "pattern": ("error", "TODO", "warning", "^main"),
    "search_pattern": ("error", "TODO", "warning", "import"),
    "url": ("https://example.com", "https://example.org/file.zip"),
    "branch": ("main", "dev", "fix-login"),
    "branch_name": ("main", "dev", "fix-login"),
    "package": ("requests", "numpy", "htop", "vim"),
    "pid": ("1234", "4711", "808"),
    "process_id": ("1234", "4711", "808"),
    "string": ("hello", "scrap", "rusty"),
    "message": ("fix typo", "first commit", "wip"),
}

_NAME_LINE = re.compile(r"^NAME\n([\w.+-]+)[^\n]*? -+ ([^\n]{8,120})$", re.MULTILINE)
_SLOT = re.compile(r"\{\{(.*?)\}\}(?!\})")
_OPTION = re.compile(r"^\[(-[^|\]]*|[^|\]]*)\|([^\]]*)\]$")


def request(row: Mapping[str, Any]) -> tuple[str, str]:
    """The plain request for a row and the command that answers it."""
    command, names = fill(row)
    return _full(row, names), command


def fill(row: Mapping[str, Any], rng: random.Random | None = None) -> tuple[str, list[str]]:
    """The command with its slots filled, and the names that were put in; `rng` makes up some of them."""
    template = str(row.get("template") or "")
    if "page" not in row or "{{" not in template:
        return str(row["command"]), []
    names: list[str] = []

    def slot(found: re.Match[str]) -> str:
        option = _OPTION.match(found[1])
        if option:
            return option[1]
        name = _invent(found[1].replace("path/to/", "").removesuffix(" ..."), rng)
        names.append(name)
        return name

    return _SLOT.sub(slot, template), list(dict.fromkeys(names))


def commands(row: Mapping[str, Any], rng: random.Random, source: str, licence: str) -> Iterator[Episode]:
    """One CMD episode of a row; none where the command is dangerous or too long to be useful."""
    varied = rng.random() < 0.5
    command, names = fill(row, rng if varied else None)
    if dangerous_command(command) or len(command) > 200 or "\n" in command:
        return
    asked = _reword(row, names, rng) if rng.random() < 0.3 else _full(row, names)
    yield _to_its_end(ask("CMD", source, asked, Cmd(command), licence), command, rng)


def _to_its_end(episode: Episode, command: str, rng: random.Random) -> Episode:
    """Some commands are seen to end, well or not, and Rusty says so and stops."""
    chance, program = rng.random(), command.split()[0]
    if chance < 0.25:
        seen, message = "exit 0", done(rng)
    elif chance < 0.32:
        seen, message = f"exit 127\nbash: {program}: command not found", f"{program} is not installed here."
    else:
        return episode
    return replace(episode, turns=(*episode.turns, ("observation", seen), say(Msg(message))))


def about(row: Mapping[str, Any], rng: random.Random, source: str, licence: str) -> Episode:
    """What a tool is, asked and answered."""
    page = str(row["page"])
    first = re.split(r"(?<=\.)\s", str(row["about"]))[0]
    lead = f"{page}: " if rng.random() < 0.3 else ""
    asked = Template(rng.choice(ABOUT)).substitute(page=page)
    return ask("MSG", source, asked, Msg(dress(lead + first, rng)), licence)


def manual(document: Document, rng: random.Random) -> Iterator[Episode]:
    """What the NAME line of a man page says, asked and answered."""
    found = _NAME_LINE.search(document.text)
    if found:
        said = found[2].strip().rstrip(".")
        asked = Template(rng.choice(ABOUT)).substitute(page=found[1])
        message = Msg(dress(f"{said[0].upper()}{said[1:]}.", rng))
        yield ask("MSG", document.source, asked, message, document.licence)


def tool(row: Mapping[str, Any]) -> str:
    """The program a row is about."""
    return str(row.get("page") or row.get("utility") or str(row["command"]).split()[0])


def core(row: Mapping[str, Any]) -> bool:
    return tool(row).split()[0] in CORE


def _full(row: Mapping[str, Any], names: list[str]) -> str:
    said = _said(row)
    given = tool(row)
    if "page" in row and given not in CORE and given.lower() not in said.lower():
        said += f" with {given}"
    return said + _listed(names)


def _reword(row: Mapping[str, Any], names: list[str], rng: random.Random) -> str:
    full, said = _full(row, names), _said(row) + _listed(names)
    wording = rng.choice(WORDINGS)
    if "$tool" in wording:
        return Template(wording).substitute(low=_lowered(said), tool=tool(row)) if "page" in row else full
    return Template(wording).substitute(low=_lowered(full), Full=full)


def _said(row: Mapping[str, Any]) -> str:
    return str(row["description"]).strip().rstrip(".:")


def _listed(names: list[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _lowered(text: str) -> str:
    return text if text[:2].isupper() else text[0].lower() + text[1:]


def _invent(name: str, rng: random.Random | None) -> str:
    """A likely name for a slot such as `file` or `port`; others keep their own."""
    stem, dot, suffix = name.partition(".")
    if rng is None:
        return name
    if rng.random() < 0.6:
        namer = Namer(WORDS, rng)
        if stem.rstrip("123") in ("file", "input", "output", "source", "target", "image", "archive") and dot:
            return f"{namer.name()}.{suffix}"
        kind = MADE_UP.get(name.rstrip("123"))
        return namer[kind] if kind else name
    if stem.rstrip("123") in ("file", "input", "output", "source", "target") and dot:
        return f"{rng.choice(NAMES['file']).partition('.')[0]}.{suffix}"
    return rng.choice(NAMES[name]) if name in NAMES else name
