# SPDX-License-Identifier: AGPL-3.0-or-later
"""The model's trunk over rows of different lengths that lie end to end: one pass, nothing padded.

    hidden, state = ragged.trunk(model, ids, Rows.of(lengths, device), state, places)

The same numbers as Backbone.trunk row by row (a test compares them). A gym hands back observations of any
length; read together they cost one launch of every kernel instead of one for each length. There is no
way back: this is how TorchModel (engine_torch.py) reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rusty_r2.lm.wkv import has_triton, wkv

if TYPE_CHECKING:
    from rusty_r2.lm.rwkv import Backbone


class Rows(NamedTuple):
    """Where each row lies among all tokens."""

    first: Tensor
    last: Tensor
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: NDArray[np.int64], device: torch.device) -> Rows:
        ends = np.cumsum(lengths)
        both = torch.from_numpy(np.stack([ends - lengths, ends - 1])).to(device)
        return cls(both[0], both[1], lengths)


def trunk(model: Backbone, ids: Tensor, rows: Rows, state: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """(hidden [places, C] after ln_out, state [L,5,B,C] after the last tokens) from ids [N]."""
    x, ends = model.ln_in(model.embed_proj(model.token_embedding(ids))), []
    for block, past in zip(model.blocks, state, strict=True):
        part: Any = block
        h1 = part.ln1(x)
        mixed, end = _time_mix(part.attn, h1, rows, past)
        x = x + mixed
        h2 = part.ln2(x)
        x = x + _channel_mix(part.ffn, h2, rows, past)
        ends.append(torch.cat([h1[None, rows.last].float(), h2[None, rows.last].float(), end]))
    return model.ln_out(x[places]), torch.stack(ends)


def _before(x: Tensor, last: Tensor, rows: Rows) -> Tensor:
    """x one token later; each row begins with what it saw last."""
    before = torch.empty_like(x)
    before[1:] = x[:-1]
    before[rows.first] = last.to(x.dtype)
    return before


def _time_mix(attn: Any, x: Tensor, rows: Rows, past: Tensor) -> tuple[Tensor, Tensor]:
    before = _before(x, past[0], rows)
    k = attn.key(torch.lerp(before, x, attn.time_mix_k.to(x.dtype)))
    v = attn.value(torch.lerp(before, x, attn.time_mix_v.to(x.dtype)))
    r = attn.receptance(torch.lerp(before, x, attn.time_mix_r.to(x.dtype)))
    w, u = -torch.exp(attn.time_decay.float()), attn.time_first.float()
    y, end = _wkv(w, u, k, v, rows, past[2:].float())
    return attn.output(torch.sigmoid(r) * y), end


def _channel_mix(ffn: Any, x: Tensor, rows: Rows, past: Tensor) -> Tensor:
    before = _before(x, past[1], rows)
    k = torch.relu(ffn.key(torch.lerp(before, x, ffn.time_mix_k.to(x.dtype))))
    r = ffn.receptance(torch.lerp(before, x, ffn.time_mix_r.to(x.dtype)))
    out: Tensor = torch.sigmoid(r) * ffn.value(k * k)
    return out


def _wkv(w: Tensor, u: Tensor, k: Tensor, v: Tensor, rows: Rows, start: Tensor) -> tuple[Tensor, Tensor]:
    if k.is_cuda and has_triton():
        from rusty_r2.lm.kernels import triton_ragged

        return triton_ragged.wkv(w, u, k, v, rows.first, rows.last, start)
    return by_length(w, u, k, v, rows, start)


def by_length(w: Tensor, u: Tensor, k: Tensor, v: Tensor, rows: Rows, start: Tensor) -> tuple[Tensor, Tensor]:
    """The same without Triton: rows of one length run together."""
    y, end = torch.empty_like(k), torch.empty_like(start)
    for length in np.unique(rows.lengths):
        which = torch.from_numpy(np.flatnonzero(rows.lengths == length)).to(k.device)
        at = rows.first[which][:, None] + torch.arange(int(length), device=k.device)
        y[at], end[:, which] = wkv(w, u, k[at], v[at], start[:, which])
    return y, end
