# SPDX-License-Identifier: AGPL-3.0-or-later
"""The model's trunk on a GPU, with everything between the matrix products fused into few passes.

The same numbers as Backbone.trunk (a test compares them), arranged for memory traffic: the sum that ends
one half of a block, the LayerNorm and the token shift that begin the next are one kernel, the residual
stream is kept in the dtype of the products, and nothing is computed twice. It calls the model's own
Linear modules, so adapters put around them work. RUSTY_FUSED=0 turns it off; torch.compile, dropout
and gradient checkpointing take the plain way, too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rusty_r2.lm.wkv import has_triton, wkv

if TYPE_CHECKING:
    from rusty_r2.lm.rwkv import Backbone


PRODUCTS = False
"""Whether the squared ReLU goes inside our own matrix products; benchmarks/gpu.py measures both ways."""


def suits(model: Backbone, ids: Tensor) -> bool:
    """Whether this call can go through here."""
    busy = model.training and torch.is_grad_enabled()
    plain = busy and (model.config.dropout > 0 or model.config.gradient_checkpointing)
    allowed = os.environ.get("RUSTY_FUSED", "1") != "0" and not torch.compiler.is_compiling()
    return ids.is_cuda and ids.shape[1] > 1 and has_triton() and allowed and not plain


def trunk(model: Backbone, ids: Tensor, state: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """As Backbone.trunk."""
    from rusty_r2.lm.kernels.triton_ffn import fits, squared_ffn
    from rusty_r2.lm.kernels.triton_mix import add_norm_mix, gated, squared_relu

    device = ids.device.type
    dtype = (
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else model.ln_out.weight.dtype
    )
    table = model.token_embedding.weight.to(dtype)
    x = model.embed_proj(F.embedding(ids, table))
    _, (x,) = add_norm_mix(x, None, None, model.ln_in, ())
    add, gate, ends = None, None, []
    for layer in range(len(model.blocks)):
        block: Any = model.blocks[layer]
        past = None if state is None else state[layer]
        attn, ffn = block.attn, block.ffn
        three = (attn.time_mix_k, attn.time_mix_v, attn.time_mix_r)
        x, (xk, xv, xr) = add_norm_mix(
            x, add, gate, block.ln1, three, None if past is None else past[0], reset
        )
        att_x = _normed(x, block.ln1)
        w, u = -torch.exp(attn.time_decay.float()), attn.time_first.float()
        y, end = wkv(w, u, attn.key(xk), attn.value(xv), None if past is None else past[2:], reset)
        mixed = attn.output(gated(attn.receptance(xr), y))
        two = (ffn.time_mix_k, ffn.time_mix_r)
        x, (xk, xr) = add_norm_mix(x, mixed, None, block.ln2, two, None if past is None else past[1], reset)
        ends.append(torch.cat([att_x[None], _normed(x, block.ln2)[None], end]))
        if PRODUCTS and fits(xk, ffn.key, ffn.value):
            add = squared_ffn(xk, ffn.key.weight, ffn.value.weight)
        else:
            add = ffn.value(squared_relu(ffn.key(xk)))
        gate = ffn.receptance(xr)
    _, (hidden,) = add_norm_mix(x, add, gate, model.ln_out, ())
    return hidden, torch.stack(ends)


def _normed(x: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    """What the next token will see of the last one: its normalised row [B,C], in float32."""
    weight, bias = norm.weight.float(), norm.bias.float()
    return F.layer_norm(x[:, -1].float(), norm.normalized_shape, weight, bias, norm.eps)
