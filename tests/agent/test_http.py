"""Minds behind servers: a stand-in for Ollama, llama.cpp's own server, and servers that misbehave."""

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from rusty_r2.agent import wire
from rusty_r2.agent.address import MindOptions, open_policy
from rusty_r2.agent.approval import Approval
from rusty_r2.agent.http import OllamaPolicy, OpenAIPolicy, ollama_host
from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.agent.screen import Screen
from rusty_r2.agent.terminal import Talk
from rusty_r2.agent.wire import Refused, Wire
from rusty_r2.agent.workspace import Workspace
from rusty_r2.errors import ContextFull, PolicyError
from rusty_r2.protocol import MAX_REPLY, parse, schema
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace, Step

from .ollama import running

OPTIONS = MindOptions(temperature=0, max_new_tokens=32, context=150)
ASKED = ExecutionTrace(user_query="List the files.", system_prompt=SYSTEM)


@pytest.fixture
def ollama(monkeypatch):
    monkeypatch.setattr(wire, "PAUSES", (0.0, 0.0))
    with running() as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        yield server


def impatient(policy):
    policy.wire.pauses = (0.0, 0.0)
    return policy


# ── Ollama ──────────────────────────────────────────────────────────────────────────────────────


def test_ollama_is_sent_the_context_the_schema_and_all_that_was_said(ollama):
    policy = open_policy("ollama:smol", OPTIONS)
    assert (policy.name, policy.digest) == ("ollama:smol", "7328fb942b49232f")
    reply = policy.reply(ASKED)
    parse(reply.text)
    policy.reply(ASKED.then(Step(reply.text, "exit 0")))
    for body in ollama.asked:
        assert body["options"]["num_ctx"] == 150 and body["truncate"] is False
        assert body["format"] == schema() and body["stream"] is True
    assert [m["role"] for m in ollama.asked[1]["messages"]] == ["system", "user", "assistant", "user"]
    assert reply.facts["finish"] == "stop" and reply.tokens_in > 0 and reply.tokens_out > 0


def test_the_context_is_never_asked_larger_than_the_model_has(ollama):
    open_policy("ollama:smol:latest", MindOptions()).reply(ASKED)
    assert ollama.asked[0]["options"]["num_ctx"] == 200


def test_without_the_grammar_no_schema_is_sent(ollama):
    reply = open_policy("ollama:smol", MindOptions(grammar=False)).reply(ASKED)
    assert "format" not in ollama.asked[0] and reply.text.startswith("Sure!")
    assert reply.facts["format"] == "none"


@pytest.mark.parametrize("knows", [True, False])
def test_a_prompt_that_was_cut_is_an_error(ollama, knows):
    """A newer server refuses it when asked to; an older one cuts, and is found out by its own count."""
    ollama.knows_truncate = knows
    policy = open_policy("ollama:smol", OPTIONS)
    trace = ASKED.then(Step(policy.reply(ASKED).text, "word " * 70))
    trace = trace.then(Step(policy.reply(trace).text, "word " * 70))
    with pytest.raises(PolicyError, match=r"(exceeds the context|was cut).* Type: --context"):
        policy.reply(trace)


def test_a_prompt_that_was_cut_is_in_the_trace(ollama, tmp_path):
    ollama.knows_truncate = False
    with TraceStore() as store, Workspace(tmp_path, allow="read", approval=Approval("never")) as place:
        talk = Talk(open_policy("ollama:smol", OPTIONS), place, Screen(live=False), store=store)
        talk.request("word " * 300)
        (kept,) = store.find()
    assert kept.ended == "ContextFull" and "it was cut" in kept.extra["error"] and not kept.steps


def test_a_first_prompt_that_fills_the_context_was_cut(ollama):
    ollama.knows_truncate = False
    with pytest.raises(ContextFull, match="filled its context of 150 tokens .* it was cut"):
        open_policy("ollama:smol", OPTIONS).reply(ExecutionTrace(user_query="word " * 300))


def test_a_model_that_is_not_there(ollama):
    with pytest.raises(PolicyError, match="has no model llama9; it has smol. Type: ollama pull llama9"):
        open_policy("ollama:llama9")


def test_an_error_line_after_http_200_is_an_error(ollama):
    policy = open_policy("ollama:smol", OPTIONS)
    policy.model = "gone"
    with pytest.raises(PolicyError, match="model 'gone' not found"):
        policy.reply(ASKED)


def test_who_is_busy_is_asked_again(ollama):
    policy = impatient(open_policy("ollama:smol", OPTIONS))
    ollama.busy = 2
    assert policy.reply(ASKED).text and len(ollama.asked) == 3
    ollama.busy = 9
    with pytest.raises(PolicyError, match="does not answer in 3 tries: 503 server busy"):
        policy.reply(ASKED)


def test_an_answer_that_breaks_off_is_no_answer(ollama):
    policy = open_policy("ollama:smol", OPTIONS)
    ollama.breaks_off = True
    with pytest.raises(PolicyError, match="broke off after"):
        policy.reply(ASKED)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("gpu:80", "http://gpu:80"),
        ("https://gpu.example/", "https://gpu.example:11434"),
        ("[::1]:5", "http://[::1]:5"),
    ],
)
def test_where_ollama_is(said, meant, monkeypatch):
    monkeypatch.setenv("OLLAMA_HOST", said)
    assert ollama_host() == meant


def test_the_stand_in_answers_in_the_recorded_words(ollama):
    shared = Path(os.environ.get("RUSTY_SHARED", Path(__file__).parents[3] / "shared"))
    path = shared / "research" / "ollama_transcripts.jsonl"
    if not path.is_file():
        pytest.skip("the recording of a real Ollama is not here; name its folder: RUSTY_SHARED")
    recorded = {entry["label"]: entry for entry in map(json.loads, path.read_text().splitlines())}
    real = [json.loads(line) for line in recorded["chat-stream"]["body"].splitlines()]
    body = {"model": "smol", "messages": [{"role": "user", "content": "hi"}], "options": {"num_predict": 3}}
    fake = [json.loads(line) for line in Wire(ollama.url).lines("/api/chat", body)]
    assert set(fake[0]) == set(real[0]) and set(fake[-1]) <= set(real[-1])
    with pytest.raises(Refused) as missing:
        list(Wire(ollama.url).lines("/api/chat", body | {"model": "nope"}))
    assert recorded["chat-missing"]["status"] == missing.value.status
    assert json.loads(recorded["chat-missing"]["body"])["error"] in str(missing.value)


# ── OpenAI's words, from llama.cpp ──────────────────────────────────────────────────────────────


def test_a_real_server_replies_with_actions_and_reads_only_what_is_new(small_llama, monkeypatch):
    monkeypatch.setenv("RUSTY_API_KEY", small_llama.key)
    policy = open_policy(small_llama.url, MindOptions(temperature=0, max_new_tokens=24))
    assert policy.digest == small_llama.name
    heard = []
    reply = policy.reply(ASKED, listen=heard.append)
    assert "".join(heard) == reply.text and reply.text.startswith('{"action": "')
    assert reply.facts["format"] == "grammar", "llama.cpp is spoken to in its own words"
    again = policy.reply(ASKED.then(Step(reply.text, "exit 0")))
    assert again.facts["tokens_kept"] > 60 and again.tokens_in < 80


def test_a_real_server_refuses_what_does_not_fit(small_llama, monkeypatch):
    monkeypatch.setenv("RUSTY_API_KEY", small_llama.key)
    policy = open_policy(f"{small_llama.url}#{small_llama.name}", MindOptions(max_new_tokens=4))
    with pytest.raises(PolicyError, match="exceeds the available context .* larger context, or ask for less"):
        policy.reply(ExecutionTrace(user_query="word " * 1100))


def test_a_key_comes_from_the_environment_and_goes_nowhere_else(small_llama, monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", small_llama.key)
    policy = open_policy(small_llama.url, MindOptions(max_new_tokens=2))
    reply = policy.reply(ASKED)
    told = json.dumps([policy.name, policy.digest, policy.sampling(), reply.facts, reply.text])
    assert small_llama.key not in told and small_llama.key not in repr(vars(policy))
    monkeypatch.setenv("RUSTY_API_KEY", "guess")
    with pytest.raises(PolicyError, match="401 Invalid API Key"):
        policy.reply(ASKED)


def test_a_key_is_not_sent_in_the_clear_to_another_machine(monkeypatch):
    monkeypatch.setenv("RUSTY_API_KEY", "hush")
    with pytest.raises(PolicyError, match="not sent unencrypted to models.invalid") as error:
        OpenAIPolicy("http://models.invalid/v1#m").reply(ASKED)
    assert "hush" not in str(error.value)
    with pytest.raises(PolicyError, match="would end up in traces"):
        OpenAIPolicy("http://me:hush@127.0.0.1/v1#m")
    with pytest.raises(PolicyError, match="would end up in traces"):
        OpenAIPolicy("http://127.0.0.1/v1?key=hush#m")
    with pytest.raises(PolicyError, match="not sent unencrypted"):
        OpenAIPolicy("http://127.0.0.1.models.invalid/v1#m").reply(ASKED)


@pytest.mark.parametrize("key", ["hu\nsh", "hüsh", "hush\x7f", "hu\r\nX-Evil: sh"])
def test_a_key_that_cannot_be_sent_is_not_told(server, monkeypatch, key):
    monkeypatch.setenv("RUSTY_API_KEY", key)
    with pytest.raises(PolicyError, match="holds characters") as error:
        OpenAIPolicy(server[0]).reply(ASKED)
    assert key not in str(error.value) and repr(key)[1:-1] not in str(error.value)


def test_a_line_end_after_a_key_is_no_part_of_it(server, monkeypatch):
    monkeypatch.setenv("RUSTY_API_KEY", "hush\r\n")
    server[1].append(event_stream(said("hi", "stop")))
    assert OpenAIPolicy(server[0]).reply(ASKED).text == "hi"


@pytest.mark.parametrize("host", ["box:port", "[::1", "http://box:99999"])
def test_an_ollama_host_that_is_no_address_is_one_line(host, monkeypatch):
    monkeypatch.setenv("OLLAMA_HOST", host)
    with pytest.raises(PolicyError, match="OLLAMA_HOST"):
        ollama_host()


# ── servers that misbehave ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def server():
    """Answers each request with the next of the given bytes; None hangs up. It keeps no list of models."""
    socket_ = socket.create_server(("127.0.0.1", 0))
    replies, asked = [], []

    def serve():
        while True:
            try:
                connection, _ = socket_.accept()
            except OSError:
                return
            with connection:
                body = _request(connection)
                if not body:
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n")
                    continue
                asked.append(body)
                reply = replies.pop(0) if replies else None
                if reply is not None:
                    connection.sendall(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{socket_.getsockname()[1]}/v1#m", replies, asked
    socket_.shutdown(socket.SHUT_RDWR)
    socket_.close()
    thread.join()


def _request(connection):
    data = connection.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
    while len(body) < length and (more := connection.recv(1 << 16)):
        body += more
    return body


def event_stream(*events, status="200 OK"):
    lines = "".join(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events)
    return (
        f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n{lines}".encode()
    )


def said(text, finish=None):
    return {"choices": [{"delta": {"content": text}, "finish_reason": finish}]}


def test_a_server_that_hangs_up_before_the_first_word_is_asked_again(server):
    url, replies, asked = server
    replies += [None, event_stream(said("hi") | {"error": None}, said("", "stop"), "[DONE]")]
    assert impatient(OpenAIPolicy(url)).reply(ASKED).text == "hi"
    assert len(asked) == 2


def test_a_server_that_hangs_up_in_the_middle_is_not_asked_again(server):
    url, replies, asked = server
    replies += [event_stream(said("hi")), event_stream(said("hi", "stop"))]
    with pytest.raises(PolicyError, match="broke off after 2 characters"):
        impatient(OpenAIPolicy(url)).reply(ASKED)
    assert len(asked) == 1


def test_a_server_that_does_not_know_the_schema_is_asked_without(server):
    url, replies, asked = server
    why = json.dumps({"error": {"message": "unknown response_format"}})
    no = f"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n{why}".encode()
    replies += [no, no, event_stream(said("hi", "stop"))]
    policy = impatient(OpenAIPolicy(url))
    reply = policy.reply(ASKED)
    assert reply.facts["format"] == "none"
    kinds = [json.loads(body).get("response_format", {}).get("type") for body in asked]
    assert kinds == ["json_schema", "json_object", None]


@pytest.mark.parametrize(
    "rubbish",
    [
        *("{", "[1]", "\x1b[2J", "[" * 100_000, '{"choices": [null]}', '{"choices": 5}'),
        *('{"choices": [{"delta": [1]}]}', '{"usage": {"prompt_tokens": "many"}}', '{"usage": [1]}'),
    ],
)
def test_rubbish_is_one_line_that_cannot_move_the_cursor(server, rubbish):
    url, replies, _ = server
    replies.append(event_stream(rubbish))
    with pytest.raises(PolicyError, match="sent what is not") as error:
        OpenAIPolicy(url).reply(ASKED)
    assert "\x1b" not in str(error.value) and "\n" not in str(error.value)


def test_a_server_without_an_end_is_given_up(server):
    url, replies, _ = server
    replies.append(event_stream(*[said("x" * 500_000)] * (2 + MAX_REPLY // 500_000)))
    with pytest.raises(PolicyError, match="came to no end"):
        OpenAIPolicy(url).reply(ASKED)


def test_an_error_in_the_stream_is_an_error(server):
    url, replies, _ = server
    replies.append(event_stream(said("hi"), {"error": {"message": "out of memory"}}))
    with pytest.raises(PolicyError, match="out of memory"):
        OpenAIPolicy(url).reply(ASKED)


def test_a_server_that_falls_silent_is_given_up(server):
    policy = OpenAIPolicy(server[0])
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        policy.wire = Wire(f"http://127.0.0.1:{deaf.getsockname()[1]}", silence_s=0.05, pauses=(0.0,))
        with pytest.raises(PolicyError, match="does not answer in 2 tries: timed out"):
            policy.reply(ASKED)


def test_a_redirect_is_not_followed(server):
    url, replies, asked = server
    replies.append(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nConnection: close\r\n\r\n")
    with pytest.raises(PolicyError, match="302"):
        OpenAIPolicy(url).reply(ASKED)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "line", ["http://", "http:///v1", "https://", "http://a:b/v1", "http://a:99999/v1", "http://[::1"]
)
def test_what_is_no_address(line):
    with pytest.raises(PolicyError, match="not an address"):
        open_policy(line)


def test_nobody_there(monkeypatch):
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    with pytest.raises(PolicyError, match=r"127.0.0.1:1 does not answer .* Is it running\?"):
        OllamaPolicy("smol")
