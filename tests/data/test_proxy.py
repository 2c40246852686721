"""The recording proxy between a real client and a real server, both on this machine."""

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from rusty_r2.data.proxy import Proxy, ProxyConfig
from rusty_r2.errors import ConfigError
from rusty_r2.store import TraceStore

CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
USAGE = {"prompt_tokens": 10, "completion_tokens": 3}


def pieces(request):
    """What a server says: it wants a tool first, then it answers."""
    asked = request["messages"][-1].get("role") == "user" and "tools" in request
    words = [{"tool_calls": [{"index": 0, **CALL}]}] if asked else [{"content": "It "}, {"content": "works."}]
    return [{"choices": [{"index": 0, "delta": delta}]} for delta in words] + [
        {"choices": [], "usage": USAGE, "model": "m"}
    ]


class Model(BaseHTTPRequestHandler):
    seen: ClassVar = []

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, self.headers.get("Authorization")))
        if request.get("model") == "broken":
            return self.answer(500, b'{"error": "broken"}')
        if request.get("stream"):
            events = [f"data: {json.dumps(piece)}\n\n" for piece in pieces(request)] + ["data: [DONE]\n\n"]
            return self.answer(200, "".join(events).encode(), "text/event-stream")
        calls = pieces(request)[0]["choices"][0]["delta"].get("tool_calls")
        message = {"role": "assistant", "content": None if calls else "It works.", "tool_calls": calls}
        said = {"model": "m", "choices": [{"message": message}], "usage": USAGE, "more": "\u00e9"}
        return self.answer(200, json.dumps(said).encode())

    def do_GET(self):
        self.answer(200, b'{"data": []}')

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def serving(tmp_path):
    """(port of the proxy, its store, the recorder, port of the model)"""
    Model.seen.clear()
    model = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    to = f"http://127.0.0.1:{model.server_address[1]}/v1"
    with TraceStore(tmp_path / "t.db") as store, Proxy(ProxyConfig(to, port=0), store) as between:
        for server in (model, between):
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield between.server_address[1], store, between.recorder, model.server_address[1]
        between.shutdown()
        between.settle(120)  # what is still being recorded needs the store
        model.shutdown()
    model.server_close()


def ask(port, messages, path="/v1/chat/completions", headers=None, **more):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = json.dumps({"model": "m", "messages": messages, **more})
    connection.request(
        "POST", path, body, {"Authorization": "Bearer sk-secret-of-mine-123456", **(headers or {})}
    )
    answer = connection.getresponse()
    said = answer.status, answer.read()
    connection.close()
    return said


def wait_for(store, many):
    for _ in range(12_000):
        if store.count() >= many:
            break
        threading.Event().wait(0.01)
    return store.find(newest_first=False)


USER = [{"role": "system", "content": "s"}, {"role": "user", "content": "does it work?"}]
AFTER = [
    *USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
]


@pytest.mark.parametrize("stream", [False, True])
def test_a_run_of_two_calls_is_one_trace(serving, stream):
    port, store, _, model = serving
    through, straight = (ask(at, USER, tools=[], stream=stream) for at in (port, model))
    assert through == straight, "not a byte is changed"
    assert ask(port, AFTER, tools=[], stream=stream)[0] == 200
    (trace,) = wait_for(store, 1)
    assert trace.user_query == "does it work?" and trace.final_response == "It works."
    assert [(call.tool_name, call.result) for call in trace.tool_calls] == [("ls", "a.txt")]
    assert (trace.total_tokens_in, trace.total_tokens_out, trace.llm_calls_count) == (20, 6, 2)
    assert trace.agent_name == "proxy" and trace.model == "m" and trace.system_prompt == "s"
    assert trace.execution_duration_ms > 0 and "sk-secret" not in str(trace.to_dict())
    assert Model.seen[0] == ("/v1/chat/completions", "Bearer sk-secret-of-mine-123456")


def test_the_same_question_again_is_another_trace(serving):
    port, store, recorder, _ = serving
    for _ in range(2):
        ask(port, USER)
    assert len(wait_for(store, 2)) == 2
    ask(port, USER, tools=[])
    while not recorder._open:
        threading.Event().wait(0.01)
    recorder.flush()
    assert wait_for(store, 3)[-1].ended == "cut off"


def test_what_goes_wrong_passes_through_unrecorded(serving):
    port, store, recorder, _ = serving
    assert ask(port, USER, model="broken") == (500, b'{"error": "broken"}')
    assert ask(port, [{"no": "role"}])[0] == 200
    assert ask(port, USER, path="/v1/embeddings")[0] == 200
    elsewhere = [
        ("Host", "evil.example"),
        ("Host", "[::1"),
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
    ]
    for name, value in elsewhere:
        assert ask(port, USER, headers={name: value})[0] == 403
    assert ask(port, USER, path="/v1/embeddings", headers={"Origin": "http://localhost:3000"})[0] == 200
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", "/v1/models")
    assert json.loads(connection.getresponse().read()) == {"data": []}
    connection.close()
    recorder.flush()
    assert store.count() == 0


def test_a_server_that_is_not_there(tmp_path):
    with TraceStore(tmp_path / "t.db") as store:
        with Proxy(ProxyConfig("http://127.0.0.1:1/v1", port=0), store) as between:
            threading.Thread(
                target=between.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
            ).start()
            status, said = ask(between.server_address[1], USER)
            assert status == 502 and "cannot be reached" in json.loads(said)["error"]["message"]
            with pytest.raises(ConfigError, match="cannot listen"):
                Proxy(ProxyConfig("http://127.0.0.1:1", port=between.server_address[1]), store)
            between.shutdown()
        for bad in ("", "ftp://x", "localhost:11434"):
            with pytest.raises(ConfigError, match="--to is"):
                Proxy(ProxyConfig(bad), store)


def test_ctrl_c_ends_it_and_keeps_what_is_open(serving):
    *_, model = serving
    # a shell may have started these tests with Ctrl-C ignored, which children inherit
    heard = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = "from rusty_r2.data.proxy import *; print(proxy(ProxyConfig(sys.argv[1], port=0)))"
    words = [sys.executable, "-c", heard + code, f"http://127.0.0.1:{model}/v1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as person:
        port = int(re.search(r"127\.0\.0\.1:(\d+)/v1", person.stdout.readline())[1])
        ask(port, USER)
        ask(port, [*USER, {"role": "user", "content": "and now?"}], tools=[])
        person.send_signal(signal.SIGINT)
        told = person.communicate(timeout=120)[0]
    assert person.returncode == 0 and "2 traces kept" in told
    with TraceStore() as store:
        assert sorted(trace.ended for trace in store.find()) == ["cut off", "done"]
