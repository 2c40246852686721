# SPDX-License-Identifier: AGPL-3.0-or-later
"""Truths about likeness: the share of equal bins estimates Jaccard's, and memory survives a restart."""

from __future__ import annotations

import numpy as np
import pytest

from rusty_r2.data.dedup import BINS, SHINGLE, SHORTEST, Seen, signature


def tokens(seed: int, size: int = 4000) -> np.ndarray:
    return np.random.default_rng(seed).integers(16, 24_000, size)


def jaccard(one: np.ndarray, two: np.ndarray) -> float:
    sets = [{tuple(ids[at : at + SHINGLE]) for at in range(len(ids) - SHINGLE + 1)} for ids in (one, two)]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.8, 0.95, 1.0])
def test_equal_bins_estimate_jaccard(kept: float) -> None:
    errors = []
    for seed in range(8):
        one = tokens(seed)
        two = np.concatenate([one[: int(kept * 4000)], tokens(seed + 100, 4000 - int(kept * 4000))])
        errors.append(float(np.mean(signature(one) == signature(two))) - jaccard(one, two))
    assert abs(float(np.mean(errors))) < 0.06


def test_near_duplicates_are_found_and_strangers_are_not() -> None:
    seen = Seen()
    originals = [tokens(seed) for seed in range(50)]
    assert not any(seen.nearly(ids) for ids in originals)
    assert all(seen.nearly(ids[:-100]) for ids in originals)
    assert not any(seen.nearly(tokens(seed)) for seed in range(100, 150))


def test_short_texts_are_compared_word_for_word_only() -> None:
    seen = Seen()
    short = tokens(1, SHORTEST - 1)
    assert not seen.nearly(short)
    assert not seen.nearly(short)
    assert not seen.exactly("a b")
    assert seen.exactly(" a\n b ")


def test_memory_survives_a_restart() -> None:
    first = Seen()
    assert not first.nearly(tokens(1))
    assert not first.exactly("once")
    second = Seen()
    second.restore(*first.journal())
    assert second.nearly(tokens(1))
    assert second.exactly("once")
    assert first.journal() == (b"", b"")


def test_a_signature_has_no_empty_bins() -> None:
    made = signature(tokens(3, 70))
    assert len(made) == BINS
    assert len(set(made.tolist())) > 20
