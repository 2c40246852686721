# SPDX-License-Identifier: AGPL-3.0-or-later
"""Code from traces is run here, in the sandbox and nowhere else, once per content.

    outcome = run_python("print(6 * 7)", timeout=10)
    outcome.ok, outcome.why            # True, ""

An outcome is True, False, or None where this machine cannot tell: a library that is not installed in
the sandbox, a network it does not have. A program has worked when it came to its end: one that leaves
early with exit code 0 has not. It reads "1" a few times where it asks for input. Outcomes are kept by
the hash of what ran; two threads that ask for the same run wait for one.
"""

from __future__ import annotations

import ast
import hashlib
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from rusty_r2.gym import safetext
from rusty_r2.gym.sandbox import Guest, Limits, open_sandbox
from rusty_r2.rewards.reading import python_tree

REMEMBER = 50_000
"""outcomes kept in memory"""
INPUT = "1\n" * 32
_FAR_WORDS = """
aiohttp bs4 cv2 django fastapi flask google httpx jax jinja2 keras lxml matplotlib networkx nltk numpy openai
PIL pandas playwright plotly psutil psycopg2 pydantic pymongo pytest redis requests scipy seaborn selenium
sklearn spacy sqlalchemy starlette sympy tensorflow toml torch tqdm transformers uvicorn yaml
"""
FAR_MODULES = frozenset(_FAR_WORDS.split())
"""libraries an honest answer may use that the sandbox does not have"""


@dataclass(frozen=True)
class Outcome:
    """How a run ended, as far as it says something about the code."""

    ok: bool | None
    """None: it could not be tried here"""
    why: str = ""


class Outcomes:
    """What ran before, by hash; safe for threads, and bounded."""

    def __init__(self, most: int = REMEMBER) -> None:
        self._most = most
        self._known: OrderedDict[str, Future[Outcome]] = OrderedDict()
        self._lock = threading.Lock()
        self.runs = 0
        """how often something really ran"""

    def peek(self, key: str) -> Outcome | None:
        """What is known already; nothing runs."""
        with self._lock:
            future = self._known.get(key)
        return future.result() if future is not None and future.done() and not future.exception() else None

    def get(self, key: str, run: Callable[[], Outcome]) -> Outcome:
        """The outcome kept under `key`, or that of `run`, which happens once."""
        with self._lock:
            future = self._known.get(key)
            mine = future is None
            if future is None:
                future = self._known[key] = Future()
                self.runs += 1
                while len(self._known) > self._most:
                    self._known.popitem(last=False)
        if mine:
            try:
                future.set_result(run())
            except BaseException as error:
                with self._lock:
                    self._known.pop(key, None)
                future.set_exception(error)
        return future.result()


OUTCOMES = Outcomes()


def key_of(language: str, source: str, timeout: float) -> str:
    text = f"{language}\0{timeout:g}\0{source}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def run_python(source: str, timeout: float) -> Outcome:
    """Run a Python program to its end."""
    return OUTCOMES.get(key_of("python", source, timeout), lambda: _python(source, timeout))


def run_shell(source: str, timeout: float) -> Outcome:
    """Run a shell script to its end."""
    return OUTCOMES.get(key_of("shell", source, timeout), lambda: _shell(source, timeout))


def _limits(timeout: float) -> Limits:
    return Limits(wall_s=timeout, cpu_s=max(1, int(timeout)), out_total=1 << 20, out_keep=4 << 10)


# ── Python ──────────────────────────────────────────────────────────────────────────────────────

# What the runner needs after the program ran is bound before it: the program may replace any builtin.
_RUNNER = """
import io, socket, sys, types
def main(stop=SystemExit, every=BaseException, missing=ImportError, is_a=isinstance, kind=type, text=str,
         attribute=getattr, where=sys.exc_info, flush=sys.stdout.flush):
    channel = socket.socket(fileno=3)
    token, program, send = channel.recv(64).decode(), open("answer.py", "rb").read(), channel.sendall
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    sys.argv, sys.stdin, sys.path[:0] = ["answer.py"], io.StringIO({given!r}), ["."]
    said = ("end", "", "")
    try:
        exec(compile(program, "answer.py", "exec", dont_inherit=True), module.__dict__)
    except stop as error:
        at, code = where()[2], error.code
        while at and at.tb_frame.f_code.co_filename != "answer.py":
            at = at.tb_next
        said = ("exit", "" if code in (None, 0) else text(code), text(at.tb_lineno) if at else "0")
    except every as error:
        name = attribute(error, "name", "") if is_a(error, missing) else ""
        said = ("raised", kind(error).__name__ + ": " + text(error), text(name or ""))
    try:
        flush()
    except every:
        pass
    parts = [token, *(part.replace("\\0", "")[:300] for part in said), ""]
    send("\\0".join(parts).encode("utf-8", "replace"))
main()
"""
_PRYING = re.compile(
    r"_getframe|currentframe|f_back|f_locals|get_referrers|get_objects|fileno=3|fdopen\(3|write\(3"
)
"""ways into the runner's own variables"""


def _python(source: str, timeout: float) -> Outcome:
    if _PRYING.search(source):
        return Outcome(False, "looks into what runs it")
    token = secrets.token_hex(16)
    data = source.encode("utf-8", "replace")
    runner = _RUNNER.replace("{given!r}", repr(INPUT))
    with (
        open_sandbox(limits=_limits(timeout), files={"answer.py": data}) as box,
        box.guest(runner) as guest,
    ):
        guest.channel.settimeout(timeout + 30)
        said = _hear(guest, token)
        if said:  # what it left running is of no interest
            guest.kill()
        reason = guest.wait().reason
    if said is None:
        late = reason in ("timeout", "cpu")
        return Outcome(False, "took too long" if late else f"ended early ({reason})")
    return _python_outcome(source, said)


def _hear(guest: Guest, token: str) -> list[str] | None:
    """What the runner reports at the end; None where the program never let it."""
    heard = b""
    try:
        guest.channel.sendall(token.encode())
        while heard.count(b"\0") < 4 and len(heard) < 8192 and (chunk := guest.channel.recv(4096)):
            heard += chunk
    except OSError:
        return None
    said = heard.decode("utf-8", "replace").split("\0")
    return said[1:4] if len(said) == 5 and said[0] == token else None


def _python_outcome(source: str, said: list[str]) -> Outcome:
    kind, text, extra = said
    if kind == "end":
        return Outcome(True)
    if kind == "exit":
        tree = python_tree(source)
        last = tree.body[-1].lineno if isinstance(tree, ast.Module) and tree.body else 0
        if text:
            return Outcome(False, f"exited with {text}")
        at_end = extra.isdecimal() and int(extra) >= last
        return Outcome(True) if at_end else Outcome(False, "left before its end")
    module = extra.partition(".")[0]
    if module in FAR_MODULES and re.search(rf"^[ \t]*(?:import|from)[ \t]+{module}\b", source, re.M):
        return Outcome(None, f"needs {module}")
    if text.startswith("EOFError") and ("input(" in source or "stdin" in source):
        return Outcome(None, "asks for more input than it was given")
    return Outcome(False, text)


# ── shell ───────────────────────────────────────────────────────────────────────────────────────

_FAR = re.compile(
    r"command not found|not found$|No such file or directory|Could not resolve|Temporary failure in name|"
    r"Network is unreachable|Permission denied|Read-only file system|not a git repository|Connection refused|"
    r"Operation not permitted|Name or service not known|No module named",
    re.M,
)
_NETWORK = re.compile(
    r"(?:^|[;&|(]|\bsudo\s)\s*(?:pip3?|npm|npx|yarn|pnpm|apt(?:-get)?|brew|dnf|yum|cargo|curl|wget|"
    r"docker|kubectl|ssh|scp|systemctl|service|git (?:clone|pull|push|fetch)|python3? -m pip|gh|ollama)\b",
    re.M,
)
_LAST_EXIT = re.compile(r"\n[ \t]*exit(?:[ \t]+0)?\Z")


def _shell(source: str, timeout: float) -> Outcome:
    token = secrets.token_hex(16)
    text = _LAST_EXIT.sub("", re.sub(r"^\$ ", "", source.rstrip(), flags=re.M)) + "\n"
    if _NETWORK.search(text):
        return Outcome(None, "needs a network or a system of its own")
    with open_sandbox(limits=_limits(timeout), files={"block.sh": text.encode("utf-8", "replace")}) as box:
        syntax = box.run(["bash", "-n", "block.sh"])
        if syntax.reason == "exit" and syntax.code:
            return Outcome(False, f"does not parse: {syntax.output[:200]}")
        result = box.run(
            ["bash", "-c", ". ./block.sh </dev/null; code=$?; cat; exit $code"], stdin=token.encode()
        )
    said = safetext.neutral(result.stderr)
    if result.reason in ("timeout", "cpu"):
        return Outcome(False, "took too long")
    if result.ok:
        ended = result.stdout.endswith(token.encode())
        return Outcome(True) if ended else Outcome(False, "left before its end")
    if result.reason == "exit" and (result.code == 127 or _FAR.search(said)):
        return Outcome(None, f"needs what the sandbox has not: {said.strip()[-120:]}")
    return Outcome(False, f"ended with {result.code if result.reason == 'exit' else result.reason}")
