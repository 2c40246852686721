# SPDX-License-Identifier: AGPL-3.0-or-later
"""What each GGUF type costs and keeps: time, size, real bits a weight, next-word agreement, divergence.

    OMP_NUM_THREADS=1 python benchmarks/export.py [MODEL] [TYPE ...]

MODEL is a run, a merged folder, or smollm2 (the default). Every file goes through the gate; its numbers are
the gate's own, on the held-out text of export/hard.py. A type that is not possible says why. CPU seconds.
"""

import sys
import tempfile
import time
from pathlib import Path

from rusty_r2.errors import ConfigError
from rusty_r2.export.check import check
from rusty_r2.export.gguf import write_gguf
from rusty_r2.export.types import NAMES


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    print(
        "type     export CPU s       MB  bits/weight  fallbacks  same next word   KL nats  gate CPU s  gate"
    )
    with tempfile.TemporaryDirectory() as scratch:
        for name in sys.argv[2:] or NAMES:
            try:
                print(row(model, name, Path(scratch) / f"{name}.gguf"), flush=True)
            except ConfigError as error:
                print(f"{name:7}  {error}", flush=True)


def row(model: str, name: str, file: Path) -> str:
    start = time.process_time()
    written = write_gguf(model, file, name, threads=1)
    exported = time.process_time() - start
    start = time.process_time()
    report = check(file, model)
    checked = time.process_time() - start
    found = report.findings[-1].measured
    file.unlink()
    return (
        f"{name:7}  {exported:12.1f}  {written.size / 1e6:7.1f}  {written.bits_per_weight:11.2f}  "
        f"{written.fallbacks:3d} of {written.matrices}  {found['agreement']:14.1%}  {found['kl']:8.2g}  "
        f"{checked:10.1f}  {'passed' if report.passed else 'failed: ' + ', '.join(report.failed)}"
    )


if __name__ == "__main__":
    main()
