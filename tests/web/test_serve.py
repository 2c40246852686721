"""`rusty web` as a person meets it: an address, one line for what is wrong, and Ctrl-C."""

import http.client
import os
import signal
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from rusty_r2.errors import ConfigError, StoreError
from rusty_r2.web.serve import Site, WebConfig, bind


def rusty(*words, **how):
    command = [sys.executable, "-m", "rusty_r2.cli", "web", *words]
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, **how
    )


def test_a_port_in_use_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = rusty("--port", str(taken.getsockname()[1]))
    assert said.returncode == 1 and said.stderr.count("\n") == 1
    assert "Address already in use" in said.stderr and "rusty web --port 0" in said.stderr


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", -1), ("127.0.0.1", 70_000), ("no.such.host.invalid", 0)]
)
def test_a_wrong_address_is_one_line(host, port):
    with pytest.raises(ConfigError, match="--port|rusty web"):
        bind(host, port)


def test_a_store_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(StoreError, match="rusty trace import"):
        Site(WebConfig(port=0, store=str(tmp_path / "none.db")))
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "no.db").write_text("this is no database, whatever its name says " * 50)
    with pytest.raises(StoreError):
        Site(WebConfig(port=0, store=str(tmp_path / "no.db")))


def test_without_the_extra_the_install_line_is_shown():
    program = (
        "import sys; sys.modules['starlette'] = None; from rusty_r2 import cli; sys.exit(cli.main(['web']))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (
        said.returncode == 1 and said.stderr.count("\n") == 1 and "pip install 'rusty-r2[web]'" in said.stderr
    )


def test_it_serves_until_ctrl_c(tmp_path):
    command = [sys.executable, "-W", "error", "-m", "rusty_r2.cli", "web", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as page:
        address = urlsplit(page.stdout.readline().strip())
        assert address.hostname == "127.0.0.1" and not address.query
        connection = http.client.HTTPConnection(address.netloc, timeout=120)
        connection.request("GET", "/traces")
        answer = connection.getresponse()
        assert answer.status == 200 and "No traces yet" in answer.read().decode()
        connection.close()
        os.kill(page.pid, signal.SIGINT)
        out, err = page.communicate(timeout=120)
    assert page.returncode == 0 and err == "" and out.endswith("next: rusty rewards learn\n")
