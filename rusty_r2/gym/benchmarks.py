# SPDX-License-Identifier: AGPL-3.0-or-later
"""Public benchmarks as tasks: HumanEval and MBPP, from a local JSONL file or by their name on the hub.

    for task in humaneval("humaneval.jsonl", limit=10): ...
    for task in mbpp("google-research-datasets/mbpp", split="test"): ...

The tests run as `Code` checks, so a candidate never meets them. HumanEval is held out as a whole; MBPP keeps
its official splits (train stays train, everything else is held out). The data itself is not shipped.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rusty_r2.errors import TaskError, need
from rusty_r2.task import Code, Task

FILE = "solution.py"
LIMITS = {"wall_s": 60.0, "cpu_s": 60}
"""a few published solutions count to a million the slow way"""
Row = Mapping[str, Any]


def humaneval(
    path_or_hub_name: str | Path = "openai/openai_humaneval", limit: int | None = None
) -> Iterator[Task]:
    """The 164 functions of HumanEval, each with its own `check(candidate)`."""
    return _tasks(path_or_hub_name, "test", None, limit, _humaneval_task)


def mbpp(
    path_or_hub_name: str | Path = "google-research-datasets/mbpp",
    limit: int | None = None,
    *,
    split: str = "test",
    config: str = "full",
    shown: int = 3,
) -> Iterator[Task]:
    """Basic programming problems. `shown` asserts stand in the prompt, as in published figures."""
    return _tasks(path_or_hub_name, split, config, limit, lambda row: _mbpp_task(row, shown))


def _tasks(
    source: str | Path, split: str, config: str | None, limit: int | None, make: Callable[[Row], Task]
) -> Iterator[Task]:
    rows = _local(Path(source), split) if _is_local(source) else _hub(str(source), split, config)
    for number, row in enumerate(itertools.islice(rows, limit)):
        try:
            yield make(row)
        except (KeyError, TypeError) as error:
            raise TaskError(
                f"{source}, row {number}: {error} is missing or wrong. Is it the right file?"
            ) from error


def _is_local(source: str | Path) -> bool:
    return isinstance(source, Path) or Path(source).exists() or source.endswith((".jsonl", ".json"))


def _local(path: Path, split: str) -> Iterator[Row]:
    """Rows of a JSONL file; where they name their split, only those of the one asked for."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise TaskError(f"{path} cannot be read ({why}). Give a JSONL file or a name on the hub") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{path}, line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise TaskError(f"{path}, line {number} is not a JSON object")
        if row.get("split", split) == split:
            yield row


def _hub(name: str, split: str, config: str | None) -> Iterator[Row]:
    datasets = need("datasets", extra="data")
    try:
        yield from datasets.load_dataset(name, config, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise TaskError(
            f"{name} could not be fetched ({reason}). Download it elsewhere and give the JSONL file's path"
        ) from error


def _humaneval_task(row: Row) -> Task:
    prompt, entry = str(row["prompt"]), str(row["entry_point"])
    # what the prompt defines besides the function (imports, helpers) is trusted and belongs to the tests too
    tests = f"{prompt}    raise NotImplementedError\n\n{row['test']}"
    return Task(
        name=str(row["task_id"]).lower(),
        prompt=f"Complete the function {entry} in {FILE}:\n\n{prompt}",
        files={FILE: prompt},
        check=Code(path=FILE, source=tests, style="assert", entry=entry),
        solution={FILE: prompt + str(row["canonical_solution"])},
        family="humaneval",
        difficulty=3,
        split="heldout",
        limits=LIMITS,
        tags=("benchmark", "humaneval"),
    )


def _mbpp_task(row: Row, shown: int) -> Task:
    tests = [str(test) for test in row["test_list"]]
    setup = str(row.get("test_setup_code") or "\n".join(row.get("test_imports") or ()))
    gold = str(row["code"]).replace("\r\n", "\n")
    words = str(row["text"] if "text" in row else row["prompt"])
    entry = _entry(gold, tests)
    examples = "\n".join(tests[:shown])
    hint = f"Your code should pass these tests:\n{examples}" if shown else f"The function is called {entry}."
    return Task(
        name=f"mbpp/{row['task_id']}",
        prompt=f"{words}\nWrite it in {FILE}. {hint}",
        files={FILE: ""},
        check=Code(path=FILE, source="\n".join([setup, *tests]), style="assert", entry=entry),
        solution={FILE: gold + "\n"},
        family="mbpp",
        difficulty=2,
        split="train" if row.get("split") == "train" else "heldout",
        limits=LIMITS,
        tags=("benchmark", "mbpp"),
    )


def _entry(gold: str, tests: list[str]) -> str:
    """The function under test: called in the tests, defined by the gold solution."""
    defined = re.findall(r"^(?:def|class)\s+(\w+)", gold, re.MULTILINE)
    called = re.findall(r"\b(\w+)\s*\(", "\n".join(tests))
    return next((name for name in called if name in defined), defined[-1] if defined else "")
