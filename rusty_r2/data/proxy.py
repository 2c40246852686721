# SPDX-License-Identifier: AGPL-3.0-or-later
"""`rusty trace proxy --to URL`: in front of any OpenAI-compatible server, every run becomes a trace.

    rusty trace proxy --to http://127.0.0.1:11434/v1        then give the agent http://127.0.0.1:8190/v1

Requests and answers pass through byte by byte, streams piece by piece. A run is all calls after one request
of a user: it is kept when the model answers without asking for a tool, or as it stands when the proxy stops.
Keys in headers pass through and are never kept. Only this machine can reach it, and no web page that is open
in a browser here.

Not covered: other calls than `chat/completions` pass through unrecorded; a stream tells its tokens only where
the agent asks for them (`stream_options`).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rusty_r2.agent.plain import count, text
from rusty_r2.agent.telling import counted
from rusty_r2.data.conversation import content_id
from rusty_r2.data.importers import openai
from rusty_r2.errors import ConfigError
from rusty_r2.trace import ExecutionTrace, now

if TYPE_CHECKING:
    from rusty_r2.store import TraceStore

LARGEST = 64 * 2**20
"""bytes of a request, and of an answer that is still recorded"""
PATIENCE = 10.0
"""seconds that calls under way may still take when the proxy is stopped"""
HERE = ("127.0.0.1", "localhost")
_HOPS = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())


@dataclass(frozen=True)
class ProxyConfig:
    to: str
    """the server's base URL, such as http://127.0.0.1:11434/v1"""
    port: int = 8190
    """where to listen, on this machine only; 0 finds a free one"""
    agent: str = "proxy"
    """the agent's name in the traces"""
    store: str = ""
    """path or URL of the trace store; the one in the data home where not given"""
    timeout: float = 600.0
    """seconds to wait for the server"""


def proxy(config: ProxyConfig) -> str:
    """Listen until Ctrl-C, and keep every run that passes."""
    from rusty_r2.store import TraceStore

    with TraceStore(config.store or None) as store, Proxy(config, store) as server:
        print(f"listening on {server.url} for {config.to}; Ctrl-C ends", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
        server.settle(PATIENCE)
        server.recorder.flush()
        return f"\n{counted(server.recorder.kept, 'trace')} kept\n{store.where}\nnext: rusty trace list"


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, config: ProxyConfig, store: TraceStore) -> None:
        self.target = urlsplit(config.to)
        if self.target.scheme not in ("http", "https") or not self.target.hostname:
            raise ConfigError(f"--to is {config.to!a}; it is a URL such as http://127.0.0.1:11434/v1")
        self.timeout_s = config.timeout
        self.recorder = Recorder(store, config.agent)
        self._busy, self._idle = 0, threading.Condition()
        try:
            super().__init__(("127.0.0.1", config.port), Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on port {config.port}: {error.strerror}. Name another: --port 0"
            ) from error

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def path_for(self, asked: str) -> str:
        """Where a path of ours is over there: both may or may not begin with /v1."""
        base = self.target.path.rstrip("/")
        rest = asked.removeprefix("/v1") if base.endswith("/v1") else asked
        return base + rest

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._idle:
            self._busy += 1
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    def settle(self, seconds: float) -> None:
        """Let calls come to their end: an agent has its answer a moment before it is recorded."""
        with self._idle:
            self._idle.wait_for(lambda: not self._busy, seconds)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.info("a client went away", exc_info=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_POST(self) -> None:
        self._pass_on()

    def do_GET(self) -> None:
        self._pass_on()

    def log_message(self, *_: Any) -> None:
        """The terminal is for what was kept."""

    def _pass_on(self) -> None:
        self.close_connection = True
        length = self.headers.get("Content-Length", "0")
        asked, asker = self.headers.get("Host", ""), self.headers.get("Origin")
        if _host(f"//{asked}") not in HERE or (asker is not None and _host(asker) not in HERE):
            return self._refuse(403, "only this machine may ask, and no page from elsewhere")
        if not length.isdigit() or int(length) > LARGEST or "Transfer-Encoding" in self.headers:
            return self._refuse(413, "the request must say its length, at most 64 MB")
        body = self.rfile.read(int(length))
        began = time.monotonic()
        with contextlib.closing(self._connection()) as connection:
            try:
                answer = self._ask(connection, body)
            except (OSError, http.client.HTTPException) as error:
                return self._refuse(502, f"{self.server.target.hostname} cannot be reached: {error}")
            heard = self._hand_over(answer)
        if (
            self.command == "POST"
            and answer.status == 200
            and urlsplit(self.path).path.endswith("/chat/completions")
        ):
            self.server.recorder.take(body, heard, began)
        return None

    def _connection(self) -> http.client.HTTPConnection:
        target = self.server.target
        kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
        return kind(str(target.hostname), target.port, timeout=self.server.timeout_s)

    def _ask(self, connection: http.client.HTTPConnection, body: bytes) -> http.client.HTTPResponse:
        dropped = _HOPS | {"host", "accept-encoding", "content-length"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        connection.request(self.command, self.server.path_for(self.path), body or None, headers)
        return connection.getresponse()

    def _hand_over(self, answer: http.client.HTTPResponse) -> bytes:
        """Every piece at once; what was heard is returned, or b"" where it is too large to keep."""
        self.send_response(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOPS | {"date", "server"}:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        heard: list[bytes] = []
        size = 0
        while piece := answer.read1(65536):
            self.wfile.write(piece)
            self.wfile.flush()
            size += len(piece)
            if size <= LARGEST:
                heard.append(piece)
        return b"".join(heard) if size <= LARGEST else b""

    def _refuse(self, status: int, why: str) -> None:
        said = json.dumps({"error": {"message": f"rusty trace proxy: {why}", "type": "proxy_error"}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


@dataclass
class Open:
    """A run whose last answer asked for a tool."""

    record: dict[str, Any]
    began: float
    at: str = field(default_factory=now)
    tokens_in: int = 0
    tokens_out: int = 0
    calls: int = 0


class Recorder:
    """Calls of a model, put together to runs."""

    def __init__(self, store: TraceStore, agent: str) -> None:
        self.store, self.agent, self.kept = store, agent, 0
        self._open: dict[str, Open] = {}
        self._lock = threading.Lock()

    def take(self, body: bytes, heard: bytes, began: float) -> None:
        """One call. Whatever is wrong with it, the agent has its answer already."""
        try:
            self._take(json.loads(body), answer_of(heard), began)
        except Exception:
            _log.exception("a call could not be recorded")

    def flush(self) -> None:
        """Keep what is unfinished, as it stands."""
        with self._lock:
            waiting, self._open = list(self._open.values()), {}
        for run in waiting:
            self._keep(run)

    def _take(self, request: dict[str, Any], response: dict[str, Any], began: float) -> None:
        key = _request_of(request["messages"])
        record = {"request": request, "response": response}
        usage = response.get("usage") or {}
        with self._lock:
            run = self._open.pop(key, None) or Open(record, began)
            run.record, run.calls = record, run.calls + 1
            run.tokens_in += count(usage.get("prompt_tokens"))
            run.tokens_out += count(usage.get("completion_tokens"))
            done = not response["choices"][0]["message"].get("tool_calls")
            if not done:
                self._open[key] = run
        if done:
            self._keep(run)

    def _keep(self, run: Open) -> None:
        for trace in openai.read(run.record):
            self.store.append(self._whole(trace, run))
            self.kept += 1

    def _whole(self, trace: ExecutionTrace, run: Open) -> ExecutionTrace:
        messages = run.record["request"]["messages"]
        first: dict[str, Any] = next((message for message in messages if message.get("role") == "user"), {})
        return replace(
            trace,
            trace_id=content_id(trace.trace_id, run.at, run.began),
            timestamp=run.at,
            agent_name=self.agent,
            session_id=trace.session_id or content_id(first)[:12],
            total_tokens_in=run.tokens_in,
            total_tokens_out=run.tokens_out,
            llm_calls_count=run.calls,
            execution_duration_ms=(time.monotonic() - run.began) * 1000,
        )


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _request_of(messages: list[dict[str, Any]]) -> str:
    """What is the same in all calls of one run: everything up to the user's last words."""
    last = max((at for at, message in enumerate(messages) if message.get("role") == "user"), default=0)
    return content_id(messages[: last + 1])


def answer_of(heard: bytes) -> dict[str, Any]:
    """A response, also one that came as a stream of server-sent events."""
    if not heard.lstrip().startswith((b"data:", b":", b"event:")):
        return dict(json.loads(heard))
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {"choices": [{"message": message}]}
    for event in _events(heard):
        whole |= {key: event[key] for key in ("model", "created", "usage") if event.get(key)}
        for choice in event.get("choices") or []:
            if choice.get("index", 0) == 0:
                _add(message, calls, choice.get("delta") or {})
    if calls:
        message["tool_calls"] = [calls[at] for at in sorted(calls)]
    return whole


def _events(heard: bytes) -> Iterator[dict[str, Any]]:
    for line in heard.decode("utf-8", "replace").splitlines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data and data != "[DONE]":
            yield json.loads(data)


def _add(message: dict[str, Any], calls: dict[int, dict[str, Any]], delta: Mapping[str, Any]) -> None:
    for name in ("content", "reasoning_content"):
        if delta.get(name):
            message[name] = message.get(name, "") + text(delta[name])
    for call in delta.get("tool_calls") or []:
        made = calls.setdefault(
            count(call.get("index")), {"id": "", "function": {"name": "", "arguments": ""}}
        )
        made["id"] = made["id"] or text(call.get("id"))
        function = call.get("function") or {}
        for name in ("name", "arguments"):
            made["function"][name] += text(function.get(name))
