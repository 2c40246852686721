# SPDX-License-Identifier: AGPL-3.0-or-later
"""Small programs: every body does what its description promises, and none was copied from a benchmark."""

from __future__ import annotations

import ast
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rusty_r2.data.arguments import KINDS, value
from rusty_r2.data.branches import branch, judged
from rusty_r2.data.names import Namer
from rusty_r2.data.pieces import CHANGES, ENDS, KEEPS, SOURCES
from rusty_r2.data.pipelines import Program, pipeline
from rusty_r2.data.programs import program, texts, written
from rusty_r2.gym.benchmarks import humaneval, mbpp
from rusty_r2.gym.env import EnvConfig, opening
from rusty_r2.protocol import Edit, parse

WORDS = ("quark", "lantern", "mango", "pickle", "vortex", "list", "sum", "class", "total", "x")
BENCH = Path(os.environ.get("RUSTY_SHARED", Path(__file__).parents[3] / "shared")) / "bench"
SEEDS = st.integers(0, 2**40)


def _made(seed: int) -> Edit:
    action = parse(program(Namer(WORDS, random.Random(seed))).turns[2][1])
    assert isinstance(action, Edit)
    return action


def _agree(made: Program, rng: random.Random, times: int = 4) -> None:
    """The body and the proof answer alike, and the types too."""
    place: dict[str, Any] = {}
    source = (
        f"{made.head}\ndef f({', '.join(name for name, _ in made.args)}):\n{made.body.replace('$f', 'f')}"
    )
    exec(source, place)
    for _ in range(times):
        values = [value(kind, rng) for _, kind in made.args]
        expected = made.answer(
            *(json.loads(json.dumps(one)) if isinstance(one, list) else one for one in values)
        )
        got = place["f"](*values)
        if isinstance(got, list) and any(isinstance(one, tuple) for one in got):
            expected = [tuple(one) for one in expected]
        assert got == (tuple(expected) if isinstance(got, tuple) else expected), (source, values)
        assert isinstance(got, (type(expected), tuple)), (source, values)


@settings(max_examples=300, deadline=None)
@given(SEEDS, st.booleans())
def test_what_pieces_make_does_what_it_says(seed: int, told: bool) -> None:
    rng = random.Random(seed)
    _agree(pipeline(Namer(WORDS, rng), told=told), rng)


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.booleans(), st.sampled_from((branch, judged)))
def test_what_decides_decides_rightly(seed: int, told: bool, make: Any) -> None:
    rng = random.Random(seed)
    _agree(make(Namer(WORDS, rng), told=told), rng)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.booleans())
def test_what_was_written_by_hand_does_what_it_says(seed: int, told: bool) -> None:
    rng = random.Random(seed)
    _agree(written(Namer(WORDS, rng), told=told), rng)


@pytest.mark.parametrize("number", range(len(texts())), ids=[one["key"] for one in texts()])
def test_every_program_of_the_file_agrees_with_its_proof(number: int) -> None:
    class Fixed(random.Random):
        def choice(self, some: Any) -> Any:
            return texts()[number] if some is texts() else super().choice(some)

    for seed in range(4):
        rng = Fixed(seed)
        _agree(written(Namer(WORDS, rng), told=bool(seed % 2)), rng, times=8)


def test_every_piece_is_drawn() -> None:
    """A few thousand programs use every row of the tables."""
    bodies = "\n".join(pipeline(Namer(WORDS, random.Random(seed)), told=False).body for seed in range(6000))
    for piece in (*(one for some in (KEEPS, CHANGES) for row in some.values() for one in row), *ENDS):
        code = piece.code or piece.loop[1]  # type: ignore[union-attr]
        marks = [part for part in re.split(r"\{\w+\}|\n", code) if len(part) > 3]
        assert all(mark in bodies for mark in marks), piece
    assert all(source.arg in KINDS for source in SOURCES)


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_a_reply_is_python_with_the_function_that_was_asked_for(seed: int) -> None:
    episode = program(Namer(WORDS, random.Random(seed)))
    action, request = _made(seed), episode.turns[1][1]
    (function,) = [node for node in ast.parse(action.content).body if isinstance(node, ast.FunctionDef)]
    assert re.search(rf"\b{function.name}\b", request) and action.path in request


@settings(max_examples=200, deadline=None)
@given(SEEDS)
@example(236828)  # a name with List in it, beside a list[int]
def test_examples_in_a_request_are_true(seed: int) -> None:
    request, action = program(Namer(WORDS, random.Random(seed))).turns[1][1], _made(seed)
    place: dict[str, Any] = {}
    exec(action.content, place)
    for line in re.findall(r"^assert .+", request, re.MULTILINE):
        exec(line, place)
    for call, answer in re.findall(r">>> (.+)\n +(.+)", request):
        assert eval(call, place) == eval(answer, place)


def test_requests_look_as_benchmarks_do(tmp_path: Path) -> None:
    """Built by the benchmarks' own reader, the same stub and the same asserts give the same request."""
    seen = set()
    for seed in range(150):
        request = program(Namer(WORDS, random.Random(seed))).turns[1][1]
        if stub := re.fullmatch(
            r"Complete the function (\w+) in solution.py:\n\n(.*)\n\nCURRENT_FILE: \S+", request, re.DOTALL
        ):
            row = {
                "task_id": "x",
                "prompt": stub[2] + "\n",
                "entry_point": stub[1],
                "test": "",
                "canonical_solution": "",
            }
            again = next(humaneval(_file(tmp_path, row)))
        elif found := re.fullmatch(
            r"(Write .*)\nWrite it .*:\n((?:assert .*\n)+)\nCURRENT_FILE: \S+", request
        ):
            row = {
                "task_id": 1,
                "text": found[1],
                "test_list": found[2].splitlines(),
                "code": "def f(): pass",
                "split": "test",
            }
            again = next(mbpp(_file(tmp_path, row)))
        else:
            continue
        assert opening(again, EnvConfig()) == request
        seen.add(again.family)
    assert seen == {"humaneval", "mbpp"}


def _file(folder: Path, row: dict[str, Any]) -> Path:
    (folder / "rows.jsonl").write_text(json.dumps(row))
    return folder / "rows.jsonl"


def test_programs_are_many_and_a_seed_decides_them() -> None:
    drawn = [pipeline(Namer(WORDS, random.Random(seed)), told=False).body for seed in range(3000)]
    assert len(set(drawn)) > 2200
    assert program(Namer(WORDS, random.Random(5))) == program(Namer(WORDS, random.Random(5)))


def _runs(text: str, size: int) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z]+", text.lower())
    return {tuple(words[at : at + size]) for at in range(len(words) - size + 1)}


def _prose(prompt: str) -> str:
    """A HumanEval prompt's sentences: the docstring up to its examples."""
    return re.split(
        r">>>|Example|example", "\n".join(re.findall(r'(?:"""|\'\'\')(.*?)(?:"""|\'\'\')', prompt, re.DOTALL))
    )[0]


@pytest.mark.skipif(not (BENCH / "humaneval.jsonl").is_file(), reason="HumanEval and MBPP are not here")
def test_nothing_stands_in_the_benchmarks() -> None:
    prompts = [json.loads(line) for line in (BENCH / "humaneval.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (BENCH / "mbpp.jsonl").read_text().splitlines()]
    known = set().union(*(_runs(_prose(row["prompt"]), 8) for row in prompts))
    known |= set().union(
        *(_runs(row["text"].partition("function")[2][3:], 8) for row in rows if row["split"] != "train")
    )
    golds = {_bare(row["prompt"] + row["canonical_solution"]) for row in prompts} | {
        _bare(row["code"]) for row in rows
    }
    for seed in range(700):
        episode = program(Namer(WORDS, random.Random(seed)))
        assert not _runs(episode.turns[1][1], 8) & known, episode.turns[1][1]
        assert _bare(_made(seed).content) not in golds, _made(seed).content


def _bare(code: str) -> str:
    """Code without docstrings, hints and layout."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return code
    kept = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            names = [arg.arg for arg in node.args.args]
            kept.append(f"{node.name}({names}) " + " ".join(ast.unparse(line) for line in body))
    return "\n".join(kept) or code
