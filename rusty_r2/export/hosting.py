# SPDX-License-Identifier: AGPL-3.0-or-later
"""How a machine should host a model: requests at once, context, threads, GPU.

    OllamaHostingProfile(num_parallel=4, num_ctx=4096, num_thread=14)     the documented Ryzen
    auto_profile()                                                        this machine, from one core up

A profile has two halves, because Ollama reads them in two places: `to_env` is for the server's own start,
`to_parameters` goes into the model. (Threads are a parameter; no variable sets them.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rusty_r2.errors import ConfigError
from rusty_r2.hardware import detect_hardware

FOR_THE_SYSTEM = 2
"""cores left alone on a machine that has enough of them"""


@dataclass(frozen=True)
class OllamaHostingProfile:
    name: str = "custom"
    num_parallel: int = 1
    """requests answered at once; each has a context of its own"""
    num_ctx: int = 4096
    """tokens a conversation may have"""
    num_gpu: int = 0
    """layers on the GPU; 0: none, -1: as many as fit"""
    num_thread: int = 0
    """threads a request may use; 0: the server decides"""
    main_gpu: int = 0
    """which GPU, where there are several"""
    flash_attn: bool = False
    """flash attention: less memory on a GPU"""

    def __post_init__(self) -> None:
        least = {"num_parallel": 1, "num_ctx": 1, "num_gpu": -1, "num_thread": 0, "main_gpu": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} is {getattr(self, name)}; it is at least {low}")

    def to_env(self) -> dict[str, str]:
        """What the server reads when it starts."""
        return {
            "OLLAMA_NUM_PARALLEL": str(self.num_parallel),
            "OLLAMA_CONTEXT_LENGTH": str(self.num_ctx),
            "OLLAMA_FLASH_ATTENTION": "1" if self.flash_attn else "0",
        }

    def to_parameters(self) -> dict[str, Any]:
        """What the model carries."""
        said: dict[str, Any] = {"num_ctx": self.num_ctx}
        if self.num_thread:
            said["num_thread"] = self.num_thread
        if self.num_gpu >= 0:
            said["num_gpu"] = self.num_gpu
        if self.num_gpu and self.main_gpu:
            said["main_gpu"] = self.main_gpu
        return said


def ryzen_profile(cpu_cores: int = 16) -> OllamaHostingProfile:
    """The documented preset: four requests at once, all cores but two."""
    parallel = max(1, min(4, cpu_cores // 4))
    return OllamaHostingProfile("ryzen_optimized", parallel, 4096, num_thread=threads_for(cpu_cores))


def auto_profile(*, cores: int | None = None, ram_gb: float | None = None) -> OllamaHostingProfile:
    """What suits this machine; the facts may be given instead of looked up."""
    found = detect_hardware() if cores is None or ram_gb is None else None
    cores = found.cpu_cores if cores is None and found else cores or 1
    ram = found.ram_gb if ram_gb is None and found else ram_gb or 0.0
    gpu = found is not None and found.has_gpu
    return OllamaHostingProfile(
        name="auto_gpu" if gpu else "auto_cpu",
        num_parallel=max(1, min(4, cores // 4, int(ram // 4))),
        num_ctx=8192 if ram >= 32 else 4096 if ram >= 8 else 2048,
        num_gpu=-1 if gpu else 0,
        num_thread=threads_for(cores),
        flash_attn=gpu,
    )


def threads_for(cores: int) -> int:
    """All cores but two; on a small machine as many as leave it usable, and never none."""
    return max(1, cores - (FOR_THE_SYSTEM if cores > 2 * FOR_THE_SYSTEM else 1 if cores > 2 else 0))


def named_profile(name: str) -> OllamaHostingProfile:
    """`auto` or `ryzen`, as the export pipeline calls them."""
    if name == "auto":
        return auto_profile()
    if name in ("ryzen", "ryzen_optimized"):
        return ryzen_profile()
    raise ConfigError(f"there is no hosting profile {name!a}; there are auto and ryzen")
