# SPDX-License-Identifier: AGPL-3.0-or-later
"""Drills: rows of whole conversations, played episodes and plain text, and what is never demonstrated."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="needs the train extra")

from rusty_r2.data.drills import DrillsConfig, build, is_drills, open_drills
from rusty_r2.data.lessons import lessons
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.gym.families import FAMILIES
from rusty_r2.gym.families.base import How, is_held
from rusty_r2.lm.tokenizer import ASSISTANT, BOS, Tokenizer

WORDS = ("quark", "lantern", "Vortex", "mango", "pickle")


def test_a_wider_pool_stands_in_for_any_word_and_keeps_held_out_words_out() -> None:
    wider = tuple(f"zz{letter}{other}" for letter in "abcdefghijklmnop" for other in "abcdefghijklmnop")
    family = FAMILIES["rename"]
    drawn = " ".join(family.make(seed, 1, "train", How(wider=wider)).prompt for seed in range(300))
    found = set(re.findall(r"\bzz[a-p]{2}\b", drawn))
    assert len(found) > 50
    assert not any(is_held(word) for word in found)
    assert family.make(5, 1, "train") == family.make(5, 1, "train")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("drills") / "rows"
    build(DrillsConfig(made, lessons=40, gym=40, seq_len=512, workers=1))
    return made


def test_drills_are_rows_of_whole_episodes(folder: Path) -> None:
    words = Tokenizer.load()
    drills = open_drills(folder, words, 512)
    ids, own = drills.ids, drills.own
    facts = json.loads((folder / "drills.json").read_text())
    assert is_drills(folder) and facts["kinds"]["drills"]["pieces"] == 80
    assert ids.shape == own.shape == (facts["rows"], 513)
    assert int((np.asarray(ids) == BOS).sum()) == 80
    assert 0.05 < own.mean() < 0.5
    learned = np.flatnonzero(own[0])
    assert ids[0][learned[0] - 1] == ASSISTANT, "learning starts where Rusty has the word"


def test_the_same_seed_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    build(DrillsConfig(tmp_path / "again", lessons=40, gym=40, seq_len=512, workers=2))
    assert (tmp_path / "again" / "ids.u16").read_bytes() == (folder / "ids.u16").read_bytes()


def test_an_episodes_file_goes_into_the_same_rows(tmp_path: Path) -> None:
    file = tmp_path / "few.jsonl"
    file.write_text("".join(episode.to_json() + "\n" for episode in lessons(WORDS, 10)))
    build(DrillsConfig(tmp_path / "d", lessons=5, gym=0, episodes=file, times=3, seq_len=512, workers=1))
    ids = open_drills(tmp_path / "d", Tokenizer.load(), 512).ids
    assert int((np.asarray(ids) == BOS).sum()) == 5 + 3 * 10
    with pytest.raises(ConfigError, match="must be a file"):
        DrillsConfig(tmp_path / "d", episodes=tmp_path / "none.jsonl")


def test_drills_of_another_length_or_a_cut_file_are_refused(folder: Path, tmp_path: Path) -> None:
    words = Tokenizer.load()
    with pytest.raises(ConfigError, match="seq_len 512, not 256"):
        open_drills(folder, words, 256)
    for name in ("drills.json", "own.u8"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "ids.u16").write_bytes(b"12")
    with pytest.raises(DataError, match="damaged"):
        open_drills(tmp_path, words, 512)


def test_the_trainer_reads_drills(folder: Path, tmp_path: Path) -> None:
    from rusty_r2.train.supervised import SupervisedConfig, train

    run = train(
        SupervisedConfig(
            folder,
            preset="nano",
            max_steps=2,
            batch_size=2,
            seq_len=512,
            sample_tokens=0,
            checkpoints_dir=tmp_path / "run",
            device="cpu",
        )
    )
    assert (run / "metrics.jsonl").exists()


def test_a_folder_with_other_files_is_not_taken_away(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("a year of work")
    with pytest.raises(ConfigError, match="--output-dir NEW_FOLDER"):
        build(DrillsConfig(tmp_path, lessons=1, gym=0, seq_len=256, workers=1))
    assert (tmp_path / "corpus.txt").read_text() == "a year of work"
