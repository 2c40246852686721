"""A file behind a real server, for this machine alone unless there is a key."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from rusty_r2.errors import ConfigError
from rusty_r2.export.serve import KEY, ServeConfig, find, greeting, is_loopback, start

from .models import transformers  # noqa: F401  skips where the libraries are not installed


def ask(url, path, body=None, key=""):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    with urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=60) as answer:
        return json.load(answer)


def test_a_file_answers_in_openais_words(healthy):
    with start(ServeConfig(str(healthy), port=0, context=256, name="tiny")) as llama:
        said = greeting(llama, with_key=False)
        assert said.splitlines()[-1] == f"next: rusty chat --model {llama.url}"
        assert ask(llama.url, "/models")["data"][0]["id"] == "tiny"
        messages = [{"role": "user", "content": "hi"}]
        answer = ask(llama.url, "/chat/completions", {"messages": messages, "max_tokens": 4})
        assert answer["choices"][0]["message"]["role"] == "assistant"
        assert answer["usage"]["completion_tokens"] <= 4


def test_a_key_is_demanded_where_one_is_set(healthy, monkeypatch):
    monkeypatch.setenv(KEY, "sesame")
    with start(ServeConfig(str(healthy), port=0, context=256)) as llama:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(llama.url, "/chat/completions", body)
        assert ask(llama.url, "/chat/completions", body, key="sesame")["choices"]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::", "example.org"])
def test_other_machines_need_a_key(healthy, host, monkeypatch):
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(ConfigError, match="lets others in, and there is no key. Type: RUSTY_API_KEY=SECRET"):
        start(ServeConfig(str(healthy), host=host))


def test_loopback_is_known_by_its_names():
    assert [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "localhost.evil.org")] == [False] * 3


def test_a_port_that_is_taken_is_one_line(healthy):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"cannot be listened on.*--port 0"):
            start(ServeConfig(str(healthy), port=taken.getsockname()[1]))


def test_what_cannot_be_served_is_one_line(trained, healthy, tmp_path):
    with pytest.raises(
        ConfigError, match=f"is a folder. Make a file of it first: rusty export gguf {trained}"
    ):
        find(str(trained))
    with pytest.raises(ConfigError, match="is not there"):
        find(str(tmp_path / "none.gguf"))
    with pytest.raises(ConfigError, match="--port below 65536"):
        start(ServeConfig(str(healthy), port=70000))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_told_to_stop(healthy, how):
    words = [sys.executable, "-m", "rusty_r2.cli", "serve", str(healthy), "--port", "0", "--context", "64"]
    env = {key: value for key, value in os.environ.items() if key != KEY}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            lines = [process.stdout.readline() for _ in range(3)]
            url = lines[1].removeprefix("base_url: ").strip()
            assert ask(url, "/models")["data"]
            process.send_signal(how)
            rest, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, rest.strip()) == (0, "stopped")
    with pytest.raises(urllib.error.URLError):
        ask(url, "/models")
