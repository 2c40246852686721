"""What every test may ask for: one thread of arithmetic, a data home of its own, a real PostgreSQL."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def data_home(tmp_path_factory, monkeypatch):
    """Nothing a test does touches the data home of the person running it."""
    monkeypatch.setenv("RUSTY_HOME", str(tmp_path_factory.mktemp("home")))


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
