# SPDX-License-Identifier: AGPL-3.0-or-later
"""A model ready to speak: reads tokens into a state, and writes new ones from it.

    engine = Engine.load(Path("checkpoints/step_001000"), weights="int8")
    for token in engine.generate(prompt, sampling=Sampling(temperature=0.7), max_new_tokens=100):
        ...

What was read is never read again: a state is all the model remembers, 40 KB a row at the seeds' size, and
copying one is how answers fork (`select`). One call reads rows of different lengths (`prefill`), one call
steps many rows at once and returns words, log-probabilities and values (`sample`).

On a CPU the work is done by engine.cpp, or by NumPy where nothing can be compiled; on a GPU by torch. All
three answer alike. States are changed in place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rusty_r2.errors import CheckpointError, ConfigError
from rusty_r2.lm.quantize import FORMATS, Arrays, Folder, Source
from rusty_r2.lm.sampling import Floats, Mask, Sampling, uniform
from rusty_r2.lm.shape import Shape

if TYPE_CHECKING:
    from rusty_r2.lm.grammar import ActionGrammar

Ints = NDArray[np.int32]
State = Any
"""fp32 [layer, 5, row, channel] (att_x, ffn_x, aa, bb, pp): a NumPy array, on a GPU a tensor"""
STOP = (0, 2, 8)
"""<pad>, <eos> and <|end|> end an answer"""


class Model(Protocol):
    """What NativeModel, NumpyModel and TorchModel do."""

    shape: Shape
    weights: str

    def read(self, tokens: Ints, rows: Ints, slots: Ints, state: State, count: int) -> tuple[Any, Floats]: ...
    def logits(self, hidden: Any) -> Floats: ...
    def pick(
        self,
        hidden: Any,
        sampling: Sampling,
        uniforms: NDArray[np.float64],
        mask: Mask | None = None,
        history: Sequence[Sequence[int]] | None = None,
        given: Ints | None = None,
        keep: bool = False,
    ) -> tuple[Ints, Floats, Mask | None]: ...
    def step(
        self,
        tokens: Ints,
        state: State,
        sampling: Sampling,
        uniforms: NDArray[np.float64],
        mask: Mask | None = None,
        history: Sequence[Sequence[int]] | None = None,
        keep: bool = False,
    ) -> tuple[Ints, Floats, Floats, Mask | None]: ...


@dataclass(frozen=True)
class Output:
    """Where the rows stand after reading: what the next word is chosen from."""

    hidden: Any
    """[rows, channels], normalised; what `Engine.pick` takes"""
    values: Floats
    """[rows], what the value head expects"""
    model: Model = field(repr=False)

    @property
    def logits(self) -> Floats:
        """[rows, words], computed when asked for."""
        return self.model.logits(self.hidden)


@dataclass(frozen=True)
class Sampled:
    """One new word a row."""

    tokens: Ints
    logp: Floats
    """log-probability under the distribution really sampled"""
    values: Floats
    """of the state the word was chosen in"""
    kept: Mask | None = None
    """which words were possible, as bits, where asked for"""


@dataclass(frozen=True)
class Completion:
    """One finished answer."""

    tokens: list[int]
    logp: list[float]
    """0 where the grammar left no choice"""
    values: list[float]
    """not a number where nothing was chosen"""
    forced: list[bool]
    """True where the grammar left no choice: nothing to learn there"""
    reason: str
    """stop, length or grammar"""


class Engine:
    """One model with its weights in one format."""

    def __init__(self, model: Model, *, backend: str) -> None:
        self.model, self.backend = model, backend
        self.shape, self.weights = model.shape, model.weights

    @classmethod
    def load(
        cls, folder: Path | str, *, weights: str = "auto", device: str = "cpu", threads: int | None = None
    ) -> Engine:
        """A checkpoint folder, plain or quantised. auto: as stored, else int8 on a CPU and bf16 on a GPU."""
        folder = Path(folder)
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is not a folder. Train a model: rusty train supervised --help")
        if device.partition(":")[0] != "cpu":
            from rusty_r2.lm.engine_torch import TorchModel

            return cls(TorchModel.load(folder, weights=weights, device=device), backend=f"torch on {device}")
        source = Folder(folder)
        return cls.build(
            source,
            weights="int8" if weights == "auto" and source.stored == "fp32" else weights,
            threads=threads,
        )

    @classmethod
    def from_model(
        cls, model: Any, *, weights: str = "fp32", device: str = "cpu", threads: int | None = None
    ) -> Engine:
        """A torch model's present weights (copied, so training may go on)."""
        if device.partition(":")[0] != "cpu":
            from rusty_r2.lm.engine_torch import TorchModel

            return cls(TorchModel(model, weights=weights, device=device), backend=f"torch on {device}")
        arrays = {name: tensor.detach().float().cpu().numpy() for name, tensor in model.state_dict().items()}
        return cls.build(
            Arrays(arrays, {}), weights="int8" if weights == "auto" else weights, threads=threads
        )

    @classmethod
    def build(cls, source: Source, *, weights: str, threads: int | None = None) -> Engine:
        """An engine on the CPU from any source of weights."""
        weights = source.stored if weights == "auto" else weights
        if weights not in FORMATS:
            raise ConfigError(f"weights {weights!a} is not one of {', '.join(FORMATS)}")
        from rusty_r2.lm import engine_native

        if engine_native.library() is None:
            from rusty_r2.lm.engine_numpy import NumpyModel

            return cls(NumpyModel(source, weights), backend="NumPy")
        model = engine_native.NativeModel(source, weights, threads=threads or default_threads())
        return cls(model, backend=f"C++ ({engine_native.simd()})")

    def new_state(self, rows: int = 1) -> State:
        """Nothing read yet."""
        make = getattr(self.model, "new_state", None)
        if make is not None:
            return make(rows)
        state = np.zeros((self.shape.layers, 5, rows, self.shape.hidden), np.float32)
        state[:, 4] = -1e38
        return state

    def select(self, state: State, rows: Sequence[int]) -> State:
        """A state of these rows, copied: to fork (`[0, 0, 0]`), to drop, to reorder."""
        chosen = state[:, :, list(rows)]
        return np.ascontiguousarray(chosen) if isinstance(chosen, np.ndarray) else chosen.contiguous()

    def prefill(self, rows: Sequence[Sequence[int]], state: State) -> Output:
        """Read each row's tokens into its row of the state; rows may differ in length, none may be empty."""
        if len(rows) != state.shape[2] or not all(len(row) for row in rows):
            raise ConfigError(
                f"{len(rows)} rows of tokens for a state of {state.shape[2]}; each needs one token at least"
            )
        tokens = self._ids([token for row in rows for token in row])
        lengths = [len(row) for row in rows]
        row_of = np.repeat(np.arange(len(rows), dtype=np.int32), lengths)
        slots = np.full(len(tokens), -1, np.int32)
        slots[np.cumsum(lengths) - 1] = np.arange(len(rows))
        hidden, values = self.model.read(tokens, row_of, slots, state, len(rows))
        return Output(hidden, values, self.model)

    def step(self, tokens: Sequence[int] | Ints, state: State) -> Output:
        """Read one token a row."""
        ids = self._ids(tokens)
        order = np.arange(len(ids), dtype=np.int32)
        hidden, values = self.model.read(ids, order, order, state, len(ids))
        return Output(hidden, values, self.model)

    def pick(
        self,
        output: Output,
        sampling: Sampling,
        *,
        seeds: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
        mask: Mask | None = None,
        history: Sequence[Sequence[int]] | None = None,
        given: Sequence[int] | Ints | None = None,
        keep: bool = False,
    ) -> Sampled:
        """Choose the next word of each row (or score the `given` ones)."""
        rows = len(output.values)
        words = None if given is None else self._ids(given)
        found = self.model.pick(
            output.hidden,
            sampling,
            _chance(rows, sampling, seeds, counts),
            self._mask(mask, rows),
            history,
            words,
            keep,
        )
        return Sampled(found[0], found[1], output.values, found[2])

    def sample(
        self,
        tokens: Sequence[int] | Ints,
        state: State,
        sampling: Sampling,
        *,
        seeds: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
        mask: Mask | None = None,
        history: Sequence[Sequence[int]] | None = None,
        keep: bool = False,
    ) -> Sampled:
        """Read one token a row and choose the next, in one call.

        Row i draws the counts[i]-th number of seeds[i] (defaults: the sampling's seed plus the row, and 0).
        """
        ids = self._ids(tokens)
        chance = _chance(len(ids), sampling, seeds, counts)
        following, logp, values, kept = self.model.step(
            ids, state, sampling, chance, self._mask(mask, len(ids)), history, keep
        )
        return Sampled(following, logp, values, kept)

    def score(self, ids: Sequence[int], state: State | None = None) -> tuple[Floats, Ints]:
        """log p of each token but the first, given those before it, and the likeliest word at each place."""
        state = self.new_state() if state is None else state
        tokens = self._ids(ids)
        plain, likeliest = Sampling(temperature=1.0), Sampling(temperature=0.0)
        logp, best = [np.zeros(0, np.float32)], [np.zeros(0, np.int32)]
        for at in range(0, len(tokens) - 1, 256):
            part = tokens[at : min(at + 256, len(tokens) - 1)]
            order = np.arange(len(part), dtype=np.int32)
            hidden, _ = self.model.read(part, np.zeros(len(part), np.int32), order, state, len(part))
            none = np.zeros(len(part))
            logp.append(self.model.pick(hidden, plain, none, given=tokens[at + 1 : at + 1 + len(part)])[1])
            best.append(self.model.pick(hidden, likeliest, none)[0])
        return np.concatenate(logp), np.concatenate(best)

    def generate(
        self,
        prompt: Sequence[int],
        *,
        sampling: Sampling,
        max_new_tokens: int,
        stop: Sequence[int] = STOP,
        grammar: ActionGrammar | None = None,
        state: State | None = None,
    ) -> Iterator[int]:
        """New tokens one by one, as they come; the stop token is not among them.

        A `state` that is given goes on from there, and has read the prompt and every token at the end.
        """
        from rusty_r2.lm.decoding import Decoder

        decoder = Decoder(self, [prompt], sampling, max_new_tokens, stop=stop, grammar=grammar, state=state)
        yield from (token for _, token in decoder.news())
        while not decoder.done:
            yield from (token for _, token in decoder.advance())

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        max_new_tokens: int,
        stop: Sequence[int] = STOP,
        grammar: ActionGrammar | None = None,
        seeds: Sequence[int] | None = None,
    ) -> list[Completion]:
        """Answers to many prompts at once: the same words as one by one with the same seeds."""
        from rusty_r2.lm.decoding import Decoder

        decoder = Decoder(self, prompts, sampling, max_new_tokens, stop=stop, grammar=grammar, seeds=seeds)
        while not decoder.done:
            decoder.advance()
        return decoder.completions()

    def _ids(self, tokens: Sequence[int] | Ints) -> Ints:
        ids = np.ascontiguousarray(tokens, np.int32)
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self.shape.words:
            wrong = next(token for token in ids.ravel().tolist() if not 0 <= token < self.shape.words)
            raise ConfigError(f"token {wrong} is not among the model's {self.shape.words:,} words")
        return ids

    def _mask(self, mask: Mask | None, rows: int) -> Mask | None:
        if mask is None:
            return None
        wanted = (rows, (self.shape.words + 31) // 32)
        if mask.shape != wanted:
            raise ConfigError(f"the mask is {mask.shape}; {wanted} is needed")
        return np.ascontiguousarray(mask).view(np.uint32)


def _chance(
    rows: int, sampling: Sampling, seeds: Sequence[int] | None, counts: Sequence[int] | None
) -> NDArray[np.float64]:
    if sampling.temperature == 0:
        return np.zeros(rows)
    given = range(sampling.seed, sampling.seed + rows) if seeds is None else seeds
    return uniform(given, [0] * rows if counts is None else counts)


def default_threads() -> int:
    """$OMP_NUM_THREADS, else the cores this process may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
