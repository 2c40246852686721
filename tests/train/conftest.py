"""A small real corpus: some of Python's own library, cut by a 600-word tokenizer of its own."""

import sysconfig
from pathlib import Path

import pytest

MODULES = "abc argparse bisect calendar cmd configparser copy csv dataclasses difflib enum functools heapq"
MODULES += (
    " json/decoder pathlib queue random sched shlex shutil string tempfile textwrap threading types uuid"
)


def texts() -> dict[str, str]:
    library = Path(sysconfig.get_path("stdlib"))
    return {f"{name}.py": (library / f"{name}.py").read_text() for name in MODULES.split()}


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """A folder with the small tokenizer."""
    pytest.importorskip("tokenizers", reason="pip install 'rusty-r2[train]'")
    from rusty_r2.lm.tokenizer import Tokenizer

    return Tokenizer.train(texts().values(), size=600).save(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """A folder of raw text."""
    folder = tmp_path_factory.mktemp("library")
    for name, text in texts().items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(scope="session")
def shards(tmp_path_factory, words, library):
    """The same as token shards."""
    from rusty_r2.data.corpus import CorpusConfig, build

    folder = tmp_path_factory.mktemp("made") / "shards"
    build(CorpusConfig(source=(str(library),), output_dir=folder, tokenizer=words, heldout=0.15))
    return folder
