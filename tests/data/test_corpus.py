# SPDX-License-Identifier: AGPL-3.0-or-later
"""Truths about shards: same text, same bytes; a kill changes nothing; nothing is read twice."""

from __future__ import annotations

import json
import lzma
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="needs the train extra")

from rusty_r2.data.corpus import Builder, CorpusConfig, build
from rusty_r2.data.shards import Shards, read_manifest
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.lm.tokenizer import BOS, EOS, Tokenizer

SHIPPED = Tokenizer.load()
WORDS = ["robot", "scrap", "wire", "copper", "grep", "sort", "pipe", "daemon", "kernel", "socket", "yield"]


def prose(number: int, words: int = 120) -> str:
    random_ = random.Random(number)
    return f"Document {number}. " + " ".join(
        f"{random_.choice(WORDS)}{random_.randrange(50)}" for _ in range(words)
    )


def write_rows(path: Path, texts: list[str]) -> Path:
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(
            json.dumps({"text": text, "licence": "MIT", "source": "made"}) + "\n" for text in texts
        )
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl.xz", [prose(number) for number in range(200)])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in sorted(folder.glob("*.*")) if path.name != "manifest.json"
    }


def options(rows: Path, output: Path, **more: object) -> CorpusConfig:
    return CorpusConfig((str(rows),), output, **{"heldout": 0.1, "block_mb": 0.02, "shard_mb": 0.05, **more})  # type: ignore[arg-type]


def test_every_document_comes_back_whole_and_once(rows: Path, tmp_path: Path) -> None:
    said = build(options(rows, tmp_path / "out"))
    assert "next: rusty train supervised" in said
    manifest = read_manifest(tmp_path / "out")
    texts = []
    for split in ("train", "heldout"):
        shards = Shards(tmp_path / "out", split, length=8, batch=1)
        counts = manifest["splits"][split]
        assert (shards.tokens, shards.documents, shards.text_bytes) == tuple(
            counts[name] for name in ("tokens", "documents", "bytes")
        )
        for number in range(shards.documents):
            ids = shards.document(number)
            assert (ids[0], ids[-1]) == (BOS, EOS)
            texts.append(SHIPPED.decode(ids))
    assert sorted(texts) == sorted(prose(number) for number in range(200))
    assert manifest["sources"][0]["licences"] == ["MIT"]
    assert manifest["tokenizer"] == SHIPPED.fingerprint
    assert len(manifest["splits"]["train"]["shards"]) > 1
    assert not (tmp_path / "out" / "unfinished").exists()


def test_the_split_belongs_to_the_text(rows: Path, tmp_path: Path) -> None:
    def heldout(output: Path, source: Path) -> set[str]:
        build(options(source, output))
        shards = Shards(output, "heldout", length=8, batch=1)
        return {SHIPPED.decode(shards.document(number)) for number in range(shards.documents)}

    backwards = write_rows(tmp_path / "back.jsonl.xz", [prose(number) for number in reversed(range(250))])
    first, second = heldout(tmp_path / "a", rows), heldout(tmp_path / "b", backwards)
    assert first
    assert first == {text for text in second if int(text.split()[1][:-1]) < 200}


def test_duplicates_and_near_duplicates_go(tmp_path: Path) -> None:
    long = prose(1, 400)
    nearly = long.replace("scrap", "scrap", 1).rsplit(" ", 4)[0] + " and a new ending"
    texts = [long, "  " + long.replace(" ", "\n") + "\n", nearly, prose(2, 400), "short"]
    build(options(write_rows(tmp_path / "r.jsonl.xz", texts), tmp_path / "out", heldout=0.0))
    manifest = read_manifest(tmp_path / "out")
    assert manifest["dropped"] == {"duplicates": 1, "near duplicates": 1, "too short": 1}
    assert manifest["splits"]["train"]["documents"] == 2


def test_a_stopped_build_ends_with_the_same_bytes(rows: Path, tmp_path: Path) -> None:
    build(options(rows, tmp_path / "whole"))
    stopped = Builder(options(rows, tmp_path / "stopped"), SHIPPED)
    for number, block in enumerate(stopped.blocks()):
        if number == 3:
            break
        stopped.add(block)
    shard = next((tmp_path / "stopped").glob("train_*.tokens"))
    with shard.open("ab") as file:
        file.write(b"half a block, never journalled")
    build(options(rows, tmp_path / "stopped"))
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def test_a_killed_build_ends_with_the_same_bytes(rows: Path, tmp_path: Path) -> None:
    build(options(rows, tmp_path / "whole"))
    command = [sys.executable, "-m", "rusty_r2.cli", "data", "corpus", "--source", str(rows)]
    command += ["--output-dir", str(tmp_path / "killed"), "--heldout", "0.1"]
    command += ["--block-mb", "0.02", "--shard-mb", "0.05"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = tmp_path / "killed" / "unfinished" / "journal.json"
    while child.poll() is None and not journal.exists():
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    if not (tmp_path / "killed" / "manifest.json").exists():
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_other_options_do_not_continue_a_build(rows: Path, tmp_path: Path) -> None:
    begun = Builder(options(rows, tmp_path / "out"), SHIPPED)
    begun.add(next(begun.blocks()))
    with pytest.raises(DataError, match="other options"):
        build(options(rows, tmp_path / "out", heldout=0.2))


def test_code_is_wrapped_in_training_only(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    for number in range(60):
        (folder / f"m{number}.py").write_text(
            f'"""{prose(number, 30)}"""\n\ndef f{number}():\n    return {number}\n'
        )
    build(options(folder, tmp_path / "out", wrapped=1.0))
    for split, wrapped in (("train", True), ("heldout", False)):
        shards = Shards(tmp_path / "out", split, length=8, batch=1)
        for number in range(shards.documents):
            assert SHIPPED.decode(shards.document(number)).startswith('{"action": "EDIT"') is wrapped


def test_errors_say_what_to_do(rows: Path, tmp_path: Path) -> None:
    build(options(rows, tmp_path / "out"))
    with pytest.raises(DataError, match="is finished"):
        build(options(rows, tmp_path / "out"))
    with pytest.raises(DataError, match="rusty data corpus"):
        Shards(tmp_path, length=8, batch=1)
    with pytest.raises(DataError, match="larger corpus"):
        Shards(tmp_path / "out", length=10**6, batch=1)
    with pytest.raises(ConfigError, match="shares"):
        options(rows, tmp_path, heldout=1.5)
    with pytest.raises(DataError, match="does not exist"):
        build(options(tmp_path / "nowhere", tmp_path / "new"))
    with pytest.raises(DataError, match="was kept"):
        build(options(write_rows(tmp_path / "e.jsonl.xz", ["tiny"]), tmp_path / "new2"))
    assert not (tmp_path / "new2").exists(), "and another source can be tried there"


@pytest.fixture
def folder(rows: Path, tmp_path: Path) -> Path:
    build(options(rows, tmp_path / "shards", heldout=0.05))
    return tmp_path / "shards"


@pytest.mark.parametrize("carry", [False, True])
def test_rows_depend_on_seed_and_step_alone(folder: Path, carry: bool) -> None:
    one = Shards(folder, length=64, batch=4, seed=7, carry=carry)
    two = Shards(folder, length=64, batch=4, seed=7, carry=carry)
    for step in (250, 0, 3, 90):
        assert np.array_equal(one.rows(step).ids, two.rows(step).ids)
        halves = [two.rows(step, range(2)), two.rows(step, range(2, 4))]
        assert np.array_equal(one.rows(step).targets, np.concatenate([half.targets for half in halves]))
    other = Shards(folder, length=64, batch=4, seed=8, carry=carry)
    assert not np.array_equal(one.rows(0).ids, other.rows(0).ids)


@pytest.mark.parametrize("carry", [False, True])
def test_an_epoch_shows_nothing_twice(folder: Path, carry: bool) -> None:
    shards = Shards(folder, length=32, batch=4, carry=carry)
    steps = shards.steps_per_epoch if carry else shards._windows // 4
    seen = np.concatenate([shards.rows(step).ids.ravel() for step in range(steps)])
    every = np.concatenate([shards.document(number) for number in range(shards.documents)])
    assert len(seen) <= len(every)
    assert len(seen) >= 0.98 * len(every)
    assert (np.bincount(every, minlength=24_000) >= np.bincount(seen, minlength=24_000)).all()
    epochs = [shards.rows(start).ids for start in (0, shards.steps_per_epoch)]
    assert not np.array_equal(*epochs)


def test_targets_follow_and_documents_are_marked(folder: Path) -> None:
    for carry in (False, True):
        shards = Shards(folder, length=64, batch=4, carry=carry)
        rows = shards.rows(1)
        assert np.array_equal(rows.ids[:, 1:], rows.targets[:, :-1])
        assert np.array_equal(rows.reset[:, 1:], rows.ids[:, 1:] == BOS)
        assert np.array_equal(rows.mask, rows.targets != BOS)
        assert rows.supervised == rows.mask.sum()
        assert bool(rows.reset[:, 0].all()) is not carry


def test_a_carried_row_goes_on_where_it_stopped(folder: Path) -> None:
    shards = Shards(folder, length=64, batch=4, carry=True)
    for step in range(3):
        assert np.array_equal(shards.rows(step).targets[:, -1], shards.rows(step + 1).ids[:, 0])
    assert shards.rows(shards.steps_per_epoch).reset[:, 0].all()
