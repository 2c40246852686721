# SPDX-License-Identifier: AGPL-3.0-or-later
"""What this machine has, and the training settings that suit it.

    from rusty_r2.hardware import detect_hardware
    print(detect_hardware().summary())

`HardwareConfig` takes facts and derives settings from them; a setting that is given is kept as given.
`detect_hardware` reads the facts (machine.py) without importing torch and without creating anything.
Which floating-point type to use follows from what the processor can multiply: bf16 on a CPU without
bf16 instructions is 40 to 500 times slower than fp32, so having AVX2 alone means fp32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from rusty_r2 import machine
from rusty_r2.config import home

EFFECTIVE_BATCH = 8
"""rows a training step should see, whatever fits at once"""

RYZEN = "AMD Ryzen 9 5950X"
DERIVED: Any = None
"""default of a setting that is worked out from the facts unless it is given"""


class HardwareProfile(Enum):
    RYZEN_OPTIMIZED = "ryzen_optimized"
    AUTO_DETECT = "auto_detect"
    GPU_ENABLED = "gpu_enabled"
    CPU_ONLY = "cpu_only"


@dataclass(frozen=True)
class _Size:
    at_least_gb: float
    batch: int
    model: str
    lora_r: int
    generations: int


BY_RAM = (
    _Size(64, 4, "3B", 16, 8),
    _Size(32, 2, "1.5B", 16, 6),
    _Size(16, 1, "0.5B", 8, 4),
    _Size(0, 1, "0.5B", 4, 2),
)
BY_VRAM = (_Size(24, 8, "7B", 32, 8), _Size(16, 4, "3B", 16, 8), _Size(8, 2, "1.5B", 16, 4))


@dataclass
class HardwareConfig:
    """Facts first, then the settings that follow from them."""

    cpu_name: str = ""
    cpu_cores: int = 1
    """physical cores this process may use"""
    cpu_threads: int = 1
    """hardware threads this process may use"""
    has_avx2: bool = False
    has_avx512: bool = False
    has_cpu_bf16: bool = False
    """real bf16 arithmetic: AVX512-BF16, AMX, or ARM's bf16"""
    ram_gb: float = 8.0
    """memory of the machine or of its container, whichever is smaller"""
    available_ram_gb: float = 8.0
    has_gpu: bool = False
    gpu_name: str = ""
    gpu_vram_gb: float = 0.0
    gpu_capability: float = 0.0
    """CUDA compute capability, 0 where unknown"""
    cuda_available: bool = False
    """the installed torch (or, before it is installed, the driver) can use the GPU"""
    storage_path: str = ""
    storage_free_gb: float = 0.0
    profile: HardwareProfile = HardwareProfile.AUTO_DETECT
    recommended_batch_size: int = DERIVED
    recommended_model_size: str = DERIVED
    use_fp16: bool = DERIVED
    use_bf16: bool = DERIVED
    gradient_checkpointing: bool = True
    num_workers: int = DERIVED
    lora_r: int = DERIVED
    lora_alpha: int = DERIVED
    num_generations: int = DERIVED
    max_completion_length: int = 256

    def __post_init__(self) -> None:
        size = self._size()
        on_gpu = self.get_training_device() == "cuda"
        bf16 = self.gpu_capability >= 8.0 if on_gpu else self.has_cpu_bf16
        self._fill("recommended_batch_size", size.batch)
        self._fill("recommended_model_size", size.model)
        self._fill("num_generations", size.generations)
        self._fill("num_workers", max(0, min(4, self.cpu_cores - 1)))
        self._fill("lora_r", size.lora_r)
        self._fill("lora_alpha", 2 * self.lora_r)
        self._fill("use_bf16", bf16 and not self.use_fp16)
        self._fill("use_fp16", on_gpu and not self.use_bf16)

    def _fill(self, name: str, value: Any) -> None:
        """Set what was not given."""
        if getattr(self, name) is DERIVED:
            setattr(self, name, value)

    def get_training_device(self) -> str:
        """The torch device to train on; ROCm builds of torch call theirs cuda too."""
        return "cuda" if self.has_gpu and self.cuda_available else "cpu"

    def get_torch_dtype(self) -> str:
        return "bfloat16" if self.use_bf16 else "float16" if self.use_fp16 else "float32"

    def gradient_accumulation(self) -> int:
        """Micro-batches a step, so that about EFFECTIVE_BATCH rows are seen."""
        return max(1, EFFECTIVE_BATCH // self.recommended_batch_size)

    def to_training_args(self) -> dict[str, Any]:
        """Arguments for transformers.TrainingArguments and its children."""
        return {
            "per_device_train_batch_size": self.recommended_batch_size,
            "gradient_accumulation_steps": self.gradient_accumulation(),
            "gradient_checkpointing": self.gradient_checkpointing,
            "dataloader_num_workers": self.num_workers,
            "bf16": self.use_bf16,
            "fp16": self.use_fp16,
            "use_cpu": self.get_training_device() == "cpu",
        }

    def to_lora_config(self) -> dict[str, Any]:
        """Arguments for peft.LoraConfig."""
        return {
            "r": self.lora_r,
            "lora_alpha": self.lora_alpha,
            "lora_dropout": 0.05,
            "target_modules": ["q_proj", "v_proj", "k_proj", "o_proj"],
            "bias": "none",
            "task_type": "CAUSAL_LM",
        }

    def to_grpo_config(self) -> dict[str, Any]:
        """Group settings that are valid together: the rows of a step are whole groups."""
        rows_per_group_set = math.lcm(self.recommended_batch_size, self.num_generations)
        whole = rows_per_group_set // self.recommended_batch_size
        accumulation = whole * math.ceil(self.gradient_accumulation() / whole)
        return {
            "per_device_train_batch_size": self.recommended_batch_size,
            "gradient_accumulation_steps": accumulation,
            "num_generations": self.num_generations,
            "max_completion_length": self.max_completion_length,
        }

    def summary(self) -> str:
        """The facts and settings as lines of text."""
        gpu = f"{self.gpu_name}, {self.gpu_vram_gb:.0f} GB" if self.has_gpu else "none"
        lora = f"r {self.lora_r}, alpha {self.lora_alpha}"
        rows = {
            "CPU": f"{self.cpu_name or 'unknown'}: {self.cpu_cores} cores, {self.cpu_threads} threads",
            "RAM": f"{self.ram_gb:.1f} GB, {self.available_ram_gb:.1f} GB free",
            "GPU": gpu,
            "trains on": f"{self.get_training_device()} in {self.get_torch_dtype()}",
            "model": f"up to {self.recommended_model_size} with LoRA ({lora})",
            "batch": f"{self.recommended_batch_size} x {self.gradient_accumulation()} accumulated",
            "GRPO": f"{self.num_generations} completions a prompt, {self.max_completion_length} tokens each",
            "profile": self.profile.value,
        }
        return "\n".join(f"{name:<10} {value}" for name, value in rows.items())

    def _size(self) -> _Size:
        if self.get_training_device() == "cuda":
            fits = next((size for size in BY_VRAM if self.gpu_vram_gb >= size.at_least_gb), None)
            if fits is not None:
                return fits
        return next(size for size in BY_RAM if self.ram_gb >= size.at_least_gb)


def detect_hardware(storage_path: str | None = None) -> HardwareConfig:
    """This machine, as far as this process may use it. Creates nothing."""
    cpu, gpu = machine.cpu(), machine.gpu()
    storage = Path(storage_path) if storage_path else home()
    if gpu is not None:
        profile = HardwareProfile.GPU_ENABLED
    elif RYZEN in cpu.name:
        profile = HardwareProfile.RYZEN_OPTIMIZED
    else:
        profile = HardwareProfile.CPU_ONLY
    total, free = machine.memory_gb()
    return HardwareConfig(
        cpu_name=cpu.name,
        cpu_cores=cpu.cores,
        cpu_threads=cpu.threads,
        has_avx2="avx2" in cpu.flags,
        has_avx512="avx512f" in cpu.flags,
        has_cpu_bf16=bool(cpu.flags & {"avx512_bf16", "amx_bf16", "bf16"}),
        ram_gb=total,
        available_ram_gb=free,
        has_gpu=gpu is not None,
        gpu_name=gpu.name if gpu else "",
        gpu_vram_gb=gpu.memory_gb if gpu else 0.0,
        gpu_capability=gpu.capability if gpu else 0.0,
        cuda_available=gpu is not None and machine.torch_can_use(gpu),
        storage_path=str(storage),
        storage_free_gb=machine.free_disk_gb(storage),
        profile=profile,
    )


def get_ryzen_optimized_config(storage_path: str | None = None) -> HardwareConfig:
    """The preset for a Ryzen 9 5950X with 40 GB: 16 cores, AVX2, no bf16 arithmetic."""
    storage = Path(storage_path) if storage_path else home()
    return HardwareConfig(
        cpu_name=RYZEN,
        cpu_cores=16,
        cpu_threads=32,
        has_avx2=True,
        ram_gb=40.0,
        available_ram_gb=32.0,
        storage_path=str(storage),
        storage_free_gb=machine.free_disk_gb(storage),
        profile=HardwareProfile.RYZEN_OPTIMIZED,
        num_workers=8,
    )
