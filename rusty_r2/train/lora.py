# SPDX-License-Identifier: AGPL-3.0-or-later
"""What every way of training a borrowed mind shares: the base model, LoRA on it, and TRL's arguments.

    rusty train kto --data kto.jsonl --base-model smollm2

`LoraOptions` are the options all methods have. `find_base` says what a base model's name means, before
anything heavy is loaded; `open_model` loads it; `lora_config` chooses the layers by architecture;
`arguments` are TRL's, filled from the machine (hardware.py) and valid together. fit.py starts the run's
folder (`begin`) and trains in it (`fit`). kto.py, sft.py, dpo.py and grpo.py are the methods.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from rusty_r2.errors import CheckpointError, ConfigError, need
from rusty_r2.hardware import EFFECTIVE_BATCH, HardwareConfig, detect_hardware
from rusty_r2.lm import smollm2
from rusty_r2.run import checkpoints, newest

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
RECOMMENDED = {"0.5B": "0.5B", "1.5B": "1.5B", "3B": "1.5B", "7B": "7B"}
"""Qwen2.5-Instruct by what the machine can train; the 3B one is not free to use, so its place is taken"""
TARGETS: dict[str, list[str] | str] = {"rusty_rwkv": ["key", "value", "receptance", "output"]}
"""layers that get LoRA where the architecture is not a transformer; transformers get it on every Linear"""
STAY_HOME = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
"""the user's own wish, before ours is put there"""
MAY_CHANGE = (
    *("data", "eval_data", "base_model", "output_dir", "epochs", "max_steps", "max_minutes", "batch_size"),
    *("accumulate", "precision", "device", "gradient_checkpointing", "log_interval", "ckpt_interval"),
    *("keep", "eval_rows", "eval_interval", "patience", "dry_run", "merge"),
)
"""options a resumed run may change; rows a step and the data itself are compared by fit.begin"""


@dataclass(frozen=True, kw_only=True)
class LoraOptions:
    """Options of every way to train a borrowed mind."""

    base_model: str = "auto"
    """a folder, a run of ours, a hub name, `smollm2`; auto: the Qwen2.5-Instruct that suits this machine"""
    output_dir: Path | None = None
    """the run's folder; default: the next free runs/METHOD-N"""
    resume: str = ""
    """auto: go on from the newest whole checkpoint of --output-dir, or start there; or a checkpoint"""
    epochs: float = 1.0
    """passes over the rows"""
    max_steps: int = 0
    """steps in all; 0: as many as --epochs make"""
    max_minutes: float = 0.0
    """save and end after this long, to be resumed later; 0: no limit"""
    learning_rate: float = 5e-5
    """the highest learning rate"""
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "linear"
    """how the learning rate falls after the warm-up"""
    warmup: float = 0.1
    """part of the steps in which the learning rate rises"""
    weight_decay: float = 0.01
    """pull of the adapter towards zero"""
    clip: float = 1.0
    """longest gradient; longer ones are scaled down to it"""
    batch_size: int = 0
    """rows that go through the model at once; 0: what suits this machine"""
    accumulate: int = 0
    """batches summed up in one step, over all processes; 0: about 8 rows a step"""
    max_length: int = 1024
    """tokens of a row; longer ones are left out, and counted"""
    lora_r: int = 0
    """rank of the adapter; 0: what suits this machine"""
    lora_alpha: int = 0
    """its scale; 0: twice the rank"""
    lora_dropout: float = 0.0
    """part of the adapter's inputs that is dropped in training"""
    lora_targets: tuple[str, ...] = ()
    """names of the layers that get an adapter; default: by architecture, every Linear of a transformer"""
    gradient_checkpointing: bool = False
    """compute activations twice instead of keeping them: much less memory, a third more time"""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """type of the multiplications; auto is the fastest this device has in hardware"""
    device: str = "auto"
    """auto, cpu, cuda"""
    log_interval: int = 1
    """steps between two lines of metrics"""
    ckpt_interval: int = 50
    """steps between two checkpoints; the last step and a stop are always saved"""
    keep: int = 2
    """checkpoints kept; 0: all"""
    eval_rows: int = 200
    """held-out rows (or tasks) that base and result are compared on; 0: no comparison"""
    merge: bool = False
    """write base and adapter as one model, too, to RUN/merged"""
    dry_run: bool = False
    """print every option with its value in force and what it would cost, and end"""
    seed: int = 42
    """of the adapter's weights, the order of the rows and the samples"""


@dataclass(frozen=True)
class Base:
    """What a base model's name means."""

    name: str
    """as it was given, after auto was decided"""
    path: str
    """what from_pretrained takes: a folder or a hub name"""
    adapters: tuple[Path, ...] = ()
    """adapters of ours to merge into it first, oldest first"""

    @property
    def remote(self) -> bool:
        """A hub name: the only case in which a network may be used."""
        return not Path(self.path).is_dir()

    @property
    def reference(self) -> str:
        """What a new adapter says it belongs to."""
        return str(self.adapters[-1].absolute()) if self.adapters else self.path


@dataclass(frozen=True)
class Shape:
    """How the rows of a step go through the model."""

    batch: int
    """rows at once on each process"""
    accumulate: int
    """batches of a step on each process"""
    processes: int = 1

    @property
    def rows(self) -> int:
        """rows of a step, over all processes"""
        return self.batch * self.accumulate * self.processes


def find_base(name: str, hardware: HardwareConfig | None = None) -> Base:
    """What to load, from a name; a folder that is none, or is not a model, is one line."""
    if name == "auto":
        size = (hardware or detect_hardware()).recommended_model_size
        name = f"Qwen/Qwen2.5-{RECOMMENDED.get(size, '0.5B')}-Instruct"
    if name == smollm2.NAME:
        return Base(name, str(smollm2.folder()))
    path = Path(name).expanduser()
    if path.is_dir():
        return _local(name, path)
    if path.name == "SmolLM2-135M-Instruct" and path.parent.name == "cache":  # made in another data home
        return Base(name, str(smollm2.folder()))
    missing = any(path.parent.glob("*/run.json"))  # the place of our runs: a slip, and nothing to fetch
    if missing or not HUB_NAME.fullmatch(name) or name.startswith("."):
        raise ConfigError(
            f"there is no base model {name!a}: neither a folder nor OWNER/NAME of the hub. "
            "Type: --base-model smollm2"
        )
    return Base(name, name)


def _local(name: str, path: Path) -> Base:
    """A model's folder, an adapter's, or a run with either in its newest checkpoint."""
    path = path.absolute()  # an adapter remembers its base by this, wherever it is used from
    if checkpoints(path):
        found = newest(path)
        if found is None:
            raise CheckpointError(f"{path} holds no whole checkpoint. Type: ls -d {path}/step_*")
        path = found
    if (path / "adapter_config.json").is_file():
        try:
            under = json.loads((path / "adapter_config.json").read_text())["base_model_name_or_path"]
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{path / 'adapter_config.json'} does not name its base: {error}"
            ) from error
        if Path(str(under)).expanduser().resolve() == path.resolve():
            raise CheckpointError(f"{path} names itself as its base. Give the real one: --base-model NAME")
        base = find_base(str(under))
        return Base(name, base.path, (*base.adapters, path))
    if not (path / "config.json").is_file():
        raise CheckpointError(f"{path} holds no model (no config.json). Type: --base-model smollm2")
    return Base(name, str(path))


def prepare_libraries(*, online: bool = False) -> None:
    """The borrowed libraries, kept quiet: no telemetry, no bars, no network unless asked."""
    online = online and not STAY_HOME
    for name, value in (
        ("HF_HUB_DISABLE_TELEMETRY", "1"),
        ("HF_HUB_OFFLINE", "0" if online else "1"),
        ("TRL_EXPERIMENTAL_SILENCE", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
    ):
        os.environ[name] = value
    for module in ("torch", "transformers", "trl", "peft", "datasets"):
        need(module, extra="lora")
    import datasets
    from huggingface_hub import constants
    from transformers.utils import logging as chatter

    constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_TELEMETRY = not online, True
    chatter.set_verbosity_error()
    chatter.disable_progress_bar()
    datasets.disable_progress_bars()
    for name in ("trl", "peft", "accelerate", "torch.distributed", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    import rusty_r2.lm.hf  # noqa: F401  (our own models are known by name from here on)


def open_config(base: Base) -> Any:
    """The base model's configuration; a name that leads nowhere ends here, in one line."""
    _prepare(base)
    from transformers import AutoConfig

    return _from_pretrained(AutoConfig, base)


def _prepare(base: Base) -> None:
    """The libraries for this base; without a network a fetched one is found at once, not after many tries."""
    prepare_libraries(online=base.remote)
    if base.remote and not STAY_HOME and not _answers():
        prepare_libraries(online=False)


def _answers() -> bool:
    """Whether the hub can be reached, as far as that can be told without asking it anything."""
    from huggingface_hub import constants

    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    place = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((place.hostname or "", place.port or 443), timeout=5).close()
    except OSError:
        return False
    return True


def open_tokenizer(base: Base) -> Any:
    """The base model's tokenizer, padding on the left, with a padding token."""
    _prepare(base)
    from transformers import AutoTokenizer

    tokenizer = _from_pretrained(AutoTokenizer, base, path=str(base.adapters[-1]) if base.adapters else None)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise ConfigError(f"the tokenizer of {base.name} has neither a padding nor an end token")
    tokenizer.padding_side = "left"
    return tokenizer


def open_model(options: LoraOptions, base: Base | None = None) -> tuple[Any, Any]:
    """The base model, adapters of earlier runs merged in, and its tokenizer."""
    from rusty_r2.train.session import choose_device

    base = base or find_base(options.base_model)
    tokenizer = open_tokenizer(base)
    from transformers import AutoModelForCausalLM

    device = choose_device(options.device)
    kernel = {"attn_implementation": "flash_attention_2"} if _has_flash(device) else {}
    model = _from_pretrained(AutoModelForCausalLM, base, dtype=dtype_of(options, device), **kernel)
    for adapter in base.adapters:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload(safe_merge=True)
    model.name_or_path = base.reference
    return model, tokenizer


def dtype_of(options: LoraOptions, device: str) -> Any:
    """The type of weights and products; always given, for TRL's own default is bf16 everywhere."""
    import torch

    from rusty_r2.train.session import choose_precision

    return choose_precision(options.precision, device) or torch.float32


def _has_flash(device: str) -> bool:
    from transformers.utils import is_flash_attn_2_available

    return device == "cuda" and bool(is_flash_attn_2_available())


def _from_pretrained(auto: Any, base: Base, path: str | None = None, **options: Any) -> Any:
    try:
        return auto.from_pretrained(
            path or base.path, local_files_only=not base.remote, trust_remote_code=False, **options
        )
    except (OSError, ValueError) as error:
        why = str(error).split("\n")[0]
        if base.remote:
            raise ConfigError(
                f"{base.name} could not be fetched from the hub ({why:.120}). "
                "Type: --base-model smollm2, which needs no network"
            ) from error
        raise CheckpointError(f"{base.path} could not be loaded: {why:.200}") from error


def lora_config(options: LoraOptions, model: Any, hardware: HardwareConfig | None = None) -> Any:
    """Which layers get an adapter, and how large."""
    from peft import LoraConfig

    known = hardware or detect_hardware()
    rank = options.lora_r or known.lora_r
    targets = list(options.lora_targets) or TARGETS.get(model.config.model_type, "all-linear")
    if isinstance(targets, list):
        ends = {name.rpartition(".")[2] for name, _ in model.named_modules()}
        missing = [name for name in targets if name.rpartition(".")[2] not in ends]
        if missing:
            raise ConfigError(
                f"{options.base_model} has no layer named {missing[0]!a}. Leave out --lora-targets"
            )
    return LoraConfig(
        r=rank,
        lora_alpha=options.lora_alpha or (known.lora_alpha if rank == known.lora_r else 2 * rank),
        lora_dropout=options.lora_dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )


def shape_of(
    options: LoraOptions, hardware: HardwareConfig | None = None, *, least: int = 1, processes: int = 1
) -> Shape:
    """Rows at once and batches a step that fit this machine, the method and each other."""
    known = hardware or detect_hardware()
    if 0 < options.batch_size < least:
        raise ConfigError(f"--batch-size must be at least {least} here, not {options.batch_size}")
    batch = options.batch_size or max(least, known.recommended_batch_size)
    accumulate = options.accumulate or max(1, math.ceil(EFFECTIVE_BATCH / batch))
    if accumulate % processes == 0:
        return Shape(batch, accumulate // processes, processes)
    if not options.accumulate:  # nobody asked for this number: round it up to whole batches for each
        return Shape(batch, math.ceil(accumulate / processes), processes)
    raise ConfigError(
        f"--accumulate {accumulate} cannot be shared by {processes} processes. Type: --accumulate {processes}"
    )


def arguments(options: LoraOptions, shape: Shape, *, folder: Path, steps: int) -> dict[str, Any]:
    """What TRL's configurations have in common, every default that would hurt here given a value."""
    import torch

    from rusty_r2.train.session import choose_device

    device = choose_device(options.device)
    dtype = dtype_of(options, device)
    return {
        "output_dir": str(folder / ".tmp-trainer"),  # what Run.start sweeps away after a kill
        "max_steps": steps,
        "per_device_train_batch_size": shape.batch,
        "gradient_accumulation_steps": shape.accumulate,
        "learning_rate": options.learning_rate,
        "lr_scheduler_type": options.schedule,
        "warmup_steps": int(options.warmup * steps),  # the first step of a warm-up would learn nothing
        "weight_decay": options.weight_decay,
        "max_grad_norm": options.clip,
        "gradient_checkpointing": options.gradient_checkpointing,
        "use_cpu": device == "cpu",
        "bf16": dtype == torch.bfloat16,
        "fp16": dtype == torch.float16,
        "logging_steps": options.log_interval,
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_steps": options.ckpt_interval,
        "report_to": [],
        "disable_tqdm": True,
        "seed": options.seed,
        "data_seed": options.seed,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": device == "cuda",
        "ddp_find_unused_parameters": False,
    }
