# SPDX-License-Identifier: AGPL-3.0-or-later
"""llama.cpp in this process: a GGUF file is opened once, and asked through its own server on loopback.

    with Llama(path, context=4096) as model:
        model.chat([{"role": "user", "content": "2+2?"}], max_new_tokens=16).text
        model.next_logprobs(model.tokenize("2+2="))          # the whole distribution of the next word
        model.url                                            # http://127.0.0.1:PORT/v1, OpenAI's verbs

What was read stays read: a prompt that begins like an earlier one costs only its new end (`Said.read`). A
prompt that does not fit the context is an error, never cut. Stopping to listen stops the model. Who may say
what is left to agent/gguf.py; making GGUF files to export/.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from rusty_r2 import machine
from rusty_r2.closing import Closing
from rusty_r2.errors import CheckpointError, ConfigError, ContextFull, PolicyError, need
from rusty_r2.lm.sampling import Sampling

Message = dict[str, str]
"""{"role": …, "content": …}"""
OnText = Callable[[str], None]
MAGIC = b"GGUF"
CACHE_MIB = 1024
"""memory for conversations that are not the newest"""
GREEDY = Sampling(temperature=0)
TIGHT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as Python spells it: where any amount of space is allowed, a small model says nothing else"""


@dataclass(frozen=True)
class Said:
    """One answer, and what it cost."""

    text: str
    tokens: tuple[int, ...]
    """empty in the rare case that llama.cpp did not tell them all (see `_whole`)"""
    logprobs: tuple[float, ...]
    """of the model itself, before temperature and grammar; empty unless asked for"""
    finish: str
    """stop, or length: the longest answer or the end of the context was reached"""
    read: int
    """tokens of the prompt that were not read before"""
    kept: int
    """tokens of the prompt that were"""
    seconds_to_first: float
    seconds: float
    timings: dict[str, Any] = field(default_factory=dict)
    """what llama.cpp measured"""


class Llama(Closing):
    """One GGUF file. Any thread may ask; requests wait for one of `parallel` places."""

    def __init__(
        self,
        path: Path | str,
        *,
        context: int = 4096,
        threads: int | None = None,
        parallel: int = 1,
        host: str = "127.0.0.1",
        port: int = 0,
        name: str = "",
        key: str | None = None,
        lora: Path | None = None,
    ) -> None:
        """`key`: what clients of `url` must send; "": nothing; None: something only this process knows."""
        self.path = Path(path).expanduser()
        check_file(self.path)
        self.key = secrets.token_urlsafe(16) if key is None else key
        self.name = name or self.path.stem
        module = need("xllamacpp", extra="export")
        params = module.CommonParams()
        params.model.path = str(self.path)
        params.model_alias = {self.name}
        params.n_ctx, params.n_parallel, params.kv_unified = context * parallel, parallel, False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads or default_threads()
        params.hostnames, params.port, params.api_keys = [host], port, [self.key] if self.key else []
        params.verbosity, params.warmup, params.ui, params.cache_ram_mib = 0, False, False, CACHE_MIB
        if lora is not None:
            check_file(lora)
            params.lora_adapters = [module.CommonAdapterLoraInfo(str(lora), 1.0)]
        try:
            self._server: Any = module.Server(params)
        except RuntimeError as error:
            raise CheckpointError(f"llama.cpp cannot open {self.path}: {_why(self.path, error)}") from error
        self.address: str = self._server.listening_address
        self._facts: dict[str, Any] = self._ask("/v1/models")["data"][0]["meta"]
        self._ask("/slots")  # comes out of the model's loop: closed before that began, it hangs for ever
        self._plain: int | None = None

    @property
    def url(self) -> str:
        """Where other programs find it: OpenAI's /chat/completions below this."""
        return f"{self.address}/v1"

    @property
    def words(self) -> int:
        return int(self._facts["n_vocab"])

    @property
    def context(self) -> int:
        """Tokens that one conversation may have, prompt and answer together."""
        return int(self._facts["n_ctx"])

    @property
    def facts(self) -> dict[str, Any]:
        """What llama.cpp says about the file: n_params, n_ctx_train, ftype, size, …"""
        return dict(self._facts)

    def tokenize(self, text: str, special: bool = False, *, begin: bool = False) -> list[int]:
        """`special`: <|im_end|> and its like are one token each; else they are read as plain text.

        `begin`: with the token that begins every text, for a file that wants one.
        """
        asked = {"content": text, "add_special": begin, "parse_special": special}
        return [int(token) for token in self._ask("/tokenize", asked)["tokens"]]

    def detokenize(self, ids: Sequence[int]) -> str:
        return str(self._ask("/detokenize", {"tokens": list(ids)})["content"])

    def render(self, messages: Sequence[Message]) -> str:
        """The conversation in the words of the file's own chat template, open for the answer."""
        return str(self._ask("/apply-template", {"messages": list(messages)})["prompt"])

    def next_logprobs(self, ids: Sequence[int], top: int = 0) -> NDArray[np.float32]:
        """Log-probabilities [words] of what follows `ids`; with `top` only of the likeliest, −inf elsewhere.

        Growing prefixes of one text cost one token each. All words of a large vocabulary travel as text,
        which takes longer than the arithmetic: ask for `top` where that is enough.
        """
        # the server tells no probabilities beside half a character, so a plain letter is made to be chosen
        self._plain = self._plain if self._plain is not None else self.tokenize("a")[0]
        asked = {
            "prompt": list(ids),
            "n_predict": 1,
            "n_probs": top or self.words,
            "temperature": 0,
            "logit_bias": [[self._plain, 1000]],
        }
        found = self._ask("/completion", asked)["completion_probabilities"][0]["top_logprobs"]
        row = np.full(self.words, -np.inf, np.float32)
        row[[word["id"] for word in found]] = [word["logprob"] for word in found]
        return row

    def chat(self, messages: Sequence[Message], **options: Any) -> Said:
        """Answer a conversation; the options are those of `complete`."""
        return self.complete(self.tokenize(self.render(messages), special=True, begin=True), **options)

    def complete(
        self,
        ids: Sequence[int],
        *,
        max_new_tokens: int = 256,
        sampling: Sampling = GREEDY,
        grammar: str = "",
        json_schema: dict[str, Any] | None = None,
        logprobs: bool = False,
        on_text: OnText | None = None,
    ) -> Said:
        """Go on from `ids` until the model ends, or the longest answer is reached.

        `grammar` is llama.cpp's own (GBNF), or begins with `%llguidance`. What `on_text` raises ends the
        answer and is raised here.
        """
        asked = _request(ids, max_new_tokens, sampling, grammar, json_schema, logprobs=logprobs)
        started, first = time.perf_counter(), 0.0
        pieces: list[dict[str, Any]] = []
        for piece in self._stream("/completion", asked):
            first = first or time.perf_counter()
            pieces.append(piece)
            if piece["content"] and on_text is not None:
                on_text(piece["content"])
        if not pieces or not pieces[-1]["stop"]:
            raise PolicyError(f"llama.cpp broke off in the middle of an answer of {self.path}")
        took = time.perf_counter() - started
        tokens, last = self._whole(pieces), pieces[-1]
        known = self._aligned(ids, tokens, pieces) if logprobs else ()
        timings = last["timings"]
        return Said(
            text="".join(piece["content"] for piece in pieces),
            tokens=tuple(tokens),
            logprobs=known,
            finish="length" if last["stop_type"] == "limit" else "stop",
            read=int(timings["prompt_n"]),
            kept=int(timings["cache_n"]),
            seconds_to_first=first - started,
            seconds=took,
            timings=timings,
        )

    def close(self) -> None:
        self._server = None  # the server ends with its last reference

    def _whole(self, pieces: list[dict[str, Any]]) -> list[int]:
        """All tokens of a streamed answer, without the one that ended it.

        A token that ends inside a character is not told; the next one comes with the whole character. What
        is missing is then read from that, and believed if the tokens are as many as were counted.
        """
        last = pieces[-1]
        wanted = last["tokens_predicted"] - (last["stop_type"] == "eos")
        tokens: list[int] = []
        for piece in pieces:
            behind = piece["tokens_predicted"] - len(piece["tokens"]) - len(tokens)
            if behind > 0 and piece["content"] and not piece["stop"]:
                tokens += self.tokenize(piece["content"])[:-1]
            tokens += piece["tokens"]
        tokens = tokens[:wanted]
        return tokens if len(tokens) == wanted else []

    def _aligned(
        self, ids: Sequence[int], tokens: list[int], pieces: list[dict[str, Any]]
    ) -> tuple[float, ...]:
        """A log-probability for every token; where the server left one out, it is asked for."""
        waiting = [word for piece in pieces for word in piece.get("completion_probabilities", ())]
        found = []
        for place, token in enumerate(tokens):
            if waiting and waiting[0]["id"] == token:
                found.append(float(waiting.pop(0)["logprob"]))
            else:
                before = [*ids, *tokens[:place]]
                likely = self.next_logprobs(before, top=100)[token]
                found.append(float(likely if np.isfinite(likely) else self.next_logprobs(before)[token]))
        return tuple(found)

    # ── the server of this process ──────────────────────────────────────────────────────────────

    def _ask(self, path: str, asked: dict[str, Any] | None = None) -> Any:
        with self._open(path, asked) as answer:
            return json.loads(answer.read())

    def _stream(self, path: str, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with self._open(path, {**asked, "stream": True}) as answer:
            for line in answer:
                kind, _, content = line.partition(b": ")
                if kind == b"error" or (kind == b"data" and content.startswith(b'{"error"')):
                    raise _refusal(content, self.path)
                if kind == b"data":
                    yield json.loads(content)

    @contextmanager
    def _open(self, path: str, asked: dict[str, Any] | None) -> Iterator[http.client.HTTPResponse]:
        """One request; leaving it closes the connection, and with that ends the model's work."""
        if self._server is None:
            raise PolicyError(f"{self.path} was closed")
        place = urlsplit(self.address)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        body = None if asked is None else json.dumps(asked).encode()
        with closing(http.client.HTTPConnection(place.hostname or "", place.port)) as connection:
            try:
                connection.request("GET" if asked is None else "POST", path, body, headers)
                response = connection.getresponse()
                refused = response.read() if response.status != 200 else None
            except (OSError, http.client.HTTPException) as error:
                raise PolicyError(f"llama.cpp does not answer for {self.path}: {error}") from error
            if refused is not None:
                raise _refusal(refused, self.path)
            with response:
                yield response


def check_file(path: Path) -> None:
    """ConfigError where this is no GGUF file; llama.cpp itself does not say why it refuses one."""
    try:
        with path.open("rb") as file:
            found = file.read(4)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Name a .gguf file: gguf:PATH") from error
    if found != MAGIC:
        raise ConfigError(f"{path} is not a GGUF file: it begins with {found!r}, not {MAGIC!r}")


def default_threads() -> int:
    """As many as arithmetic was given by OMP_NUM_THREADS, or the cores there are."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(given) if given.isdigit() and int(given) > 0 else machine.cpu().cores


def _request(
    ids: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
    grammar: str,
    json_schema: dict[str, Any] | None,
    *,
    logprobs: bool,
) -> dict[str, Any]:
    asked = {
        "prompt": list(ids),
        "n_predict": max_new_tokens,
        "samplers": ["penalties", "temperature", "top_k", "top_p"],  # the order of lm/sampling.py
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": max_new_tokens,
        "seed": sampling.seed % 2**32,
        "n_probs": 1 if logprobs else 0,
        "return_tokens": True,
        "cache_prompt": True,
    }
    if grammar:
        asked["grammar"] = grammar
    elif json_schema is not None:
        asked["json_schema"] = {**json_schema, "x-guidance": TIGHT}
    return asked


def _refusal(body: bytes, path: Path) -> PolicyError:
    """What the server said, as an error that says what to do."""
    try:
        said = json.loads(body)
        said = said.get("error", said)
    except ValueError:
        said = {"message": body[:200].decode(errors="replace")}
    if said.get("type") == "exceed_context_size_error":
        return ContextFull(
            f"the prompt has {said['n_prompt_tokens']} tokens, the context of {path.name} {said['n_ctx']}: "
            "nothing was cut. Type: --context with more, or ask for less"
        )
    return PolicyError(f"llama.cpp refused a request to {path.name}: {said.get('message', said)}")


def _why(path: Path, error: Exception) -> str:
    size = path.stat().st_size / machine.GIB
    _, free = machine.memory_gb()
    if size > free:
        return f"it takes {size:.1f} GiB, and {free:.1f} GiB of memory are free"
    return f"{error} The file may be cut short, or of an architecture that this llama.cpp does not know"
