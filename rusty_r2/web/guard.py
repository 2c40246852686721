# SPDX-License-Identifier: AGPL-3.0-or-later
"""The doorkeeper of the page: who may ask, by which name, how much, and what a browser may do with it.

A web page somebody visits can reach servers on their own machine. Against that stand, in this order:
the Host header must be a name of this machine (DNS rebinding), a token where one is asked for, and for
everything that changes something the page's own Origin and a key that only our pages hold (forged
requests). Against what a trace says stands a policy under which a browser runs nothing but our one script.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "rusty_pass"
LARGEST = 64 * 1024
"""bytes of a request; a label and a long note are far below"""
LONGEST = 8 * 1024
"""bytes of an address"""
FIELDS = 64
POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # under no-referrer a browser would hide the Origin of our own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Keys:
    """What a request must know. New at every start."""

    token: str = ""
    """in the address that is printed; "" asks for none"""
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """what a browser holds after it showed the token"""
    form: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """in every form of ours"""


class Guard:
    """Wraps the page: refuses what should not pass, and puts the headers on what does."""

    def __init__(self, app: ASGIApp, keys: Keys, bound: str) -> None:
        self.app = app
        self.keys = keys
        self.loopback = is_loopback(bound)
        self.names = set() if self.loopback else own_names(bound)  # asking for them may take a while

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in extra if pair[0] not in there)]
            await send(message)

        answer = self.refusal(scope, Headers(scope=scope))
        await (answer or self.app)(scope, receive, with_headers)

    def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a request that does not pass; None lets it through."""
        if headers.getlist("host") != [headers.get("host")] or not self.answers_to(headers["host"]):
            return PlainTextResponse("rusty web does not answer to this host name\n", 421)
        if len(scope["raw_path"]) + len(scope["query_string"]) > LONGEST:
            return PlainTextResponse(f"an address holds at most {LONGEST:,} bytes\n", 414)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("this page knows GET, HEAD and POST\n", 405)
        if not headers.get("content-length", "0").isdecimal() or "transfer-encoding" in headers:
            return PlainTextResponse("say how long the request is\n", 411)
        if len(headers.get("content-length", "0")) > 9 or int(headers.get("content-length", "0")) > LARGEST:
            return PlainTextResponse(f"a request holds at most {LARGEST:,} bytes\n", 413)
        if scope["method"] == "POST" and headers.get("origin") != f"{scope['scheme']}://{headers['host']}":
            return PlainTextResponse("this did not come from a page of ours\n", 403)
        return self._without_token(scope, headers) if self.keys.token else None

    def answers_to(self, host: str) -> bool:
        """An address cannot be rebound, so any is fine where others may come; a name must be our own."""
        name = host_name(host)
        if is_loopback(name):
            return True
        if self.loopback:
            return False
        return is_address(name) or name.casefold().rstrip(".") in self.names

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        if same(_cookie(headers), self.keys.cookie) or scope["path"].startswith("/static/"):
            return None
        asked = parse_qsl(scope["query_string"].decode("latin-1"))
        shown = next((value for name, value in asked if name == "token"), "")
        if scope["method"] != "GET" or not same(shown, self.keys.token):
            return PlainTextResponse("open the address that `rusty web` printed: it holds the token\n", 401)
        rest = urlencode([(name, value) for name, value in asked if name != "token"])
        path = "/" + scope["path"].lstrip("/")  # never //elsewhere
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(COOKIE, self.keys.cookie, httponly=True, samesite="strict", path="/")
        return answer


def same(given: str, wanted: str) -> bool:
    """In a time that does not tell how much was right."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def read_form(body: bytes) -> dict[str, str]:
    """The fields of a form; raises ValueError where there are too many or it is no text."""
    return dict(
        parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=FIELDS, errors="strict")
    )


def host_name(host: str) -> str:
    """`localhost:8187` and `[::1]:8187` without their port; "" for what is no name with a port."""
    found = re.fullmatch(r"(?:\[([^\]]*)\]|([^:\[\]@]*))(?::\d*)?", host)
    return (found[1] or found[2] or "") if found else ""


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    return name.casefold() == "localhost" or (is_address(name) and ipaddress.ip_address(name).is_loopback)


def own_names(bound: str) -> set[str]:
    names: Iterable[str] = (bound, socket.gethostname(), socket.getfqdn())
    return {name.casefold().rstrip(".") for name in names if name}


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""
