# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a run will cost, before it is begun: memory and time, from the model's sizes and the rows' lengths.

No weight is loaded: the model is built without memory, and the machine's speed is that of one matrix
product, measured for a tenth of a second. Read the result as "about": it is meant to be right within a
factor of two (docs/lora.md has it beside what was measured).
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rusty_r2.hardware import HardwareConfig
from rusty_r2.train.lora import LoraOptions, Shape
from rusty_r2.train.progress import spell

EFFICIENCY = 0.55
"""part of a plain matrix product's speed that training reaches: attention, norms, small batches"""
LIBRARIES_GB = 0.7
"""memory of the process before the model is in it"""
LORA_BYTES = 16
"""of one adapter weight: itself, its gradient and two moments in float32"""
TRIES = 8
GB = 1e9


@dataclass(frozen=True)
class Estimate:
    """What a run will cost."""

    parameters: int
    trained: int
    memory_gb: float
    free_gb: float
    seconds: float
    steps: int
    tokens: int
    """in all steps together"""

    def __str__(self) -> str:
        share = 100 * self.trained / self.parameters
        return (
            f"{self.parameters / 1e6:,.1f} M parameters, {self.trained / 1e6:,.2f} M of them trained "
            f"({share:.1f}%); {self.steps:,} steps, {self.tokens:,} tokens; about {self.memory_gb:.1f} GB "
            f"of {self.free_gb:.1f} GB free, about {spell(self.seconds)}"
        )


def estimate(
    model_config: Any,
    options: LoraOptions,
    shape: Shape,
    hardware: HardwareConfig,
    *,
    lengths: Sequence[int],
    steps: int,
    passes: float,
    device: str,
    dtype: Any,
) -> Estimate:
    """`passes` is how many times a step reads its rows, a backward pass counted as one."""
    model = _hollow(model_config)
    parameters = sum(weight.numel() for weight in model.parameters())
    trained = _adapter_size(model, options, hardware)
    size = torch.empty(0, dtype=dtype).element_size()
    tokens = round(steps * shape.rows * sum(lengths) / max(1, len(lengths)))
    widest = shape.batch * max(lengths, default=1)
    kept = _kept_per_token(model_config, options.gradient_checkpointing) * size
    memory = (
        parameters * size + trained * LORA_BYTES + widest * kept
    ) / GB + LIBRARIES_GB  # the head works in tiles
    extra = 1 if options.gradient_checkpointing else 0
    work = 2.0 * parameters * tokens * (passes + extra) / max(1, shape.processes)
    free = hardware.gpu_vram_gb if device == "cuda" else hardware.available_ram_gb
    return Estimate(parameters, trained, memory, free, work / _speed(device, dtype), steps, tokens)


def _hollow(model_config: Any) -> Any:
    """The model with shapes and no weights."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(model_config)
    model.tie_weights()
    return model


def _adapter_size(model: Any, options: LoraOptions, hardware: HardwareConfig) -> int:
    from rusty_r2.train.lora import lora_config

    config = lora_config(options, model, hardware)
    wanted, head = config.target_modules, model.get_output_embeddings()
    total = 0
    for name, layer in model.named_modules():
        if not isinstance(layer, torch.nn.Linear) or layer is head:
            continue
        chosen = wanted == "all-linear" or any(re.search(rf"(^|\.){re.escape(one)}$", name) for one in wanted)
        total += config.r * (layer.in_features + layer.out_features) if chosen else 0
    return total


def _kept_per_token(config: Any, checkpointed: bool) -> int:
    """Numbers kept for the way back, a token."""
    layers, width = config.num_hidden_layers, config.hidden_size
    wide = getattr(config, "intermediate_size", None) or 4 * width
    layer = 10 * width + 4 * wide
    return int(layers * width + layer) if checkpointed else int(layers * layer)


def _speed(device: str, dtype: Any) -> float:
    """Multiplications and additions a second that training will reach, on a CPU when nobody else uses it."""
    rows, width = (512, 1024) if device == "cpu" else (4096, 4096)
    clock = time.process_time if device == "cpu" else time.perf_counter
    hands = torch.get_num_threads() if device == "cpu" else 1
    x, w = (torch.ones(size, dtype=dtype, device=device) for size in ((rows, width), (width, width)))
    best = float("inf")
    for _ in range(TRIES):
        began = clock()
        float((x @ w)[0, 0])  # read it: a GPU answers before it has worked
        best = min(best, (clock() - began) / hands)
    return EFFICIENCY * 2 * rows * width * width / best
