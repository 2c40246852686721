# SPDX-License-Identifier: AGPL-3.0-or-later
"""TinyRWKVLM: an RWKV-4 language model with a value head, and the one dial that sizes it.

    embedding → projection → ln_in → n × (x + time-mix(ln1 x); x + channel-mix(ln2 x)) → ln_out → head

Time-mix looks at the past through `wkv`, channel-mix through the token before; both read a mixture of
this token and the one before it (token shift, applied to the normalised x). All that is remembered
between tokens is a State: one float tensor [L,5,B,C], per layer the normalised inputs that time-mix
and channel-mix saw last, and the three numbers of wkv. Any cut of a sequence into pieces gives the same
answer, `forward` on many tokens and `advance` on one agree, and a state can be copied, kept and forked.

Shapes and initialisation are BlinkDL's (RWKV-v4neo); the weights of Hugging Face's RwkvForCausalLM give
the same numbers here. Saving is checkpoint.py's business, fast text generation the engine's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rusty_r2.errors import ConfigError
from rusty_r2.lm import fused
from rusty_r2.lm.loss import linear_cross_entropy
from rusty_r2.lm.scan import EMPTY
from rusty_r2.lm.wkv import wkv

State: TypeAlias = Tensor
"""[L,5,B,C] float32; per layer: att_x, ffn_x, aa, bb, pp."""


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of a TinyRWKVLM."""

    vocab_size: int = 24000
    """Words of the tokenizer."""
    d_embed: int = 256
    """Width of the embedding table; a projection widens it to d_hidden."""
    d_hidden: int = 512
    """Width of the residual stream, and number of wkv channels."""
    n_layers: int = 4
    """Blocks of time-mix and channel-mix."""
    d_ffn: int = 0
    """Width inside channel-mix; 0 means 4 × d_hidden."""
    dropout: float = 0.0
    """Dropped share of the embedding and of each branch while training."""
    gradient_checkpointing: bool = False
    """Compute each block again on the way back instead of keeping its activations: less memory, +12% time."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_embed", "d_hidden", "n_layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: a model needs at least 1")
        if self.d_ffn < 0 or not 0 <= self.dropout < 1:
            raise ConfigError(
                f"d_ffn={self.d_ffn}, dropout={self.dropout}: want d_ffn >= 0 and 0 <= dropout < 1"
            )

    @property
    def width(self) -> int:
        """d_ffn with its default filled in."""
        return self.d_ffn or 4 * self.d_hidden


PRESETS = {
    "nano": ModelConfig(d_embed=64, d_hidden=128, n_layers=2),
    "micro": ModelConfig(d_embed=128, d_hidden=256, n_layers=4),
    "tiny": ModelConfig(),
    "small": ModelConfig(d_embed=384, d_hidden=768, n_layers=8),
    "base": ModelConfig(d_embed=512, d_hidden=1024, n_layers=12),
}
"""From one that trains in a minute on two cores to one larger than the seeds' (`tiny`)."""


def shifted(x: Tensor, last: Tensor | None, reset: Tensor | None) -> Tensor:
    """x one token later: `last` [B,C] comes first, and nothing crosses a reset."""
    before = F.pad(x, (0, 0, 1, -1)) if last is None else torch.cat([last.to(x.dtype)[:, None], x[:, :-1]], 1)
    return before if reset is None else before.masked_fill(reset[:, :, None], 0.0)


class _SquaredRelu(torch.autograd.Function):
    """relu(k)², keeping relu(k) alone: two sweeps fewer on the way back than autograd's own."""

    @staticmethod
    def forward(ctx: Any, k: Tensor) -> Tensor:
        positive = torch.relu(k)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (positive,) = ctx.saved_tensors
        return (grads[0] * positive).mul_(2)


class TimeMix(nn.Module):
    """sigmoid(r) times the weighted average of the past values."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        width, depth = config.d_hidden, layer / max(1, config.n_layers - 1)
        late = 1 - layer / config.n_layers
        channel = torch.arange(width, dtype=torch.float32)
        share = channel / width
        zigzag = ((channel + 1) % 3 - 1) * 0.5
        self.time_decay = nn.Parameter(-5 + 8 * (channel / max(1, width - 1)) ** (0.7 + 1.3 * depth))
        self.time_first = nn.Parameter(math.log(0.3) + zigzag)
        self.time_mix_k = nn.Parameter(share**late)
        self.time_mix_v = nn.Parameter(share**late + 0.3 * depth)
        self.time_mix_r = nn.Parameter(share ** (0.5 * late))
        self.key, self.value, self.receptance, self.output = (_linear(width, width) for _ in range(4))
        _orthogonal(self.value.weight)

    def forward(
        self, x: Tensor, last: Tensor | None, state: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        before = shifted(x, last, reset)
        k = self.key(torch.lerp(before, x, self.time_mix_k.to(x.dtype)))
        v = self.value(torch.lerp(before, x, self.time_mix_v.to(x.dtype)))
        r = self.receptance(torch.lerp(before, x, self.time_mix_r.to(x.dtype)))
        y, end = wkv(-torch.exp(self.time_decay.float()), self.time_first.float(), k, v, state, reset)
        return self.output(torch.sigmoid(r) * y), end


class ChannelMix(nn.Module):
    """sigmoid(r) times a two-layer network with squared ReLU."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        share = torch.arange(config.d_hidden, dtype=torch.float32) / config.d_hidden
        late = 1 - layer / config.n_layers
        self.time_mix_k = nn.Parameter(share**late)
        self.time_mix_r = nn.Parameter(share**late)
        self.key = _linear(config.d_hidden, config.width)
        self.receptance = _linear(config.d_hidden, config.d_hidden)
        self.value = _linear(config.width, config.d_hidden)
        _orthogonal(self.key.weight)

    def forward(self, x: Tensor, last: Tensor | None, reset: Tensor | None) -> Tensor:
        before = shifted(x, last, reset)
        k = self.key(torch.lerp(before, x, self.time_mix_k.to(x.dtype)))
        r = self.receptance(torch.lerp(before, x, self.time_mix_r.to(x.dtype)))
        out: Tensor = self.value(_SquaredRelu.apply(k))
        return torch.sigmoid(r) * out


class Block(nn.Module):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(config.d_hidden)
        self.ln2 = nn.LayerNorm(config.d_hidden)
        self.attn = TimeMix(config, layer)
        self.ffn = ChannelMix(config, layer)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, state: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """x and this layer's state [5,B,C], both one block further."""
        att_x, ffn_x, past = (None, None, None) if state is None else (state[0], state[1], state[2:])
        h1 = self.ln1(x)
        mixed, end = self.attn(h1, att_x, past, reset)
        x = x + self.drop(mixed)
        h2 = self.ln2(x)
        x = x + self.drop(self.ffn(h2, ffn_x, reset))
        return x, torch.cat([h1[None, :, -1].to(end.dtype), h2[None, :, -1].to(end.dtype), end])


class Backbone(nn.Module):
    """The layers and what they compute, shared with the Hugging Face class."""

    config: Any
    """The sizes: a ModelConfig, or a Hugging Face configuration with the same names."""

    def build(self, config: ModelConfig) -> None:
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_embed)
        self.embed_proj = _linear(config.d_embed, config.d_hidden)
        self.ln_in = nn.LayerNorm(config.d_hidden)
        self.drop_in = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.ln_out = nn.LayerNorm(config.d_hidden)
        self.lm_head = _linear(config.d_hidden, config.vocab_size)
        self.value_head = nn.Linear(config.d_hidden, 1)
        nn.init.uniform_(self.token_embedding.weight, -1e-4, 1e-4)
        _orthogonal(self.embed_proj.weight)
        _orthogonal(self.lm_head.weight, 0.5)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def initial_state(self, batch: int) -> State:
        """The state before the first token."""
        weight = self.ln_out.weight
        state = torch.zeros(len(self.blocks), 5, batch, weight.shape[0], device=weight.device)
        state[:, 4] = EMPTY
        return state

    def trunk(
        self, ids: Tensor, state: State | None = None, *, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """(hidden [B,T,C] after ln_out, state); `reset` [B,T] is true where a new document starts."""
        if fused.suits(self, ids):
            return fused.trunk(self, ids, state, reset)
        x = self.drop_in(self.ln_in(self.embed_proj(self.token_embedding(ids))))
        ends = []
        for layer, block in enumerate(self.blocks):
            inputs = (x, None if state is None else state[layer], reset)
            x, end = checkpoint(block, *inputs, use_reentrant=False) if self._forgets() else block(*inputs)
            ends.append(end)
        return self.ln_out(x), torch.stack(ends)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V]."""
        return self.lm_head(hidden)  # type: ignore[no-any-return]

    def value(self, hidden: Tensor) -> Tensor:
        """The expected return [...] of each position."""
        return self.value_head(hidden).squeeze(-1)  # type: ignore[no-any-return]

    def loss(
        self,
        ids: Tensor,
        targets: Tensor,
        mask: Tensor | None = None,
        state: State | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, int, State]:
        """(sum of -log p(target), how many, state); no logit is computed where `mask` [B,T] is false."""
        hidden, state = self.trunk(ids, state, reset=reset)
        hidden, targets = hidden.flatten(0, 1), targets.flatten()
        if mask is not None:
            chosen = mask.flatten().nonzero().squeeze(1)
            hidden, targets = hidden.index_select(0, chosen), targets.index_select(0, chosen)
        return linear_cross_entropy(hidden, self.lm_head.weight, targets), targets.numel(), state

    def _forgets(self) -> bool:
        return bool(self.config.gradient_checkpointing) and self.training and torch.is_grad_enabled()


class TinyRWKVLM(Backbone):
    """The model. `TinyRWKVLM(24000)` is the seeds' size; `TinyRWKVLM.of(PRESETS["nano"])` takes a preset."""

    def __init__(
        self,
        vocab_size: int = 24000,
        d_embed: int = 256,
        d_hidden: int = 512,
        n_layers: int = 4,
        dropout: float = 0.0,
        gradient_checkpointing: bool = False,
        d_ffn: int = 0,
    ) -> None:
        super().__init__()
        self.config = ModelConfig(
            vocab_size, d_embed, d_hidden, n_layers, d_ffn, dropout, gradient_checkpointing
        )
        self.build(self.config)

    @classmethod
    def of(cls, config: ModelConfig, **changes: Any) -> TinyRWKVLM:
        """A model of these sizes, with some of them changed."""
        return cls(**vars(replace(config, **changes)))

    def forward(
        self, ids: Tensor, state: State | None = None, *, reset: Tensor | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """(logits [B,T,V], values [B,T], state) after reading ids [B,T]."""
        hidden, state = self.trunk(ids, state, reset=reset)
        return self.head(hidden), self.value(hidden), state

    def advance(self, ids: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """One token further: (logits [B,V], values [B], state) after reading ids [B]."""
        logits, values, state = self(ids[:, None], state)
        return logits[:, 0], values[:, 0], state


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """Without bias and all zeros: a new block passes its input on unchanged."""
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.zeros_(linear.weight)
    return linear


def _orthogonal(weight: Tensor, scale: float = 1.0) -> None:
    rows, columns = weight.shape
    nn.init.orthogonal_(weight, gain=scale * math.sqrt(max(1.0, rows / columns)))
