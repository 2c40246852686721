# SPDX-License-Identifier: AGPL-3.0-or-later
"""Has this document been seen before, word for word or nearly so?

    seen = Seen()
    seen.exactly(text)        # True the second time, white space aside
    seen.nearly(ids)          # True where an earlier document shares about four fifths of its shingles

Near duplicates are found by one-permutation MinHash (Li, Owen, Zhang 2012) over runs of 8 tokens, with
rotation for empty bins (Shrivastava, Li 2014), looked up by bands and judged by the share of equal bins.
The first document stays, so the answer depends on the order of documents and on nothing else.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Signature: TypeAlias = NDArray[np.uint32]

SHINGLE = 8
BANDS, ROWS = 12, 6
BINS = BANDS * ROWS
SHORTEST = 64
"""tokens; shorter documents are compared word for word only"""


class Seen:
    """What has been read so far. `journal` and `restore` carry it over an interruption."""

    def __init__(self, alike: float = 0.8) -> None:
        self.alike = alike
        self._texts: set[bytes] = set()
        self._signatures: list[Signature] = []
        self._bands: dict[tuple[int, bytes], int] = {}
        self._fresh: tuple[list[bytes], list[Signature]] = ([], [])

    def exactly(self, text: str) -> bool:
        """Whether the same words came before; remembers them."""
        digest = digest_of(text)
        if digest in self._texts:
            return True
        self._texts.add(digest)
        self._fresh[0].append(digest)
        return False

    def nearly(self, ids: NDArray[Any]) -> bool:
        """Whether much the same tokens came before; remembers them where not."""
        if len(ids) < SHORTEST:
            return False
        made = signature(ids)
        for other in {self._bands[key] for key in _keys(made) if key in self._bands}:
            if (self._signatures[other] == made).mean() >= self.alike:
                return True
        self._remember(made)
        self._fresh[1].append(made)
        return False

    def journal(self) -> tuple[bytes, bytes]:
        """What was learned since the last call, to be appended to two files."""
        texts, signatures = self._fresh
        self._fresh = ([], [])
        return b"".join(texts), b"".join(one.astype("<u4").tobytes() for one in signatures)

    def restore(self, texts: bytes, signatures: bytes) -> None:
        """Undo forgetting: the two files of `journal`."""
        import numpy as np

        self._texts.update(texts[at : at + 8] for at in range(0, len(texts), 8))
        for made in np.frombuffer(signatures, "<u4").reshape(-1, BINS).astype(np.uint32):
            self._remember(made)

    def _remember(self, made: Signature) -> None:
        self._signatures.append(made)
        for key in _keys(made):
            self._bands.setdefault(key, len(self._signatures) - 1)


def digest_of(text: str) -> bytes:
    """Eight bytes that name a text, white space aside."""
    return hashlib.blake2b(" ".join(text.split()).encode("utf-8", "replace"), digest_size=8).digest()


def rank_of(text: str) -> float:
    """A number from 0 to 1 that belongs to the text: the same on every machine, in every order."""
    return int.from_bytes(digest_of(text), "big") / 2**64


def signature(ids: NDArray[Any]) -> Signature:
    """The smallest hash of each bin, over all runs of SHINGLE tokens."""
    import numpy as np

    edges, ends = _bins()
    words = ids.astype(np.uint64)
    count = max(len(words) - SHINGLE + 1, 1)
    hashes = np.zeros(count, dtype=np.uint64)
    for shift in range(min(SHINGLE, len(words))):
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + words[shift : shift + count] + np.uint64(1)
    hashes = np.sort(_mix(hashes))
    at = np.searchsorted(hashes, edges)
    first = hashes[np.minimum(at, count - 1)]
    filled = (at < count) & (first >= edges) & (first < ends)
    source = np.arange(BINS)
    full = np.flatnonzero(filled)
    source = full[np.searchsorted(full, source) % len(full)] if len(full) else source
    made: Signature = (first[source] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return made


@cache
def _bins() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Where each bin begins, and where it ends."""
    import numpy as np

    edges = np.array([-(-(bin_ << 64) // BINS) for bin_ in range(BINS)], dtype=np.uint64)
    return edges, np.append(edges[1:], np.uint64(2**64 - 1))


def _mix(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    import numpy as np

    hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    mixed: NDArray[np.uint64] = hashes ^ (hashes >> np.uint64(33))
    return mixed


def _keys(made: Signature) -> list[tuple[int, bytes]]:
    return [(band, made[band * ROWS : (band + 1) * ROWS].tobytes()) for band in range(BANDS)]
