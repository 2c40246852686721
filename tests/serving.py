"""What the stand-ins for servers share: they listen on loopback, and speak JSON, whole or line by line.

Loaded by its path (`tests/export/ollama_standin.py` shows how), because tests are no package.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Closed, it has hung up on every client and no thread or socket of it is left."""

    daemon_threads = False

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._clients: set[socket.socket] = set()
        self._lock = threading.Lock()

    def process_request(self, request, client_address) -> None:
        with self._lock:
            self._clients.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request) -> None:
        with self._lock:
            self._clients.discard(request)
            super().shutdown_request(request)

    def server_close(self) -> None:
        with self._lock:
            for client in self._clients:
                with suppress(OSError):  # it has gone by itself
                    client.shutdown(socket.SHUT_RDWR)
        super().server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address) -> None:
        """A client that hangs up is not worth a word."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def say(self, data, status=200):
        self.send(status, json.dumps(data).encode(), "application/json; charset=utf-8")

    def fail(self, status, problem):
        self.say({"error": problem}, status)

    def send(self, status, body, kind):
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def lines(self, told, *, whole=True):
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in told:
            data = json.dumps(line).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if whole:
            self.wfile.write(b"0\r\n\r\n")


@contextmanager
def running(server):
    """`server` answering, for as long as the block lasts."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
