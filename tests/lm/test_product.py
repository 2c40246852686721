# SPDX-License-Identifier: AGPL-3.0-or-later
"""Products with a function at their end are that function of the product."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.skipif(not find_spec("triton"), reason="triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32  # what Triton's interpreter multiplies exactly


def some(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(DTYPE)


@pytest.fixture(autouse=True, params=[(0, False), (1, False), (1, True)], ids=str)
def dials(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    from rusty_r2.lm.kernels import triton_product

    torch.manual_seed(0)
    shape = (64, 64, 64, 4, 2) if DEVICE == "cuda" else (16, 32, 16, 4, 2)
    for dial in ("EXPONENTS", "SQUARED", "SQUARED_BACK"):
        monkeypatch.setattr(triton_product, dial, (*shape, *request.param))


def close(got: Tensor, want: Tensor) -> bool:
    return bool((got.double() - want).norm() <= (1e-5 if DEVICE == "cpu" else 4e-3) * want.norm())


def test_squares_and_their_way_back() -> None:
    from rusty_r2.lm.kernels.triton_product import squared, squared_back

    a, b, g, w = some(40, 24), some(72, 24), some(40, 24), some(24, 72)
    k = a.double() @ b.double().t()
    s = squared(a, b)
    assert close(s, k.relu().square())
    assert close(squared_back(g, w, s), (g.double() @ w.double()) * 2 * s.double().sqrt())


def test_exponents_and_their_sums() -> None:
    from rusty_r2.lm.kernels.triton_product import exponents

    a, b, aims = some(40, 24), some(72, 24), torch.randn(40, device=DEVICE)
    out = a.new_full((40, 80), 7.0)
    sums = exponents(a, b, aims, 3.0, out[:, :72])
    want = torch.exp(a.double() @ b.double().t() - aims[:, None] - 3.0)
    assert close(out[:, :72], want) and (out[:, 72:] == 7).all()
    assert torch.allclose(sums.double(), want.sum(1), rtol=1e-5)


def test_what_can_be_an_operand() -> None:
    from rusty_r2.lm.kernels.triton_product import suits

    whole = torch.zeros(8, 24, dtype=torch.bfloat16)
    assert suits(whole, whole[:, :9])
    assert (
        not suits(whole.float()) and not suits(whole.t()) and not suits(whole[:, 1:]) and not suits(whole[:0])
    )
    assert not suits(torch.zeros(8, 9, dtype=torch.bfloat16))
