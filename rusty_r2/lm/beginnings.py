# SPDX-License-Identifier: AGPL-3.0-or-later
"""Many conversations that begin alike, read by a transformer that keeps their beginning once.

    rows = Rows(model, Beginning.read(model, examples))
    logits = rows.begin(prompts, room=128)           # what is new in each prompt; the last word's logits
    logits = rows.step(tokens)                       # one more word each
    rows.keep([0, 3])                                # the others have ended

A plain cache holds eight examples as many times as there are rows and moves all of that at every word. Here
keys and values of the beginning are kept once, as one matrix that all rows ask together; each row's own words
lie in a buffer that does not move. The softmax runs over both, so the result is that of ordinary attention.
`fits` says for which models: those whose attention goes through transformers' interface, without windows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rusty_r2.errors import RustyError
from rusty_r2.lm.sampling import NO_CHOICE, Mask, Sampling, log_probs

if TYPE_CHECKING:
    import torch

NAME = "rusty_beginnings"
"""under which transformers knows our attention"""
AT_ONCE = 4096
"""tokens of prompts read in one go on a CPU"""
AT_ONCE_GPU = 16_384


def fits(model: Any) -> bool:
    """Whether the model's attention can be ours: plain softmax over all earlier words."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windows = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    odd = any(getattr(config, name, None) for name in ("attn_logit_softcapping", "attention_chunk_size"))
    backend = getattr(model, "_supports_attention_backend", False)
    return bool(backend and kinds == {"full_attention"} and not windows and not odd)


@dataclass(frozen=True)
class Beginning:
    """Keys and values [heads, words, size] of every layer, of words that all rows begin with."""

    ids: tuple[int, ...]
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    @classmethod
    def read(cls, model: Any, ids: Sequence[int]) -> Beginning:
        import torch
        from transformers import DynamicCache

        if not ids:
            return cls((), ())
        cache = DynamicCache(config=model.config)
        words = torch.tensor([list(ids)], device=model.device)
        with torch.inference_mode():
            model(words, past_key_values=cache, use_cache=True, logits_to_keep=1)
        layers = tuple((layer.keys[0].contiguous(), layer.values[0].contiguous()) for layer in cache.layers)
        return cls(tuple(ids), layers)


class Rows:
    """Conversations after one beginning; all end at the same column, the shorter ones start later."""

    def __init__(self, model: Any, beginning: Beginning) -> None:
        self.model, self.beginning = model, beginning
        self._own: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.width = 0

    def begin(self, prompts: Sequence[Sequence[int]], room: int) -> torch.Tensor:
        """Read what follows the beginning, at least one word a row; logits [rows, words]."""
        import torch

        device = self.model.device
        lengths = [len(ids) for ids in prompts]
        self.count, self.width, self.room = len(prompts), max(lengths), max(lengths) + room
        self.starts = torch.tensor([self.width - length for length in lengths], device=device)
        most = AT_ONCE if device.type == "cpu" else AT_ONCE_GPU
        order = sorted(range(len(prompts)), key=lambda row: lengths[row])
        found: list[torch.Tensor] = [torch.empty(0)] * len(prompts)
        while order:
            wide = lengths[order[-1]]  # the longest that are left, as many as fit
            some = order[-max(1, most // wide) :]
            del order[-len(some) :]
            ids = torch.tensor([[0] * (wide - lengths[row]) + list(prompts[row]) for row in some])
            for row, logits in zip(some, self._read(ids.to(device), some), strict=True):
                found[row] = logits
        return torch.stack(found)

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Read one more word a row; logits [rows, words]."""
        import torch

        ids = torch.tensor(tokens, device=self.model.device)[:, None]
        self.width += 1
        return self._read(ids, None)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows alone."""
        import torch

        chosen = torch.tensor(rows, device=self.model.device)
        self.starts = self.starts[chosen]
        self._own = {layer: (k[chosen], v[chosen]) for layer, (k, v) in self._own.items()}
        self.count = len(rows)

    def _read(self, ids: torch.Tensor, rows: list[int] | None) -> torch.Tensor:
        """Read `ids` into the last columns of these rows, whose first words they are (None: go on in all)."""
        import torch

        self._rows = None if rows is None else torch.tensor(rows, device=ids.device)
        starts = self.starts if self._rows is None else self.starts[self._rows]
        self._first = self.width - ids.shape[1]
        columns = torch.arange(0 if rows is None else self._first, self.width, device=ids.device)
        queries = torch.arange(self._first, self.width, device=ids.device)[:, None]
        visible = (columns >= starts[:, None, None]) & (columns <= queries)
        self.hidden = ~(visible | (columns == queries))  # padding sees itself: no softmax over nothing
        place = (queries[:, 0] - starts[:, None]).clamp(min=0) + len(self.beginning.ids)
        with torch.inference_mode(), _our_attention(self.model.config):
            out = self.model(
                ids, position_ids=place, past_key_values=self, use_cache=True, logits_to_keep=1,
                beginnings=self,
            )  # fmt: skip
        logits: torch.Tensor = out.logits[:, -1]
        return logits

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What transformers calls with the new keys and values [rows, heads, words, size]."""
        if layer not in self._own:
            shape = (self.count, keys.shape[1], self.room, keys.shape[3])
            self._own[layer] = (keys.new_zeros(shape), values.new_zeros(shape))
        own_keys, own_values = self._own[layer]
        if self._rows is not None:
            own_keys[self._rows, :, self._first : self.width] = keys
            own_values[self._rows, :, self._first : self.width] = values
            return keys, values
        own_keys[:, :, self._first : self.width] = keys
        own_values[:, :, self._first : self.width] = values
        return own_keys[:, :, : self.width], own_values[:, :, : self.width]

    def get_seq_length(self, layer: int = 0) -> int:
        return len(self.beginning.ids) + self.width


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    beginnings: Rows,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Softmax over the shared beginning and the rows' own words, [rows, heads, words, size] each."""
    import torch

    rows, heads, words, size = query.shape
    groups = key.shape[1]
    scale = size**-0.5 if scaling is None else scaling
    asked = (query * scale).reshape(rows, groups, -1, size)  # the heads of a group ask side by side
    each = asked.shape[2]
    own = asked @ key.transpose(2, 3)
    hidden = beginnings.hidden[:, None, None]
    own = own.view(rows, groups, each // words, words, -1).masked_fill(hidden, float("-inf")).view(own.shape)
    if not beginnings.beginning.ids:
        found = own.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
    else:
        shared_keys, shared_values = beginnings.beginning.layers[module.layer_idx]
        together = asked.transpose(0, 1).reshape(groups, rows * each, size)
        early = (together @ shared_keys.transpose(1, 2)).view(groups, rows, each, -1).transpose(0, 1)
        weight = torch.cat([early, own], -1).softmax(-1, dtype=torch.float32).to(value.dtype)
        length = early.shape[-1]
        before = weight[..., :length].transpose(0, 1).reshape(groups, rows * each, length) @ shared_values
        found = before.view(groups, rows, each, size).transpose(0, 1) + weight[..., length:] @ value
    return found.reshape(rows, heads, words, size).transpose(1, 2), None


@contextlib.contextmanager
def _our_attention(config: Any) -> Iterator[None]:
    """The model attends our way inside, its own way elsewhere."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)
    usual, config._attn_implementation = config._attn_implementation, NAME
    try:
        yield
    finally:
        config._attn_implementation = usual


class Repeated:
    """The same three verbs for any other model: a plain cache with the beginning in every row."""

    def __init__(self, model: Any, ids: Sequence[int]) -> None:
        self.model, self.ids = model, list(ids)

    def begin(self, prompts: Sequence[Sequence[int]], room: int) -> torch.Tensor:
        import torch
        from transformers import DynamicCache

        whole = [[*self.ids, *ids] for ids in prompts]
        wide = max(map(len, whole))
        pad = [wide - len(ids) for ids in whole]
        device = self.model.device
        ids = torch.tensor([[0] * p + ids for p, ids in zip(pad, whole, strict=True)], device=device)
        self._seen = torch.tensor([[0] * p + [1] * (wide - p) for p in pad], device=device)
        self._cache = DynamicCache(config=self.model.config)
        return self._read(ids)

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        import torch

        self._seen = torch.cat([self._seen, torch.ones_like(self._seen[:, :1])], 1)
        return self._read(torch.tensor(tokens, device=self.model.device)[:, None])

    def keep(self, rows: Sequence[int]) -> None:
        import torch

        chosen = torch.tensor(rows, device=self.model.device)
        self._cache.batch_select_indices(chosen)
        self._seen = self._seen[chosen]

    def _read(self, ids: torch.Tensor) -> torch.Tensor:
        import torch

        place = (self._seen.cumsum(1) - 1)[:, -ids.shape[1] :].clamp(min=0)
        with torch.inference_mode():
            out = self.model(
                ids, attention_mask=self._seen, position_ids=place, past_key_values=self._cache,
                use_cache=True, logits_to_keep=1,
            )  # fmt: skip
        self._cache = out.past_key_values
        logits: torch.Tensor = out.logits[:, -1]
        return logits


def pick(
    logits: torch.Tensor, sampling: Sampling, uniforms: NDArray[np.float64], mask: Mask | None = None
) -> list[int]:
    """One word a row of logits [rows, words], on whatever device they are: as sampling.choose does."""
    import torch

    z = logits.float()
    possible = None if mask is None else _allowed_there(mask, z)
    if not bool(torch.isfinite(z).all()) or (mask is not None and not mask.any(-1).all()):
        raise RustyError(NO_CHOICE)
    if sampling.temperature == 0:
        greedy = z if possible is None else z.masked_fill(~possible, float("-inf"))
        return [int(word) for word in greedy.argmax(-1).tolist()]
    climb = log_probs(z, sampling, possible).double().exp().cumsum(-1)
    level = torch.from_numpy(uniforms).to(climb.device)[:, None] * climb[:, -1:]
    found = torch.searchsorted(climb, level, right=True)
    last = torch.searchsorted(climb, climb[:, -1:].contiguous())
    return [int(word) for word in torch.minimum(found, last)[:, 0].tolist()]


def _allowed_there(mask: Mask, like: torch.Tensor) -> torch.Tensor:
    """A bit mask as booleans on the device of `like`."""
    import torch

    numbers = torch.from_numpy(np.ascontiguousarray(mask).view(np.int32)).to(like.device)
    shifts = torch.arange(32, dtype=torch.int32, device=like.device)
    return ((numbers[:, :, None] >> shifts) & 1).bool().flatten(1)[:, : like.shape[-1]]
