# SPDX-License-Identifier: AGPL-3.0-or-later
"""The model in NumPy: what runs where there is no compiler, and what the C++ is tested against.

int8 and int4 weights are kept as whole numbers in fp32 and multiplied with activations rounded as the C++
rounds them: the sums stay below 2^24, so they are exact and both engines give the same answers. Fast enough
to talk to (a step is one matrix-vector product a matrix), not small: memory is what fp32 takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rusty_r2.lm.quantize import EMBEDDING, Matrix, Source, kept_as
from rusty_r2.lm.sampling import Floats, Mask, Sampling, bits, choose
from rusty_r2.lm.shape import LAYER_MATRICES, LAYER_VECTORS, TOP_MATRICES, TOP_VECTORS, Shape

Ints = NDArray[np.int32]
STRETCH = 512
"""inputs that share an activation scale; 512 · 127 · 127 is still exact in fp32"""


class _Linear:
    def __init__(self, matrix: Matrix) -> None:
        whole = matrix.scale is not None
        self.scale = matrix.scale
        self.w = matrix.whole().astype(np.float32) if whole else matrix.dense()

    def __call__(self, x: Floats) -> Floats:
        """x [tokens, in] → [tokens, out]; W stands first, which BLAS likes better for few tokens."""
        if self.scale is None:
            return np.asarray((self.w @ x.T).T, np.float32)
        y = np.zeros((len(x), len(self.w)), np.float32)
        for at in range(0, x.shape[1], STRETCH):
            part = x[:, at : at + STRETCH]
            most = np.maximum(np.abs(part).max(-1, keepdims=True), np.float32(1e-30))
            q = np.rint(part * (np.float32(127) / most))
            y += (self.w[:, at : at + STRETCH] @ q.T).T * (most / np.float32(127))
        return y * self.scale


class NumpyModel:
    """The same doors as `NativeModel`."""

    def __init__(self, source: Source, weights: str) -> None:
        self.shape, self.weights = Shape.of(source), weights
        self.embedding = source.matrix(EMBEDDING, kept_as(EMBEDDING, weights)).dense()
        self.vectors = {name: source.vector(name).reshape(-1) for name in TOP_VECTORS}
        self.linears = {name: _Linear(source.matrix(name, kept_as(name, weights))) for name in TOP_MATRICES}
        for layer in range(self.shape.layers):
            block = f"blocks.{layer}."
            self.vectors |= {block + name: source.vector(block + name).reshape(-1) for name in LAYER_VECTORS}
            self.linears |= {
                block + name: _Linear(source.matrix(block + name, weights)) for name in LAYER_MATRICES
            }

    def read(self, tokens: Ints, rows: Ints, slots: Ints, state: Floats, count: int) -> tuple[Floats, Floats]:
        first = np.r_[True, rows[1:] != rows[:-1]]
        last = np.r_[first[1:], True]
        x = self._norm(self.linears["embed_proj.weight"](self.embedding[tokens]), "ln_in")
        turns = _turns(first)
        for layer in range(self.shape.layers):
            part = state[layer]
            x = x + self._time_mix(f"blocks.{layer}.", x, part, rows, first, last, turns)
            x = x + self._channel_mix(f"blocks.{layer}.", x, part, rows, first, last)
        hidden = np.zeros((count, self.shape.hidden), np.float32)
        wanted = slots >= 0
        hidden[slots[wanted]] = self._norm(x[wanted], "ln_out")
        values = hidden @ self.vectors["value_head.weight"] + self.vectors["value_head.bias"]
        return hidden, np.asarray(values, np.float32)

    def logits(self, hidden: Floats) -> Floats:
        return np.ascontiguousarray(self.linears["lm_head.weight"](hidden))

    def pick(
        self,
        hidden: Floats,
        sampling: Sampling,
        uniforms: NDArray[np.float64],
        mask: Mask | None = None,
        history: Sequence[Sequence[int]] | None = None,
        given: Ints | None = None,
        keep: bool = False,
    ) -> tuple[Ints, Floats, Mask | None]:
        tokens, logp, kept = choose(self.logits(hidden), sampling, uniforms, mask, history, given)
        return tokens, logp, bits(kept) if keep else None

    def step(
        self,
        tokens: Ints,
        state: Floats,
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

    def _norm(self, x: Floats, name: str) -> Floats:
        centred = x - x.mean(-1, keepdims=True)
        turned = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + np.float32(1e-5))
        return np.asarray(turned * self.vectors[f"{name}.weight"] + self.vectors[f"{name}.bias"], np.float32)

    def _shifted(
        self, h: Floats, carried: Floats, rows: Ints, first: NDArray[np.bool_], last: NDArray[np.bool_]
    ) -> Floats:
        before = np.roll(h, 1, axis=0)
        before[first] = carried[rows[first]]
        carried[rows[last]] = h[last]
        return before

    def _time_mix(
        self,
        block: str,
        x: Floats,
        state: Floats,
        rows: Ints,
        first: NDArray[np.bool_],
        last: NDArray[np.bool_],
        turns: list[NDArray[np.intp]],
    ) -> Floats:
        v, linear = self.vectors, self.linears
        h = self._norm(x, block + "ln1")
        before = self._shifted(h, state[0], rows, first, last)
        k, value, r = (
            linear[f"{block}attn.{name}.weight"](before + v[f"{block}attn.time_mix_{name[0]}"] * (h - before))
            for name in ("key", "value", "receptance")
        )
        w, u = -np.exp(v[block + "attn.time_decay"]), v[block + "attn.time_first"]
        y = np.empty_like(k)
        for turn in turns:
            y[turn] = _wkv(k[turn], value[turn], w, u, state[2:], rows[turn])
        return linear[block + "attn.output.weight"](y * _sigmoid(r))

    def _channel_mix(
        self,
        block: str,
        x: Floats,
        state: Floats,
        rows: Ints,
        first: NDArray[np.bool_],
        last: NDArray[np.bool_],
    ) -> Floats:
        v, linear = self.vectors, self.linears
        h = self._norm(x, block + "ln2")
        before = self._shifted(h, state[1], rows, first, last)
        k = linear[block + "ffn.key.weight"](before + v[block + "ffn.time_mix_k"] * (h - before))
        r = linear[block + "ffn.receptance.weight"](before + v[block + "ffn.time_mix_r"] * (h - before))
        return np.asarray(
            _sigmoid(r) * linear[block + "ffn.value.weight"](np.square(np.maximum(k, 0))), np.float32
        )


def _turns(first: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Which tokens are the first of their rows, which the second, and so on: each turn runs at once."""
    starts = np.flatnonzero(first)
    place = np.arange(len(first)) - np.repeat(starts, np.diff([*starts, len(first)]))
    return [np.flatnonzero(place == turn) for turn in range(int(place.max(initial=-1)) + 1)]


def _wkv(k: Floats, v: Floats, w: Floats, u: Floats, state: Floats, rows: Ints) -> Floats:
    aa, bb, pp = state[0, rows], state[1, rows], state[2, rows]
    most = np.maximum(pp, u + k)
    past, now = np.exp(pp - most), np.exp(u + k - most)
    y = (past * aa + now * v) / (past * bb + now)
    most = np.maximum(pp + w, k)
    past, now = np.exp(pp + w - most), np.exp(k - most)
    state[0, rows], state[1, rows], state[2, rows] = past * aa + now * v, past * bb + now, most
    return np.asarray(y, np.float32)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -87, 87))), np.float32)
