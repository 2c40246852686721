# SPDX-License-Identifier: AGPL-3.0-or-later
"""The model in torch, for GPUs: the same doors as the C++ engine, states kept on the device.

bf16 or fp16 are plain casts; int8 and int4 are bitsandbytes' linear layers, which need CUDA. Sampling is
lm/sampling.py's `log_probs` itself, on the device; one number a row comes from the same seeds as on a CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rusty_r2.errors import ConfigError, RustyError, need
from rusty_r2.lm.quantize import FORMATS
from rusty_r2.lm.rwkv import TinyRWKVLM
from rusty_r2.lm.sampling import NO_CHOICE, Floats, Mask, Sampling, allowed, bits, log_probs
from rusty_r2.lm.shape import Shape

Ints = NDArray[np.int32]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class TorchModel:
    def __init__(self, model: TinyRWKVLM, *, weights: str, device: str, compiled: bool = False) -> None:
        weights = "bf16" if weights == "auto" else weights
        if weights not in FORMATS:
            raise ConfigError(f"weights {weights!a} is not one of {', '.join(FORMATS)}")
        c = model.config
        self.shape = Shape(c.vocab_size, c.d_embed, c.d_hidden, c.width, c.n_layers)
        self.weights, self.device = weights, torch.device(device)
        self.lm = _cast(copy.deepcopy(model).eval(), weights, self.device)
        self._trunk: Callable[..., Any] = torch.compile(self.lm.trunk) if compiled else self.lm.trunk

    @classmethod
    def load(cls, folder: Path, *, weights: str, device: str, compiled: bool = False) -> TorchModel:
        from rusty_r2.lm import checkpoint

        _check_device(device)
        return cls(checkpoint.load(folder), weights=weights, device=device, compiled=compiled)

    def new_state(self, rows: int) -> Tensor:
        return self.lm.initial_state(rows).to(self.device, torch.float32)

    @torch.inference_mode()
    def read(self, tokens: Ints, rows: Ints, slots: Ints, state: Tensor, count: int) -> tuple[Tensor, Floats]:
        """Rows of one length run together; the state is written back in place."""
        hidden = torch.zeros(count, self.shape.hidden, device=self.device)
        starts = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
        lengths = np.diff(np.r_[starts, len(rows)])
        for length in np.unique(lengths):
            at = starts[lengths == length][:, None] + np.arange(length)
            which = torch.from_numpy(rows[at[:, 0]].astype(np.int64)).to(self.device)
            ids = torch.from_numpy(tokens[at].astype(np.int64)).to(self.device)
            out, end = self._trunk(ids, state[:, :, which])
            state[:, :, which] = end.to(state.dtype)
            wanted = torch.from_numpy(slots[at].astype(np.int64)).to(self.device)
            hidden[wanted[wanted >= 0]] = out[wanted >= 0].float()
        values = self.lm.value(hidden.to(self.lm.value_head.weight.dtype))
        return hidden, values.float().cpu().numpy()

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Floats:
        found: Floats = self._head(hidden).cpu().numpy()
        return found

    @torch.inference_mode()
    def pick(
        self,
        hidden: Tensor,
        sampling: Sampling,
        uniforms: NDArray[np.float64],
        mask: Mask | None = None,
        history: Sequence[Sequence[int]] | None = None,
        given: Ints | None = None,
        keep: bool = False,
    ) -> tuple[Ints, Floats, Mask | None]:
        legal = None if mask is None else torch.from_numpy(allowed(mask, self.shape.words)).to(self.device)
        logp = log_probs(self._head(hidden), sampling, legal, history)
        if given is None:
            climb = logp.double().exp().cumsum(-1)
            level = torch.from_numpy(uniforms).to(self.device)[:, None] * climb[:, -1:]
            last = (logp > float("-inf")).int().cumsum(-1).argmax(-1, keepdim=True)
            tokens = torch.minimum(torch.searchsorted(climb, level, right=True), last)
        else:
            tokens = torch.from_numpy(given.astype(np.int64)).to(self.device)[:, None]
        taken = logp.gather(-1, tokens)[:, 0].float().cpu().numpy()
        if np.isnan(taken).any():
            raise RustyError(NO_CHOICE)
        kept = bits((logp > float("-inf")).cpu().numpy()) if keep else None
        return tokens[:, 0].int().cpu().numpy(), taken, kept

    def step(
        self,
        tokens: Ints,
        state: Tensor,
        sampling: Sampling,
        uniforms: NDArray[np.float64],
        mask: Mask | None = None,
        history: Sequence[Sequence[int]] | None = None,
        keep: bool = False,
    ) -> tuple[Ints, Floats, Floats, Mask | None]:
        order = np.arange(len(tokens), dtype=np.int32)
        hidden, values = self.read(tokens, order, order, state, len(tokens))
        following, logp, kept = self.pick(hidden, sampling, uniforms, mask, history, None, keep)
        return following, logp, values, kept

    def _head(self, hidden: Tensor) -> Tensor:
        return self.lm.head(hidden.to(_DTYPES.get(self.weights, torch.float16))).float()


def _check_device(device: str) -> None:
    kind = device.partition(":")[0]
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no GPU here. Type: --device cpu")


def _cast(model: TinyRWKVLM, weights: str, device: torch.device) -> TinyRWKVLM:
    if weights in _DTYPES:
        return model.to(device, _DTYPES[weights])
    if device.type != "cuda":
        raise ConfigError(f"weights {weights} in torch need a GPU; on a CPU the C++ engine has them")
    bitsandbytes = need("bitsandbytes", extra="gpu")
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child.out_features > 1:
                setattr(module, name, _bitsandbytes(bitsandbytes, child, weights))
    return model.to(device, torch.float16)


def _bitsandbytes(library: Any, linear: nn.Linear, weights: str) -> nn.Module:
    sizes = (linear.in_features, linear.out_features)
    if weights == "int8":
        made = library.nn.Linear8bitLt(*sizes, bias=False, has_fp16_weights=False, threshold=6.0)
        made.weight = library.nn.Int8Params(linear.weight.data, has_fp16_weights=False, requires_grad=False)
    else:
        made = library.nn.Linear4bit(*sizes, bias=False, quant_type="nf4", compute_dtype=torch.float16)
        made.weight = library.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4")
    found: nn.Module = made
    return found
