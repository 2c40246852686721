# SPDX-License-Identifier: AGPL-3.0-or-later
"""The loop of supervised training: read `Trainer.fit` first, then `_learn`.

A step sees a fixed set of rows. They are taken a few at a time (`micro`, halved when memory runs out),
by one process or several, and their gradients are summed and divided by the number of supervised
tokens of the whole step, so none of these choices changes what is learned. Numbers for the log stay
on the device until they arrive by themselves; nothing here waits for a GPU inside a step.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from rusty_r2.errors import TrainingError
from rusty_r2.lm.loss import linear_cross_entropy
from rusty_r2.lm.rwkv import TinyRWKVLM
from rusty_r2.train.batches import Batch, Feeder, Source
from rusty_r2.train.distributed import World
from rusty_r2.train.optim import Descent
from rusty_r2.train.progress import Progress
from rusty_r2.train.recorded import Recorded

PERSISTENT = 20
"""steps in a row that are not finite before the run gives up (fp16 needs a few to find its loss scale)"""


@dataclass
class Trainer:
    """A model, what it learns from, and where it is. What to do besides learning is given as hooks."""

    model: TinyRWKVLM
    trunk: Callable[..., tuple[Tensor, Tensor]]
    """`model.trunk`, or what a compiler made of it"""
    source: Source
    descent: Descent
    world: World
    progress: Progress
    rows: int
    """of a step, over all processes"""
    micro: int
    """rows that go through the model at once"""
    max_steps: int
    rate: Callable[[int], float]
    """the learning rate of a step"""
    autocast: torch.dtype | None = None
    """multiply in this type; None: in the weights' own"""
    carried: Tensor | None = None
    """with state carried from window to window: what each of this process's rows remembers"""
    record: bool = False
    """on a GPU: play steps of one shape from a recording"""
    log: Callable[[int, dict[str, float]], None] = lambda step, facts: None
    log_interval: int = 20
    step: int = field(init=False, default=0)
    """steps done"""
    tokens: int = field(init=False, default=0)
    """tokens seen, over all processes"""
    window: Tensor = field(init=False)
    """summed loss and supervised tokens since the last log"""

    def __post_init__(self) -> None:
        self.window = torch.zeros(2, device=self.world.device)
        self._gauge = Gauge()
        self._recorded = None
        if self.record and self.world.device.type == "cuda":
            self._recorded = Recorded(self._gradients_of, self.descent.parameters())
        self._said_skipped = 0.0
        self.begin_at(0, 0)

    def begin_at(self, step: int, tokens: int) -> None:
        """Be where an earlier try has been."""
        self.step, self.tokens, self._began = step, tokens, tokens
        self.progress.begin_at(step)

    def fit(self, after_step: Callable[[bool], bool]) -> None:
        """Learn until `max_steps`, or until `after_step(last)` asks to stop."""
        which = self.world.share(self.rows)
        feeder = Feeder(
            self.source, start=self.step, stop=self.max_steps, which=which, device=self.world.device
        )
        with closing(feeder):
            for batch in feeder:
                self._learn(batch)
                last = self.step == self.max_steps
                if self.step % self.log_interval == 0 or last:
                    self._report()
                self.read_log(wait=last)
                if after_step(last):
                    break
        self.read_log(wait=True)

    def _learn(self, batch: Batch) -> None:
        """One step: the gradients of all rows, summed over all processes, and down we go."""
        nll, carried = self._gradients(batch)
        facts = torch.stack([nll, torch.full_like(nll, batch.supervised)])
        self.world.sum([facts, *self.descent.gradients()])
        nominal = self.rows * batch.ids.shape[1]
        self._norm = self.descent.step(self.rate(self.step), divisor=facts[1].clamp(min=1) / nominal)
        self.window += facts
        self.carried = carried
        self.step += 1
        self.tokens += nominal

    def _gradients(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Summed loss of this process's rows, and what they remember; the gradients are in the parameters."""
        while True:
            try:
                return self._try_gradients(batch)
            except (RuntimeError, MemoryError) as error:
                ran_out = _out_of_memory(error)
                if not ran_out:
                    raise
            self._take_fewer(ran_out)  # outside of `except`, which would keep the failed try's tensors alive

    def _try_gradients(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        if self._recorded is not None and len(batch.ids) <= self.micro and batch.whole:
            return self._recorded.play(batch, self.carried)
        total = torch.zeros((), device=self.world.device)
        after = []
        for where, part in batch.parts(self.micro):
            nll, state = self._gradients_of(part, None if self.carried is None else self.carried[:, :, where])
            total += nll
            if state is not None:
                after.append(state)
        return total, torch.cat(after, dim=2) if after else None

    def _gradients_of(self, part: Batch, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
        nll, state = self.loss(part, before)
        self.descent.backward(nll / (self.rows * part.ids.shape[1]))
        return nll.detach(), None if before is None else state.detach()

    def _take_fewer(self, ran_out: str) -> None:
        self.descent.forget()
        self._recorded = None
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.micro == 1:
            raise TrainingError(
                f"out of memory with one row at a time ({ran_out}). Type a smaller --seq-len, or "
                "--gradient-checkpointing"
            )
        self.micro = (self.micro + 1) // 2
        self.progress.say(f"out of memory: from here {self.micro} rows at a time, as many a step as before")

    def loss(self, part: Batch, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Summed loss of the targets that count, and the state after. (`model.loss` with no wait.)"""
        # compiled for the one shape that learns: evaluation has others, and each would be compiled again
        trunk = self.trunk if torch.is_grad_enabled() else self.model.trunk
        with self.precision():
            hidden, after = trunk(part.ids, state, reset=part.reset)
            hidden, targets, where = hidden.flatten(0, 1), part.targets.flatten(), part.where()
            if where is not None:
                hidden, targets = hidden.index_select(0, where), targets.index_select(0, where)
            return linear_cross_entropy(hidden, self.model.lm_head.weight, targets), after

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.world.device.type, dtype=self.autocast)

    def _report(self) -> None:
        """Send the step's numbers on their way to `read_log`."""
        at = (self.step, self.tokens, self.rate(self.step - 1))
        counters = (self.descent.skipped, self.descent.skipped_in_a_row, self.descent.scale)
        self._gauge.push(at, torch.stack([*self.window, self._norm, *counters]))
        self.window = torch.zeros_like(self.window)

    def read_log(self, *, wait: bool = False) -> None:
        """Log the numbers that have arrived; give up where the loss has long not been a number."""
        for (step, tokens, lr), (nll, count, norm, skipped, in_a_row, scale) in self._gauge.read(wait=wait):
            loss = nll / max(count, 1)
            rate = self.progress.report(step, tokens - self._began, {"loss": loss})
            facts = {"loss/train": loss, "optim/lr": lr, "optim/grad_norm": norm, "optim/skipped": skipped}
            if self.descent.half:
                facts["optim/loss_scale"] = scale
            facts |= {"time/tokens_per_s": rate, "memory/peak_gb": self._peak() / 1e9, "data/tokens": tokens}
            self.log(step, facts)
            if skipped > self._said_skipped and not self.descent.half:
                self.progress.say(f"{skipped - self._said_skipped:.0f} steps were not finite and left out")
            self._said_skipped = skipped
            if in_a_row >= PERSISTENT:
                raise TrainingError(
                    f"the last {in_a_row:.0f} steps up to {step} were not finite and were left out. "
                    f"Start from the newest checkpoint (--init) with a lower --lr than {lr:.2g}, "
                    "or go on from it (--resume auto) with --precision fp32"
                )

    def _peak(self) -> int:
        """The most bytes in use so far, on the device that learns."""
        if self.world.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.world.device)
        kept = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return kept if sys.platform == "darwin" else kept * 1024


class Gauge:
    """Numbers made on a device and read once they have arrived, in order."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, Tensor, Any]] = deque()

    def push(self, about: Any, numbers: Tensor) -> None:
        arrived = None
        if numbers.device.type == "cuda":
            here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            here.copy_(numbers, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        else:
            here = numbers.clone()
        self._pending.append((about, here, arrived))

    def read(self, *, wait: bool) -> Iterator[tuple[Any, list[float]]]:
        while self._pending:
            about, here, arrived = self._pending[0]
            if arrived is not None and wait:
                arrived.synchronize()
            elif arrived is not None and not arrived.query():
                return
            self._pending.popleft()
            yield about, here.tolist()


def _out_of_memory(error: BaseException) -> str:
    """What a failed allocation said, on GPU or CPU; empty for any other error."""
    said = str(error).partition("\n")[0] or "MemoryError"
    marks = ("can't allocate memory", "not enough memory", "bad_alloc")
    known = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(mark in said for mark in marks)
    return said if known else ""


class Stop:
    """Ctrl-C and SIGTERM ask, the loop ends after its step; a second Ctrl-C, a while later, does not wait.

    (torchrun repeats a Ctrl-C to processes that have heard it already: that one is no second wish.)
    """

    def __init__(self) -> None:
        self.asked = ""
        self._when = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        with contextlib.suppress(ValueError):  # only the main thread hears signals
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, _: FrameType | None) -> None:
        alone = "TORCHELASTIC_RUN_ID" not in os.environ
        if self.asked and number == signal.SIGINT and alone and time.monotonic() > self._when + 1:
            raise KeyboardInterrupt
        self.asked, self._when = signal.Signals(number).name, time.monotonic()


@torch.no_grad()
def mean_loss(trainer: Trainer, source: Source, *, steps: int, rows: int) -> float:
    """Mean loss, in nats a token, over the first steps of a source that is not learned from."""
    world = trainer.world
    sums = torch.zeros(2, dtype=torch.float64, device=world.device)
    with closing(Feeder(source, start=0, stop=steps, which=world.share(rows), device=world.device)) as feeder:
        for batch in feeder:
            for _, part in batch.parts(trainer.micro):
                sums[0] += trainer.loss(part)[0]
            sums[1] += batch.supervised
    world.sum([sums])
    return float(sums[0] / sums[1].clamp(min=1))
