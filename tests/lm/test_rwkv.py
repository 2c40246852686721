# SPDX-License-Identifier: AGPL-3.0-or-later
"""The model: any split gives the same answer, the numbers are RWKV-4's, and it learns."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rusty_r2.errors import ConfigError, DataError
from rusty_r2.lm.rwkv import PRESETS, ModelConfig, TinyRWKVLM


@pytest.fixture
def model() -> TinyRWKVLM:
    torch.manual_seed(0)
    return shaken(TinyRWKVLM(97, d_embed=24, d_hidden=40, n_layers=3))


def shaken(model: TinyRWKVLM) -> TinyRWKVLM:
    """Away from the zeros of a new model, where most mistakes would not show."""
    with torch.no_grad():
        for x in model.parameters():
            x.add_(torch.randn_like(x) * (0.3 if x.ndim == 2 else 0.1))
    return model


def ids(*shape: int) -> Tensor:
    return torch.randint(0, 97, shape)


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("cut", [1, 5, 18])
def test_any_split_gives_the_same_answer(model: TinyRWKVLM, cut: int) -> None:
    x = ids(2, 19)
    logits, values, end = model(x)
    left, left_values, state = model(x[:, :cut])
    right, right_values, last = model(x[:, cut:], state)
    assert close(torch.cat([left, right], 1), logits)
    assert close(torch.cat([left_values, right_values], 1), values)
    assert close(last, end)


def test_token_by_token_is_all_at_once(model: TinyRWKVLM) -> None:
    x = ids(3, 12)
    logits, values, end = model(x)
    state = model.initial_state(3)
    for t in range(12):
        step, value, state = model.advance(x[:, t], state)
        assert close(step, logits[:, t]) and close(value, values[:, t])
    assert close(state, end)


def test_the_contract_of_shapes(model: TinyRWKVLM) -> None:
    logits, values, state = model(ids(2, 7))
    assert logits.shape == (2, 7, 97) and values.shape == (2, 7)
    assert state.shape == (3, 5, 2, 40) and state.dtype == torch.float32
    assert model.initial_state(2).shape == state.shape


def test_rows_do_not_touch_each_other(model: TinyRWKVLM) -> None:
    x = ids(4, 9)
    alone = torch.cat([model(row[None])[0] for row in x])
    assert close(model(x)[0], alone)


def test_the_future_does_not_reach_the_past(model: TinyRWKVLM) -> None:
    x = ids(1, 16)
    y = x.clone()
    y[0, 9] = (y[0, 9] + 1) % 97
    before, after = model(x)[0], model(y)[0]
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])


def test_a_reset_starts_a_new_document(model: TinyRWKVLM) -> None:
    x = ids(2, 20)
    reset = torch.zeros(2, 20, dtype=torch.bool)
    reset[0, 8] = reset[1, 13] = True
    packed, _, end = model(x, model(ids(2, 5))[2], reset=reset)
    for row, cut in ((0, 8), (1, 13)):
        alone, _, last = model(x[row : row + 1, cut:])
        assert close(packed[row : row + 1, cut:], alone)
        assert close(end[:, :, row : row + 1], last)


def test_gradients_flow_through_a_carried_state(model: TinyRWKVLM) -> None:
    x, y = ids(2, 14), ids(2, 14)
    whole = torch.autograd.grad(model.loss(x, y)[0], list(model.parameters()), allow_unused=True)
    first, _, state = model.loss(x[:, :6], y[:, :6])
    second, _, _ = model.loss(x[:, 6:], y[:, 6:], state=state)
    parts = torch.autograd.grad(first + second, list(model.parameters()), allow_unused=True)
    for (name, _), a, b in zip(model.named_parameters(), whole, parts, strict=True):
        assert (a is None) == (b is None) == name.startswith("value_head")
        assert a is None or (a - b).abs().max() <= 2e-5 * a.abs().max() + 1e-6, name


def test_loss_is_cross_entropy_of_the_marked_tokens(model: TinyRWKVLM) -> None:
    x, y, mask = ids(2, 11), ids(2, 11), torch.rand(2, 11) < 0.5
    total, count, state = model.loss(x, y, mask)
    logits, _, end = model(x)
    assert count == int(mask.sum()) and close(state, end)
    assert close(total, F.cross_entropy(logits[mask], y[mask], reduction="sum"))


def test_a_target_outside_the_vocabulary_is_named(model: TinyRWKVLM) -> None:
    with pytest.raises(DataError, match="97 words"):
        model.loss(ids(1, 4), torch.full((1, 4), 97))


def test_checkpointing_changes_memory_not_numbers() -> None:
    torch.manual_seed(1)
    plain = shaken(TinyRWKVLM(97, 24, 40, 2))
    saving = TinyRWKVLM(97, 24, 40, 2, gradient_checkpointing=True)
    saving.load_state_dict(plain.state_dict())
    x, y = ids(2, 9), ids(2, 9)
    for model in (plain, saving):
        model.loss(x, y)[0].backward()
    pairs = zip(plain.parameters(), saving.parameters(), strict=True)
    assert all(a.grad is None or torch.equal(a.grad, b.grad) for a, b in pairs)


def test_dropout_only_while_training() -> None:
    model = shaken(TinyRWKVLM(97, 24, 40, 2, dropout=0.5))
    x = ids(1, 8)
    assert not torch.equal(model(x)[0], model(x)[0])
    model.eval()
    assert torch.equal(model(x)[0], model(x)[0])


def test_the_seeds_size_and_names() -> None:
    with torch.device("meta"):
        model = TinyRWKVLM()
    names = set(model.state_dict())
    assert {
        "token_embedding.weight",
        "embed_proj.weight",
        "ln_in.bias",
        "lm_head.weight",
        "value_head.bias",
    } <= names
    assert {
        f"blocks.3.attn.{n}" for n in ("time_decay", "time_first", "time_mix_k", "time_mix_v", "time_mix_r")
    } <= names
    assert {
        "blocks.0.ffn.time_mix_k",
        "blocks.0.ffn.time_mix_r",
        "blocks.0.ffn.key.weight",
        "blocks.0.ln2.weight",
    } <= names
    assert sum(x.numel() for x in model.parameters()) == 32_209_921 - 512 + 4 * 5 * 512
    assert PRESETS["tiny"] == model.config == ModelConfig()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_build(name: str) -> None:
    with torch.device("meta"):
        assert TinyRWKVLM.of(PRESETS[name], vocab_size=50).config.vocab_size == 50


@pytest.mark.parametrize("wrong", [{"n_layers": 0}, {"vocab_size": 0}, {"dropout": 1.0}, {"d_ffn": -1}])
def test_impossible_sizes_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        TinyRWKVLM(**wrong)  # type: ignore[arg-type]


def test_a_new_model_passes_its_input_on() -> None:
    model = TinyRWKVLM(97, 24, 40, 2)
    x = ids(1, 6)
    plain = model.ln_out(model.ln_in(model.embed_proj(model.token_embedding(x))))
    assert close(model.trunk(x)[0], plain)


def test_it_overfits_one_batch() -> None:
    torch.manual_seed(0)
    model = TinyRWKVLM(97, 24, 64, 2)
    x = ids(4, 17)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        total, count, _ = model.loss(x[:, :-1], x[:, 1:])
        losses.append(float(total.detach()) / count)
        optimizer.zero_grad()
        total.div(count).backward()
        optimizer.step()
    assert losses[0] == pytest.approx(4.57, abs=0.5) and losses[-1] < 0.2


def test_the_numbers_are_huggingfaces() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.RwkvConfig(
        vocab_size=97, hidden_size=48, num_hidden_layers=3, intermediate_size=160, context_length=64,
        tie_word_embeddings=False, rescale_every=0,
    )  # fmt: skip
    theirs = transformers.RwkvForCausalLM(config).eval()
    with torch.no_grad():
        for x in theirs.parameters():
            x.add_(torch.randn_like(x) * 0.1)
    ours = TinyRWKVLM(97, d_embed=48, d_hidden=48, n_layers=3, d_ffn=160)
    ours.load_state_dict(from_huggingface(theirs.state_dict(), 48))
    x = ids(2, 40)
    with torch.no_grad():
        assert torch.allclose(ours(x)[0], theirs(x).logits, atol=1e-5)
    assert ours.loss(x[:, :-1], x[:, 1:])[0].item() == pytest.approx(
        theirs(x, labels=x).loss.item() * 2 * 39, rel=1e-5
    )


def from_huggingface(weights: dict[str, Tensor], width: int) -> dict[str, Tensor]:
    """Their names as ours; our projection becomes the identity."""
    words = [
        ("rwkv.embeddings", "token_embedding"), ("rwkv.blocks.0.pre_ln", "ln_in"), ("rwkv.", ""),
        ("attention", "attn"), ("feed_forward", "ffn"), ("mix_key", "mix_k"), ("mix_value", "mix_v"),
        ("mix_receptance", "mix_r"), ("head.weight", "lm_head.weight"),
    ]  # fmt: skip
    ours = {"embed_proj.weight": torch.eye(width)}
    ours |= {"value_head.weight": torch.zeros(1, width), "value_head.bias": torch.zeros(1)}
    for name, x in weights.items():
        for theirs, mine in words:
            name = name.replace(theirs, mine)
        ours[name] = x.flatten() if "time_" in name else x
    return ours
