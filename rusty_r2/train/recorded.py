# SPDX-License-Identifier: AGPL-3.0-or-later
"""A step's gradients as a CUDA graph: hundreds of launches are recorded once and played as one.

    recorded = Recorded(gradients, parameters)
    nll, state = recorded.play(batch, carried)      # the gradients are in the parameters

The first few steps run as they are, so that every kernel is compiled; then one is recorded, and from there
a step copies its rows into the recording's own tensors and plays it. Only batches of one shape can be
played: loop.py sends others (a masked one, one cut in parts) the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from rusty_r2.train.batches import Batch

WARM = 3
"""steps before the recording"""


class Recorded:
    """`gradients(batch, carried)`, which gives the summed loss and the state after, on a GPU."""

    def __init__(
        self,
        gradients: Callable[[Batch, Tensor | None], tuple[Tensor, Tensor | None]],
        parameters: Sequence[nn.Parameter],
    ) -> None:
        self._gradients, self._parameters = gradients, parameters
        self._steps = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def play(self, batch: Batch, carried: Tensor | None) -> tuple[Tensor, Tensor | None]:
        self._steps += 1
        if self._steps <= WARM:
            return self._gradients(batch, carried)
        if self._graph is None:
            self._graph = self._record(batch, carried)
        elif self._batch.ids.shape != batch.ids.shape:
            return self._gradients(batch, carried)
        self._batch.ids.copy_(batch.ids)
        self._batch.targets.copy_(batch.targets)
        self._batch.reset.copy_(batch.reset)
        if self._carried is not None and carried is not None:
            self._carried.copy_(carried)
        self._graph.replay()
        for parameter, gradient in zip(self._parameters, self._made, strict=True):
            parameter.grad = gradient
        return self._nll, self._after

    def _record(self, batch: Batch, carried: Tensor | None) -> torch.cuda.CUDAGraph:
        """The recording alone computes nothing. (Another thread may be pinning memory meanwhile.)"""
        own = (batch.ids.clone(), batch.targets.clone(), batch.reset.clone())
        self._batch = replace(batch, ids=own[0], targets=own[1], reset=own[2])
        self._carried = None if carried is None else carried.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._nll, self._after = self._gradients(self._batch, self._carried)
        self._made = [parameter.grad for parameter in self._parameters]
        return graph
