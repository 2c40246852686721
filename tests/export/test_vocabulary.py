"""The tokenizer in the file is the model's own, as a real llama.cpp reads it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rusty_r2.errors import CheckpointError, ConfigError
from rusty_r2.export import compare, vocabulary
from rusty_r2.export.gguf import write_gguf
from rusty_r2.export.source import Source
from rusty_r2.lm.llama import Llama

from .models import CHATML, make, save_tokenizer, tokenizer, tokenizers

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
parts = tokenizers.pre_tokenizers


def exported(folder, tmp_path):
    return write_gguf(folder, tmp_path / "m.gguf", "F16").path


@pytest.mark.parametrize("name", vocabulary.rules())
def test_every_known_rule_is_found_by_behaviour_and_llama_cpp_cuts_alike(tmp_path, name):
    folder = make(tmp_path / "model", made=tokenizer(vocabulary.rules()[name]), **SMALL)
    assert vocabulary.read(folder, 640).pre == name
    with Llama(exported(folder, tmp_path), context=64) as llama:
        found = compare.tokens(llama, Source.open(folder))
    assert found.passed, found.said


@pytest.fixture(scope="module")
def smollm(tmp_path_factory):
    """A running model with SmolLM's rule, and its tokenizer."""
    place = tmp_path_factory.mktemp("smollm")
    folder = make(place / "model", **SMALL)
    with Llama(exported(folder, place), context=64) as llama:
        yield llama, vocabulary.load(folder)


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=40))
def test_any_text_becomes_the_same_ids_and_comes_back(smollm, text):
    llama, own = smollm
    ids = own.encode(text, add_special_tokens=False).ids
    assert llama.tokenize(text, special=True) == ids
    assert llama.detokenize(ids) == own.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    "rule",
    [
        parts.Sequence([parts.Whitespace(), parts.ByteLevel(add_prefix_space=False, use_regex=False)]),
        parts.ByteLevel(add_prefix_space=False, use_regex=False),
        parts.Sequence([parts.Digits(individual_digits=False), parts.ByteLevel(add_prefix_space=False)]),
    ],
    ids=["words", "no rule", "numbers in one piece"],
)
def test_a_rule_that_llama_cpp_does_not_have_is_an_error(tmp_path, rule):
    made = tokenizer()
    made.pre_tokenizer = rule
    folder = make(tmp_path / "model", made=made, **SMALL)
    with pytest.raises(ConfigError, match="cuts text like none that is known here"):
        exported(folder, tmp_path)


def test_a_tokenizer_that_does_not_work_on_bytes_is_an_error(tmp_path):
    folder = make(tmp_path / "model", **SMALL)
    path = folder / "tokenizer.json"
    raw = json.loads(path.read_text())
    raw["model"]["byte_fallback"] = True
    path.write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match="only byte-level BPE"):
        exported(folder, tmp_path)


def test_a_beginning_that_the_tokenizer_adds_is_added_by_llama_cpp(tmp_path):
    folder = make(tmp_path / "model", made=tokenizer(begins=True), **SMALL)
    read = vocabulary.read(folder, 640)
    assert (read.add_bos, read.add_eos, read.special["bos"]) == (True, False, 0)
    assert not vocabulary.read(make(tmp_path / "plain", **SMALL), 640).add_bos
    with Llama(exported(folder, tmp_path), context=64) as llama:
        own = vocabulary.load(folder)
        assert llama.tokenize("a b 12", begin=True) == own.encode("a b 12").ids
        assert llama.tokenize("a b 12", begin=False) == own.encode("a b 12").ids[1:]


def test_special_tokens_are_found_by_name_then_by_number(tmp_path):
    folder = make(tmp_path / "model", **SMALL)
    assert vocabulary.read(folder, 640).special == {"bos": 0, "eos": 2, "pad": 0}
    settings_path = folder / "tokenizer_config.json"
    kept = json.loads(settings_path.read_text())
    for name in ("bos_token", "eos_token", "pad_token"):
        kept.pop(name)
    settings_path.write_text(json.dumps(kept))
    assert vocabulary.read(folder, 640).special == {"bos": 0, "eos": 2, "pad": 0}
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        found = json.loads(path.read_text())
        path.write_text(
            json.dumps({key: value for key, value in found.items() if not key.endswith("token_id")})
        )
    with pytest.raises(CheckpointError, match="which token ends a text"):
        vocabulary.read(folder, 640)


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    folder = make(tmp_path / "model", vocab_size=320, **SMALL)
    with pytest.raises(CheckpointError, match="the tokenizer has 600 words, the model 320"):
        exported(folder, tmp_path)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="holds no tokenizer.json"):
        exported(folder, tmp_path)


def test_the_chat_template_is_found_in_a_file_or_in_the_settings(tmp_path):
    folder = tmp_path / "old"
    save_tokenizer(folder, tokenizer(), template="")
    assert vocabulary.chat_template(folder) == ""
    path = folder / "tokenizer_config.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"chat_template": CHATML}))
    assert vocabulary.chat_template(folder) == CHATML
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]
    path.write_text(json.dumps(kept | {"chat_template": named}))
    assert vocabulary.chat_template(folder) == CHATML
    (folder / "chat_template.jinja").write_text("newer")
    assert vocabulary.chat_template(folder) == "newer"
    path.write_text("[]")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is not a table"):
        vocabulary.chat_template(folder)
