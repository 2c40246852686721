# SPDX-License-Identifier: AGPL-3.0-or-later
"""What cutting secrets out costs, and how many lines of ordinary code it changes.

OMP_NUM_THREADS=1 python benchmarks/redact.py /usr/lib/python3 /usr/lib/python3.11
Without folders: this interpreter's own library. CPU seconds, best of five; --show prints the changed lines.
"""

from __future__ import annotations

import sys
import sysconfig
import time
from pathlib import Path

from rusty_r2.redact import redact


def texts(folders: list[str]) -> list[str]:
    """Every Python source below the folders that is UTF-8, each file once; not what pip installed."""
    files = {path.resolve() for folder in folders for path in Path(folder).rglob("*.py") if path.is_file()}
    found = []
    for path in sorted(path for path in files if "site-packages" not in path.parts):
        try:
            found.append(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
    return found


TIMED = 200
"""files, spread over all of them"""


def spent(sources: list[str]) -> float:
    before = time.process_time()
    for source in sources:
        redact(source)
    return time.process_time() - before


def main() -> None:
    folders = [word for word in sys.argv[1:] if word != "--show"] or [sysconfig.get_path("stdlib")]
    sources = texts(folders)
    lines = sum(source.count("\n") for source in sources)
    changed = []
    for source in sources:
        kept = set(redact(source)[0].split("\n"))
        changed += [line for line in source.split("\n") if line not in kept]
    if "--show" in sys.argv:
        print("\n".join(line.strip()[:150] for line in changed))
    some = sources[:: max(1, len(sources) // TIMED)]
    size = sum(map(len, some)) / 1e6
    took = min(spent(some) for _ in range(5))
    print(f"{len(changed):,} of {lines:,} lines changed: {len(changed) / lines * 1e5:.1f} in 100,000")
    print(f"{took / size:.3f} CPU s a megabyte ({size:.1f} MB)")


if __name__ == "__main__":
    main()
