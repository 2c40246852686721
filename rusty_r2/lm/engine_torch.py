# SPDX-License-Identifier: AGPL-3.0-or-later
"""The model in torch, for GPUs: the same doors as the C++ engine, states kept on the device.

bf16 or fp16 are plain casts; int8 and int4 are bitsandbytes' linear layers, which need CUDA. Sampling is
lm/sampling.py's `log_probs` itself, on the device; one number a row comes from the same seeds as on a CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rusty_r2.errors import ConfigError, RustyError, need
from rusty_r2.lm import ragged
from rusty_r2.lm.quantize import FORMATS
from rusty_r2.lm.ragged import Rows
from rusty_r2.lm.rwkv import TinyRWKVLM
from rusty_r2.lm.sampling import NO_CHOICE, Floats, Mask, Sampling, allowed, bits, draw, log_probs
from rusty_r2.lm.shape import Shape

if TYPE_CHECKING:
    from rusty_r2.lm.scribe import Scribe

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
        self._trunk: Callable[..., Any] = (
            partial(_by_length, torch.compile(self.lm.trunk)) if compiled else partial(ragged.trunk, self.lm)
        )

    @classmethod
    def load(cls, folder: Path, *, weights: str, device: str, compiled: bool = False) -> TorchModel:
        from rusty_r2.lm import checkpoint

        _check_device(device)
        return cls(checkpoint.load(folder), weights=weights, device=device, compiled=compiled)

    def new_state(self, rows: int) -> Tensor:
        return self.lm.initial_state(rows).to(self.device, torch.float32)

    @torch.no_grad()
    def take(self, model: TinyRWKVLM) -> bool:
        """The present weights of a model of the same sizes, in place: recordings stay valid.

        False where that is impossible: weights that are stored in another form.
        """
        if self.weights not in _DTYPES:
            return False
        for mine, new in zip(self.lm.parameters(), model.parameters(), strict=True):
            mine.copy_(new)
        return True

    @torch.inference_mode()
    def read(self, tokens: Ints, rows: Ints, slots: Ints, state: Tensor, count: int) -> tuple[Tensor, Floats]:
        """Rows of any lengths in one pass; the state is written back in place."""
        starts = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
        lengths = np.diff(np.r_[starts, len(rows)])
        wanted = np.flatnonzero(slots >= 0)
        numbers = (tokens, rows[starts], wanted, slots[wanted])
        ids, which, places, into = self._upload(*(part.astype(np.int64) for part in numbers))
        out, end = self._trunk(ids, Rows.of(lengths, self.device), state[:, :, which], places)
        state[:, :, which] = end
        hidden = torch.zeros(count, self.shape.hidden, device=self.device)
        hidden[into] = out.float()
        return hidden, self.values(hidden).cpu().numpy()

    def values(self, hidden: Tensor) -> Tensor:
        return self.lm.value(hidden.to(self.lm.value_head.weight.dtype)).float()

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Floats:
        found: Floats = self.head(hidden).cpu().numpy()
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
        logp = log_probs(self.head(hidden), sampling, legal, history)
        if given is None:
            tokens = draw(logp, torch.from_numpy(uniforms).to(self.device))
        else:
            tokens = torch.from_numpy(given.astype(np.int64)).to(self.device)
        taken = logp.gather(-1, tokens[:, None])[:, 0].cpu().numpy()
        if np.isnan(taken).any():
            raise RustyError(NO_CHOICE)
        kept = bits((logp > float("-inf")).cpu().numpy()) if keep else None
        return tokens.int().cpu().numpy(), taken, kept

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

    def scribe(self, rows: int, sampling: Sampling, limit: int, stops: Iterable[int]) -> Scribe | None:
        """Who writes many answers at once on a GPU (scribe.py); None where that needs another way."""
        from rusty_r2.lm.scribe import Scribe

        suits = self.device.type == "cuda" and self.weights in _DTYPES and sampling.repetition_penalty == 1
        return Scribe(self, rows=rows, sampling=sampling, limit=limit, stops=stops) if suits else None

    def head(self, hidden: Tensor) -> Tensor:
        """Logits in fp32."""
        return self.lm.head(hidden.to(_DTYPES.get(self.weights, torch.float16))).float()

    def _upload(self, *parts: NDArray[np.int64]) -> tuple[Tensor, ...]:
        """Some arrays in one copy."""
        whole = torch.from_numpy(np.concatenate(parts)).to(self.device)
        return tuple(torch.split(whole, [len(part) for part in parts]))


def _by_length(
    trunk: Callable[..., Any], ids: Tensor, rows: Rows, state: Tensor, places: Tensor
) -> tuple[Tensor, Tensor]:
    """What ragged.trunk does, for a compiled trunk: rows of one length run together."""
    hidden, end = state.new_zeros(len(ids), state.shape[-1]), torch.empty_like(state)
    for length in np.unique(rows.lengths):
        which = torch.from_numpy(np.flatnonzero(rows.lengths == length)).to(ids.device)
        at = rows.first[which][:, None] + torch.arange(int(length), device=ids.device)
        out, after = trunk(ids[at], state[:, :, which])
        hidden[at], end[:, :, which] = out.to(hidden.dtype), after.to(end.dtype)
    return hidden[places], end


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
