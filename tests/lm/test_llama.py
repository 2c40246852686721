"""llama.cpp in this process: it reads, speaks and refuses as it should, and agrees with transformers."""

import json
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest

from rusty_r2.errors import CheckpointError, ConfigError, PolicyError
from rusty_r2.lm.llama import Llama, check_file, default_threads
from rusty_r2.lm.sampling import Sampling

ASKED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Dönë 日本 😀?\n    42 lines"},
]


def test_it_reads_text_as_transformers_does(small_llama, small_transformer):
    for text in ("", "hello", "Dönë ✓ 日本 😀\n\n    x = 42\t# 1007", "<|im_end|> is text"):
        assert small_llama.tokenize(text) == small_transformer.tokenize(text, special=False)
        assert small_llama.detokenize(small_llama.tokenize(text)) == text
    assert small_llama.tokenize("<|im_end|>", special=True) == [2]
    rendered = small_llama.render(ASKED)
    assert rendered == small_transformer.render(ASKED)
    assert small_llama.tokenize(rendered, special=True, begin=True) == small_transformer.tokenize(rendered)


def test_its_probabilities_are_those_of_transformers(small_llama, small_transformer):
    ids = small_transformer.tokenize(small_transformer.render(ASKED))
    for end in (4, len(ids)):
        ours = small_llama.next_logprobs(ids[:end]).astype(np.float64)
        theirs = small_transformer.next_logprobs(ids[:end]).astype(np.float64)
        assert ours.shape == theirs.shape == (small_llama.words,)
        assert np.exp(ours).sum() == pytest.approx(1, abs=1e-3)
        assert (np.exp(theirs) * (theirs - ours)).sum() < 0.01
        few = small_llama.next_logprobs(ids[:end], top=3)
        assert np.isfinite(few).sum() == 3 and few.argmax() == ours.argmax()


def test_what_was_read_is_not_read_again(small_llama):
    ids = small_llama.tokenize("The quick brown fox jumps over the lazy dog, twice a day. " * 3)
    first = small_llama.complete(ids, max_new_tokens=4)
    again = small_llama.complete([*ids, *first.tokens, 28, 29], max_new_tokens=4)
    assert first.kept + first.read == len(ids)
    assert again.kept >= len(ids) and again.read <= 4
    assert (first.finish, len(first.tokens)) == ("length", 4)


def test_tokens_and_logprobs_are_whole_where_characters_are_not(small_llama):
    """A character of several tokens comes in one piece; each of its tokens is told all the same."""
    ids, heard = small_llama.tokenize("Smile: "), []
    grammar = 'root ::= "😀 é" "!"'
    said = small_llama.complete(ids, max_new_tokens=32, grammar=grammar, logprobs=True, on_text=heard.append)
    assert "".join(heard) == said.text == "😀 é!" and said.finish == "stop"
    assert small_llama.detokenize(said.tokens) == said.text
    assert len(said.tokens) == len(said.logprobs) >= len(said.text)
    known = small_llama.next_logprobs([*ids, said.tokens[0]])[said.tokens[1]]
    assert said.logprobs[1] == pytest.approx(known, abs=0.02)


def test_a_seed_decides(small_llama):
    ids, drawn = small_llama.tokenize("Once upon a time"), Sampling(1.0, top_k=50, seed=7)
    said = [small_llama.complete(ids, max_new_tokens=8, sampling=drawn).tokens for _ in range(2)]
    other = small_llama.complete(ids, max_new_tokens=8, sampling=Sampling(1.0, top_k=50, seed=8)).tokens
    assert said[0] == said[1] != other


def test_a_json_schema_is_kept_to(small_llama):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    said = small_llama.chat(ASKED, max_new_tokens=40, json_schema=schema)
    assert said.text in ('{"a": 1}', '{"a": 22}')


def test_a_prompt_that_does_not_fit_is_refused_and_never_cut(small_llama):
    with pytest.raises(
        PolicyError, match=rf"1500 tokens, the context .* {small_llama.context}: nothing was cut"
    ):
        small_llama.complete([28] * 1500)
    full = small_llama.complete([28] * (small_llama.context - 3), max_new_tokens=50)
    assert full.finish == "length" and len(full.tokens) <= 4


def test_who_stops_listening_stops_the_model(small_llama):
    def stop(piece):
        raise KeyError("enough")

    with pytest.raises(KeyError):
        small_llama.chat(ASKED, max_new_tokens=900, on_text=stop)
    assert small_llama.chat(ASKED, max_new_tokens=2).tokens


def test_a_grammar_it_cannot_read_is_one_line(small_llama):
    with pytest.raises(PolicyError, match="refused .*grammar") as error:
        small_llama.chat(ASKED, grammar="nonsense")
    assert "\n" not in str(error.value)


def test_its_address_speaks_openai_to_who_has_the_key(small_llama):
    asked = {"messages": ASKED, "max_tokens": 3}

    def post(key):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        url = f"{small_llama.url}/chat/completions"
        request = urllib.request.Request(url, json.dumps(asked).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    assert small_llama.url.startswith("http://127.0.0.1:")
    assert post(small_llama.key)["usage"]["completion_tokens"] == 3
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        post("guess")
    refused.value.close()


def test_many_threads_may_ask(small_llama):
    alone = [
        small_llama.chat([{"role": "user", "content": f"{n}?"}], max_new_tokens=3).text for n in range(3)
    ]
    found = {}

    def ask(n):
        found[n] = small_llama.chat([{"role": "user", "content": f"{n}?"}], max_new_tokens=3).text

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[n] for n in range(3)] == alone


def test_files_that_are_no_models(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        check_file(tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("# hello")
    with pytest.raises(ConfigError, match="begins with b'# he'"):
        check_file(tmp_path / "text.gguf")
    pytest.importorskip("xllamacpp", reason="pip install 'rusty-r2[export]'")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(CheckpointError, match="cannot open .*cut.gguf"):
        Llama(tmp_path / "cut.gguf")


def test_what_was_closed_says_so(small_gguf):
    with Llama(small_gguf, context=256, key="", name="mine") as model:
        assert (model.name, model.key, model.context) == ("mine", "", 256)
    with pytest.raises(PolicyError, match="was closed"):
        model.tokenize("hello")


def test_threads_are_those_that_arithmetic_was_given(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert default_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert default_threads() >= 1
