# SPDX-License-Identifier: AGPL-3.0-or-later
"""Lessons and drills: what is asked for can be copied from the request, rows come out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from rusty_r2.data.drills import DrillsConfig, build, is_drills, open_drills
from rusty_r2.data.lessons import Namer, lessons, vocabulary
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.gym.families import FAMILIES
from rusty_r2.gym.families.base import is_held
from rusty_r2.lm.tokenizer import ASSISTANT, BOS, Tokenizer
from rusty_r2.protocol import Cmd, Edit, Msg, parse

WORDS = ("quark", "lantern", "Vortex", "mango", "pickle")


def test_the_same_seed_gives_the_same_lessons() -> None:
    assert list(lessons(WORDS, 50, seed=3)) == list(lessons(WORDS, 50, seed=3))
    assert list(lessons(WORDS, 50, seed=3)) != list(lessons(WORDS, 50, seed=4))


def test_every_reply_is_an_action_and_its_names_stand_in_what_was_read() -> None:
    for episode in lessons(WORDS, 400):
        read = ""
        for role, text, *_ in episode.turns[1:]:
            if role != "assistant":
                read += text.lower()
                continue
            action = parse(text)
            said = {Cmd: "command", Msg: "message", Edit: "content"}[type(action)]
            for word in re.findall("|".join(WORDS), str(getattr(action, said)).lower(), re.IGNORECASE):
                assert word in read, (episode.turns[1:], word)


def test_lessons_show_every_kind_of_action() -> None:
    kinds = {episode.kind for episode in lessons(WORDS, 200)}
    assert kinds == {"CMD", "MSG", "EDIT", "STEPS"}


def test_vocabulary_is_the_words_of_the_tokenizer() -> None:
    words = vocabulary(Tokenizer.load())
    assert len(words) > 10_000 and words == sorted(set(words))
    assert all(word.isalpha() and word.isascii() for word in words)


def test_names_differ_from_draw_to_draw() -> None:
    import random

    namer = Namer(WORDS, random.Random(0))
    assert len({namer["file1"] for _ in range(100)}) > 50


def test_a_wider_pool_stands_in_for_any_word_and_keeps_held_out_words_out() -> None:
    wider = tuple(f"zz{letter}{other}" for letter in "abcdefghijklmnop" for other in "abcdefghijklmnop")
    family = FAMILIES["rename"]
    drawn = " ".join(family.make(seed, 1, "train", wider=wider).prompt for seed in range(300))
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
    ids, own = open_drills(folder, words, 512)
    facts = json.loads((folder / "drills.json").read_text())
    assert is_drills(folder) and facts["episodes"] == 80
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
    ids, _ = open_drills(tmp_path / "d", Tokenizer.load(), 512)
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
