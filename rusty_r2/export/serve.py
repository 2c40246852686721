# SPDX-License-Identifier: AGPL-3.0-or-later
"""`rusty serve FILE`: an exported model behind llama.cpp's OpenAI-compatible server, until Ctrl-C.

    rusty serve exports/kto-3-Q8_0.gguf --port 8080
    rusty chat --model http://127.0.0.1:8080/v1

Only this machine can reach it unless `--host` says otherwise, and then clients must send a key. The server is
the one inside lm/llama.py; here are the door and the words to the person in front of it.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rusty_r2.errors import ConfigError
from rusty_r2.lm import smollm2

if TYPE_CHECKING:
    from rusty_r2.lm.llama import Llama

KEY = "RUSTY_API_KEY"
"""environment variable with the key, so that it need not stand in the history of a shell"""


@dataclass(frozen=True)
class ServeConfig:
    model: Annotated[str, tyro.conf.Positional]
    """a GGUF file, or smollm2"""
    port: int = 8080
    """0 takes a free one"""
    host: str = "127.0.0.1"
    """who may reach it; anything but this machine needs a key"""
    api_key: str = ""
    """what clients must send; default: the environment variable RUSTY_API_KEY, else nothing"""
    name: str = ""
    """the model's name for clients; default: the file's"""
    context: int = 4096
    """tokens of one conversation"""
    parallel: int = 1
    """conversations at the same time"""
    threads: int = 0
    """0: every core, or OMP_NUM_THREADS"""


def serve(config: ServeConfig) -> str:
    """Open the file, say where it is, and wait."""
    stop = threading.Event()
    before = {kind: signal.signal(kind, lambda *_: stop.set()) for kind in (signal.SIGTERM, signal.SIGINT)}
    try:
        with start(config) as llama:
            print(greeting(llama, with_key=bool(llama.key)), flush=True)
            while not stop.wait(0.5):
                pass
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
    return "stopped"


def start(config: ServeConfig) -> Llama:
    """The server, answering; close it when done."""
    path = find(config.model)
    key = config.api_key or os.environ.get(KEY, "")
    if not is_loopback(config.host) and not key:
        raise ConfigError(
            f"{config.host} lets others in, and there is no key. "
            f"Type: {KEY}=SECRET rusty serve {config.model} --host {config.host}"
        )
    if config.context < 1 or config.parallel < 1 or config.threads < 0 or not 0 <= config.port < 65536:
        raise ConfigError("--context and --parallel are 1 or more, --threads 0 or more, --port below 65536")
    _free(config.host, config.port)
    options: dict[str, Any] = {"host": config.host, "port": config.port, "name": config.name, "key": key}
    from rusty_r2.lm.llama import Llama

    return Llama(
        path, context=config.context, parallel=config.parallel, threads=config.threads or None, **options
    )


def find(model: str) -> Path:
    """The file to serve; one line where it is none."""
    if model == smollm2.NAME:
        return smollm2.gguf_file()
    path = Path(model).expanduser()
    if path.is_dir():
        raise ConfigError(f"{path} is a folder. Make a file of it first: rusty export gguf {path}")
    if not path.is_file():
        raise ConfigError(f"{path} is not there. Make one: rusty export gguf RUN")
    return path


def greeting(llama: Llama, *, with_key: bool) -> str:
    """What a person needs to know."""
    lines = [f"serving {llama.path} as {llama.name}, Ctrl-C stops it", f"base_url: {llama.url}"]
    if with_key:
        lines.append("clients must send the key as a bearer token")
    return "\n".join([*lines, f"next: rusty chat --model {llama.url}"])


def is_loopback(host: str) -> bool:
    """Only this machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _free(host: str, port: int) -> None:
    """Whether we may listen there; llama.cpp would only say that it could not start."""
    try:
        kind = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise ConfigError(
            f"{host}:{port} cannot be listened on: {error.strerror}. Type: --port 0 for a free one"
        ) from error
