# SPDX-License-Identifier: AGPL-3.0-or-later
"""A new version of the shipped model as a patch of megabytes: `python tools/patch.py FOLDER`.

FOLDER holds the new weights, 8 bit or plain. The weights that ship stay as they
are, so that the repository's history grows by the patch alone; an older patch is replaced. The patch is
applied once and compared before this ends. Of several folders the mean is taken. `--step 4` more than halves
the patch, for weights near to those; with `--rows DRILLS` they do the same on those rows, and 8 is as good.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from rusty_r2.data.drills import open_drills
from rusty_r2.errors import RustyError
from rusty_r2.lm import near, patch, quantize
from rusty_r2.lm.tokenizer import Tokenizer

SHIPPED = Path(__file__).parents[1] / "rusty_r2" / "lm" / "shipped"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("folders", type=Path, nargs="+", help="the new weights; of several the mean")
    parser.add_argument("--step", type=int, default=0, help="near them: moved by whole steps of this")
    parser.add_argument("--rows", type=Path, help="drills on which the coarse weights shall do the same")
    parser.add_argument("--count", type=int, default=48, help="of those rows")
    parser.add_argument("--into", type=Path, default=SHIPPED, help="the folder that ships")
    asked = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as work:
            made = _patch(asked, Path(work))
    except RustyError as error:
        sys.exit(f"patch: {error}")
    print(f"{made}: {made.stat().st_size / 1e6:.2f} MB, to the weights {patch.promised(asked.into)[:16]}")
    print('next: rusty ask "who are you?", then commit it')


def _patch(asked: argparse.Namespace, work: Path) -> Path:
    new, step, into = asked.folders[0], asked.step, asked.into
    if len(asked.folders) > 1:
        new = near.mean(asked.folders, work / "mean")
    if asked.rows:
        new, step = near.save(into, new, work / "near", _rows(asked), step=step), 0
    elif not (new / patch.WEIGHTS).is_file():
        new = quantize.save(new, work / "small")
    return patch.make(into, new, into / patch.PATCH, step=step)


def _rows(asked: argparse.Namespace) -> np.ndarray:
    """Some of the rows of every kind."""
    ids = open_drills(asked.rows, Tokenizer.load()).ids
    chosen = np.random.default_rng(0).permutation(len(ids))[: asked.count]
    return np.array(ids[chosen, :-1])


if __name__ == "__main__":
    main()
