# SPDX-License-Identifier: AGPL-3.0-or-later
"""Truths about rows of episodes: nothing lost, nothing cut, only Rusty's own words count."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="needs the train extra")

from rusty_r2.data.episode import Episode, ask
from rusty_r2.data.packed import EpisodeRows
from rusty_r2.errors import DataError
from rusty_r2.lm.chat import encode_turns
from rusty_r2.lm.tokenizer import BOS, END, PAD, Tokenizer
from rusty_r2.protocol import Msg

SHIPPED = Tokenizer.load()
EPISODES = [ask("MSG", "x", f"count to {n}", Msg(" ".join(map(str, range(n))))) for n in range(60)]


def pack(episodes: list[Episode] = EPISODES, **more: int) -> EpisodeRows:
    return EpisodeRows(SHIPPED, episodes, **{"length": 512, "batch": 4, **more})  # type: ignore[arg-type]


def test_an_epoch_holds_every_episode_whole_and_once() -> None:
    packed = pack()
    rows = packed.rows(0, range(packed.count))
    whole = np.concatenate([rows.ids, rows.targets[:, -1:]], axis=1)
    found: Counter[str] = Counter()
    for row in whole:
        starts = [*np.flatnonzero(row == BOS), len(row)]
        for start, end in pairwise(starts):
            ids = [int(number) for number in row[start:end] if number != PAD]
            found[SHIPPED.decode(ids)] += 1
    assert found == Counter(SHIPPED.decode(encode_turns(SHIPPED, one.turns)[0]) for one in EPISODES)
    assert packed.dropped == 0


def test_only_own_words_count() -> None:
    packed = pack()
    rows = packed.rows(0, range(packed.count))
    counted = rows.targets[rows.mask]
    wanted: Counter[int] = Counter()
    for episode in EPISODES:
        ids, own = encode_turns(SHIPPED, episode.turns)
        wanted.update(number for number, mine in zip(ids, own, strict=True) if mine)
    assert Counter(counted.tolist()) == wanted
    assert rows.supervised == packed.supervised
    assert (counted == END).sum() == len(EPISODES)
    assert not rows.mask[rows.targets == PAD].any()
    assert np.array_equal(rows.reset, rows.ids == BOS)
    assert rows.reset[:, 0].all()


def test_rows_depend_on_seed_and_step_alone() -> None:
    one, two, other = pack(seed=3), pack(seed=3), pack(seed=4)
    for step in (17, 0, 5):
        halves = [two.rows(step, range(2)), two.rows(step, range(2, 4))]
        assert np.array_equal(one.rows(step).ids, np.concatenate([half.ids for half in halves]))
    assert not np.array_equal(one.rows(0).ids, other.rows(0).ids)
    first, second = one.rows(0, range(one.count)).ids, one.rows(1, range(one.count)).ids
    assert not np.array_equal(first, second)


def test_masked_replies_do_not_count() -> None:
    turns = (("system", "s"), ("user", "u"), ("assistant", "wrong", False), ("assistant", "right"))
    rows = pack([Episode("REPAIR", "x", turns)], batch=1).rows(0)
    assert rows.targets[rows.mask].tolist() == [*SHIPPED.encode("right"), END]


def test_nothing_or_everything_supervised_stops_at_once() -> None:
    silent = Episode("MSG", "x", (("user", "hi"), ("assistant", "no", False)))
    with pytest.raises(DataError, match="0% of"):
        pack([silent])


def test_long_episodes_are_dropped_and_counted() -> None:
    packed = pack(length=160)
    assert 0 < packed.dropped < packed.episodes == len(EPISODES)
    with pytest.raises(DataError, match="none of"):
        pack(length=16)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text("".join(episode.to_json() + "\n" for episode in EPISODES))
    again = EpisodeRows.read(SHIPPED, path, length=512, batch=4)
    assert np.array_equal(again.rows(2).ids, pack().rows(2).ids)
