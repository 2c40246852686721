# SPDX-License-Identifier: AGPL-3.0-or-later
"""Coarse weights that do what fine ones do, so that a patch to them is small.

    near.save(Path("rusty_r2/lm/shipped"), Path("runs/ppo-3/last"), Path("small"), rows, step=6)

The weights of `old` may only move by whole steps of so many of their 8-bit levels. Rounding each to the
nearest leaves an error that nothing makes good. Here the columns of a matrix are rounded one after the
other, and those to come are moved so that the matrix does the least harm to what it really meets on some
rows of tokens: the inputs that go together make up for one another (GPTQ; Frantar et al., 2022). The blocks
follow one another, so that each meets what the rounded ones before it say. `mean` is the other half of a
small step: the middle between two trainings of the same start.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rusty_r2.errors import ConfigError
from rusty_r2.lm import checkpoint, patch, quantize
from rusty_r2.lm.tensors import TensorFile, write

STAGES = (
    ("attn.key", "attn.value", "attn.receptance"),
    ("attn.output",),
    ("ffn.key", "ffn.receptance"),
    ("ffn.value",),
)
"""the matrices of a block that meet their inputs at the same time"""
DAMP = 0.01
"""of the mean square of an input, added to all: what the rows do not show may still be asked"""
TOGETHER = 4
"""rows run at once"""


def mean(folders: Sequence[Path], out: Path) -> Path:
    """A folder with the mean of the weights of several, in fp32."""
    all_weights = [quantize.arrays(folder) for folder in folders]
    shapes = [{name: array.shape for name, array in one.items()} for one in all_weights]
    if any(one != shapes[0] for one in shapes):
        raise ConfigError(f"{', '.join(map(str, folders))}: models of different shapes have no mean")
    out.mkdir(parents=True, exist_ok=True)
    middle = {name: np.mean([one[name] for one in all_weights], axis=0) for name in shapes[0]}
    write(out / "model.safetensors", middle, {"format": "pt"})
    shutil.copyfile(folders[0] / "config.json", out / "config.json")
    return out


def save(old: Path, new: Path, out: Path, rows: NDArray[Any], *, step: int) -> Path:
    """Write to `out` 8-bit weights that are whole steps from those of `old` and do what those of `new` do."""
    if not 1 <= step <= patch.LARGEST:
        raise ConfigError(f"a step is 1 to {patch.LARGEST}, not {step}")
    base, wanted = TensorFile(old / patch.WEIGHTS), quantize.arrays(new)
    stored = {name: base.read(name) for name in base.names}
    for name, array in wanted.items():
        if stored[name].dtype == np.int8:  # those of the blocks come after
            scaled = array / stored[f"{name}.scale"][:, None]
            stored[name] = np.rint(scaled).clip(-127, 127).astype(np.int8)
        else:
            stored[name] = array
    model = checkpoint.load(new).eval()
    with torch.no_grad():
        ids = torch.from_numpy(np.asarray(rows, np.int64)).split(TOGETHER)
        inputs = [model.ln_in(model.embed_proj(model.token_embedding(some))) for some in ids]
        for layer, block in enumerate(model.blocks):
            for stage in STAGES:
                for linear, met in _met(block, stage, inputs).items():
                    name = f"blocks.{layer}.{linear}.weight"
                    levels, scale = base.read(name), torch.from_numpy(base.read(f"{name}.scale"))[:, None]
                    weight = block.get_submodule(linear).weight
                    assert isinstance(weight, Tensor)
                    found = rounded(weight / scale, torch.from_numpy(levels), met, step)
                    stored[name] = found.numpy().astype(np.int8)
                    weight.copy_(found * scale)
            inputs = [block(x, None, None)[0] for x in inputs]
    out.mkdir(parents=True, exist_ok=True)
    write(out / patch.WEIGHTS, stored, base.metadata)
    shutil.copyfile(new / "config.json", out / "config.json")
    return out


def rounded(wanted: Tensor, levels: Tensor, met: Tensor, step: int) -> Tensor:
    """`levels` moved by whole steps, [O,I]; their product with the inputs is near that of `wanted`.

    `met` [I,I] is the sum of the inputs' products. The inverse of its Cholesky factor says how an error in
    one column is best spread over those to the right of it.
    """
    left, start, met = wanted.double(), levels.double(), met.double()
    met = met + DAMP * met.diagonal().mean().clamp(min=1e-12) * torch.eye(len(met), dtype=torch.float64)
    spread = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(met)), upper=True)
    lowest, highest = -torch.floor((127 + start) / step), torch.floor((127 - start) / step)
    found = torch.empty_like(left)
    for at in range(left.shape[1]):
        steps = torch.round((left[:, at] - start[:, at]) / step)
        found[:, at] = start[:, at] + step * steps.clamp(lowest[:, at], highest[:, at])
        error = (left[:, at] - found[:, at]) / spread[at, at]
        left[:, at:].addr_(error, spread[at, at:], alpha=-1)
    return found.float()


def _met(block: nn.Module, stage: Sequence[str], inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """For each matrix the sum of x xᵀ over all that it meets."""
    sums: dict[str, Tensor] = {}

    def watch(name: str) -> Any:
        def add(_: nn.Module, arguments: tuple[Tensor]) -> None:
            x = arguments[0].flatten(0, -2)
            sums[name] = sums.get(name, torch.zeros(())) + x.T @ x

        return block.get_submodule(name).register_forward_pre_hook(add)

    hooks = [watch(name) for name in stage]
    for x in inputs:
        block(x, None, None)
    for hook in hooks:
        hook.remove()
    return sums
