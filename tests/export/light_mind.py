"""A mind for the loop that costs nothing: its weights are the digest of its rows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rusty_r2 import files
from rusty_r2.loop.gathering import make_rows
from rusty_r2.loop.stages import Made

_spec = importlib.util.spec_from_file_location("tiny_gguf", Path(__file__).with_name("tiny_gguf.py"))
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
tiny_gguf = _module.tiny_gguf


class LightMind:
    """Its weights are the digest of its rows."""

    def rows(self, folder, traces, judged, asked):
        return make_rows(folder, traces, judged, asked)

    def train(self, folder, rows):
        (folder / "run").mkdir(exist_ok=True)
        return Made({}, (files.write(folder / "run" / "weights", files.digest(rows)).parent,))

    def merge(self, folder, run):
        return Made({}, (files.write(folder / "merged", (run / "weights").read_text()),))

    def export(self, folder, merged):
        path = tiny_gguf(folder / "model.gguf", salt=merged.read_text())
        return Made({"sha256": files.digest(path)}, (path,))

    def gate(self, folder, artefact, merged, run):
        said = {"passed": True, "sha256": files.digest(artefact), "worse": False, "reasons": []}
        return Made({"gate": said, "measured": [], "against": "nobody", "findings": [], "passed": True})
