# SPDX-License-Identifier: AGPL-3.0-or-later
"""Scripts: sentences say all that the file needs, the files are sound, and every script was run."""

from __future__ import annotations

import ast
import configparser
import csv
import itertools
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rusty_r2.agent.protected import is_protected
from rusty_r2.agent.workspace import Workspace
from rusty_r2.data.names import Namer, vocabulary
from rusty_r2.data.scripts import entries, filled, put, script, slots, wordings
from rusty_r2.data.voice import words
from rusty_r2.eval import evaluate
from rusty_r2.gym.families import FAMILIES
from rusty_r2.gym.families.base import part
from rusty_r2.gym.families.wordings import wordings as gyms
from rusty_r2.gym.sandbox import Limits, open_sandbox
from rusty_r2.lm.tokenizer import Tokenizer
from rusty_r2.protocol import Edit, Msg, parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WORDS = vocabulary(Tokenizer.load())
BENCH = Path(os.environ.get("RUSTY_SHARED", Path(__file__).parents[3] / "shared")) / "bench"
EVERY = [pytest.param(one, id=f"{n}-{one['file']}") for n, one in enumerate(entries())]


def namer(seed: object) -> Namer:
    return Namer(WORDS, random.Random(f"{seed}"))


def made(count: int) -> list[Any]:
    return [script(namer(seed)) for seed in range(count)]


def request_of(episode: Any) -> str:
    return re.split(r"\n\n(?:FILES|CURRENT_FILE): ", episode.turns[1][1])[0]


def spelled(text: str) -> Any:
    """A wording in every one of its choices."""
    parts = re.split(r"\(([^()|]*(?:\|[^()|]*)+)\)", text)
    return ("".join(made) for made in itertools.product(*(one.split("|") for one in parts)))


def plainly(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def bare(text: str) -> tuple[str, ...]:
    """Words alone; whatever is filled in stands as one sign."""
    found = re.findall(r"[a-z]+|#", re.sub(r"\$[a-z]+\d*", "#", text.lower()))
    return tuple(word for word in found if word != "please")


@pytest.mark.parametrize("one", EVERY)
def test_every_wording_says_what_the_file_needs(one: dict[str, Any]) -> None:
    seen = slots(one.get("before", ""))
    needed = slots(one["text"], one["file"], one.get("of", one["file"])) - seen | slots(
        one.get("of", one["file"])
    )
    known = needed | seen | slots(*one.get("here", ()))
    said = wordings(one)
    assert len(set(said)) == len(said) >= 10
    for wording in said:
        assert needed <= slots(wording) <= known, wording
        assert one["file"] in wording or "of" in one, wording
        assert one.get("of", one["file"]) in wording, wording
    assert one["text"].count("\n") <= 14 and one["text"].endswith("\n") and one["text"] != one.get("before")
    assert not is_protected(one["file"])
    assert "before" not in one or one.get("of", one["file"]).endswith(("$module", ".py")), (
        "the agent shows only Python"
    )


def test_no_entry_stands_twice() -> None:
    files = [(one["file"], one["text"], one.get("before")) for one in entries()]
    assert len(files) == len(set(files))
    said = [phrase for one in entries() for phrase in (*one.get("say", ()), *one.get("what", ()))]
    kinds = [(one["kind"], one["file"], phrase) for one in entries() for phrase in one.get("what", ())]
    assert len(kinds) == len(set(kinds)) and len(said) > 150


class Tags(HTMLParser):
    """Which tags are still open; the others must have been closed in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("meta", "link", "img", "br", "input", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def sound(name: str, text: str) -> None:
    """Whether a file is what its name promises."""
    if name.endswith(".py"):
        ast.parse(text)
    elif name.endswith(".json"):
        json.loads(text)
    elif name.endswith(".toml"):
        tomllib.loads(text)
    elif name.endswith((".ini", ".cfg")):
        configparser.ConfigParser().read_string(text)
    elif name.endswith(".csv"):
        assert len({len(row) for row in csv.reader(text.splitlines())}) == 1
    elif name.endswith(".xml"):
        ElementTree.fromstring(text)
    elif name.endswith(".c") and shutil.which("gcc"):
        compiler = ["gcc", "-fsyntax-only", "-Wall", "-Werror", "-x", "c", "-"]
        subprocess.run(compiler, input=text, text=True, check=True, capture_output=True)
    elif name.endswith(".html"):
        page = Tags()
        page.feed(text)
        assert page.open == []
    elif name.endswith("Makefile") and shutil.which("make"):
        done = subprocess.run(
            ["make", "-n", "-f", "-"], input=text, text=True, capture_output=True, timeout=20
        )
        assert done.returncode == 0 or "No rule to make target" in done.stderr
    elif name.endswith(".js") and shutil.which("node"):
        subprocess.run(["node", "--check", "-"], input=text, text=True, check=True, capture_output=True)
    elif name.endswith(".sql"):
        assert sqlite3.complete_statement(text)
    elif name.endswith(".sh"):
        checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=20)
        assert checked.stderr == "" and text.startswith("#!")


@pytest.mark.parametrize("one", EVERY)
def test_every_file_is_sound_and_every_script_runs(one: dict[str, Any]) -> None:
    for seed in range(1 if one["file"].endswith(".sh") else 6):
        names = filled(one, namer(f"{one['file']}/{seed}"))
        name = put(one["file"], names)
        sound(name, put(one["text"], names))
        if "before" in one and not one.get("broken"):
            sound(put(one.get("of", one["file"]), names), put(one["before"], names))
    if one.get("outside") or not name.endswith((".py", ".sh")):
        return
    files = {put(path, names): put(text, names) for path, text in one.get("here", {}).items()}
    if "before" in one:
        files[put(one.get("of", one["file"]), names)] = put(one["before"], names)
    files[name] = put(one["text"] + one.get("check", ""), names)
    command = f"{'python3' if name.endswith('.py') else 'bash'} ./{name} {put(one.get('args', ''), names)}"
    with open_sandbox(at_least="landlock", limits=Limits(wall_s=10.0), files=files) as box:
        result = box.run(command, stdin=one.get("stdin", "").encode())
    assert result.ok, result.output
    if "prints" in one:
        assert result.stdout.decode() == put(one["prints"], names)
    if "proof" in one:
        assert result.stdout.decode().splitlines() == [str(line) for line in eval(put(one["proof"], names))]


def test_the_agent_shows_the_same(tmp_path: Path) -> None:
    """A request in a folder with these files is completed by the agent to the very same prompt.

    Whether code is shown is the agent's guess (agent/named.py): where it guesses wrong, names are shown."""
    kinds: Counter[str] = Counter()
    for number, episode in enumerate(made(500)):
        request, prompt = request_of(episode), episode.turns[1][1]
        folder = tmp_path / str(number)
        folder.mkdir()
        if code := re.search(r"\n\nCURRENT_FILE: (\S+)\n(.*)", prompt, re.DOTALL):
            (folder / code[1]).write_text(code[2] + "\n")
        listing = prompt.partition("\n\nFILES: ")[2].split()
        for name in listing:
            (folder / name).mkdir() if name.endswith("/") else (folder / name).write_text("")
        kinds["code" if code else "files" if listing else "bare"] += 1
        with Workspace(folder) as place:
            told = place.reset(options={"query": request})[0]
        if code and told == f"{request}\n\nFILES: {code[1]}":
            kinds["only names"] += 1
        else:
            assert told == prompt
    assert kinds["files"] and kinds["bare"] and kinds["only names"] < 0.4 * kinds["code"]


def test_what_was_written_is_said_as_the_gym_says_it() -> None:
    episodes = made(1500)
    for episode in episodes:
        action = parse(episode.turns[2][1])
        assert isinstance(action, Edit) and action.content.endswith("\n")
        assert not re.search(r"[$@](module|identifier|name|words?|number|count)\d*\b", episode.turns[1][1])
        if len(episode.turns) > 3:
            assert episode.turns[3] == ("observation", f"wrote {action.path}")
            last = parse(episode.turns[4][1])
            assert isinstance(last, Msg) and last.message in words()["untested"]
    assert 600 < sum(len(episode.turns) > 3 for episode in episodes) < 900
    assert len({request_of(episode) for episode in episodes}) > 1450
    assert script(namer(5)) == script(namer(5))


def strings(value: Any) -> Iterator[str]:
    """Every string in a TOML file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)


def unnamed(text: str) -> str:
    """A sentence with one sign for each slot, file, number or quoted text in it."""
    signs = re.sub(r"[\"'`][^\"'`]+[\"'`]|\S*[$@]\w\S*|\S*\w\.\w+|\b\d+\b", " zz ", text.lower())
    return " ".join(word for word in re.findall(r"\w+", signs) if word != "please")


def test_none_is_an_exam_item() -> None:
    """Neither word for word nor with other names."""
    folder, benchmarks = Path(evaluate.__file__).parent, Path(__file__).parents[2] / "benchmarks"
    files = [*folder.glob("*.toml"), *benchmarks.glob("plain_*.toml")]
    assert len(files) >= 4
    asked = {text for file in files for text in strings(tomllib.loads(file.read_text(encoding="utf-8")))}
    asked = {text for text in asked if " " in text.strip()}
    said = {text for one in entries() for wording in wordings(one) for text in spelled(wording)}
    drawn = {request_of(episode) for episode in made(2000)}
    for form in (plainly, unnamed):
        both = set(map(form, asked)) & set(map(form, said | drawn))
        assert not both


def test_no_wording_is_one_of_the_gyms_held_out_ones() -> None:
    said = {bare(text) for one in entries() for wording in wordings(one) for text in spelled(wording)}
    whole = {name for name, family in FAMILIES.items() if family.split == "heldout"}
    for name, lines in gyms().items():
        held = lines if name.partition(".")[0] in whole else part(lines, held=True)
        assert not said & set(map(bare, held)), name


def runs(text: str, size: int = 8) -> set[tuple[str, ...]]:
    found = re.findall(r"[a-z]+", text.lower())
    return {tuple(found[at : at + size]) for at in range(len(found) - size + 1)}


def functions(code: str) -> set[str]:
    """Functions without their names, docstrings and layout."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.args.args:
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            names = {arg.arg: f"a{n}" for n, arg in enumerate(node.args.args)}
            lines = " ".join(ast.unparse(line) for line in body)
            found.add(re.sub(r"\w+", lambda word, n=names: n.get(word[0], word[0]), lines))  # type: ignore[misc]
    return found - {""}


@pytest.mark.skipif(not (BENCH / "humaneval.jsonl").is_file(), reason="HumanEval and MBPP are not here")
def test_nothing_stands_in_the_benchmarks() -> None:
    prompts = [json.loads(line) for line in (BENCH / "humaneval.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (BENCH / "mbpp.jsonl").read_text().splitlines()]
    held = [row for row in rows if row["split"] != "train"]
    docs = (
        re.split(r">>>|[Ee]xample", "\n".join(re.findall(r'"""(.*?)"""', row["prompt"], re.DOTALL)))[0]
        for row in prompts
    )
    known = set().union(*map(runs, docs), *(runs(row["text"].partition("function")[2][3:]) for row in held))
    golds = set().union(
        *(functions(row["prompt"] + row["canonical_solution"]) for row in prompts),
        *(functions(row["code"]) for row in held),
    )
    for one in entries():
        for wording in (*one.get("say", ()), *one.get("what", ())):
            assert not runs(wording) & known, wording
        names = filled(one, namer(one["file"]))
        for text in (one["text"], one.get("before", "")):
            assert not functions(put(text, names)) & golds, text
