# SPDX-License-Identifier: AGPL-3.0-or-later
"""How much of a held-out text stands in training documents: near duplicates that no digest finds.

    shares = copied(held_out, training)     # for each held-out text, the share of it in one training document

A text's pieces are all its runs of 64 bytes, white space made alike, of which a hash picks every sixteenth,
the same ones in every document. Only the held-out texts are remembered, so training documents may be many:
they are read once and forgotten, some ten megabytes a second. What is asked is containment, not likeness: a
short text that a long document quotes is a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LENGTH = 64
"""bytes of a piece"""
EVERY = 16
"""one piece of so many is looked at"""

Pieces = NDArray[np.uint64]
FACTORS = [
    np.uint64(pow(0x9E3779B97F4A7C15, 1 << power, 1 << 64)) for power in range(LENGTH.bit_length() - 1)
]
"""a hash of twice the length is made of two of the half"""


def copied(texts: Sequence[str], others: Iterable[str]) -> list[float]:
    """The largest share of each text's pieces that one of the other documents holds."""
    own = [pieces(text) for text in texts]
    known = np.unique(np.concatenate([*own, np.empty(0, np.uint64)]))
    owners = _owners(own, known)
    sizes = np.array([max(1, len(mine)) for mine in own])
    most = np.zeros(len(texts))
    for other in others if len(known) else ():
        said = pieces(other)
        places = np.minimum(np.searchsorted(known, said), len(known) - 1)
        met = places[known[places] == said]
        if len(met):
            held = np.concatenate([owners[place] for place in met.tolist()])
            np.maximum(most, np.bincount(held, minlength=len(texts)) / sizes, out=most)
    return [float(share) for share in most]


def pieces(text: str) -> Pieces:
    """The chosen pieces of a text as sorted hashes, each once; none where it is shorter than a piece."""
    read = np.frombuffer(" ".join(text.split()).encode("utf-8", "replace"), np.uint8)
    if len(read) < LENGTH:
        return np.empty(0, np.uint64)
    hashes = read.astype(np.uint64)
    for doubling, factor in enumerate(FACTORS):
        far = 1 << doubling
        hashes = hashes[:-far] * factor + hashes[far:]
    hashes ^= hashes >> np.uint64(29)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    return np.unique(hashes[hashes < np.uint64(2**64 // EVERY)])


def _owners(own: Sequence[Pieces], known: Pieces) -> list[NDArray[Any]]:
    """For every known piece, the texts it stands in."""
    found: list[list[int]] = [[] for _ in range(len(known))]
    for number, mine in enumerate(own):
        for place in np.searchsorted(known, mine).tolist():
            found[place].append(number)
    return [np.array(texts) for texts in found]
