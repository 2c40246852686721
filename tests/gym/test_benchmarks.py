# SPDX-License-Identifier: AGPL-3.0-or-later
"""Public benchmarks become tasks whose gold solution passes and whose template does not.

The real files are looked for in the folder RUSTY_SHARED names, or ../shared beside this checkout.
"""

from __future__ import annotations

import json
import os
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rusty_r2.errors import MissingExtra, TaskError
from rusty_r2.gym.benchmarks import humaneval, mbpp
from rusty_r2.gym.verdict import judge

SHARED = Path(os.environ.get("RUSTY_SHARED") or Path(__file__).parents[2].parent / "shared") / "bench"
LOADERS = {"humaneval.jsonl": humaneval, "mbpp.jsonl": mbpp, "mbpp_sanitized.jsonl": mbpp}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'import math\n\ndef helper(x):\n    return x\n\ndef area(r):\n    """ Area of a circle """\n',
    "entry_point": "area",
    "canonical_solution": "    return math.pi * r * r\n",
    "test": "def check(candidate):\n    assert abs(candidate(helper(2)) - math.pi * 4) < 1e-9\n",
}
MBPP = {
    "task_id": 7,
    "text": "Write a function to add two pairs.",
    "code": "class Pair:\n  def __init__(self, a): self.a = a\ndef add(x, y):\r\n  return x.a + y.a",
    "test_setup_code": "one = Pair(1)",
    "test_list": ["assert add(one, Pair(2)) == 3", "assert add(one, one) == 2"],
    "split": "test",
}


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_humaneval_rows_become_tasks(tmp_path):
    (task,) = humaneval(lines(tmp_path / "h.jsonl", HUMANEVAL))
    assert (task.name, task.split, task.check.entry) == ("humaneval/0", "heldout", "area")
    assert "check(candidate)" not in task.prompt and "math.pi" not in task.prompt
    assert judge(task, task.solution).passed
    assert not judge(task, task.files).passed
    cheat = "class area:\n  def __init__(s, r): pass\n  def __sub__(s, o): return 0\ndef helper(x): return 0"
    assert not judge(task, {"solution.py": cheat}).passed


def test_mbpp_rows_become_tasks(tmp_path):
    path = lines(tmp_path / "m.jsonl", MBPP, MBPP | {"task_id": 8, "split": "train"})
    (task,) = mbpp(str(path))
    assert (task.name, task.split, task.check.entry) == ("mbpp/7", "heldout", "add")
    assert MBPP["test_list"][1] in task.prompt
    verdict = judge(task, task.solution)
    assert verdict.passed and verdict.total == 2
    assert not judge(task, task.files).passed
    assert [task.split for task in mbpp(path, split="train")] == ["train"]
    (blind,) = mbpp(path, shown=0)
    assert "assert" not in blind.prompt and "add" in blind.prompt
    assert list(mbpp(path, limit=0)) == []


def test_wrong_sources_say_what_to_do(tmp_path):
    with pytest.raises(TaskError, match=r"none\.jsonl cannot be read"):
        next(humaneval(tmp_path / "none.jsonl"))
    with pytest.raises(TaskError, match="'prompt' is missing"):
        next(humaneval(lines(tmp_path / "m.jsonl", {"task_id": "x"})))
    (tmp_path / "bad.jsonl").write_text(json.dumps(MBPP) + "\n{", encoding="utf-8")
    with pytest.raises(TaskError, match="line 2 is not JSON"):
        list(mbpp(tmp_path / "bad.jsonl"))
    with pytest.raises(TaskError, match="row 0: .* wrong"):
        next(mbpp(lines(tmp_path / "m.jsonl", MBPP | {"test_list": 5, "split": "test"})))
    (tmp_path / "bad.jsonl").write_bytes(b"\xff")
    with pytest.raises(TaskError, match="not UTF-8"):
        list(mbpp(tmp_path / "bad.jsonl"))


def test_the_hub_is_asked_by_name(monkeypatch):
    asked = []
    fake = types.ModuleType("datasets")
    fake.load_dataset = lambda name, config, split: asked.append((name, config, split)) or [MBPP]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert [task.name for task in mbpp("google-research-datasets/mbpp")] == ["mbpp/7"]
    assert asked == [("google-research-datasets/mbpp", "full", "test")]

    def offline(name, config, split):
        raise ConnectionError("no route")

    fake.load_dataset = offline
    with pytest.raises(TaskError, match=r"could not be fetched \(no route\).*JSONL"):
        next(humaneval())
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises((MissingExtra, ModuleNotFoundError)):
        next(humaneval())


@pytest.mark.parametrize("name", LOADERS)
def test_real_items_gold_passes_and_template_fails(name):
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{name} is not here; set RUSTY_SHARED to the folder above bench/")
    tasks = list(LOADERS[name](path))
    assert len(tasks) > 100
    sample = tasks[:: len(tasks) // 12][:12]

    def both(task) -> str:
        gold, template = judge(task, task.solution), judge(task, task.files)
        return f"{task.name}: {gold.why}" if not gold.passed or template.passed else ""

    with ThreadPoolExecutor(4) as pool:
        assert list(filter(None, pool.map(both, sample))) == []
