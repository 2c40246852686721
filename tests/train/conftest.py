"""A small real corpus: some of Python's own library, cut by a 600-word tokenizer of its own."""

import sysconfig
from pathlib import Path

import pytest

MODULES = "abc argparse bisect calendar cmd configparser copy csv dataclasses difflib enum functools heapq"
MODULES += (
    " json/decoder pathlib queue random sched shlex shutil string tempfile textwrap threading types uuid"
)


def texts() -> dict[str, str]:
    library = Path(sysconfig.get_path("stdlib"))
    return {f"{name}.py": (library / f"{name}.py").read_text() for name in MODULES.split()}


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """A folder with the small tokenizer."""
    pytest.importorskip("tokenizers", reason="pip install 'rusty-r2[train]'")
    from rusty_r2.lm.tokenizer import Tokenizer

    return Tokenizer.train(texts().values(), size=600).save(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """A folder of raw text."""
    folder = tmp_path_factory.mktemp("library")
    for name, text in texts().items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(scope="session")
def shards(tmp_path_factory, words, library):
    """The same as token shards."""
    from rusty_r2.data.corpus import CorpusConfig, build

    folder = tmp_path_factory.mktemp("made") / "shards"
    build(CorpusConfig(source=(str(library),), output_dir=folder, tokenizer=words, heldout=0.15))
    return folder


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory, words):
    """A Llama of a few thousand weights with the small tokenizer, as a Hugging Face folder."""
    pytest.importorskip("trl", reason="pip install 'rusty-r2[lora]'")
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny") / "llama"
    tokenizer = AutoTokenizer.from_pretrained(words)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": 1, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=True, **sizes, **ends)
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_rwkv(tmp_path_factory, words):
    """Our own model, nano, untrained but not empty, as a checkpoint."""
    import torch

    from rusty_r2.lm import checkpoint
    from rusty_r2.lm.rwkv import PRESETS, TinyRWKVLM
    from rusty_r2.lm.tokenizer import Tokenizer

    torch.manual_seed(0)
    model = TinyRWKVLM.of(PRESETS["nano"], vocab_size=len(Tokenizer.load(words)))
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.02 * torch.randn_like(weight)
    folder = tmp_path_factory.mktemp("rwkv") / "step_000001"
    folder.mkdir()
    checkpoint.save(folder, model, tokenizer=words)
    return folder


@pytest.fixture(scope="session")
def tokenizer():
    """The one that ships."""
    pytest.importorskip("tokenizers", reason="pip install 'rusty-r2[train]'")
    from rusty_r2.lm.tokenizer import Tokenizer

    return Tokenizer.load()


@pytest.fixture
def lively(tokenizer):
    """A small model with its words whose output is not all zeros, so that choices differ."""
    import torch

    from rusty_r2.lm.rwkv import TinyRWKVLM

    torch.manual_seed(0)
    model = TinyRWKVLM(len(tokenizer), d_embed=16, d_hidden=32, n_layers=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.08 * torch.randn_like(parameter))
    return model


@pytest.fixture
def drills(tokenizer, tmp_path):
    """A folder of drills in rows of 24 tokens, in which the answer to "Say no." is no."""
    import json

    import numpy as np

    from rusty_r2 import files
    from rusty_r2.data.drills import KINDS, MANIFEST, Kind
    from rusty_r2.data.packed import pack
    from rusty_r2.lm.chat import encode_conversations
    from rusty_r2.lm.tokenizer import END

    said = encode_conversations(tokenizer, [[("user", "Say no."), ("assistant", "no")]] * 400)
    ids, own = pack([(np.array(ids, np.uint16), np.array(own)) for ids, own in said], 24)
    own &= ids != END  # the word alone is learned
    kinds = {name: vars(Kind(rows=len(ids) * (name == "drills"), tokens=ids.size)) for name in KINDS}
    facts = {"seq_len": 24, "tokenizer": tokenizer.fingerprint, "kinds": kinds}
    with files.whole_folder(tmp_path / "drills") as folder:
        (folder / "ids.u16").write_bytes(ids.tobytes())
        (folder / "own.u8").write_bytes(own.tobytes())
        (folder / MANIFEST).write_text(json.dumps(facts))
    return tmp_path / "drills"


@pytest.fixture(scope="session")
def small_llama(tmp_path_factory):
    """A folder with a random Llama of 30,000 weights that knows ChatML and 400 words of Python's library."""
    pytest.importorskip("transformers", reason="pip install 'rusty-r2[train]'")
    import torch
    from tokenizers import Tokenizer as Words
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words = Words(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=marks, initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator(texts().values(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=2048
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("small") / "llama"
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def no_more_files():
    """A context in which this process can open no more files: every sandbox fails, as on a sick machine."""
    import contextlib
    import resource

    @contextlib.contextmanager
    def limited():
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) - 1, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return limited
