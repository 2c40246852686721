"""A beginning that is kept once changes nothing but the time."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")
pytest.importorskip("transformers", reason="pip install 'rusty-r2[train]'")

from rusty_r2.errors import RustyError  # noqa: E402
from rusty_r2.lm.beginnings import Beginning, Repeated, Rows, fits, pick  # noqa: E402
from rusty_r2.lm.sampling import Sampling, bits, choose, uniform  # noqa: E402

BEGIN = [5, 9, 2, 7, 7, 1, 30, 12]
NEW = [[3], [4, 8, 15, 16, 23, 42], [6, 6, 6], [11, 12]]


def llama(**more):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    size = {"vocab_size": 64, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128}
    return LlamaForCausalLM(LlamaConfig(**size, **heads, **more)).eval()


def alone(model, ids):
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, -1]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("begin", [BEGIN, []])
def test_rows_hear_what_each_would_hear_alone(shared, begin, monkeypatch):
    from rusty_r2.lm import beginnings

    monkeypatch.setattr(beginnings, "AT_ONCE", 7)  # prompts are read in several goes
    model = llama()
    rows = Rows(model, Beginning.read(model, begin)) if shared else Repeated(model, begin)
    said = [list(ids) for ids in NEW]
    logits = rows.begin(NEW, room=4)
    kept = list(range(len(NEW)))
    for round_ in range(4):
        for row, number in enumerate(kept):
            torch.testing.assert_close(logits[row], alone(model, [*begin, *said[number]]))
        if round_ == 1:
            rows.keep([1, 3])
            kept = [1, 3]
        for number in kept:
            said[number].append(20 + number + round_)
        logits = rows.step([said[number][-1] for number in kept])
    assert model.config._attn_implementation != beginnings.NAME, "the model attends its own way again"


def test_models_that_look_through_windows_or_squash_are_read_the_plain_way():
    from transformers import Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

    size = {"vocab_size": 64, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2}
    assert fits(llama())
    assert not fits(MistralForCausalLM(MistralConfig(sliding_window=4, **size, **heads)))
    assert not fits(Gemma2ForCausalLM(Gemma2Config(head_dim=4, **size, **heads)))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("masked", [True, False])
def test_words_are_picked_as_they_are_chosen_one_by_one(temperature, masked):
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (50, 75)).astype(np.float32)
    mask = bits(rng.random((50, 75)) < 0.3) if masked else None
    sampling, chance = Sampling(temperature), uniform(range(50), [7] * 50)
    expected, _, _ = choose(logits, sampling, chance, mask)
    assert pick(torch.from_numpy(logits), sampling, chance, mask) == expected.tolist()


def test_nothing_to_pick_is_said():
    with pytest.raises(RustyError, match="no word can be chosen"):
        pick(torch.full((1, 64), float("nan")), Sampling(0), uniform([1], [0]))
    with pytest.raises(RustyError, match="no word can be chosen"):
        pick(torch.zeros(1, 64), Sampling(0), uniform([1], [0]), np.zeros((1, 2), np.uint32))
