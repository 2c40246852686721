# SPDX-License-Identifier: AGPL-3.0-or-later
"""One call of `rusty train supervised`: the parts put together, and what happens between steps.

`Session` opens the data, starts or resumes the run's folder, builds the model and its optimizer, hands
them to the loop (loop.py), and between steps evaluates, writes a sample, saves, and listens for a stop.
The options are supervised.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import torch

from rusty_r2.errors import ConfigError
from rusty_r2.hardware import detect_hardware
from rusty_r2.lm import checkpoint, native
from rusty_r2.lm.rwkv import PRESETS, TinyRWKVLM
from rusty_r2.lm.tokenizer import END, EOS, VOCAB
from rusty_r2.run import Run
from rusty_r2.train import resume
from rusty_r2.train.batches import Source
from rusty_r2.train.distributed import World
from rusty_r2.train.loop import Stop, Trainer, mean_loss
from rusty_r2.train.optim import Descent, groups, keep_words, learning_rate, optimizer
from rusty_r2.train.progress import Progress, stopped
from rusty_r2.train.sources import Ask, open_data
from rusty_r2.train.supervised import MAY_CHANGE, SupervisedConfig, start_of, where

SAMPLE_PROMPT = 16
"""held-out tokens that a sample goes on from"""
SAMPLE_SHOWN = 200
"""characters of them that are shown"""


def choose_device(asked: str) -> str:
    """auto is the GPU where torch can use one."""
    found = "cuda" if torch.cuda.is_available() else "cpu"
    if asked == "auto":
        return found
    if asked not in ("cpu", "cuda"):
        raise ConfigError(f"there is no device {asked!a}. Type: --device auto")
    if asked == "cuda" and found != "cuda":
        raise ConfigError("--device cuda: this torch sees no GPU. Type: rusty doctor, or --device cpu")
    return asked


def choose_precision(asked: str, device: str) -> torch.dtype | None:
    """The type to multiply in; None where it is the weights' own fp32."""
    if asked == "fp16" and device == "cpu":
        raise ConfigError("fp16 on a CPU is many times slower than fp32. Type: --precision fp32")
    if asked == "auto" and device == "cuda":
        asked = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    elif device == "cpu" and asked in ("auto", "bf16"):
        able = detect_hardware().has_cpu_bf16
        if asked == "bf16" and not able:
            raise ConfigError("this CPU has no bf16 instructions: it would crawl. Type: --precision fp32")
        asked = "bf16" if able else "fp32"
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[asked]


class Session:
    """One call of `train`: the parts put together, and what happens between steps."""

    def __init__(self, config: SupervisedConfig, world: World) -> None:
        self.config, self.world, self.stop = config, world, Stop()
        self.deadline = time.monotonic() + (config.max_minutes * 60 or float("inf"))
        self.rows = config.batch_size * config.grad_accum_steps
        self.progress = Progress(config.max_steps, until=self.deadline, quiet=not world.first)
        ask = Ask(config.seq_len, self.rows, config.seed, config.carry_state, config.eval_tokens)
        self.words = self._tokenizer_path()
        self.data, self.tokenizer = open_data(config.data_dir, self.words, world, ask)
        self.run, self.folder, self.resumed_from = self._start_run()

    def go(self) -> Path:
        with contextlib.nullcontext() if self.run is None else self.run:
            self.trainer = self._trainer()
            self.progress.say(self._introduction())
            with self.stop:
                self.trainer.fit(self._after_step)
            if self.run is not None and self.trainer.step < self.config.max_steps:
                self.run.close("stopped")
        self.progress.close()
        self.progress.say(self._farewell())
        return self.folder

    def _start_run(self) -> tuple[Run | None, Path, Path | None]:
        """The first process keeps the run's folder; the others hear where it is."""
        run = None
        if self.world.first:
            resume, folder = where(self.config)
            run = Run.start("supervised", self.config, folder=folder, resume=resume, may_change=MAY_CHANGE)
        folder, resumed_from = self.world.tell((run.folder, run.resumed_from) if run else (Path(), None))
        return run, folder, resumed_from

    def _tokenizer_path(self) -> Path | None:
        """The tokenizer asked for, else that of the checkpoint to start from; None: the one that ships."""
        start = start_of(self.config)
        kept = start is not None and (start / "tokenizer.json").is_file()
        return self.config.tokenizer_path or (start if kept else None)

    def _trainer(self) -> Trainer:
        config, world = self.config, self.world
        torch.set_float32_matmul_precision("high" if world.device.type == "cuda" else "highest")
        native.keep_memory()
        torch.manual_seed(config.seed)
        model = self._model().to(world.device)
        world.copy([*model.parameters()])
        autocast = choose_precision(config.precision, world.device.type)
        inner = optimizer(
            config.optimizer,
            groups(model, weight_decay=config.weight_decay, layer_lr=config.layer_lr),
            betas=(0.9, config.beta2),
        )
        trainer = Trainer(
            model=model,
            trunk=torch.compile(model.trunk) if config.compile else model.trunk,
            source=self.data.train,
            descent=Descent(inner, clip=config.clip, half=autocast == torch.float16),
            world=world,
            progress=self.progress,
            rows=self.rows,
            micro=max(1, config.batch_size // world.size),
            max_steps=config.max_steps,
            rate=self._rate,
            autocast=autocast,
            carried=model.initial_state(len(world.share(self.rows))) if config.carry_state else None,
            record=config.record and not config.compile,
            log=self._log,
            log_interval=config.log_interval,
        )
        if self.resumed_from is not None:
            resume.restore(trainer, self.resumed_from, facts=self._facts())
        return trainer

    def _model(self) -> TinyRWKVLM:
        """New, or with the weights of a checkpoint; what supervised training cannot teach is left alone."""
        start = self.resumed_from or self.config.init
        if start is not None:
            model = checkpoint.load(start, device="cpu", dtype=torch.float32)
        else:
            size = self.config.preset
            size = {"cuda": "tiny", "cpu": "nano"}[self.world.device.type] if size == "auto" else size
            if size not in PRESETS:
                raise ConfigError(f"there is no preset {size!a}; there are {', '.join(PRESETS)}")
            model = TinyRWKVLM.of(PRESETS[size], vocab_size=len(self.tokenizer))
        again = self.config.gradient_checkpointing
        model.config = dataclasses.replace(model.config, gradient_checkpointing=again)
        model.value_head.requires_grad_(False)
        keep_words(model, self.config.freeze_words)
        return model.train()

    def _rate(self, step: int) -> float:
        config = self.config
        return learning_rate(
            step,
            peak=config.lr,
            total=config.max_steps,
            warmup=int(config.warmup_pct * config.max_steps),
            floor=config.min_lr_ratio,
            shape=config.schedule,
        )

    def _facts(self) -> dict[str, Any]:
        """What must be the same for a resumed run to be the same run."""
        return {"optimizer": self.config.optimizer, "data": self.data.fingerprint}

    def _after_step(self, last: bool) -> bool:
        config, step = self.config, self.trainer.step
        stopping = self.world.any(bool(self.stop.asked) or time.monotonic() > self.deadline)
        began = time.monotonic()
        if last or (config.eval_interval and step % config.eval_interval == 0):
            self._evaluate()
        if last or stopping or step % config.ckpt_interval == 0:
            self._save()
        self.progress.pause(time.monotonic() - began)
        return stopping

    def _log(self, step: int, facts: dict[str, float]) -> None:
        if self.run is not None:
            self.run.log(step, facts)

    def _evaluate(self) -> None:
        held_out = self.data.held_out
        if held_out is None:
            return
        self.trainer.read_log(wait=True)
        loss = mean_loss(self.trainer, held_out.source, steps=held_out.steps, rows=held_out.rows)
        bits = loss / math.log(2) / held_out.bytes_per_token
        self._log(self.trainer.step, {"eval/loss": loss, "eval/bits_per_byte": bits})
        self.progress.say(f"step {self.trainer.step:,}: {bits:.4f} bits per byte on held-out text")
        if self.run is not None and self.config.sample_tokens:
            text = self._sample(held_out.source)
            self.run.text(self.trainer.step, "sample", text)
            self.progress.say(f"held-out text ▸ how it goes on: {text}")

    def _sample(self, source: Source) -> str:
        """What the model makes of the beginning of a held-out row, or of the request in it."""
        row = source.rows(0, range(1))
        asked = row.ids[0, : max(SAMPLE_PROMPT, int(row.mask[0].argmax()) + 1)].tolist()
        tokens, seed = self.config.sample_tokens, self.config.seed
        made = continuation(self.trainer.model, asked, tokens=tokens, seed=seed)
        return f"{self.tokenizer.decode(asked)[-SAMPLE_SHOWN:]} ▸ {self.tokenizer.decode(made)}"

    def _save(self) -> None:
        trainer = self.trainer
        trainer.read_log(wait=True)
        carried = None if trainer.carried is None else self.world.gather(trainer.carried, dim=resume.ROWS)
        if self.run is not None:
            with self.run.checkpoint(trainer.step, keep=self.config.keep) as folder:
                checkpoint.save(folder, trainer.model, tokenizer=self.words or VOCAB)
                resume.save(trainer, folder, carried=carried, facts=self._facts())
        self.world.tell(None)  # nobody goes on before it is whole

    def _introduction(self) -> str:
        config, trainer = self.config, self.trainer
        size = sum(parameter.numel() for parameter in trainer.model.parameters())
        kind = str(trainer.autocast or torch.float32).removeprefix("torch.")
        step_tokens = self.rows * config.seq_len
        passes = config.max_steps * step_tokens / self.data.tokens
        return (
            f"{size / 1e6:.1f} M parameters on {self.world.size} x {self.world.device.type} in {kind}; "
            f"{step_tokens:,} tokens a step, {passes:.2g} passes over {self.data.tokens:,}; {self.folder}"
            + (f" from step {trainer.step}" if trainer.step else "")
            + (f"\n{self.data.note}" if self.data.note else "")
        )

    def _farewell(self) -> str:
        step, made = self.trainer.step, self.folder
        if step < self.config.max_steps:
            again = (
                f"rusty train supervised --config {made}/config.json --checkpoints-dir {made} --resume auto"
            )
            return stopped(f"at step {step:,}", again)
        return f"next: rusty lm generate --checkpoint {made / f'step_{step:06d}'}"


@torch.no_grad()
def continuation(model: TinyRWKVLM, prompt: list[int], *, tokens: int, seed: int) -> list[int]:
    """Tokens drawn one by one at temperature 0.8, by chance of its own: the same for the same seed."""
    chance = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    made: list[int] = []
    ids, state = torch.tensor([prompt], device=device), model.initial_state(1)
    for _ in range(tokens):
        logits, _, state = model(ids, state)
        odds = torch.softmax(logits[0, -1].float().cpu() / 0.8, dim=-1)
        made.append(int(torch.multinomial(odds, 1, generator=chance)))
        if made[-1] in (EOS, END):
            break
        ids = torch.tensor([[made[-1]]], device=device)
    return made
