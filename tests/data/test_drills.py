# SPDX-License-Identifier: AGPL-3.0-or-later
"""Drills: rows of whole conversations, played episodes and plain text, and what is never demonstrated."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="needs the train extra")

from rusty_r2.data import corpus
from rusty_r2.data.corpus import CorpusConfig
from rusty_r2.data.dedup import rank_of
from rusty_r2.data.drills import DrillsConfig, build, is_drills, open_drills
from rusty_r2.data.lessons import lessons
from rusty_r2.data.packed import PackedRows
from rusty_r2.data.prose import Prose
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.gym.families import FAMILIES
from rusty_r2.gym.families.base import How, is_held
from rusty_r2.gym.shown import Shown
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


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of one word said many times, so that a row tells where it comes from."""
    file = tmp_path_factory.mktemp("text") / "many.jsonl"
    lines = [{"text": f"{word}{at} " * 150} for at, word in enumerate(["river", "stone"] * 100)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_text_has_its_share_of_the_rows_and_of_every_step(text: Path, tmp_path: Path) -> None:
    made = tmp_path / "d"
    build(DrillsConfig(made, lessons=300, gym=0, text=(str(text),), text_share=0.25, seq_len=256, workers=1))
    drills = open_drills(made, Tokenizer.load(), 256)
    rows = drills.kinds["text"]
    assert len(rows) == round(len(drills.kinds["drills"]) / 3)
    assert rows.stop == len(drills.ids) == len(drills.own)
    ids, own = np.asarray(drills.ids)[rows.start :], np.asarray(drills.own)[rows.start :]
    assert np.array_equal(own[:, 1:], ids[:, 1:] != BOS), "every token of a text is learned"
    first, others = drills.parts(0.1)
    source = PackedRows(drills.ids, drills.own, batch=16, kinds=others)
    assert not {row for kind in first for row in kind} & {row for kind in others for row in kind}
    shares = []
    for step in range(source.count // 16):
        part = source.rows(step)
        shares.append(int((part.mask.mean(axis=1) > 0.9).sum()))
        assert part.reset[:, 0].all()
    assert len(shares) > 3 and set(shares) <= {3, 4, 5}


def test_no_text_comes_again_before_all_of_it_came(text: Path) -> None:
    prose = Prose.read([str(text)], Tokenizer.load())
    windows = (len(prose.tokens) - 1) // 256
    twice = np.concatenate(list(prose.rows(2 * windows, length=256, seed=0)))
    assert twice.shape == (2 * windows, 257)
    assert prose.passes(2 * windows, 256) == 2
    for epoch in (twice[:windows], twice[windows:]):
        met = np.bincount(epoch[:, 1:].ravel(), minlength=1 << 16)
        assert (met <= np.bincount(prose.tokens, minlength=1 << 16)).all()
    assert not np.array_equal(twice[:windows], twice[windows:])


def test_documents_that_a_corpus_holds_out_are_left_out(text: Path, tmp_path: Path) -> None:
    words = Tokenizer.load()
    texts = [json.loads(line)["text"] for line in text.read_text().splitlines()]
    held = {one for one in texts if rank_of(one) < CorpusConfig.heldout}
    read = Prose.read([str(text)], words)
    assert held and len(read.sizes) == len(texts) - len(held)
    corpus.build(CorpusConfig(source=(str(text),), output_dir=tmp_path / "c", alike=2, wrapped=0))
    again = Prose.read([str(tmp_path / "c")], words)
    assert sorted(again.sizes) == sorted(read.sizes)
    assert not any(one[:20] in words.decode(map(int, read.tokens)) for one in held)


def test_text_that_is_not_there_or_is_too_short_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        DrillsConfig(tmp_path / "d", text=("nowhere",))
    with pytest.raises(ConfigError, match="--text-share"):
        DrillsConfig(tmp_path / "d", text_share=1.0)
    (tmp_path / "short.txt").write_text("only a few words, and no more than that")
    with pytest.raises(DataError, match="Give --text more"):
        build(DrillsConfig(tmp_path / "d", lessons=5, gym=0, text=(str(tmp_path / "short.txt"),), workers=1))


def test_what_is_not_shown_is_in_no_drill(tmp_path: Path) -> None:
    some = Shown(0.5, 0.5)
    config = DrillsConfig(
        tmp_path / "d", lessons=0, gym=150, shown_families=0.5, shown_wordings=0.5, seq_len=512, workers=1
    )
    build(config)
    words = Tokenizer.load()
    said = words.decode(int(one) for one in np.asarray(open_drills(tmp_path / "d", words, 512).ids).ravel())
    assert re.search(r"\bmv\b", said) is None, "rename and move are not among the shown half"
    assert {"rename", "move"}.isdisjoint(some.names)


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
