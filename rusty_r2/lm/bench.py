# SPDX-License-Identifier: AGPL-3.0-or-later
"""`rusty lm bench`: every weight format side by side: memory, speed, and what smallness costs.

    rusty lm bench --checkpoint runs/first/step_001000 --text notes.txt
    rusty lm bench --preset tiny --compile              # random weights: speed alone means something

Each mode runs in a process of its own, so its peak memory is its own. Speeds are the best of several tries,
by the clock; with OMP_NUM_THREADS=1 by CPU seconds, which other programs do not change.
The loss against fp32 is measured on the same text: bits per byte, how often the likeliest next word is the
same, and the Kullback-Leibler divergence in nats. torch rows are the plain model, step by step, with and
without torch.compile: measured, not assumed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rusty_r2.errors import ConfigError, RustyError
from rusty_r2.lm.engine import Engine
from rusty_r2.lm.quantize import Folder
from rusty_r2.lm.sampling import Sampling
from rusty_r2.lm.shape import Shape, random_source

SIZES = {
    "nano": Shape(24_000, 64, 128, 512, 2),
    "micro": Shape(24_000, 128, 256, 1024, 4),
    "tiny": Shape(24_000, 256, 512, 2048, 4),
    "small": Shape(24_000, 384, 768, 3072, 8),
    "base": Shape(24_000, 512, 1024, 4096, 12),
}
"""the sizes of lm/rwkv.py's presets, which need torch to be read"""
MODES = {"none": ["fp32"], "16bit": ["bf16", "fp16"], "8bit": ["int8"], "4bit": ["int4"]}


@dataclass(frozen=True)
class BenchConfig:
    checkpoint: Path | None = None
    """a checkpoint folder; without one, random weights of --preset"""
    preset: Literal["nano", "micro", "tiny", "small", "base"] = "tiny"
    """size of the random weights"""
    quantization: Literal["all", "none", "16bit", "8bit", "4bit"] = "all"
    """which weight formats to measure; fp32 is always there to compare with"""
    text: Path | None = None
    """what the loss is measured on; default: a module of Python's own library"""
    tokens: int = 64
    """words to decode in each try"""
    batch: tuple[int, ...] = (16, 64)
    """rows that decode side by side with log-probabilities"""
    torch: bool = True
    """measure the plain torch model too, where torch is installed"""
    compile: bool = False
    """and the same under torch.compile (minutes)"""
    device: str = "cpu"
    """cpu, or cuda"""
    output_dir: Path = Path("bench")
    """where bench.json and bench.png go"""


def bench(config: BenchConfig) -> str:
    """Measure, print the table, write bench.json and bench.png."""
    if config.tokens < 1 or any(rows < 1 for rows in config.batch):
        raise ConfigError("--tokens and --batch must be 1 or more")
    if config.checkpoint is not None:
        Folder(config.checkpoint)
    config.output_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        found = [_in_a_process(config, mode, Path(scratch)) for mode in _modes(config)]
    rows = [row for row in found if "error" not in row]
    report = {
        "machine": _machine(config.device),
        "model": str(config.checkpoint or f"random {config.preset}"),
        "rows": found,
    }
    path = config.output_dir / "bench.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    lines = [f"{report['model']} on {report['machine']}", "", *table(rows), ""]
    lines += [f"{row['mode']}: {row['error']}" for row in found if "error" in row]
    lines += [_plot(rows, config.output_dir / "bench.png"), str(path)]
    return "\n".join([*lines, f"next: {_next(config)}"])


def _modes(config: BenchConfig) -> list[str]:
    chosen = [mode for modes in MODES.values() for mode in modes]
    if config.quantization != "all":
        chosen = sorted({"fp32", *MODES[config.quantization]}, key=chosen.index)
    if config.torch and config.device == "cpu":
        chosen.append("torch")
    return [*chosen, *(["torch compiled"] if config.compile else [])]


def _next(config: BenchConfig) -> str:
    if config.checkpoint is None:
        return "rusty lm bench --checkpoint FOLDER --text FILE"
    return f'rusty lm generate --checkpoint {config.checkpoint} --prompt "..." --quantization 8bit'


def table(rows: list[dict[str, Any]]) -> list[str]:
    """One line a mode; only the columns that something was measured for."""
    columns: list[tuple[str, str, Callable[[Any], str]]] = [
        ("mode", "mode", str),
        ("peak_mb", "peak MB", "{:,.0f}".format),
        ("prefill", "prefill tok/s", "{:,.0f}".format),
        ("decode", "decode tok/s", "{:,.0f}".format),
        *((f"decode_{n}", f"x{n} tok/s", "{:,.0f}".format) for n in _batches(rows)),
        ("bits_per_byte", "bits/byte", "{:.4f}".format),
        ("agreement", "same word", "{:.1%}".format),
        ("kl", "KL nats", "{:.1e}".format),
    ]
    columns = [column for column in columns if any(column[0] in row for row in rows)]
    cells = [[shown(row[key]) if key in row else "" for key, _, shown in columns] for row in rows]
    body = [[title for _, title, _ in columns], *cells]
    widths = [max(len(line[i]) for line in body) for i in range(len(columns))]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in body]


def _batches(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(
        {int(key.removeprefix("decode_")) for row in rows for key in row if key.startswith("decode_")}
    )


def _plot(rows: list[dict[str, Any]], path: Path) -> str:
    try:
        importlib.import_module("matplotlib").use("Agg")
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError:
        return "no picture: matplotlib is not installed. Type: pip install matplotlib"
    shown = [key for key in ("decode", "prefill", "peak_mb") if any(key in row for row in rows)]
    titles = {"decode": "decode, tokens/s", "prefill": "prefill, tokens/s", "peak_mb": "peak memory, MB"}
    figure, axes = pyplot.subplots(1, len(shown), figsize=(4 * len(shown), 3.2), squeeze=False)
    for axis, key in zip(axes[0], shown, strict=True):
        having = [row for row in rows if key in row]
        bars = axis.barh([row["mode"] for row in having], [row[key] for row in having], color="#b7410e")
        axis.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
        axis.set_title(titles[key], fontsize=10)
        axis.invert_yaxis()
        axis.margins(x=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return str(path)


def _machine(device: str) -> str:
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    timed = "CPU seconds" if _clock(device) is time.process_time else "seconds"
    return f"{platform.machine()}, {os.cpu_count()} cores, OMP_NUM_THREADS={threads}, {timed}"


def _in_a_process(config: BenchConfig, mode: str, scratch: Path) -> dict[str, Any]:
    print(f"measuring {mode} ...", file=sys.stderr, flush=True)
    asked = {
        "mode": mode,
        "checkpoint": str(config.checkpoint or ""),
        "preset": config.preset,
        "text": str(config.text or ""),
        "tokens": config.tokens,
        "batch": config.batch,
        "device": config.device,
        "scratch": str(scratch),
    }
    words = [sys.executable, "-m", "rusty_r2.lm.bench", json.dumps(asked)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"mode": mode, "error": (done.stderr.strip().splitlines() or ["it died"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(asked: dict[str, Any]) -> dict[str, Any]:
    """One mode, in this process."""
    engine = _engine(asked)
    ids = _text_ids(asked, engine.shape.words)
    row: dict[str, Any] = {"mode": asked["mode"], "backend": engine.backend}
    greedy, hot, on = Sampling(temperature=0.0), Sampling(temperature=1.0), asked["device"]
    state = engine.new_state(1)
    row["prefill"] = 256 / _best(lambda: engine.prefill([ids[:256]], state), 3, on)
    row["decode"] = asked["tokens"] / _best(lambda: _decode(engine, 1, asked["tokens"], greedy), 3, on)
    row["peak_mb"] = _peak_mb(asked["device"])
    for rows in asked["batch"]:
        steps = max(2, asked["tokens"] // 8)
        took = _best(lambda n=rows, s=steps: _decode(engine, n, s, hot), 2, on)  # type: ignore[misc]
        row[f"decode_{rows}"] = rows * steps / took
    return row | _quality(engine, ids, asked)


def _engine(asked: dict[str, Any]) -> Engine:
    source = (
        Folder(Path(asked["checkpoint"])) if asked["checkpoint"] else random_source(SIZES[asked["preset"]])
    )
    mode, device = asked["mode"], asked["device"]
    if device == "cpu" and not mode.startswith("torch"):
        return Engine.build(source, weights=mode)
    import torch

    from rusty_r2.lm.engine_torch import TorchModel
    from rusty_r2.lm.rwkv import TinyRWKVLM

    s = Shape.of(source)
    model = TinyRWKVLM(s.words, s.embed, s.hidden, s.layers, d_ffn=s.inner)
    model.load_state_dict({n: torch.from_numpy(source.vector(n)).reshape(z) for n, z in s.sizes().items()})
    weights = ("fp32" if device == "cpu" else "bf16") if mode.startswith("torch") else mode
    made = TorchModel(model, weights=weights, device=device, compiled=mode == "torch compiled")
    return Engine(made, backend=f"torch on {device}")


def _text_ids(asked: dict[str, Any], words: int) -> list[int]:
    """At least 257 ids: of the text where the checkpoint has a tokenizer or ours fits, else random ones."""
    own = Path(asked["checkpoint"]) / "tokenizer.json"
    if asked["checkpoint"] and not own.is_file() and words == SIZES["tiny"].words:
        own = Path(__file__).parent / "vocab" / "tokenizer.json"
    if not asked["checkpoint"] or not own.is_file():
        if asked["text"]:
            raise ConfigError("--text needs a checkpoint with a tokenizer.json")
        return [int(n) for n in np.random.default_rng(0).integers(16, words, 512)]
    from rusty_r2.lm.tokenizer import BOS, Tokenizer

    tokenizer = Tokenizer.load(own)
    path = Path(asked["text"] or argparse.__file__)
    ids = tokenizer.encode(path.read_text(encoding="utf-8", errors="replace"))[:4096]
    if len(ids) < 256:
        raise ConfigError(f"{path} is too short to measure on: {len(ids)} tokens, 256 are needed")
    asked["bytes"] = len(tokenizer.decode_bytes(ids)) + 1
    return [BOS, *ids]


def _decode(engine: Engine, rows: int, steps: int, sampling: Sampling) -> None:
    state = engine.new_state(rows)
    tokens = np.full(rows, 20, np.int32)
    for step in range(steps):
        tokens = engine.sample(tokens, state, sampling, counts=[step] * rows).tokens


def _quality(engine: Engine, ids: list[int], asked: dict[str, Any]) -> dict[str, Any]:
    """Against fp32, which runs first and leaves its logits behind."""
    found: dict[str, Any] = {}
    logp, best = engine.score(ids)
    if "bytes" in asked:
        found["bits_per_byte"] = float(-logp.sum() / np.log(2) / asked["bytes"])
    mine = _log_softmax(_logits(engine, ids[:129]))
    kept = Path(asked["scratch"]) / "fp32.npz"
    if asked["mode"] == "fp32":
        np.savez(kept, logp=mine, best=best)
    elif kept.is_file():
        exact = np.load(kept)
        found["agreement"] = float((exact["best"] == best).mean())
        found["kl"] = float((np.exp(exact["logp"]) * (exact["logp"] - mine)).sum(-1).mean())
    return found


def _logits(engine: Engine, ids: list[int]) -> NDArray[np.float32]:
    state = engine.new_state(1)
    order = np.arange(len(ids), dtype=np.int32)
    hidden, _ = engine.model.read(np.array(ids, np.int32), np.zeros_like(order), order, state, len(ids))
    return engine.model.logits(hidden)


def _log_softmax(z: NDArray[np.float32]) -> NDArray[np.float32]:
    z = z - z.max(-1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(-1, keepdims=True)), np.float32)


def _best(run: Callable[[], object], tries: int, device: str) -> float:
    run()
    times, clock = [], _clock(device)
    for _ in range(tries):
        start = clock()
        run()
        times.append(clock() - start)
    return min(times)


def _clock(device: str) -> Callable[[], float]:
    alone = device == "cpu" and os.environ.get("OMP_NUM_THREADS") == "1"
    return time.process_time if alone else time.perf_counter


def _peak_mb(device: str) -> float:
    if device != "cpu":
        import torch

        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


if __name__ == "__main__":
    try:
        print(json.dumps(measure(json.loads(sys.argv[1]))))
    except RustyError as error:
        sys.exit(str(error))
