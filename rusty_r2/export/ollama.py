# SPDX-License-Identifier: AGPL-3.0-or-later
"""A GGUF file becomes a model that `ollama run` knows.

    deployer = OllamaDeployer()
    deployer.create_model("toolbox-agent", "model.gguf")      # then: ollama run toolbox-agent
    rusty export ollama model.gguf --name toolbox-agent

A model is made under a name of its own beside the one asked for, read back and compared with what was meant,
and only then copied over: whoever is talking to the old one never meets a half-made one. The server is asked
over HTTP; with `through="program"` the `ollama` program makes it from a Modelfile. Nothing is done
before a method is called. modelfile.py knows what is said, ollama_api.py how.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rusty_r2 import files
from rusty_r2.errors import ConfigError
from rusty_r2.export.header import read_header
from rusty_r2.export.hosting import OllamaHostingProfile, auto_profile, named_profile, ryzen_profile
from rusty_r2.export.modelfile import Recipe, check_name, describe
from rusty_r2.export.ollama_api import OllamaError, OllamaServer

OLDEST = (0, 5, 5)
"""the first server that makes models from uploaded files"""
Through = Literal["http", "program"]


class OllamaDeployer:
    """The documented door; `host` None means $OLLAMA_HOST, or this machine."""

    def __init__(
        self, ollama_path: str = "ollama", *, host: str | None = None, through: Through = "http"
    ) -> None:
        self.ollama_path = ollama_path
        self.through = through
        self.server = OllamaServer(host)

    def create_modelfile(
        self,
        gguf_path: str | Path,
        system_prompt: str = "",
        temperature: float = 0.7,
        num_ctx: int | None = None,
        stop_tokens: list[str] | None = None,
        **more: Any,
    ) -> str:
        """The text of a Modelfile; `more` as for create_model."""
        return _recipe(gguf_path, system_prompt, temperature, num_ctx, stop_tokens, **more).modelfile()

    def create_model(
        self,
        model_name: str,
        gguf_path: str | Path,
        system_prompt: str = "",
        temperature: float = 0.7,
        num_ctx: int | None = None,
        stop_tokens: list[str] | None = None,
        *,
        replace: bool = False,
        told: Callable[[int], None] | None = None,
        **more: Any,
    ) -> str:
        """Make the model, or with `replace` exchange the one of that name; returns the name.

        `more`: template (Go), profile (OllamaHostingProfile), top_p and other parameters of Ollama.
        """
        name = check_name(model_name)
        recipe = _recipe(gguf_path, system_prompt, temperature, num_ctx, stop_tokens, **more)
        self.require_server()
        if not replace and self.has(name):
            if not self.differences(name, recipe, files.digest(recipe.gguf)):
                return name
            raise OllamaError(
                f"the name {name} is taken by another model on {self.server.url}. "
                "Add --replace, or choose another name"
            )
        beside = f"{_untagged(name)}:rusty-{os.getpid()}"
        try:
            self._make(beside, recipe, told)
            wrong = self.differences(beside, recipe)
            if wrong:
                raise OllamaError(f"{self.server.url} made another model than was asked for: {wrong[0]}")
            self.copy_model(beside, name)
        finally:
            self._forget(beside)
        return name

    def differences(self, model_name: str, recipe: Recipe, digest: str = "") -> list[str]:
        """Where the server's model is not what the recipe says; also in its file, where a digest is given."""
        shown = self.show(model_name)
        facts = read_header(recipe.gguf)
        told = shown.get("model_info", {})
        same = ("general.architecture", "general.parameter_count", "tokenizer.ggml.pre")
        pairs = {
            "template": (shown.get("template", ""), recipe.template),
            "system prompt": (shown.get("system", ""), recipe.system),
            "parameters": (_parameters(shown.get("parameters", "")), _as_shown(recipe.parameters)),
            **{key: (told[key], facts[key]) for key in same if key in told and key in facts},
        }
        found = [
            f"its {what} is {there!a}, not {meant!a}"
            for what, (there, meant) in pairs.items()
            if there != meant
        ]
        if digest and f"sha256-{digest}" not in shown.get("modelfile", ""):
            found.append("it was made from another file")
        return found

    def show(self, model_name: str) -> dict[str, Any]:
        """Everything the server knows of a model."""
        shown: dict[str, Any] = self.server.json("POST", "/api/show", {"model": model_name})
        return shown

    def has(self, model_name: str) -> bool:
        wanted = _in_full(model_name)
        return any(_in_full(model["name"]) == wanted for model in self.list_models())

    def list_models(self) -> list[dict[str, Any]]:
        """The server's models, as it tells them: name, size, digest, details."""
        return list(self.server.json("GET", "/api/tags").get("models") or [])

    def delete_model(self, model_name: str) -> bool:
        """Whether there was one to delete."""
        try:
            self.server.json("DELETE", "/api/delete", {"model": check_name(model_name)})
        except OllamaError as error:
            if error.status == 404:
                return False
            raise
        return True

    def copy_model(self, source: str, destination: str) -> str:
        """The same model under another name; one of that name is replaced in one step."""
        self.server.json("POST", "/api/copy", {"source": source, "destination": check_name(destination)})
        return destination

    def run_model(
        self, model_name: str, prompt: str, *, listen: Callable[[str], None] | None = None, **options: Any
    ) -> str:
        """Ask once; `listen` hears the answer as it is written."""
        asked = {"model": model_name, "messages": [{"role": "user", "content": prompt}], "options": options}
        said = []
        for line in self.server.lines("/api/chat", asked):
            piece = str(line.get("message", {}).get("content", ""))
            said.append(piece)
            if listen is not None and piece:
                listen(piece)
            if line.get("done"):
                return "".join(said)
        raise OllamaError(f"{self.server.url} broke off in the middle of an answer")

    def require_server(self) -> str:
        """The version of the server; one line where there is none, or one that is too old."""
        version = str(self.server.json("GET", "/api/version").get("version", ""))
        numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:3])
        if numbers and any(numbers) and numbers < OLDEST:  # a server built from source calls itself 0.0.0
            oldest = ".".join(map(str, OLDEST))
            raise OllamaError(
                f"Ollama {version} at {self.server.url} is too old: at least {oldest} is needed"
            )
        return version

    def get_ryzen_profile(self, cpu_cores: int = 16) -> OllamaHostingProfile:
        return ryzen_profile(cpu_cores)

    def get_auto_profile(self) -> OllamaHostingProfile:
        return auto_profile()

    def start_server_with_profile(
        self, profile: OllamaHostingProfile, *, wait: float = 30.0, log: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start `ollama serve` so, and return when it answers. Whoever asked for it ends it."""
        if self._answers():
            raise OllamaError(
                f"a server answers at {self.server.url} already; its profile is its own. Stop it first"
            )
        environment = (
            os.environ | profile.to_env() | {"OLLAMA_HOST": f"{self.server.host}:{self.server.port}"}
        )
        with open(log or os.devnull, "ab") as out:
            process = subprocess.Popen(
                [self._program(), "serve"], env=environment, stdout=out, stderr=out, start_new_session=True
            )
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline and process.poll() is None:
            if self._answers():
                return process
            time.sleep(0.1)
        process.kill()
        process.wait()
        where = f"; see {log}" if log else ""
        raise OllamaError(f"ollama serve did not answer at {self.server.url} within {wait:.0f} s{where}")

    def _answers(self) -> bool:
        try:
            self.server.json("GET", "/api/version")
        except OllamaError:
            return False
        return True

    def _make(self, name: str, recipe: Recipe, told: Callable[[int], None] | None) -> None:
        if self.through == "program":
            self._make_with_program(name, recipe)
            return
        digest = files.digest(recipe.gguf)
        if not self.server.has_blob(digest):
            self.server.upload(recipe.gguf, digest, told)
        last = ""
        for line in self.server.lines("/api/create", recipe.request(name, digest)):
            last = str(line.get("status", last))
        if last != "success":
            raise OllamaError(
                f"{self.server.url} broke off while making the model (last: {last or 'nothing'})"
            )

    def _make_with_program(self, name: str, recipe: Recipe) -> None:
        with tempfile.TemporaryDirectory(prefix="rusty-ollama-") as folder:
            modelfile = files.write(Path(folder) / "Modelfile", recipe.modelfile())
            command = [self._program(), "create", name, "-f", str(modelfile)]
            environment = os.environ | {"OLLAMA_HOST": self.server.url}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise self.server.refusal(re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", done.stderr or done.stdout))

    def _program(self) -> str:
        found = shutil.which(self.ollama_path)
        if found is None:
            raise OllamaError(
                f"there is no program {self.ollama_path!a}. Get it: https://ollama.com/download"
            )
        return found

    def _forget(self, name: str) -> None:
        """Take away the name used while making; a server that has gone keeps it, and that harms nobody."""
        try:
            self.delete_model(name)
        except OllamaError:
            return


def _recipe(
    gguf_path: str | Path,
    system_prompt: str,
    temperature: float,
    num_ctx: int | None,
    stop_tokens: list[str] | None,
    profile: OllamaHostingProfile | None = None,
    **more: Any,
) -> Recipe:
    asked = {"temperature": float(temperature), "num_ctx": num_ctx or (None if profile else 4096), **more}
    return describe(gguf_path, system=system_prompt, stop=stop_tokens, profile=profile, **asked)


def _in_full(name: str) -> str:
    """A name as the server compares it: Rusty, rusty:latest and library/rusty are one model."""
    tagged = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
    return tagged.casefold().removeprefix("registry.ollama.ai/").removeprefix("library/")


def _untagged(name: str) -> str:
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(":")[0]


def _parameters(shown: str) -> dict[str, list[str]]:
    """The text of /api/show as words: `stop    "a"` may come several times."""
    found: dict[str, list[str]] = {}
    for line in shown.splitlines():
        name, _, value = line.strip().partition(" ")
        if name:
            found.setdefault(name, []).append(value.strip())
    return {name: sorted(values) for name, values in found.items()}


def _as_shown(parameters: dict[str, Any]) -> dict[str, list[str]]:
    """Parameters in the words of /api/show."""
    found = {}
    for name, value in parameters.items():
        each = value if isinstance(value, list) else [value]
        found[name] = sorted(_go(one) for one in each)
    return found


def _go(value: Any) -> str:
    """A value as Go prints it: strings quoted, whole numbers without a point."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return (
            '"'
            + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
            + '"'
        )
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class OllamaConfig:
    """Make an Ollama model of a GGUF file."""

    gguf: Path
    """the file, as `rusty export gguf` made it"""
    name: str = ""
    """what `ollama run` will call it; the file's name where not given"""
    system: str = ""
    """system prompt"""
    temperature: float = 0.7
    """0 takes the likeliest word"""
    profile: str = "auto"
    """hosting profile: auto suits this machine, ryzen is the documented one"""
    host: str = ""
    """the server; $OLLAMA_HOST or this machine where not given"""
    through: Through = "http"
    """http, or the `ollama` program with a Modelfile"""
    replace: bool = False
    """exchange the model that has the name now"""
    modelfile: bool = False
    """only print the Modelfile"""


def deploy(config: OllamaConfig) -> str:
    """Make the model on the server, or print its Modelfile."""
    if not config.gguf.is_file():
        raise ConfigError(f"{config.gguf} is not a file. Make one: rusty export gguf --help")
    deployer = OllamaDeployer(host=config.host or None, through=config.through)
    profile = named_profile(config.profile)
    said: dict[str, Any] = {
        "system_prompt": config.system,
        "temperature": config.temperature,
        "profile": profile,
    }
    if config.modelfile:
        return deployer.create_modelfile(config.gguf, **said).rstrip("\n")
    wanted = config.name or re.sub(r"[^\w.-]", "-", config.gguf.stem.lower(), flags=re.ASCII)
    name = deployer.create_model(wanted, config.gguf, replace=config.replace, **said)
    return f"{deployer.server.url} {name}\nnext: ollama run {name}"
