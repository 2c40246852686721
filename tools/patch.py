# SPDX-License-Identifier: AGPL-3.0-or-later
"""A new version of the shipped model as a patch of megabytes: `python tools/patch.py FOLDER`.

FOLDER holds the new model.int8.safetensors (`quantize.save` makes one). The weights that ship stay as they
are, so that the repository's history grows by the patch alone; an older patch is replaced. The patch is
applied once and compared before this ends. `--step 4` more than halves it, for weights near to those.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rusty_r2.errors import RustyError
from rusty_r2.lm import patch

SHIPPED = Path(__file__).parents[1] / "rusty_r2" / "lm" / "shipped"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("folder", type=Path, help="the new weights, 8 bit")
    parser.add_argument("--step", type=int, default=0, help="near them: moved by whole steps of this")
    parser.add_argument("--into", type=Path, default=SHIPPED, help="the folder that ships")
    asked = parser.parse_args()
    try:
        made = patch.make(asked.into, asked.folder, asked.into / patch.PATCH, step=asked.step)
    except RustyError as error:
        sys.exit(f"patch: {error}")
    print(f"{made}: {made.stat().st_size / 1e6:.2f} MB, to the weights {patch.promised(asked.into)[:16]}")
    print('next: rusty ask "who are you?", then commit it')


if __name__ == "__main__":
    main()
