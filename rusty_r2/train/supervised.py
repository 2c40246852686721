# SPDX-License-Identifier: AGPL-3.0-or-later
"""Supervised training of TinyRWKVLM: text or episodes become weights.

    rusty train supervised --data-dir my-shards --preset nano --max-steps 500
    torchrun --nproc_per_node 2 -m rusty_r2.cli train supervised --data-dir my-shards …

This page is the options. session.py puts the parts together, loop.py is the loop, optim.py one step of
it, sources.py what a data folder may be, resume.py stopping and going on. A step sees batch_size ×
grad_accum_steps rows in all, on one process or many, so the same command learns the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rusty_r2.errors import ConfigError, need
from rusty_r2.run import checkpoints, newest


@dataclass(frozen=True)
class SupervisedConfig:
    """Train TinyRWKVLM on token shards, raw text, or episodes."""

    data_dir: Path
    """a folder of token shards, a folder of text (made into shards first), or an episodes .jsonl"""
    tokenizer_path: Path | None = None
    """tokenizer folder or tokenizer.json; default: the starting checkpoint's, else the one that ships"""
    preset: str = "auto"
    """model size: nano, micro, tiny, small, base; auto is tiny on a GPU and nano on a CPU"""
    init: Path | None = None
    """start from the weights of this checkpoint (a fresh optimizer and schedule)"""
    max_steps: int = 1000
    """steps in all; the schedule ends there"""
    max_minutes: float = 0.0
    """save and end after this long, to be resumed later; 0: no limit"""
    batch_size: int = 8
    """rows that go through the model at once, over all processes; halved when memory runs out"""
    grad_accum_steps: int = 1
    """batches summed up in one step"""
    seq_len: int = 256
    """tokens of a row"""
    carry_state: bool = False
    """rows go on where the step before left them, and remember (truncated backpropagation through time)"""
    gradient_checkpointing: bool = False
    """compute activations twice instead of keeping them: less memory, more time"""
    lr: float = 2e-3
    """the highest learning rate"""
    min_lr_ratio: float = 0.1
    """where the schedule ends, as a part of --lr"""
    schedule: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    """how the learning rate falls after the warm-up"""
    warmup_pct: float = 0.05
    """part of the steps in which the learning rate rises"""
    weight_decay: float = 0.1
    """pull of matrices towards zero; other parameters have none"""
    layer_lr: bool = True
    """time_decay learns twice, time_first three times as fast"""
    freeze_words: bool = False
    """leave the tables of words (embedding and head) as they are: less work, and a smaller patch to ship"""
    clip: float = 1.0
    """longest gradient; longer ones are scaled down to it; 0: no limit"""
    beta2: float = 0.99
    """memory of AdamW's second moment"""
    optimizer: Literal["adamw", "adamw8bit"] = "adamw"
    """adamw8bit keeps a quarter of the optimizer's memory (bitsandbytes)"""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """type of the multiplications; auto is the fastest this device has in hardware"""
    checkpoints_dir: Path | None = None
    """the run's folder; default: the next free runs/supervised-N"""
    resume: str = ""
    """auto: go on from the newest whole checkpoint of --checkpoints-dir, or start there; or a checkpoint"""
    resume_from_checkpoint: Path | None = None
    """go on from this checkpoint (or the newest one of this run)"""
    log_interval: int = 20
    """steps between two lines of metrics"""
    ckpt_interval: int = 1000
    """steps between two checkpoints; the last step and a stop are always saved"""
    keep: int = 3
    """checkpoints kept; 0: all"""
    eval_interval: int = 500
    """steps between two evaluations on held-out text; 0: only at the end"""
    eval_tokens: int = 100_000
    """held-out tokens an evaluation reads"""
    sample_tokens: int = 48
    """tokens of sample text written at each evaluation; 0: none"""
    compile: bool = False
    """torch.compile the model (on a GPU the fused kernels, which it replaces, are faster)"""
    record: bool = True
    """on a GPU: record a step's launches once and play them again (steps whose every token is supervised)"""
    device: str = "auto"
    """auto, cpu, cuda"""
    seed: int = 42
    """of the weights, the order of the data and the samples"""


MAY_CHANGE = (
    *("max_steps", "max_minutes", "batch_size", "grad_accum_steps", "gradient_checkpointing", "precision"),
    *("data_dir", "tokenizer_path", "checkpoints_dir", "resume_from_checkpoint", "init", "preset"),
    *("log_interval", "ckpt_interval", "keep", "eval_interval", "eval_tokens", "sample_tokens"),
    *("compile", "record", "device"),
)
"""options a resumed run may change; rows a step and the data itself are compared by resume.py"""


def train(config: SupervisedConfig) -> Path:
    """Train, and return the run's folder."""
    _check(config)
    _look(config.data_dir)
    need("torch", extra="train")
    from rusty_r2.train.distributed import join
    from rusty_r2.train.session import Session, choose_device

    with join(choose_device(config.device)) as world:
        return Session(config, world).go()


def _check(config: SupervisedConfig) -> None:
    for name in ("max_steps", "batch_size", "grad_accum_steps", "seq_len", "log_interval", "ckpt_interval"):
        if getattr(config, name) < 1:
            raise ConfigError(f"--{name} must be at least 1, not {getattr(config, name)}")
    intervals = ("keep", "eval_interval", "eval_tokens", "sample_tokens")
    for name in ("lr", "max_minutes", "weight_decay", "clip", *intervals):
        if not getattr(config, name) >= 0:
            raise ConfigError(f"--{name} cannot be negative")
    if not 0 <= config.beta2 < 1:
        raise ConfigError(f"--beta2 is from 0 up to 1, not {config.beta2}")
    if not 0 <= config.warmup_pct <= 1 or not 0 <= config.min_lr_ratio <= 1:
        raise ConfigError("--warmup_pct and --min_lr_ratio are parts of a whole: 0 to 1")
    if config.init and (config.resume_from_checkpoint or config.resume not in ("", "auto")):
        raise ConfigError("--init starts anew, --resume goes on: give one of them")


def _look(data: Path) -> None:
    """What is plainly no data is said before torch is read, which takes seconds."""
    if not data.exists():
        raise ConfigError(f"{data} does not exist. Make a corpus: rusty data corpus --output-dir {data}")
    if (data / "unfinished").is_dir() and not (data / "manifest.json").exists():
        raise ConfigError(
            f"{data} is a corpus that was not finished. Go on with the command that began it: "
            f"rusty data corpus --output-dir {data} and its other options"
        )


def where(config: SupervisedConfig) -> tuple[str, Path | None]:
    """What to resume ("", auto, or a path), and the run's folder (None: a new one)."""
    named = config.resume_from_checkpoint
    if named is None and config.resume not in ("", "auto"):
        named = Path(config.resume)
    if named is not None:
        own = named if checkpoints(named) else named.parent
        return str(named), config.checkpoints_dir or own
    if config.resume == "auto" and config.checkpoints_dir is None:
        earlier = [path for path in Path("runs").glob("supervised-*") if path.name[11:].isdecimal()]
        return "auto", max(earlier, key=lambda path: int(path.name[11:]), default=None)
    return config.resume, config.checkpoints_dir


def start_of(config: SupervisedConfig) -> Path | None:
    """The checkpoint whose weights come first, where there is one."""
    resume, folder = where(config)
    if resume == "auto":
        found = newest(folder) if folder is not None else None
    elif resume:
        found = newest(Path(resume)) if checkpoints(Path(resume)) else Path(resume)
    else:
        found = None
    return found or config.init
