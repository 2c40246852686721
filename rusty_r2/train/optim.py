# SPDX-License-Identifier: AGPL-3.0-or-later
"""Gradients become a step: parameter groups, schedules, clipping, and steps that are not finite left out.

    descent = Descent(optimizer("adamw", groups(model, weight_decay=0.1), device), clip=1.0)
    descent.backward(sum_of_losses / rows)
    norm = descent.step(lr, divisor=supervised_tokens / rows)

Everything is decided on the device: whether a step is finite is never waited for, the kernel itself
leaves a bad one out (`found_inf` of the fused AdamW), and the counters are read when somebody logs.
RWKV's own habits are kept (Peng et al. 2023, arXiv:2305.13048): weight decay on matrices alone,
`time_decay` learns twice and `time_first` three times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rusty_r2.errors import CheckpointError, ConfigError, need

FASTER = {"time_decay": 2.0, "time_first": 3.0}
"""parameters named so learn this many times faster"""

FIRST_SCALE = 2.0**16
"""what fp16 losses are multiplied by at first; halved after every step that is not finite"""

GROW_AFTER = 2000
"""finite fp16 steps before the loss scale is doubled again"""


def groups(model: nn.Module, *, weight_decay: float, layer_lr: bool = True) -> list[dict[str, Any]]:
    """The model's parameters by what they need: a multiple of the learning rate, and decay or none."""
    found: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            last = name.rpartition(".")[2]
            scale = FASTER.get(last, 1.0) if layer_lr else 1.0
            decay = weight_decay if _is_matrix(parameter) else 0.0
            found.setdefault((scale, decay), []).append(parameter)
    return [
        {"params": parameters, "lr_scale": scale, "weight_decay": decay}
        for (scale, decay), parameters in found.items()
    ]


def keep_words(model: nn.Module, keep: bool) -> None:
    """Leave the tables of words, embedding and head, out of the training, or not."""
    for name in ("token_embedding", "lm_head"):
        model.get_submodule(name).requires_grad_(not keep)


def _is_matrix(parameter: Tensor) -> bool:
    return sum(size > 1 for size in parameter.shape) >= 2


def optimizer(
    kind: str, parameters: Iterable[dict[str, Any]], *, betas: tuple[float, float] = (0.9, 0.99)
) -> torch.optim.Optimizer:
    """AdamW with its moments in 32 bit, or in 8 bit (a quarter of the memory, slower on a CPU)."""
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=0.0, betas=betas, eps=1e-8, fused=True)
    if kind == "adamw8bit":
        eight = need("bitsandbytes", extra="gpu").optim.AdamW8bit
        made: torch.optim.Optimizer = eight(parameters, lr=0.0, betas=betas, eps=1e-8)
        return made
    raise ConfigError(f"there is no optimizer {kind!a}. Type: --optimizer adamw")


def learning_rate(
    step: int, *, peak: float, total: int, warmup: int, floor: float = 0.0, shape: str = "cosine"
) -> float:
    """The rate of step 0, 1, …: up in a line for `warmup` steps, then down to `floor` times the peak.

    Shapes: cosine; linear; wsd (flat, then down in a line over the last fifth); constant.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    left = {
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "linear": 1 - done,
        "wsd": min(1.0, (1 - done) / 0.2),
        "constant": 1.0,
    }
    if shape not in left:
        raise ConfigError(f"there is no schedule {shape!a}. Type: --schedule {next(iter(left))}")
    return peak * (floor + (1 - floor) * left[shape])


class Descent:
    """An optimizer that unscales, clips, and leaves out what is not finite."""

    def __init__(self, inner: torch.optim.Optimizer, *, clip: float = 1.0, half: bool = False) -> None:
        self.inner = inner
        self.clip = clip
        self.half = half
        """fp16: losses are scaled up so that small gradients survive, as far as they stay finite"""
        device = self.parameters()[0].device
        self.scale = torch.tensor(FIRST_SCALE if half else 1.0, device=device)
        self.skipped = torch.zeros((), device=device)
        """steps left out so far"""
        self.skipped_in_a_row = torch.zeros((), device=device)
        self._finite_in_a_row = torch.zeros((), device=device)

    def backward(self, loss: Tensor) -> None:
        (loss * self.scale if self.half else loss).backward()

    def forget(self) -> None:
        """Throw the gradients away."""
        self.inner.zero_grad(set_to_none=True)

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters() if parameter.grad is not None]

    @torch.no_grad()
    def step(self, lr: float, divisor: Tensor) -> Tensor:
        """One step along the gradients divided by `divisor`; their norm, before clipping."""
        for group in self.inner.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        divisor = divisor.float() * self.scale
        norm = nn.utils.get_total_norm(self.gradients()).float() / divisor
        if self.clip:
            divisor = divisor * (norm / self.clip).clamp(min=1.0)
        bad = (~torch.isfinite(norm)).float()
        self._apply(divisor, bad)
        self._count(bad)
        self.forget()
        return norm

    def _apply(self, divisor: Tensor, bad: Tensor) -> None:
        if getattr(self.inner, "_step_supports_amp_scaling", False):
            self.inner.grad_scale, self.inner.found_inf = divisor, bad  # type: ignore[attr-defined]
            self.inner.step()
        elif not bad.item():  # an optimizer whose kernel cannot leave a step out by itself
            torch._foreach_div_(self.gradients(), divisor)
            self.inner.step()

    def _count(self, bad: Tensor) -> None:
        self.skipped += bad
        self.skipped_in_a_row.add_(1).mul_(bad)
        if self.half:
            self._finite_in_a_row.add_(1).mul_(1 - bad)
            grown = (self._finite_in_a_row >= GROW_AFTER).float()
            self.scale.mul_(torch.where(bad > 0, 0.5, 1.0 + grown))
            self._finite_in_a_row.mul_(1 - grown)

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.inner.param_groups for parameter in group["params"]]

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """All that is needed to go on, by name: `exp_avg/blocks.0.ln1.weight`, `descent/scale`, …"""
        kept = {f"descent/{key}": value for key, value in self._counters().items()}
        kept["descent/half"] = torch.tensor(int(self.half))
        for name, parameter in model.named_parameters():
            for key, value in self.inner.state.get(parameter, {}).items():
                kept[f"{key}/{name}"] = torch.as_tensor(value).detach()
        return {name: value.contiguous().clone() for name, value in kept.items()}

    def restore(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave, on whatever device the model is now."""
        for key, value in self._counters().items():
            value.copy_(tensors[f"descent/{key}"])
        if self.half != bool(tensors["descent/half"]):  # another precision begins with its own scale
            self.scale.fill_(FIRST_SCALE if self.half else 1.0)
        parameters = dict(model.named_parameters())
        for full_name, value in tensors.items():
            key, _, name = full_name.partition("/")
            if key == "descent":
                continue
            if name not in parameters:
                raise CheckpointError(f"the optimizer's state has {name!a}, which this model has not")
            self.inner.state[parameters[name]][key] = self._placed(key, value, parameters[name])

    def _placed(self, key: str, value: Tensor, parameter: Tensor) -> Any:
        """A step counter as its optimizer keeps it; everything else beside its parameter."""
        if key == "step" and not isinstance(self.inner, torch.optim.AdamW):
            return int(value)
        return value.to(parameter.device).clone()

    def _counters(self) -> dict[str, Tensor]:
        return {
            "scale": self.scale,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "finite_in_a_row": self._finite_in_a_row,
        }
