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
from torch import Tensor, nn

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
    from rusty_r2.lm.kernels.triton_mix import add_norm_mix

    linear = Products(model)
    x, add, gate, ends = _entrance(model, ids, linear), None, None, []
    for layer in range(len(model.blocks)):
        block: Any = model.blocks[layer]
        past = None if state is None else state[layer]
        attn, ffn = block.attn, block.ffn
        three = (attn.time_mix_k, attn.time_mix_v, attn.time_mix_r)
        x, att_x, (xk, xv, xr) = add_norm_mix(
            x, add, gate, block.ln1, three, None if past is None else past[0], reset
        )
        w, u = -torch.exp(attn.time_decay.float()), attn.time_first.float()
        keys, values = linear(attn.key, xk), linear(attn.value, xv)
        y, end = _gated_wkv(
            w, u, keys, values, linear(attn.receptance, xr), None if past is None else past[2:], reset
        )
        mixed = linear(attn.output, y)
        two = (ffn.time_mix_k, ffn.time_mix_r)
        x, ffn_x, (xk, xr) = add_norm_mix(
            x, mixed, None, block.ln2, two, None if past is None else past[1], reset
        )
        ends += [att_x[None], ffn_x[None], end]
        add, gate = linear.square(ffn.key, ffn.value, xk), linear(ffn.receptance, xr)
    _, _, (hidden,) = add_norm_mix(x, add, gate, model.ln_out, ())
    return hidden, torch.cat(ends).unflatten(0, (-1, 5))


def _gated_wkv(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, r: Tensor, state: Tensor | None, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """sigmoid(r) times wkv's y, and wkv's state."""
    if os.environ.get("RUSTY_WKV", "triton") == "triton" and k.dtype != torch.float64:
        from rusty_r2.lm.kernels.triton_wkv import gated

        return gated(w, u, k, v, r, state, reset)
    y, end = wkv(w, u, k, v, state, reset)
    return torch.sigmoid(r) * y, end


def _entrance(model: Backbone, ids: Tensor, linear: Products) -> Tensor:
    """ln_in(embed_proj(embedding)) of the tokens; of every word first, where tokens are more than words."""
    from rusty_r2.lm.kernels.triton_gather import gather
    from rusty_r2.lm.kernels.triton_mix import add_norm_mix

    table = linear.table(model.token_embedding)
    first = ids.numel() > len(table)
    words = table[None] if first else gather(table, ids)
    _, _, (x,) = add_norm_mix(linear(model.embed_proj, words), None, None, model.ln_in, ())
    return gather(x[0], ids) if first else x


# ------------------------------------------------------------------ products


class Products:
    """The model's products in autocast's dtype: its weights are cast all at once, and their gradients back.

    What is not a plain Linear (an adapter) is called as it is.
    """

    def __init__(self, model: Backbone) -> None:
        device = model.ln_out.weight.device.type
        self._cast: dict[int, Tensor] = {}
        if torch.is_autocast_enabled(device):
            plain = [m for m in model.modules() if _plain(m) and m is not model.lm_head]
            plain.append(model.token_embedding)
            small = _Cast.apply(torch.get_autocast_dtype(device), *(m.weight for m in plain))
            self._cast = {id(m): w for m, w in zip(plain, small, strict=True)}

    def __call__(self, module: Any, x: Tensor) -> Tensor:
        weight = self._cast.get(id(module))
        return module(x) if weight is None else F.linear(x, weight)

    def table(self, embedding: nn.Embedding) -> Tensor:
        return self._cast.get(id(embedding), embedding.weight)

    def square(self, key: Any, value: Any, x: Tensor) -> Tensor:
        """value(relu(key(x))²)."""
        from rusty_r2.lm.kernels.triton_mix import squared_relu
        from rusty_r2.lm.kernels.triton_product import suits

        weights = [self._cast[id(m)] for m in (key, value) if id(m) in self._cast]
        if len(weights) == 2 and suits(x.flatten(0, 1), *weights):
            return _Square.apply(x, *weights)  # type: ignore[no-any-return]
        return self(value, squared_relu(self(key, x)))


def _plain(module: nn.Module) -> bool:
    hooks = module._forward_hooks or module._forward_pre_hooks
    return type(module) is nn.Linear and getattr(module, "bias", None) is None and not hooks


class _Cast(torch.autograd.Function):
    """Tensors in another dtype, by one kernel instead of one each; so are their gradients."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> Any:
        ctx.dtypes = [x.dtype for x in tensors]
        ctx.set_materialize_grads(False)
        made = [torch.empty_like(x, dtype=dtype) for x in tensors]
        torch._foreach_copy_(made, tensors)
        learn = ctx.needs_input_grad[1:]
        ctx.mark_non_differentiable(*(x for x, learns in zip(made, learn, strict=True) if not learns))
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        made = [
            None if g is None else torch.empty_like(g, dtype=dtype)
            for g, dtype in zip(grads, ctx.dtypes, strict=True)
        ]
        if any(g is not None for g in grads):
            torch._foreach_copy_([x for x in made if x is not None], [g for g in grads if g is not None])
        return None, *made


class _Square(torch.autograd.Function):
    """relu(x @ key.T)² @ value.T; keeps x and the square alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
        from rusty_r2.lm.kernels.triton_product import squared

        s = squared(x.flatten(0, 1), key)
        ctx.save_for_backward(x, s, key, value)
        return torch.mm(s, value.t()).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        from rusty_r2.lm.kernels.triton_product import squared_back

        x, s, key, value = ctx.saved_tensors
        g = grads[0].flatten(0, 1).contiguous()
        gk = squared_back(g, value, s)
        g_key = torch.mm(gk.t(), x.flatten(0, 1)) if ctx.needs_input_grad[1] else None
        g_value = torch.mm(g.t(), s) if ctx.needs_input_grad[2] else None
        return torch.mm(gk, key).view(x.shape), g_key, g_value
