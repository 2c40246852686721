# SPDX-License-Identifier: AGPL-3.0-or-later
"""Coarse weights do what the fine ones do, and are whole steps from the old."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rusty_r2.data.drills import DrillsConfig, build
from rusty_r2.errors import ConfigError
from rusty_r2.lm import checkpoint, near, patch, quantize
from rusty_r2.lm.rwkv import ModelConfig, TinyRWKVLM
from rusty_r2.lm.tensors import TensorFile

STEP = 12
ROOT = Path(__file__).parents[2]


def moved(model, by):
    """Every weight but the words' moved by about so much."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "token_embedding" not in name and "lm_head" not in name:
                weight += by * torch.randn(weight.shape)
    return model


def versions(folder, words=300):
    """The old weights in 8 bits, and two newer ones from them."""
    torch.manual_seed(3)
    model = TinyRWKVLM.of(ModelConfig(vocab_size=words, d_embed=32, d_hidden=64, n_layers=2))
    with torch.no_grad():
        model.token_embedding.weight.normal_()
    start = quantize.save(checkpoint.save(folder / "old", moved(model, 0.3)), folder / "old8")
    news = []
    for name in ("one", "two"):
        fine = moved(checkpoint.load(start), 0.04)
        news.append(checkpoint.save(folder / name, fine))
    return start, *news


def said(folder, rows):
    with torch.no_grad():
        return checkpoint.load(folder).eval()(torch.from_numpy(rows))[0]


def test_they_are_whole_steps_away_and_do_less_harm_than_the_nearest(tmp_path):
    old, new, _ = versions(tmp_path)
    random = np.random.default_rng(0)
    seen, fresh = random.integers(9, 300, (2, 24, 64))
    coarse = near.save(old, new, tmp_path / "coarse", seen, step=STEP)
    plain = quantize.save(new, tmp_path / "new8")
    before, after = TensorFile(old / patch.WEIGHTS), TensorFile(coarse / patch.WEIGHTS)
    assert before.header == after.header
    for name in before.names:
        was, now = before.read(name), after.read(name)
        if name.startswith("blocks") and was.dtype == np.int8:
            change = now.astype(int) - was
            assert (change % STEP == 0).all() and change.any() and np.abs(now.astype(int)).max() <= 127
        elif name.endswith(".scale") or name.startswith(("token_embedding", "lm_head")):
            assert np.array_equal(was, now)
    nearest = tmp_path / "nearest"
    quantize.save(old, nearest)
    patch.make(old, plain, nearest / patch.PATCH, step=STEP)
    wanted = said(new, fresh)
    harm = [float((said(folder, fresh) - wanted).square().mean()) for folder in (coarse, nearest)]
    assert harm[0] < 0.8 * harm[1]


def test_a_matrix_that_meets_nothing_but_one_direction_does_it_exactly():
    wanted, levels = torch.tensor([[3.0, 4.0, 1.0]]), torch.zeros(1, 3)
    only = torch.tensor([[1.0, 1.0, 1.0]])
    found = near.rounded(wanted, levels, only.T @ only * 1000, 4)
    assert found.sum() == wanted.sum()
    assert (near.rounded(wanted, levels, torch.eye(3), 4) == torch.tensor([[4.0, 4.0, 0.0]])).all()


def test_nothing_leaves_eight_bits():
    levels = torch.tensor([[126.0, -126.0]])
    found = near.rounded(torch.tensor([[200.0, -200.0]]), levels, torch.eye(2), 4)
    assert (found == levels).all()
    assert (near.rounded(torch.zeros(1, 2), levels, torch.zeros(2, 2), 6) == 0).all()


def test_the_mean_lies_between(tmp_path):
    _, one, two = versions(tmp_path)
    middle = quantize.arrays(near.mean([one, two], tmp_path / "mean"))
    for name, array in quantize.arrays(one).items():
        assert np.allclose(middle[name], (array + quantize.arrays(two)[name]) / 2, atol=1e-6)
    other = TinyRWKVLM.of(ModelConfig(vocab_size=300, d_embed=32, d_hidden=32, n_layers=2))
    with pytest.raises(ConfigError, match="different shapes"):
        near.mean([one, checkpoint.save(tmp_path / "other", other)], tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("step", [0, -1, patch.LARGEST + 1])
def test_a_step_that_leads_nowhere_is_refused(tmp_path, step):
    with pytest.raises(ConfigError, match="a step is 1 to"):
        near.save(tmp_path, tmp_path, tmp_path / "out", np.zeros((1, 8)), step=step)


def test_the_tool_makes_a_patch_of_two_versions_and_rows(tmp_path):
    old, one, two = versions(tmp_path, words=24_000)
    rows = tmp_path / "rows"
    build(DrillsConfig(output_dir=rows, lessons=40, gym=0, seq_len=256, workers=1))
    tool = [sys.executable, ROOT / "tools" / "patch.py", one, two, "--into", old]
    asked = [*tool, "--rows", rows, "--count", "8"]
    none = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert none.returncode == 1 and none.stderr.startswith("patch: a step is 1 to")
    assert not (old / patch.PATCH).exists()
    sizes = []
    for command in (tool, [*asked, "--step", str(STEP)]):
        made = subprocess.run(command, capture_output=True, text=True, check=True)
        assert patch.promised(old)[:16] in made.stdout
        sizes.append((old / patch.PATCH).stat().st_size)
    assert sizes[1] < 0.7 * sizes[0]
