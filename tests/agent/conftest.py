"""Small minds and folders for the agent's tests."""

import pytest

from rusty_r2.protocol import Cmd, Edit, Msg, render

WORDS = [
    *(render(Msg(text)) for text in ("Done.", "Tests pass. You're welcome.", "No such file, genius.")),
    *(render(Cmd(text)) for text in ("ls -la", "pytest -q", "cat total.py")),
    render(Edit("total.py", "def total(xs):\n    return sum(xs)\n")),
]


@pytest.fixture(scope="session")
def tokenizer():
    """600 words, learned from the protocol."""
    pytest.importorskip("tokenizers", reason="pip install 'rusty-r2[train]'")
    from rusty_r2.lm.tokenizer import Tokenizer

    return Tokenizer.train([*(" " + text for text in WORDS), " a 1 a 1 a 1"] * 4, size=600)


@pytest.fixture(scope="session")
def engine(tokenizer):
    """Random weights of no size at all."""
    from rusty_r2.lm.engine import Engine
    from rusty_r2.lm.shape import Shape, random_source

    shape = Shape(words=len(tokenizer), embed=32, hidden=64, inner=128, layers=2)
    return Engine.build(random_source(shape), weights="fp32")


@pytest.fixture
def folder(tmp_path):
    """A project with a failing test in it, and things that are none of an agent's business."""
    place = tmp_path / "project"
    (place / ".git" / "hooks").mkdir(parents=True)
    (place / ".git" / "config").write_text("[core]\n")
    (place / ".env").write_text("TOKEN=hush\n")
    (place / "total.py").write_text("def total(xs):\n    return sum(xs[1:])\n")
    (place / "check.py").write_text("from total import total\nassert total([1, 2]) == 3\nprint('fine')\n")
    return place


def snapshot(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
