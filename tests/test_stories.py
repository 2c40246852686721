"""The whole stories in runs/ are told to their end, at a size that takes a minute."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def tell(story, folder, **sizes):
    """Run a story; this interpreter's own folder of programs comes first."""
    there = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    words = ["sh", str(ROOT / "runs" / story), str(folder)]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(words, env={**os.environ, **there, **sizes}, **both)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def test_from_nothing(tmp_path):
    for module in ("torch", "tokenizers", "llguidance"):
        pytest.importorskip(module, reason="pip install 'rusty-r2[train]'")
    sizes = {"WORDS": "800", "MB": "1", "STEPS": "4", "GYM": "4", "REPLIES": "8", "ROUND": "8", "LIMIT": "2"}
    told = tell("from_nothing.sh", tmp_path / "story", **sizes)
    assert "gym pass@1" in told and (tmp_path / "story/eval/results.json").is_file()
    assert told.rstrip().splitlines()[-1].startswith("next: rusty chat --model")


def test_from_traces(tmp_path):
    for module, extra in (("trl", "lora"), ("xllamacpp", "export")):
        pytest.importorskip(module, reason=f"pip install 'rusty-r2[{extra}]'")
    spec = importlib.util.spec_from_file_location("story_models", ROOT / "tests" / "export" / "models.py")
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    base = models.make(tmp_path / "small", steps=5)
    told = tell("from_traces.sh", tmp_path / "circle", BASE=str(base), STEPS="2", POSITIONS="16")
    assert "74 kto rows, no faults" in told and "8 conversations, letter by letter" in told
    assert (tmp_path / "circle/agent.gguf").is_file()
