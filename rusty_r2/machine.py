# SPDX-License-Identifier: AGPL-3.0-or-later
"""Facts read off the machine: processor, memory, disk, GPU; on Linux and macOS, inside containers too.

Every reader takes the folder that stands for `/`, so a test can show it another machine. Nothing is
imported that is heavy and nothing is created. What the facts mean is for hardware.py.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
GIB = 1 << 30
UNLIMITED = 1 << 60
"""cgroup v1 writes a number near 2**63 where nothing is limited"""

ARM_PARTS = {
    "0x41": {
        "0xd03": "Cortex-A53",
        "0xd08": "Cortex-A72",
        "0xd0b": "Cortex-A76",
        "0xd0c": "Neoverse-N1",
        "0xd40": "Neoverse-V1",
        "0xd49": "Neoverse-N2",
        "0xd4f": "Neoverse-V2",
        "0xd84": "Neoverse-V3",
        "0xd8e": "Neoverse-N3",
    },
    "0xc0": {"0xac3": "Ampere-1", "0xac4": "Ampere-1A"},
}


@dataclass(frozen=True)
class Cpu:
    name: str
    cores: int
    threads: int
    flags: frozenset[str]


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_gb: float
    capability: float = 0.0
    kind: str = "cuda"
    """cuda or rocm"""


def cpu(root: Path = ROOT) -> Cpu:
    if sys.platform == "darwin" and root == ROOT:
        return _mac_cpu()
    info = _read(root / "proc/cpuinfo")
    fields = dict(re.findall(r"^([\w ]+?)\s*:\s*(.*)$", info, re.M))
    name = fields.get("model name") or fields.get("Model") or _arm_name(fields) or "unknown CPU"
    flags = frozenset((fields.get("flags") or fields.get("Features") or "").split())
    allowed = _allowed_cpus(root)
    quota = _cpu_quota(root)
    threads = max(1, min(len(allowed), quota))
    cores = len({_siblings(root, number) for number in allowed})
    return Cpu(re.sub(r"\s+", " ", name).strip(), max(1, min(cores, threads)), threads, flags)


def memory_gb(root: Path = ROOT) -> tuple[float, float]:
    """Total and free memory, of the container where that is smaller than the machine."""
    if sys.platform == "darwin" and root == ROOT:
        total = float(_said("sysctl", "-n", "hw.memsize") or 8 * GIB) / GIB
        return total, total / 2
    kib = {
        name: int(size)
        for name, size in re.findall(r"^(\w+):\s+(\d+) kB", _read(root / "proc/meminfo"), re.M)
    }
    total, free = kib.get("MemTotal", 8 << 20) * 1024, kib.get("MemAvailable", 4 << 20) * 1024
    for group in _cgroups(root, "memory"):
        limit = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
        used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
        if limit and limit < UNLIMITED:
            total, free = min(total, limit), min(free, max(0, limit - used))
    return round(total / GIB, 2), round(free / GIB, 2)


def free_disk_gb(path: Path) -> float:
    """Free space where `path` is, or would be."""
    there = next((p for p in (path, *path.absolute().parents) if p.exists()), Path.cwd())
    return round(shutil.disk_usage(there).free / GIB, 2)


def gpu(root: Path = ROOT) -> Gpu | None:
    return _nvidia() or _amd(root)


def torch_can_use(found: Gpu) -> bool:
    """Whether the installed torch was built for this kind of GPU, read from its version file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return True
    text = _read(Path(spec.submodule_search_locations[0]) / "version.py")
    built_for: dict[str, str] = dict(re.findall(r"^(cuda|hip)\b[^=\n]*=\s*(.+)$", text, re.M))
    return built_for.get("hip" if found.kind == "rocm" else "cuda", "None").strip() != "None"


def _nvidia() -> Gpu | None:
    if shutil.which("nvidia-smi") is None:
        return None
    asked = "--query-gpu=name,memory.total,compute_cap"
    said = _said("nvidia-smi", asked, "--format=csv,noheader,nounits")
    try:
        name, mib, capability = (part.strip() for part in said.splitlines()[0].split(","))
        return Gpu(name, round(float(mib) / 1024, 1), float(capability))
    except (IndexError, ValueError):
        return None


def _amd(root: Path) -> Gpu | None:
    for node in sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")):
        if re.search(r"^gfx_target_version [1-9]", _read(node), re.M):
            sizes = [
                _number(p) or 0 for p in (root / "sys/class/drm").glob("card*/device/mem_info_vram_total")
            ]
            return Gpu("AMD GPU", round(max(sizes, default=0) / GIB, 1), kind="rocm")
    return None


def _mac_cpu() -> Cpu:
    threads = int(_said("sysctl", "-n", "hw.logicalcpu") or 1)
    cores = int(_said("sysctl", "-n", "hw.physicalcpu") or threads)
    features = _said("sysctl", "hw.optional", "machdep.cpu.features", "machdep.cpu.leaf7_features").lower()
    flags = set(re.findall(r"avx2|avx512f", features))
    if re.search(r"feat_bf16: 1", features):
        flags.add("bf16")
    return Cpu(
        _said("sysctl", "-n", "machdep.cpu.brand_string") or "Apple CPU", cores, threads, frozenset(flags)
    )


def _arm_name(fields: dict[str, str]) -> str:
    maker, part = fields.get("CPU implementer", ""), fields.get("CPU part", "")
    return ARM_PARTS.get(maker, {}).get(part) or (f"ARM {maker}/{part}" if part else "")


def _allowed_cpus(root: Path) -> set[int]:
    if root == ROOT and hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return {int(n) for n in re.findall(r"^processor\s*:\s*(\d+)", _read(root / "proc/cpuinfo"), re.M)} or {0}


def _siblings(root: Path, number: int) -> str:
    """What cpus share a core with this one, as one word; itself where the kernel does not say."""
    return _read(root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list") or str(number)


def _cpu_quota(root: Path) -> int:
    """Whole cpus the tightest cgroup allows."""
    least = 1 << 20
    for group in _cgroups(root, "cpu"):
        words = _read(group / "cpu.max").split()
        quota = words[0] if words else str(_number(group / "cpu.cfs_quota_us") or "")
        period = words[1] if len(words) > 1 else str(_number(group / "cpu.cfs_period_us") or 100_000)
        if quota.isdecimal() and int(period) > 0:
            least = min(least, max(1, int(quota) // int(period)))
    return least


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """The cgroup folders that bind this process, from its own up to the top, v2 and v1."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if names else "")
        here = top / path.lstrip("/")
        yield from (group for group in (here, *here.parents) if group == top or top in group.parents)


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _said(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
