# SPDX-License-Identifier: AGPL-3.0-or-later
"""The wire to an Ollama server: plain HTTP, every answer read to its end.

Most failures of a real server come as HTTP 200 with a line {"error": …}, and a stream that merely stops has
failed too: `lines` raises for both. What differs between the endpoints is in ollama.py. Recorded
exchanges with a real server hold this contract in the tests.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rusty_r2.errors import ConfigError, RustyError

PORT = 11434
CHUNK = 1 << 20
NO_SPACE = ("no space left", "disk quota", "not enough space", "disk is full")


class OllamaError(RustyError):
    """The server is not there, is too old, has no room, or said no."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """what HTTP called it; 0 where it never came to that"""


class OllamaServer:
    """One server. Nothing is opened before the first question."""

    def __init__(self, host: str | None = None, *, timeout: float = 600.0) -> None:
        self.secure, self.host, self.port = address(host)
        self.timeout = timeout

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.secure}://{host}:{self.port}"

    def json(self, method: str, path: str, body: Any = None) -> Any:
        """One answer, as data; {} where the server says nothing more than yes."""
        with self._answer(method, path, _encoded(body)) as answer:
            text = answer.read()
        data = self._parsed(text) if text.strip() else {}
        if isinstance(data, dict) and data.get("error"):
            raise self.refusal(str(data["error"]))
        return data

    def lines(self, path: str, body: Any) -> Iterator[dict[str, Any]]:
        """A streamed answer, line by line; a line with an error is raised."""
        with self._answer("POST", path, _encoded(body)) as answer:
            while line := answer.readline():
                if not line.strip():
                    continue
                data = self._parsed(line)
                if data.get("error"):
                    raise self.refusal(str(data["error"]))
                yield data

    def has_blob(self, digest: str) -> bool:
        """Whether the server holds the file with this SHA-256 already."""
        try:
            with self._answer("HEAD", f"/api/blobs/sha256:{digest}"):
                return True
        except OllamaError as error:
            if error.status == 404:
                return False
            raise

    def upload(self, path: Path, digest: str, told: Callable[[int], None] | None = None) -> None:
        """Send a file; `told` hears how many bytes went out."""

        def parts() -> Iterator[bytes]:
            with open(path, "rb") as file:
                while block := file.read(CHUNK):
                    yield block
                    if told is not None:
                        told(len(block))

        size = str(path.stat().st_size)
        with self._answer("POST", f"/api/blobs/sha256:{digest}", parts(), {"Content-Length": size}) as answer:
            answer.read()

    @contextlib.contextmanager
    def _answer(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        make = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        line = make(self.host, self.port, timeout=self.timeout)
        try:
            try:
                line.request(method, path, body, headers or {})
            except (BrokenPipeError, ConnectionResetError):  # it may have said why before it hung up
                if line.sock is None:
                    raise
            answer = line.getresponse()
            if answer.status >= 400:
                raise self.refusal(_reason(answer.read()), answer.status)
            yield answer
        except (ConnectionRefusedError, socket.gaierror) as error:
            raise OllamaError(f"no Ollama server answers at {self.url}. Type: ollama serve") from error
        except (OSError, http.client.HTTPException) as error:
            raise OllamaError(f"the Ollama server at {self.url} broke off: {_said(error)}") from error
        finally:
            line.close()

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            data = json.loads(text)
        except ValueError as error:
            raise OllamaError(f"{self.url} does not speak as an Ollama server does: {text[:60]!a}") from error
        if not isinstance(data, dict):
            raise OllamaError(f"{self.url} does not speak as an Ollama server does: {text[:60]!a}")
        return data

    def refusal(self, said: str, status: int = 200) -> OllamaError:
        """What the server said, as one line with the next thing to do."""
        first = " ".join(said.split())[:300]
        if any(words in first.lower() for words in NO_SPACE):
            first = f"the disk of the Ollama server at {self.url} is full ({first}). Type: ollama rm MODEL"
        elif status == 503:
            first = f"the Ollama server at {self.url} is busy ({first}). Try again in a moment"
        else:
            first = f"the Ollama server at {self.url} refuses: {first or f'HTTP {status}'}"
        return OllamaError(first, status)


def address(host: str | None = None) -> tuple[bool, str, int]:
    """Whether to use TLS, the name and the port, from `host` or $OLLAMA_HOST, as Ollama itself reads them."""
    given = (host if host is not None else os.environ.get("OLLAMA_HOST", "")).strip()
    try:
        parts = urlsplit(given if "://" in given else f"http://{given}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"OLLAMA_HOST is {given!a}, which is no HOST:PORT ({error})") from error
    if parts.scheme not in ("http", "https"):
        raise ConfigError(f"OLLAMA_HOST is {given!a}; it starts with http:// or https://, or is HOST:PORT")
    name = parts.hostname or "127.0.0.1"
    if name in ("0.0.0.0", "::"):  # where a server listens, not where it can be reached
        name = "127.0.0.1"
    usual = PORT if "://" not in given else 443 if parts.scheme == "https" else 80
    return parts.scheme == "https", name, port or usual


def _encoded(body: Any) -> bytes | None:
    return None if body is None else json.dumps(body).encode()


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
