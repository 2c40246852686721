"""Deploying to Ollama: a stand-in that keeps a real server's contract, and a real one where there is one."""

import json
import os
import sys
from pathlib import Path

import pytest

from rusty_r2 import cli, files
from rusty_r2.errors import ConfigError
from rusty_r2.export.ollama import OllamaDeployer, OllamaHostingProfile
from rusty_r2.export.ollama_api import OllamaError, OllamaServer

from .ollama_standin import parse_modelfile
from .tiny_gguf import CHATML, tiny_gguf

CONTRACT = [
    json.loads(line) for line in Path(__file__).with_name("ollama_contract.jsonl").read_text().splitlines()
]
KNOWN = "dd84152922126f2796db5505a73d88f1caf356296e55c55d38aa01abd1a2a30d"


# ── the stand-in is what was recorded ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("exchange", CONTRACT, ids=lambda e: e["label"])
def test_the_stand_in_keeps_the_recorded_contract(server, tmp_path, exchange):
    import http.client

    server.blobs[f"sha256:{KNOWN}"] = tiny_gguf(tmp_path / "m.gguf").read_bytes()
    hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    if exchange["label"] == "create-not-gguf2":
        server.blobs[f"sha256:{hello}"] = b"hello"
    for name in ("t1", "t5", "smol", "t1-copy"):
        if exchange["label"] != "delete-missing":
            model = {
                "template": CHATML and "{{ .Prompt }}",
                "system": "",
                "digest": f"sha256:{KNOWN}",
                "parameters": {},
            }
            server.models[f"{name}:latest"] = model
    sent = exchange["request"]
    if isinstance(sent, str):
        body = {"<1 bytes>": b"x", "<5 bytes>": b"hello"}.get(sent, server.blobs[f"sha256:{KNOWN}"])
        if exchange["label"] == "blob-post-again":
            exchange = exchange | {"path": f"/api/blobs/sha256:{files.digest(tmp_path / 'm.gguf')}"}
            server.blobs[exchange["path"].removeprefix("/api/blobs/")] = body
    else:
        body = None if sent is None else json.dumps(sent)
    line = http.client.HTTPConnection(*server.server_address)
    line.request(exchange["method"], exchange["path"], body)
    answer = line.getresponse()
    said = answer.read().decode()
    assert answer.status == exchange["status"]
    if exchange["content_type"] and exchange["method"] != "HEAD":
        assert answer.headers["Content-Type"].split(";")[0] == exchange["content_type"].split(";")[0]
    recorded = [json.loads(part) for part in exchange["body"].splitlines() if part.startswith("{")]
    ours = [json.loads(part) for part in said.splitlines() if part.startswith("{")]
    errors = lambda lines: [one["error"] for one in lines if "error" in one]  # noqa: E731
    if exchange["label"] != "blob-post-mismatch":
        assert errors(ours) == errors(recorded)
    else:
        assert errors(ours) == errors(recorded) and "got" in errors(ours)[0]
    if recorded and not errors(recorded):
        assert set(ours[0]) <= set(recorded[0]) and ours[-1].get("status") == recorded[-1].get("status")
    line.close()


# ── making models ────────────────────────────────────────────────────────────────────────────────────


def test_the_documented_sample(server, gguf, monkeypatch):
    monkeypatch.setenv("OLLAMA_HOST", server.url)
    gguf_path = str(gguf)
    from rusty_r2.rl import OllamaDeployer

    deployer = OllamaDeployer()
    deployer.create_model("toolbox-agent", gguf_path)
    assert [model["name"] for model in deployer.list_models()] == ["toolbox-agent:latest"]
    assert deployer.run_model("toolbox-agent", "Hi").startswith(files.digest(gguf)[:8])


def test_a_file_is_uploaded_once_and_a_name_is_replaced_only_when_asked(server, deployer, gguf, tmp_path):
    deployer.create_model("agent", gguf, temperature=1, stop_tokens=['"quoted"', "\nUser:", "<|im_end|>"])
    assert deployer.delete_model("agent")
    deployer.create_model("agent", gguf)
    assert deployer.create_model("agent", gguf) == "agent", "the same again is no trouble"
    other = tiny_gguf(tmp_path / "other.gguf", salt="2")
    with pytest.raises(OllamaError, match="the name agent is taken"):
        deployer.create_model("agent", other)
    before = deployer.run_model("agent", "Hi")
    deployer.create_model("agent", other, replace=True)
    assert deployer.run_model("agent", "Hi") != before
    uploads = [path for method, path in server.seen if method == "POST" and "blobs" in path]
    assert len(uploads) == 2
    assert list(server.models) == ["agent:latest"], "the name used while making is gone"


@pytest.mark.parametrize("name", ["Agent", "agent:latest", "library/AGENT:Latest"])
def test_a_name_that_the_server_takes_for_another_is_taken(server, deployer, gguf, tmp_path, name):
    deployer.create_model("agent", gguf)
    before = deployer.run_model("agent", "Hi")
    with pytest.raises(OllamaError, match="is taken by another model"):
        deployer.create_model(name, tiny_gguf(tmp_path / "o.gguf", salt="2"))
    assert deployer.run_model("agent", "Hi") == before


@pytest.mark.parametrize(
    ("meddle", "what"),
    [
        (lambda made: made.update(template="{{ .Prompt }}"), "template"),
        (lambda made: made["parameters"].pop("stop"), "parameters"),
        (lambda made: made.update(system="Buy things."), "system prompt"),
    ],
)
def test_a_model_that_is_not_what_was_asked_for_never_takes_the_name(
    server, deployer, gguf, tmp_path, meddle, what
):
    deployer.create_model("agent", gguf)
    before = deployer.run_model("agent", "Hi")
    server.meddle = meddle
    with pytest.raises(OllamaError, match=f"its {what} is"):
        deployer.create_model("agent", tiny_gguf(tmp_path / "o.gguf", salt="2"), replace=True)
    assert deployer.run_model("agent", "Hi") == before


def test_broken_off_while_making_leaves_the_old_one(server, deployer, gguf, tmp_path):
    deployer.create_model("agent", gguf)
    before = deployer.run_model("agent", "Hi")
    server.hang_up_in = "/api/create"
    with pytest.raises(OllamaError, match="broke off"):
        deployer.create_model("agent", tiny_gguf(tmp_path / "o.gguf", salt="2"), replace=True)
    server.hang_up_in = "/api/chat"
    with pytest.raises(OllamaError, match="broke off"):
        deployer.run_model("agent", "Hi")
    server.hang_up_in = ""
    assert deployer.run_model("agent", "Hi") == before and list(server.models) == ["agent:latest"]


def one_line(error) -> str:
    said = str(error.value)
    assert "\n" not in said and len(said) < 400
    return said


def test_no_server_an_old_one_a_full_disk(server, deployer, gguf):
    with pytest.raises(OllamaError) as error:
        OllamaDeployer(host="127.0.0.1:9").create_model("agent", gguf)
    assert "Type: ollama serve" in one_line(error)
    server.version = "0.3.14"
    with pytest.raises(OllamaError) as error:
        deployer.create_model("agent", gguf)
    assert "Ollama 0.3.14" in one_line(error) and "0.5.5" in one_line(error)
    server.version, server.room = "0.0.0", 10
    with pytest.raises(OllamaError) as error:
        deployer.create_model("agent", gguf)
    assert "is full" in one_line(error)
    assert not server.models


@pytest.mark.parametrize("name", ["bad name!!", "", "-x", "a\nb", "../../x", "a:b:c"])
def test_a_bad_name_is_refused_before_anything_is_sent(server, deployer, gguf, name):
    with pytest.raises(ConfigError, match="no name for a model"):
        deployer.create_model(name, gguf)
    assert not server.seen


def test_an_error_line_in_a_good_answer_is_an_error(server, deployer, gguf):
    with pytest.raises(OllamaError, match="template error"):
        deployer.create_model("agent", gguf, template="{{ if }")
    with pytest.raises(OllamaError, match="model 'nope:latest' not found"):
        deployer.show("nope")


def test_another_kind_of_server_is_one_line(server):
    server.version = None
    server.models["x"] = {}
    with pytest.raises(OllamaError, match="refuses: 404 page not found"):
        OllamaServer(server.url).json("GET", "/")


def test_list_copy_delete_run(deployer, gguf):
    deployer.create_model("agent", gguf)
    deployer.copy_model("agent", "team/agent:v2")
    assert {model["name"] for model in deployer.list_models()} == {"agent:latest", "team/agent:v2"}
    heard = []
    said = deployer.run_model("team/agent:v2", "Hi", listen=heard.append)
    assert "".join(heard) == said and len(heard) > 1
    assert deployer.delete_model("agent") and not deployer.delete_model("agent")
    with pytest.raises(OllamaError, match='model "agent" not found'):
        deployer.copy_model("agent", "b")


# ── the program ──────────────────────────────────────────────────────────────────────────────────────

PROGRAM = """#!{python}
import json, os, sys, time
sys.path.insert(0, {tests!r})
if sys.argv[1] == "serve":
    open({seen!r}, "w").write(json.dumps(dict(os.environ)))
    if {broken}: sys.exit("cannot bind")
    from http.server import BaseHTTPRequestHandler, HTTPServer
    class H(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers(); self.wfile.write(b'{{"version":"0.33.0"}}')
        def log_message(self, *_): pass
    host, port = os.environ["OLLAMA_HOST"].split(":")
    HTTPServer((host, int(port)), H).serve_forever()
name, modelfile = sys.argv[2], open(sys.argv[4]).read()
open({seen!r}, "w").write(modelfile)
if {broken}: sys.exit("Error: \\x1b[?25hno space left on device")
from pathlib import Path
from ollama_standin import parse_modelfile
from rusty_r2 import files
from rusty_r2.export.ollama_api import OllamaServer
said = parse_modelfile(modelfile)
server, one = OllamaServer(os.environ["OLLAMA_HOST"]), dict(said)
digest = files.digest(Path(one["from"]))
server.upload(Path(one["from"]), digest)
numbers = {{key: json.loads(value) for key, value in said if key.startswith(("num_", "temperature"))}}
stops = [value for key, value in said if key == "stop"]
body = {{"model": name, "files": {{"m.gguf": f"sha256:{{digest}}"}}, "template": one["template"]}}
body |= {{"system": one.get("system", ""), "parameters": {{**numbers, "stop": stops}}}}
for _ in server.lines("/api/create", body): pass
"""


@pytest.fixture
def program(tmp_path):
    def make(broken=False):
        path = tmp_path / "bin" / "ollama"
        path.parent.mkdir(exist_ok=True)
        seen = tmp_path / "seen"
        path.write_text(
            PROGRAM.format(
                python=sys.executable, tests=str(Path(__file__).parent), seen=str(seen), broken=broken
            )
        )
        path.chmod(0o755)
        return path, seen

    return make


def test_the_program_makes_it_from_a_modelfile_and_it_is_read_back(server, program, gguf):
    path, seen = program()
    deployer = OllamaDeployer(str(path), host=server.url, through="program")
    deployer.create_model("agent", gguf)
    assert parse_modelfile(seen.read_text())[0] == ("from", str(gguf))
    assert list(server.models) == ["agent:latest"]


def test_a_program_that_fails_or_is_not_there_is_one_line(server, program, gguf):
    path, _ = program(broken=True)
    with pytest.raises(OllamaError) as error:
        OllamaDeployer(str(path), host=server.url, through="program").create_model("agent", gguf)
    assert "is full" in one_line(error)
    with pytest.raises(OllamaError, match="https://ollama.com/download"):
        OllamaDeployer("no-such-ollama", host=server.url, through="program").create_model("agent", gguf)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_is_started_with_the_profile(program):
    path, seen = program()
    deployer = OllamaDeployer(str(path), host=f"127.0.0.1:{free_port()}")
    process = deployer.start_server_with_profile(
        OllamaHostingProfile(num_parallel=4, num_thread=14, flash_attn=True)
    )
    try:
        there = json.loads(seen.read_text())
        assert there["OLLAMA_NUM_PARALLEL"] == "4" and there["OLLAMA_FLASH_ATTENTION"] == "1"
        with pytest.raises(OllamaError, match="answers at .* already"):
            deployer.start_server_with_profile(OllamaHostingProfile())
    finally:
        process.kill()
        process.wait()
    broken, _ = program(broken=True)
    with pytest.raises(OllamaError, match="did not answer"):
        OllamaDeployer(str(broken), host=f"127.0.0.1:{free_port()}").start_server_with_profile(
            OllamaHostingProfile()
        )


# ── the command ──────────────────────────────────────────────────────────────────────────────────────


def test_the_command(server, gguf, capsys):
    words = ["export", "ollama", "--gguf", str(gguf), "--host", server.url]
    assert cli.main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "next: ollama run my-model"
    assert cli.main([*words, "--modelfile"]) == 0
    assert capsys.readouterr().out.startswith("FROM ")
    assert cli.main(["export", "ollama", "--gguf", "nothing.gguf"]) == 1


# ── a real server, where there is one ────────────────────────────────────────────────────────────────


def test_a_real_ollama(request):
    if not os.environ.get("OLLAMA_HOST"):
        pytest.skip(
            "OLLAMA_HOST is not set; to run this: OLLAMA_HOST=127.0.0.1:11434 with `ollama serve` running"
        )
    deployer = OllamaDeployer()
    try:
        deployer.require_server()
    except OllamaError as error:
        pytest.skip(str(error))
    smollm2 = pytest.importorskip("rusty_r2.lm.smollm2")
    deployer.create_model("rusty-test", smollm2.gguf_file(), temperature=0.0, replace=True)
    try:
        assert deployer.run_model("rusty-test", "What is 2+2?", num_predict=8)
    finally:
        deployer.delete_model("rusty-test")
