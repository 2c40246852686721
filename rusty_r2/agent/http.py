# SPDX-License-Identifier: AGPL-3.0-or-later
"""A model behind a server as a mind: `ollama:NAME`, or `http://HOST:PORT/v1#MODEL` in OpenAI's words.

    open_policy("ollama:rusty").reply(trace)
    open_policy("http://127.0.0.1:8080/v1").reply(trace)

Replies stream; a server that cannot be reached or is busy is asked again, a few times and ever later; one
that falls silent is given up. With the grammar the protocol's schema goes along, as `format` or
`response_format`, and to llama.cpp the grammar itself; a server that refuses that is asked without, and the
reply's facts say so. A prompt that was cut to fit the context is an error: an agent that lost its beginning
must not act. A key is read from RUSTY_API_KEY or OPENAI_API_KEY when it is sent, is kept nowhere, and goes
over plain http only to this machine. Ollama is looked for at OLLAMA_HOST. How lines travel is in wire.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from rusty_r2.agent.address import MindOptions
from rusty_r2.agent.policy import Listener, Reply
from rusty_r2.agent.prompt import Turn, conversation
from rusty_r2.agent.speech import messages
from rusty_r2.agent.wire import Refused, Wire, is_here, object_of
from rusty_r2.errors import ContextFull, PolicyError
from rusty_r2.lm.grammar import gbnf
from rusty_r2.protocol import MAX_REPLY, schema
from rusty_r2.trace import ExecutionTrace

OLLAMA = "http://127.0.0.1:11434"
KEYS = ("RUSTY_API_KEY", "OPENAI_API_KEY")
REMEMBERED = 16
FULL = ("too long", "exceed", "truncat", "larger than", "maximum")
"""words beside "context" with which servers say that a prompt does not fit"""


def from_address(rest: str, options: MindOptions) -> HttpPolicy:
    """What follows `ollama:`, or a whole http address."""
    if rest.startswith(("http://", "https://")):
        return OpenAIPolicy(rest, options)
    return OllamaPolicy(rest, options)


@dataclass
class _Heard:
    """What came over the wire for one reply."""

    text: list[str] = field(default_factory=list)
    finish: str = ""
    tokens_in: int = 0
    kept: int = 0
    """tokens of the prompt that the server had read before"""
    tokens_out: int = 0
    facts: dict[str, object] = field(default_factory=dict)


class HttpPolicy:
    """What both kinds of server have in common."""

    def __init__(self, wire: Wire, model: str, options: MindOptions | None, *, name: str) -> None:
        self.wire, self.model, self.options = wire, model, options or MindOptions()
        self.name, self.digest = name, ""
        self._formats: list[str] = ["schema", "json", "none"] if self.options.grammar else ["none"]
        self._counted: dict[tuple[Turn, ...], int] = {}
        self._replies = 0

    def sampling(self) -> dict[str, object]:
        chosen = asdict(self.options)
        names = ("temperature", "top_k", "top_p", "seed", "max_new_tokens", "grammar", "context")
        return {name: chosen[name] for name in names}

    def reply(self, trace: ExecutionTrace, *, listen: Listener | None = None) -> Reply:
        turns = tuple(conversation(trace))
        self._replies += 1
        started, first, size, heard = time.perf_counter(), 0.0, 0, _Heard()
        for piece in self._asked(turns, heard):
            first = first or time.perf_counter()
            size += len(piece)
            if size > MAX_REPLY:
                raise PolicyError(f"{self.name} came to no end in {MAX_REPLY:,} characters. Ask again")
            heard.text.append(piece)
            if listen is not None:
                listen(piece)
        ended = time.perf_counter()
        self._check_whole(turns, heard)
        text = "".join(heard.text)
        if not heard.finish:
            raise PolicyError(f"{self.name} broke off after {len(text)} characters. Ask again")
        return Reply(
            text,
            tokens_in=max(0, heard.tokens_in - heard.kept),
            tokens_out=heard.tokens_out,
            seconds_to_first=(first or ended) - started,
            seconds=ended - started,
            facts={
                "finish": heard.finish,
                "tokens_kept": heard.kept,
                "format": self._formats[0],
                **heard.facts,
            },
        )

    def _asked(self, turns: Sequence[Turn], heard: _Heard) -> Iterator[str]:
        """Pieces of the reply; a server that refuses one way of keeping to the protocol is asked the next."""
        while True:
            try:
                yield from self._stream(turns, self._formats[0], heard)
                return
            except Refused as refused:
                if _is_full(refused):
                    raise ContextFull(f"{self.name}: {refused}. {self._remedy()}") from refused
                if heard.text or len(self._formats) == 1 or not _about_format(refused):
                    raise PolicyError(f"{self.name}: {refused}") from refused
                self._formats.pop(0)
            except (AttributeError, TypeError, ValueError) as error:
                raise PolicyError(f"{self.name} sent what is not an answer: {str(error)[:120]!a}") from error

    def _check_whole(self, turns: tuple[Turn, ...], heard: _Heard) -> None:
        """ContextFull where the server read less than it was sent."""
        before = [n for known, n in self._counted.items() if known == turns[: len(known)] and known != turns]
        if heard.tokens_in and before and heard.tokens_in < max(before):
            raise ContextFull(
                f"{self.name} read {heard.tokens_in} tokens of a conversation that had {max(before)} before: "
                f"the prompt was cut. {self._remedy()}"
            )
        if heard.tokens_in:
            self._counted[turns] = heard.tokens_in
            while len(self._counted) > REMEMBERED:
                del self._counted[next(iter(self._counted))]

    def _remedy(self) -> str:
        return "Type: --context with more, or ask for less"

    def _stream(self, turns: Sequence[Turn], form: str, heard: _Heard) -> Iterator[str]:
        raise NotImplementedError


class OllamaPolicy(HttpPolicy):
    """Ollama's own API. `num_ctx` is always sent: its default is small, and it cuts in silence."""

    def __init__(self, model: str, options: MindOptions | None = None, *, host: str = "") -> None:
        wire = Wire(host or ollama_host())
        super().__init__(wire, model, options, name=f"ollama:{model}")
        entry = self._look_up()
        self.digest = str(entry.get("digest", ""))[:16]
        own = (entry.get("details") or {}).get("context_length") or self.options.context
        self.context = min(self.options.context, int(own))

    def _look_up(self) -> dict[str, Any]:
        """What the server knows of the model; one line on what to type where there is none."""
        try:
            known = _entries(self.wire.ask("/api/tags").get("models"))
        except Refused as refused:
            raise PolicyError(f"{self.wire.url} is not an Ollama server: {refused}") from refused
        wanted = self.model if ":" in self.model.rpartition("/")[2] else f"{self.model}:latest"
        for entry in known:
            if entry.get("name") == wanted:
                return dict(entry)
        names = ", ".join(str(entry.get("name", "")).removesuffix(":latest") for entry in known[:8])
        raise PolicyError(
            f"Ollama at {self.wire.url} has no model {self.model}; it has {names or 'none'}. "
            f"Type: ollama pull {self.model}"
        )

    def _stream(self, turns: Sequence[Turn], form: str, heard: _Heard) -> Iterator[str]:
        chosen = self.options
        asked: dict[str, Any] = {
            "model": self.model,
            "messages": messages(turns),
            "stream": True,
            "truncate": False,  # newer servers then refuse what does not fit; older ones do not know the word
            "shift": False,
            "options": {
                "num_ctx": self.context,
                "num_predict": chosen.max_new_tokens,
                "temperature": chosen.temperature,
                "top_k": chosen.top_k,
                "top_p": chosen.top_p,
                "seed": chosen.seed + self._replies,
            },
        }
        if form != "none":
            asked["format"] = schema() if form == "schema" else "json"
        for line in self.wire.lines("/api/chat", asked):
            said = object_of(line, self.name)
            if said.get("error"):  # also after HTTP 200
                raise Refused(200, str(said["error"]))
            if piece := said.get("message", {}).get("content", ""):
                yield str(piece)
            if said.get("done"):
                heard.finish = str(said.get("done_reason", "stop"))
                heard.tokens_in = int(said.get("prompt_eval_count", 0))
                heard.tokens_out = int(said.get("eval_count", 0))
                heard.facts["load_seconds"] = round(said.get("load_duration", 0) / 1e9, 3)

    def _check_whole(self, turns: tuple[Turn, ...], heard: _Heard) -> None:
        if heard.tokens_in >= self.context:
            raise ContextFull(
                f"{self.name} filled its context of {self.context} tokens with the prompt alone: "
                f"it was cut. {self._remedy()}"
            )
        super()._check_whole(turns, heard)


class OpenAIPolicy(HttpPolicy):
    """Any server with OpenAI's /chat/completions: llama.cpp, vLLM, LM Studio, OpenAI."""

    def __init__(self, address: str, options: MindOptions | None = None) -> None:
        url, _, model = address.partition("#")
        wire = Wire(url.rstrip("/"), key=_key)
        super().__init__(wire, model, options, name=address)
        known = self._models(needed=not model)
        self.model = model or (str(known[0].get("id", "")) if len(known) == 1 else "")
        if not self.model:
            names = ", ".join(str(entry.get("id", "")) for entry in known[:8])
            raise PolicyError(f"{url} has {len(known)} models ({names}). Say which: {url}#MODEL")
        self.digest = self.model
        if self.options.grammar and any(entry.get("owned_by") == "llamacpp" for entry in known):
            self._formats.insert(0, "grammar")

    def _models(self, *, needed: bool) -> list[dict[str, Any]]:
        try:
            return _entries(self.wire.ask("/models").get("data"))
        except PolicyError as error:
            if not needed and isinstance(error, Refused):  # a server that keeps no list
                return []
            raise PolicyError(f"{self.name} does not list its models: {error}") from error

    def _stream(self, turns: Sequence[Turn], form: str, heard: _Heard) -> Iterator[str]:
        chosen = self.options
        asked: dict[str, Any] = {
            "model": self.model,
            "messages": messages(turns),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": chosen.max_new_tokens,
            "temperature": chosen.temperature,
            "top_p": chosen.top_p,
            "seed": chosen.seed + self._replies,
        }
        if (
            is_here(self.wire.url) and chosen.top_k
        ):  # OpenAI itself does not know the word, servers at home do
            asked["top_k"] = chosen.top_k
        if form == "grammar":
            asked["grammar"] = gbnf(schema())
        elif form == "schema":
            wanted = {"name": "action", "schema": schema(), "strict": True}
            asked["response_format"] = {"type": "json_schema", "json_schema": wanted}
        elif form == "json":
            asked["response_format"] = {"type": "json_object"}
        for line in self.wire.lines("/chat/completions", asked):
            kind, _, content = line.partition(":")
            if kind not in ("data", "error") or content.strip() == "[DONE]":
                continue
            said = object_of(content, self.name)
            if kind == "error" or said.get("error"):
                raise Refused(200, _told(said.get("error", said)))
            yield from self._pieces(said, heard)

    def _pieces(self, said: dict[str, Any], heard: _Heard) -> Iterator[str]:
        for choice in said.get("choices") or ():
            if piece := (choice.get("delta") or {}).get("content"):
                yield str(piece)
            heard.finish = str(choice.get("finish_reason") or heard.finish)
        if usage := said.get("usage"):
            heard.tokens_in = int(usage.get("prompt_tokens", 0))
            heard.tokens_out = int(usage.get("completion_tokens", 0))
            heard.kept = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))

    def _remedy(self) -> str:
        return "Start the server with a larger context, or ask for less"


def ollama_host() -> str:
    """OLLAMA_HOST as Ollama reads it: a host, a host with a port, or a whole address."""
    said = os.environ.get("OLLAMA_HOST", "").strip().rstrip("/")
    if not said:
        return OLLAMA
    try:
        found = urlsplit(said if "://" in said else f"http://{said}")
        port = found.port or 11434
    except ValueError as error:
        raise PolicyError(f"OLLAMA_HOST is {said!a}, not an address. Say HOST:PORT") from error
    host = "127.0.0.1" if found.hostname in (None, "0.0.0.0", "::") else found.hostname
    return f"{found.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _key() -> str:
    return next((key for name in KEYS if (key := os.environ.get(name, "").strip())), "")


def _is_full(refused: Refused) -> bool:
    said = str(refused).lower()
    return "context" in said and any(word in said for word in FULL)


def _about_format(refused: Refused) -> bool:
    return refused.status == 400 and any(word in str(refused) for word in ("format", "schema", "grammar"))


def _entries(listed: Any) -> list[dict[str, Any]]:
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _told(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
