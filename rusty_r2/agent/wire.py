# SPDX-License-Identifier: AGPL-3.0-or-later
"""Requests to a model server, on the standard library: lines as they come, patience, and then an end to it.

    wire = Wire("http://127.0.0.1:11434")
    wire.ask("/api/tags")
    for line in wire.lines("/api/chat", {...}): ...

No answer, a dropped connection before the first line and the statuses 429 and 5xx are tried again, with a
longer pause each time; nothing is tried again once a line came. Other refusals are `Refused`, in the server's
words. No proxy is asked, no redirect followed, and no key travels unencrypted to another machine.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from rusty_r2.errors import PolicyError

CONNECT_S = 10.0
"""seconds until a server must have taken the call"""
SILENCE_S = 300.0
"""seconds a server may be silent: a large model is being loaded, or a long prompt read"""
PAUSES = (0.5, 1.0, 2.0, 4.0)
"""seconds before each further try"""
LONGEST = 1 << 20
"""bytes of one line, or of an error"""
AGAIN = frozenset({429, 500, 502, 503, 504})


class Refused(PolicyError):
    """The server understood and said no."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


class _Away(Exception):
    """Worth another try."""


class Wire:
    """One server."""

    def __init__(
        self,
        url: str,
        *,
        key: Callable[[], str] = str,
        silence_s: float = SILENCE_S,
        pauses: tuple[float, ...] = PAUSES,
    ) -> None:
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is no number, half a bracket
            known = False
        if "@" in url or "?" in url:
            raise PolicyError("a password in an address would end up in traces. Type: export RUSTY_API_KEY=…")
        if not known:
            raise PolicyError(f"{url!a} is not an address of a server. Say http://HOST:PORT/v1")
        self.url, self._parts, self._key = url, parts, key
        self.silence_s, self.pauses = silence_s, pauses

    def ask(self, path: str, asked: dict[str, Any] | None = None) -> dict[str, Any]:
        """One answer, as an object; a server that is not there is found out soon."""
        said = "\n".join(self.lines(path, asked, pauses=self.pauses[:1]))
        return object_of(said, f"{self.url}{path}")

    def lines(
        self, path: str, asked: dict[str, Any] | None = None, *, pauses: tuple[float, ...] | None = None
    ) -> Iterator[str]:
        """The answer line by line, as it comes; empty lines are left out."""
        pauses = self.pauses if pauses is None else pauses
        for pause in (*pauses, None):
            try:
                yield from self._once(path, asked)
                return
            except _Away as away:
                if pause is None:
                    raise PolicyError(
                        f"{self.url} does not answer in {len(pauses) + 1} tries: {away}. Is it running?"
                    ) from away
                time.sleep(pause)

    def _once(self, path: str, asked: dict[str, Any] | None) -> Iterator[str]:
        with closing(self._connection()) as connection:
            try:
                response = self._send(connection, path, asked)
                line = response.readline(LONGEST)
            except (OSError, http.client.HTTPException) as error:
                raise _Away(str(error) or type(error).__name__) from error
            while line:
                if text := line.decode("utf-8", "replace").strip():
                    yield text
                try:
                    line = response.readline(LONGEST)
                except (OSError, http.client.HTTPException) as error:
                    raise PolicyError(
                        f"{self.url} fell silent in the middle of an answer: {error}"
                    ) from error

    def _send(
        self, connection: http.client.HTTPConnection, path: str, asked: dict[str, Any] | None
    ) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if key := self._key():
            if self._parts.scheme != "https" and not is_here(self.url):
                raise PolicyError(f"a key is not sent unencrypted to {self._parts.hostname}. Say https://")
            if not (key.isascii() and key.isprintable()):  # http.client would tell the whole key in its error
                raise PolicyError("the key holds characters that no key has. Type: export RUSTY_API_KEY=…")
            headers["Authorization"] = f"Bearer {key}"
        body = None if asked is None else json.dumps(asked).encode()
        connection.request("GET" if asked is None else "POST", self._parts.path + path, body, headers)
        if connection.sock is not None:
            connection.sock.settimeout(self.silence_s)
        response = connection.getresponse()
        if response.status in AGAIN:
            raise _Away(f"{response.status} {_said(response)}")
        if response.status != 200:
            raise Refused(response.status, f"{response.status} {_said(response)}")
        return response

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(self._parts.hostname or "", self._parts.port, timeout=CONNECT_S)


def is_here(url: str) -> bool:
    """Whether an address is this machine's own."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, and be it 127.0.0.1.example.org
        return False


def _said(response: http.client.HTTPResponse) -> str:
    """A server's refusal in its own words, in one line."""
    body = response.read(LONGEST).decode("utf-8", "replace")
    try:
        found = json.loads(body)
        found = found.get("error", found) if isinstance(found, dict) else found
        body = str(found.get("message", found)) if isinstance(found, dict) else str(found)
    except (ValueError, RecursionError):
        pass
    return " ".join(body.split())[:300] or str(response.reason)


def object_of(line: str, name: str) -> dict[str, Any]:
    """The JSON object that `name` sent."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{name} sent what is not JSON: {line[:80]!a}") from error
    if not isinstance(said, dict):
        raise PolicyError(f"{name} sent what is not an object: {line[:80]!a}")
    return said
