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
from torch import Tensor

from rusty_r2.lm.wkv import has_triton, wkv

if TYPE_CHECKING:
    from rusty_r2.lm.rwkv import Backbone


def suits(model: Backbone, ids: Tensor) -> bool:
    """Whether this call can go through here."""
    busy = model.training and torch.is_grad_enabled()
    plain = busy and (model.config.dropout > 0 or model.config.gradient_checkpointing)
    allowed = os.environ.get("RUSTY_FUSED", "1") != "0" and not torch.compiler.is_compiling()
    return ids.is_cuda and ids.shape[1] > 1 and has_triton() and allowed and not plain


def trunk(model: Backbone, ids: Tensor, state: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """As Backbone.trunk."""
    from rusty_r2.lm.kernels.triton_mix import add_norm_mix, gated, squared_relu

    x, add, gate, ends = _entrance(model, ids), None, None, []
    for layer in range(len(model.blocks)):
        block: Any = model.blocks[layer]
        past = None if state is None else state[layer]
        attn, ffn = block.attn, block.ffn
        three = (attn.time_mix_k, attn.time_mix_v, attn.time_mix_r)
        x, att_x, (xk, xv, xr) = add_norm_mix(
            x, add, gate, block.ln1, three, None if past is None else past[0], reset
        )
        w, u = -torch.exp(attn.time_decay.float()), attn.time_first.float()
        y, end = wkv(w, u, attn.key(xk), attn.value(xv), None if past is None else past[2:], reset)
        mixed = attn.output(gated(attn.receptance(xr), y))
        two = (ffn.time_mix_k, ffn.time_mix_r)
        x, ffn_x, (xk, xr) = add_norm_mix(
            x, mixed, None, block.ln2, two, None if past is None else past[1], reset
        )
        ends += [att_x[None], ffn_x[None], end]
        add, gate = ffn.value(squared_relu(ffn.key(xk))), ffn.receptance(xr)
    _, _, (hidden,) = add_norm_mix(x, add, gate, model.ln_out, ())
    return hidden, torch.cat(ends).unflatten(0, (-1, 5))


def _entrance(model: Backbone, ids: Tensor) -> Tensor:
    """ln_in(embed_proj(embedding)) of the tokens; of every word first, where tokens are more than words."""
    from rusty_r2.lm.kernels.triton_gather import gather
    from rusty_r2.lm.kernels.triton_mix import add_norm_mix

    device, table = ids.device.type, model.token_embedding.weight
    if torch.is_autocast_enabled(device):
        table = table.to(torch.get_autocast_dtype(device))
    first = ids.numel() > len(table)
    words = table[None] if first else gather(table, ids)
    _, _, (x,) = add_norm_mix(model.embed_proj(words), None, None, model.ln_in, ())
    return gather(x[0], ids) if first else x
