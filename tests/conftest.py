"""What every test may ask for: one thread of arithmetic, a data home of its own, a real PostgreSQL."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("rusty", deadline=None)  # a busy machine is no fault of what is tested
settings.load_profile("rusty")
os.environ.setdefault("OMP_NUM_THREADS", "1")
for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
    os.environ.pop(name, None)  # how the tests' own output is to look
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background; so would be our children
    signal.signal(signal.SIGINT, signal.default_int_handler)
if not Path("/dev/nvidiactl").exists():  # Triton reads this once, whoever imports it first
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def data_home(tmp_path_factory, monkeypatch):
    """Nothing a test does touches the data home of the person running it."""
    monkeypatch.setenv("RUSTY_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(params=("ns", "bwrap", "landlock"))
def level(request):
    """Each level of the sandbox; the same on every machine, so that workers name their tests alike."""
    from rusty_r2.gym.sandbox import probe

    (report,) = (report for report in probe() if report.name == request.param)
    if not report.available:
        pytest.skip(f"the sandbox level {report.name} does not work here: {report.why}")
    return report.name


@pytest.fixture
def smollm2(data_home, request, monkeypatch):
    """SmolLM2's Hugging Face folder, made once and kept between runs; the word `smollm2` finds it too."""
    pytest.importorskip("transformers", reason="pip install 'rusty-r2[lora]'")
    from rusty_r2.config import home
    from rusty_r2.errors import MissingExtra
    from rusty_r2.lm import smollm2

    own = home()
    try:
        with monkeypatch.context() as patch:
            patch.setenv("RUSTY_HOME", str(request.config.cache.mkdir("smollm2")))
            kept = smollm2.folder()
    except MissingExtra as error:
        pytest.skip(str(error))
    link = own / "cache" / kept.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(kept)
    return link


@pytest.fixture(scope="session")
def kept_smollm2(request):
    """The same for a whole session of tests: the folder itself."""
    pytest.importorskip("transformers", reason="pip install 'rusty-r2[lora]'")
    from rusty_r2.errors import MissingExtra
    from rusty_r2.lm import smollm2

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUSTY_HOME", str(request.config.cache.mkdir("smollm2")))
        try:
            return smollm2.folder()
        except MissingExtra as error:
            pytest.skip(str(error))


@pytest.fixture(scope="session")
def small_gguf(request):
    """SmolLM2 cut to its first two layers: real tokenizer, template and weights, and no sense at all."""
    gguf = pytest.importorskip("gguf", reason="pip install 'rusty-r2[export]'")
    pytest.importorskip("xllamacpp", reason="pip install 'rusty-r2[export]'")
    from rusty_r2.errors import MissingExtra
    from rusty_r2.lm import smollm2

    target = Path(request.config.cache.mkdir("smollm2")) / "two-layers.gguf"
    if not target.is_file():
        try:
            source = smollm2.gguf_file()
        except MissingExtra as error:
            pytest.skip(str(error))
        beside = target.with_suffix(f".{os.getpid()}")
        _first_layers(gguf, source, beside, 2)
        beside.replace(target)
    return target


def _first_layers(gguf, source, target, layers):
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(target, "llama")
    for name, entry in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = layers if name == "llama.block_count" else entry.contents()
        inner = entry.types[-1] if entry.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, entry.types[0], sub_type=inner)
    for tensor in reader.tensors:
        room, _, rest = tensor.name.partition(".")
        if room != "blk" or int(rest.partition(".")[0]) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="session")
def small_llama(small_gguf):
    """That file, opened by llama.cpp."""
    from rusty_r2.lm.llama import Llama

    with Llama(small_gguf, context=1024) as model:
        yield model


@pytest.fixture(scope="session")
def small_transformer(kept_smollm2):
    """The same two layers in transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from rusty_r2.lm.transformer import Transformer

    logging.set_verbosity_error()  # it would list the layers that were left out
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(kept_smollm2, num_hidden_layers=2, local_files_only=True)
    return Transformer(model, AutoTokenizer.from_pretrained(kept_smollm2), context=1024)


@pytest.fixture(scope="session")
def postgres_url():
    """A PostgreSQL server of our own, gone after the tests."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    if initdb is None:
        pytest.skip("PostgreSQL is not installed; to run this: apt-get install postgresql")
    pytest.importorskip(
        "psycopg", reason="psycopg is not installed; to run this: pip install 'rusty-r2[postgres]'"
    )
    folder = Path(tempfile.mkdtemp(prefix="rusty-pg-"))
    who = {}
    if os.geteuid() == 0:  # the server refuses to run as root
        shutil.chown(folder, "postgres")
        who = {"user": "postgres", "cwd": "/"}
    control = [
        str(Path(initdb).with_name("pg_ctl")),
        "-D",
        str(folder / "data"),
        "-w",
        "-l",
        str(folder / "log"),
    ]
    quiet = {"check": True, "stdout": subprocess.DEVNULL, **who}
    subprocess.run([initdb, "-D", folder / "data", "-A", "trust", "-U", "rusty", "--no-sync"], **quiet)
    options = f"-c listen_addresses='' -k {folder} -c fsync=off"
    subprocess.run([*control, "-o", options, "start"], **quiet)
    try:
        yield f"postgresql+psycopg://rusty@/postgres?host={folder}"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
        shutil.rmtree(folder, ignore_errors=True)
