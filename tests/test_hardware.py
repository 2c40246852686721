"""Explicit wins, tables as documented, and machines that are not this one."""

import subprocess
import sys
from pathlib import Path

import pytest

from rusty_r2 import machine
from rusty_r2.hardware import HardwareConfig, HardwareProfile, detect_hardware, get_ryzen_optimized_config


def test_what_is_given_is_kept_and_the_rest_derived():
    given = HardwareConfig(lora_r=99, num_generations=7, ram_gb=64)
    assert (given.lora_r, given.num_generations) == (99, 7)
    assert (given.recommended_batch_size, given.recommended_model_size) == (4, "3B")
    assert HardwareConfig(use_bf16=True).use_bf16 and HardwareConfig(ram_gb=64, lora_r=8).lora_alpha == 16


@pytest.mark.parametrize(
    ("ram", "expected"),
    [
        (64, (4, "3B", 16, 32, 8)),
        (40, (2, "1.5B", 16, 32, 6)),
        (16, (1, "0.5B", 8, 16, 4)),
        (8, (1, "0.5B", 4, 8, 2)),
    ],
)
def test_the_ram_table(ram, expected):
    c = HardwareConfig(ram_gb=ram)
    assert (
        c.recommended_batch_size,
        c.recommended_model_size,
        c.lora_r,
        c.lora_alpha,
        c.num_generations,
    ) == expected


@pytest.mark.parametrize(
    ("vram", "expected"), [(24, ("7B", 8, 32, 64)), (16, ("3B", 4, 16, 32)), (8, ("1.5B", 2, 16, 32))]
)
def test_the_vram_table(vram, expected):
    c = HardwareConfig(has_gpu=True, cuda_available=True, gpu_vram_gb=vram, gpu_capability=8.0)
    assert (c.recommended_model_size, c.recommended_batch_size, c.lora_r, c.lora_alpha) == expected


def test_the_type_follows_what_the_processor_can_do():
    assert HardwareConfig(has_avx2=True, has_avx512=True).get_torch_dtype() == "float32"
    assert HardwareConfig(has_cpu_bf16=True).get_torch_dtype() == "bfloat16"
    gpu = {"has_gpu": True, "cuda_available": True, "gpu_vram_gb": 16}
    assert HardwareConfig(**gpu, gpu_capability=7.5).get_torch_dtype() == "float16"
    assert HardwareConfig(**gpu, gpu_capability=9.0).get_torch_dtype() == "bfloat16"
    assert HardwareConfig(has_gpu=True, cuda_available=False).to_training_args()["use_cpu"] is True


def test_the_ryzen_preset_is_as_documented_and_valid():
    c = get_ryzen_optimized_config()
    assert (c.cpu_cores, c.cpu_threads, c.profile) == (16, 32, HardwareProfile.RYZEN_OPTIMIZED)
    assert (c.recommended_batch_size, c.recommended_model_size, c.num_generations) == (2, "1.5B", 6)
    assert c.use_bf16 is False  # Zen 3 has no bf16 arithmetic
    assert "5950X" in c.summary()


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("generations", [2, 3, 4, 6, 7, 8])
def test_a_grpo_step_is_made_of_whole_groups(batch, generations):
    c = HardwareConfig(recommended_batch_size=batch, num_generations=generations).to_grpo_config()
    rows = c["per_device_train_batch_size"] * c["gradient_accumulation_steps"]
    assert rows % generations == 0 and rows >= 8 // batch * batch


def test_detection_creates_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RUSTY_HOME", str(tmp_path / "home"))
    found = detect_hardware()
    assert found.cpu_name and found.cpu_cores >= 1 and found.ram_gb > 0 and found.storage_free_gb > 0
    assert not (tmp_path / "home").exists()


def test_detection_does_not_import_torch():
    program = "import sys, rusty_r2.hardware as h; h.detect_hardware(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


X86 = "\n".join(
    f"processor\t: {n}\nmodel name\t: AMD Ryzen 9 5950X 16-Core Processor\nflags\t\t: fpu sse2 avx2 fma\n"
    for n in range(4)
)
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"


def test_an_x86_machine_with_two_threads_a_core(tmp_path):
    topology = {
        f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": f"{n % 2},{n % 2 + 2}\n"
        for n in range(4)
    }
    cpu = machine.cpu(lay(tmp_path, {"proc/cpuinfo": X86, **topology}))
    assert (cpu.cores, cpu.threads) == (2, 4) and "5950X" in cpu.name and "avx2" in cpu.flags


def test_an_arm_machine_has_a_name_and_features(tmp_path):
    cpu = machine.cpu(lay(tmp_path, {"proc/cpuinfo": ARM}))
    assert cpu.name == "Neoverse-V2" and "bf16" in cpu.flags


def test_a_container_counts(tmp_path):
    root = lay(
        tmp_path,
        {
            "proc/cpuinfo": X86,
            "proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 60000000 kB\n",
            "proc/self/cgroup": "0::/box/inner\n",
            "sys/fs/cgroup/box/memory.max": str(4 << 30),
            "sys/fs/cgroup/box/memory.current": str(1 << 30),
            "sys/fs/cgroup/box/inner/memory.max": "max\n",
            "sys/fs/cgroup/box/cpu.max": "150000 100000\n",
        },
    )
    assert machine.memory_gb(root) == (4.0, 3.0)
    assert machine.cpu(root).threads == 1


def test_an_old_cgroup_counts_too(tmp_path):
    root = lay(
        tmp_path,
        {
            "proc/cpuinfo": X86,
            "proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 60000000 kB\n",
            "proc/self/cgroup": "3:cpu,cpuacct:/a\n4:memory:/a\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(2 << 30),
            "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "300000",
            "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
        },
    )
    assert machine.memory_gb(root)[0] == 2.0 and machine.cpu(root).threads == 3


def test_who_asks_for_fp16_gets_no_bf16_beside_it():
    asked = HardwareConfig(has_cpu_bf16=True, use_fp16=True)
    assert asked.use_fp16 and not asked.use_bf16
