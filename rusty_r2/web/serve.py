# SPDX-License-Identifier: AGPL-3.0-or-later
"""`rusty web`: the page, served to this machine.

    rusty web                            http://127.0.0.1:8187
    rusty web --host 0.0.0.0             to others too; the address that is printed holds a token

Nothing but labels is ever written. What may ask is decided in guard.py, what it sees in app.py.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rusty_r2.errors import ConfigError, StoreError, need

if TYPE_CHECKING:
    import uvicorn


@dataclass(frozen=True)
class WebConfig:
    """One page for traces, labels, agreement, runs, datasets and models."""

    host: str = "127.0.0.1"
    """where to listen; anything but this machine asks for a token"""
    port: int = 8187
    """0 finds a free one"""
    store: str = ""
    """path or URL of the trace store; the one in the data home where not given"""
    runs: Path = Path("runs")
    """the folder of runs"""
    folder: Path = Path()
    """where datasets are looked for, and in the folders below"""
    learned: Path | None = None
    """the learned reward that orders the queue; the one in the data home where not given"""
    who: str = "person"
    """whose labels they are, until a name is given on the page"""
    token: bool = False
    """ask for a token on this machine too: others who work on it can reach the port"""


def web(config: WebConfig) -> str:
    """Serve until Ctrl-C."""
    for module in ("starlette", "uvicorn", "jinja2"):
        need(module, extra="web")
    with Site(config) as site:
        print(f"{site.address}\nCtrl-C ends", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            site.serve()
        return f"\n{site.store.where}\nnext: rusty rewards learn"


class Site:
    """A page that is bound to its port. `address` is what to open; it holds the token where there is one."""

    def __init__(self, config: WebConfig) -> None:
        from rusty_r2.store import TraceStore
        from rusty_r2.web.guard import Keys, is_loopback

        self.store = TraceStore(_existing(config.store))
        try:
            self.socket = bind(config.host, config.port)
        except ConfigError:
            self.store.close()
            raise
        asks = config.token or not is_loopback(config.host)
        self.keys = Keys(token=secrets.token_urlsafe(24) if asks else "")
        self.server = self._server(config)

    @property
    def url(self) -> str:
        host, port = self.socket.getsockname()[:2]
        shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"

    @property
    def address(self) -> str:
        return f"{self.url}/?token={self.keys.token}" if self.keys.token else self.url

    def serve(self) -> None:
        self.server.run(sockets=[self.socket])

    def stop(self) -> None:
        """Ask a page that another thread serves to end."""
        self.server.should_exit = True

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.store.close()

    def _server(self, config: WebConfig) -> uvicorn.Server:
        import uvicorn

        from rusty_r2.rewards.learned import usual_path
        from rusty_r2.web.app import Rooms, app
        from rusty_r2.web.guard import Guard
        from rusty_r2.web.pages import Templates
        from rusty_r2.web.runs import Runs
        from rusty_r2.web.shelf import Shelf

        learned = config.learned or usual_path()
        self.rooms = Rooms(
            self.store, Templates(self.keys), Runs(config.runs), Shelf(config.folder), learned, config.who
        )
        guarded: Any = Guard(app(self.rooms, self.keys), self.keys, config.host)
        quiet = {"log_level": "error", "access_log": False, "server_header": False, "proxy_headers": False}
        limits = {"limit_concurrency": 100, "timeout_keep_alive": 30, "timeout_graceful_shutdown": 2}
        return uvicorn.Server(
            uvicorn.Config(guarded, http="h11", ws="none", lifespan="off", **quiet, **limits)  # type: ignore[arg-type]
        )


def bind(host: str, port: int) -> socket.socket:
    """A port of ours, or one line that says why not."""
    if not 0 <= port <= 65_535:
        raise ConfigError(f"--port is {port}; it is a number from 0 to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host!a}: {error.strerror}. Type: rusty web") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        advice = "Type: rusty web --port 0"
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}. {advice}") from error
    return listening


def _existing(store: str) -> str | None:
    if store and "://" not in store and not Path(store).is_file():
        raise StoreError(f"there is no trace store at {store}. Type: rusty trace import FILE --store {store}")
    return store or None
