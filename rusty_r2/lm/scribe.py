# SPDX-License-Identifier: AGPL-3.0-or-later
"""Many answers written side by side on a GPU, several words each before anyone looks.

    scribe = Scribe(model, rows=512, sampling=Sampling(1.0), limit=128, stops={0, 2, 8})
    scribe.read([3, 7], [prompt_of_3, prompt_of_7], seeds=[11, 12], counts=[40, 52])
    for row, words in scribe.write().items(): ...

A step (head, sampling, value, and reading the word that was chosen) is some two hundred small kernels. It is
recorded once as a CUDA graph for all rows and played from then on; a row that has ended, or has nothing to
say, goes along without effect. Words, log-probabilities and values of a whole stretch of steps come back in
one copy, the numbers that decide the words are sent ahead. A row ends with the first stop word or at the
limit; that last word is not read: whoever goes on reads it together with what follows.
Without a GPU the same steps run one by one (the tests compare). Masks are not for this: engine.py's `pick`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from rusty_r2.errors import ConfigError, RustyError
from rusty_r2.lm.decoding import Words
from rusty_r2.lm.engine_torch import TorchModel
from rusty_r2.lm.sampling import NO_CHOICE, Mask, Sampling, draw, log_probs, uniforms

STEPS = 16
"""words a row may say before the host looks"""


class Scribe:
    """`rows` answers at a time."""

    def __init__(
        self,
        model: TorchModel,
        *,
        rows: int,
        sampling: Sampling,
        limit: int,
        stops: Iterable[int],
        steps: int = STEPS,
        record: bool = True,
    ) -> None:
        self.model, self.sampling, self.limit, self.steps = model, sampling, limit, min(steps, limit)
        self.stops = frozenset(stops)
        self.state = model.new_state(rows)
        device = self.state.device
        self._stop = torch.tensor(sorted(self.stops), device=device)
        self._hidden = torch.zeros(rows, model.shape.hidden, device=device)
        self._alive = torch.zeros(rows, dtype=torch.bool, device=device)
        self._left = torch.zeros(rows, dtype=torch.int64, device=device)
        self._chance = torch.zeros(self.steps, rows, dtype=torch.float64, device=device)
        self._said = torch.zeros(self.steps, 3, rows, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._seeds, self._counts = [0] * rows, [0] * rows
        self._room = np.zeros(rows, np.int64)
        self._writing: set[int] = set()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._record = record and device.type == "cuda"

    @torch.inference_mode()
    def fork(self, source: Tensor, rows: Sequence[int]) -> None:
        """Let these rows go on from a state of one row; what they were writing is given up."""
        which = torch.tensor(list(rows), device=self.state.device)
        self.state[:, :, which] = source
        self._alive[which] = False
        self._writing.difference_update(rows)

    @torch.inference_mode()
    def read(
        self,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        counts: Sequence[int],
        masks: Sequence[Mask] = (),
    ) -> None:
        """Read each row's tokens; from now on it writes, and draws the counts-th number of its seed first."""
        if masks:
            raise ConfigError("a scribe writes without masks; take a PlainPen")
        lengths = [len(part) for part in tokens]
        ids = np.fromiter((token for part in tokens for token in part), np.int32, sum(lengths))
        places = np.repeat(np.asarray(rows, np.int32), lengths)
        slots = np.full(len(ids), -1, np.int32)
        slots[np.cumsum(lengths) - 1] = np.arange(len(rows))
        hidden, _ = self.model.read(ids, places, slots, self.state, len(rows))
        which = torch.from_numpy(np.asarray(rows, np.int64)).to(self.state.device)
        self._hidden[which], self._alive[which], self._left[which] = hidden, True, self.limit
        for row, seed, count in zip(rows, seeds, counts, strict=True):
            self._seeds[row], self._counts[row] = seed, count
        self._room[list(rows)] = self.limit
        self._writing.update(rows)

    @torch.inference_mode()
    def write(self) -> dict[int, Words]:
        """A stretch of words of every row that writes."""
        if not self._writing:
            return {}
        if self.sampling.temperature > 0:
            self._chance.copy_(torch.from_numpy(uniforms(self._seeds, self._counts, self.steps)))
        self._play()
        tokens, logp, values = self._said.permute(1, 2, 0).cpu().numpy()
        counts = (tokens >= 0).sum(1)
        if np.isnan(logp[tokens >= 0]).any():
            raise RustyError(NO_CHOICE)
        self._room -= counts
        last = np.take_along_axis(tokens, np.maximum(counts - 1, 0)[:, None], 1)[:, 0]
        ended = np.isin(last, list(self.stops)) | (self._room <= 0)
        parts = (
            tokens.astype(np.int64).tolist(),
            logp.tolist(),
            values.tolist(),
            counts.tolist(),
            ended.tolist(),
        )
        found = {}
        for row in sorted(self._writing):
            words, chances, expected, count, over = (part[row] for part in parts)
            unread = words[count - 1 : count] if over else []
            found[row] = Words(words[:count], chances[:count], expected[:count], unread, [])
            self._counts[row] += count
        self._writing -= {row for row, words in found.items() if words.unread}
        return found

    def _play(self) -> None:
        if self._record and self._graph is None:
            self._graph = self._recorded()
        self._step.zero_()
        for _ in range(self.steps):
            if self._graph is None:
                self._one()
            else:
                self._graph.replay()

    def _recorded(self) -> torch.cuda.CUDAGraph:
        """One step as a graph. Kernels are compiled first, by steps in which no row is alive."""
        alive = self._alive.clone()
        self._alive.zero_()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                self._step.zero_()
                self._one()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._one()
        self._alive.copy_(alive)
        return graph

    def _one(self) -> None:
        """One word of every row, and what the model makes of it."""
        logp = log_probs(self.model.head(self._hidden), self.sampling)
        words = draw(logp, self._chance.index_select(0, self._step)[0])
        taken = logp.gather(-1, words[:, None])[:, 0]
        said = torch.stack(
            [torch.where(self._alive, words, -1).float(), taken, self.model.values(self._hidden)]
        )
        self._said.index_copy_(0, self._step, said[None])
        self._step += 1
        self._left -= self._alive.long()
        going = self._alive & (self._left > 0) & (words[:, None] != self._stop).all(-1)
        hidden, state = self.model.lm.trunk(words[:, None], self.state)
        self.state.copy_(torch.where(going[:, None], state, self.state))
        self._hidden.copy_(torch.where(going[:, None], hidden[:, 0].float(), self._hidden))
        self._alive.copy_(going)
