# SPDX-License-Identifier: AGPL-3.0-or-later
"""Truths about sources: field names nobody promised, pages without typesetting, this machine, no network."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from rusty_r2.data.sources import _readable, documents_of, machine, plain_manual
from rusty_r2.lm.documents import documents, text_of

OFFLINE = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": os.devnull + "/none"}
RECORDS = [
    ({"text": "a", "code": "b"}, "a"),
    ({"code": "b"}, "b"),
    ({"content": "c"}, "c"),
    ({"question": "q", "answer": "a"}, "q\na"),
    ({"question": "q"}, "q"),
    ({"answer": "a"}, "a"),
    ({"problem": "p", "solution": "s"}, "p\ns"),
    ({"instruction": "i", "output": "o"}, "i\no"),
    ({"prompt": "p", "completion": "c"}, "p\nc"),
    ({"translation": {"en": "dog", "de": "Hund"}}, "dog\nHund"),
    ({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}, "hi\nyo"),
    ({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}, "hi\nyo"),
    ({"turns": [["user", "hi"], ["assistant", "yo", False]]}, "hi\nyo"),
    ({"id": "short", "body": "the first long string"}, "the first long string"),
    ({"id": 3}, ""),
]


@pytest.mark.parametrize(("record", "text"), RECORDS)
def test_a_record_gives_its_text(record: dict[str, object], text: str) -> None:
    assert text_of(record) == text


def test_a_folder_gives_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "sub" / "deep" / "a.py").write_text("x = 1\r\n", newline="")
    (tmp_path / "b.txt").write_text("hello")
    (tmp_path / "c.jsonl.gz").write_bytes(
        gzip.compress(b'{"text": "one"}\n\n{"text": "held", "split": "dev"}\n')
    )
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    (tmp_path / ".hidden.txt").write_text("secret")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = [(document.path, document.text) for document in documents(tmp_path)]
    assert found == [("b.txt", "hello"), ("", "one"), ("sub/deep/a.py", "x = 1\r\n")]


def test_a_manual_loses_its_typesetting() -> None:
    roff = '.TH LS 1\n.SH NAME\nls \\- list\n.SH "SEE ALSO"\n.BR dir (1)\n.PP\n'
    roff += '\\fB\\-a\\fR \\(aqall\\(aq\n.\\" comment\n'
    assert plain_manual(roff) == "NAME\nls - list\n\nSEE ALSO\ndir (1)\n\n-a 'all'\n"
    assert plain_manual(".so man1/ls.1\n") is None


@pytest.mark.parametrize("place", [12, 200, -6])
def test_a_damaged_file_of_this_machine_is_passed_over(tmp_path: Path, place: int) -> None:
    whole = gzip.compress(bytes(range(32, 127)) * 50 + b"how to read this")
    broken = bytearray(whole)
    broken[place : place + 3] = b"\xff\x00\xff"
    (tmp_path / "README.gz").write_bytes(whole)
    assert _readable(tmp_path / "README.gz") is not None
    (tmp_path / "README.gz").write_bytes(bytes(broken))
    assert _readable(tmp_path / "README.gz") is None


def test_this_machine_is_a_corpus() -> None:
    found = list(islice(machine(), 40))
    assert found == list(islice(machine(), 40))
    assert any(document.source.startswith("python-") for document in found)
    assert all(len(document.text) > 200 and document.licence for document in found)


def test_a_saved_dataset_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the data extra")
    rows = datasets.Dataset.from_list([{"problem": "1+1", "solution": "2"}])
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "sums")
    found = list(documents_of(str(tmp_path / "sums"), licence="MIT"))
    assert [(one.text, one.source, one.licence) for one in found] == [("1+1\n2", "sums", "MIT")]


def test_a_dataset_by_name_is_streamed(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="needs the data extra")
    (tmp_path / "train.jsonl").write_text('{"instruction": "Add.", "output": "2", "license": "MIT"}\n')
    found = list(documents_of(f"hf:{tmp_path}"))
    assert [(one.text, one.licence) for one in found] == [("Add.\n2", "MIT")]


def test_no_network_is_one_line() -> None:
    pytest.importorskip("datasets", reason="needs the data extra")
    command = [sys.executable, "-m", "rusty_r2.cli", "data", "corpus", "--source", "hf:openai/gsm8k:main"]
    told = subprocess.run(command, capture_output=True, text=True, check=False, env=OFFLINE)
    assert told.returncode == 1
    assert told.stderr.startswith("rusty data corpus: openai/gsm8k:main could not be read from the hub")
    assert told.stderr.count("\n") == 1
