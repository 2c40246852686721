# SPDX-License-Identifier: AGPL-3.0-or-later
"""Files of public coding sets become tasks for training; only rows of their train split.

    text, code, test_list                            MBPP (read by gym/benchmarks.py)     played
    prompt, stub, solution, tests, entry_point       daily challenges                     played
    prompt, canonical_solution, test, entry_point    MathQA in Python                     played
    name, header, signature, body                    functions with doctests              asked only
    task_description, code_sample                    larger programs                      asked only

"Played" tasks have tests, so the gym answers. A training row whose words or code stand in another split of
the same file is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rusty_r2.data.dedup import digest_of
from rusty_r2.gym.benchmarks import mbpp
from rusty_r2.lm.documents import records
from rusty_r2.task import Code, Task

FILE = "solution.py"
LONGEST = 1600
"""characters of a solution; longer ones teach a small model nothing"""
MBPP = {"text", "code", "test_list"}
Row = Mapping[str, Any]


def is_coding(row: Row) -> bool:
    """Whether rows like this one become tasks."""
    return row.keys() >= MBPP or any(row.keys() >= fields for fields, _ in _SHAPES)


def tasks(path: Path) -> Iterator[Task]:
    """The training tasks of a file whose rows have one of the shapes above."""
    rows = list(records(path))
    held = {mark for row in rows if row.get("split", "train") != "train" for mark in _marks(row)}
    fresh = [row for row in rows if row.get("split", "train") == "train" and not held & _marks(row)]
    known = {str(row.get("task_id")) for row in fresh}
    if rows[0].keys() >= MBPP:
        found = (task for task in mbpp(path, split="train") if task.name.partition("/")[2] in known)
    else:
        made = (next((make for fields, make in _SHAPES if row.keys() >= fields), None) for row in fresh)
        found = (make(row) for make, row in zip(made, fresh, strict=True) if make is not None)
    yield from (task for task in found if len(task.solution[FILE] or "") <= LONGEST)


def is_played(task: Task) -> bool:
    """Whether the task has tests, so that the gym can answer."""
    return not isinstance(task.check, Code) or bool(task.check.source)


def _marks(row: Row) -> set[bytes]:
    named = (row.get(field) for field in ("text", "code", "prompt", "canonical_solution", "solution"))
    return {digest_of(value.lower()) for value in named if isinstance(value, str)}


def _challenge(row: Row) -> Task:
    name = str(row["entry_point"])
    tests = "\n".join(str(test) for test in row["tests"])
    return Task(
        name=f"challenge/{row.get('id', name)}",
        prompt=f"Write {name} in {FILE}. {row['prompt']}",
        check=Code(FILE, tests, style="assert", entry=name),
        files={FILE: row["stub"]},
        solution={FILE: row["solution"]},
    )


def _completion(row: Row) -> Task:
    start, name = str(row["prompt"]), str(row["entry_point"])
    tests = re.sub(r"(?m)^(candidate = .*|def check\(x\): pass)\n?", "", str(row["test"]))
    return Task(
        name=str(row.get("task_id", name)).lower(),
        prompt=f"Complete the function {name} in {FILE}:\n\n{start}",
        check=Code(FILE, tests.replace("candidate(", f"{name}("), style="assert", entry=name),
        files={FILE: start},
        solution={FILE: start + str(row["canonical_solution"])},
    )


def _documented(row: Row) -> Task:
    head = str(row["header"]).strip()
    start = (head + "\n\n\n" if head else "") + str(row["signature"]).rstrip() + "\n"
    prompt = f"Complete the function {row['name']} in {FILE}:\n\n{start}"
    whole = start + str(row["body"]).rstrip() + "\n"
    return Task(str(row["name"]), prompt, Code(FILE, ""), {FILE: start}, {FILE: whole})


def _described(row: Row) -> Task:
    prompt = f"Write {FILE}. {row['task_description']}\n{row.get('input_output_spec') or ''}".strip()
    return Task(str(row.get("id")), prompt, Code(FILE, ""), {}, {FILE: str(row["code_sample"])})


_SHAPES: tuple[tuple[set[str], Callable[[Row], Task]], ...] = (
    ({"prompt", "stub", "solution", "tests", "entry_point"}, _challenge),
    ({"prompt", "canonical_solution", "test", "entry_point"}, _completion),
    ({"name", "header", "signature", "body"}, _documented),
    ({"task_description", "code_sample"}, _described),
)
