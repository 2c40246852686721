# SPDX-License-Identifier: AGPL-3.0-or-later
"""What an Ollama model is made of: a file, a template, a system prompt, parameters.

`describe` puts it together from what the GGUF file says about itself; `Recipe.modelfile` writes it as a
Modelfile for the `ollama` program, `Recipe.request` as the body of /api/create. In a Modelfile a text ends
at a line that closes its quotes, so a text that would close them early cannot be said there and is refused;
over HTTP every text can be said.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rusty_r2.errors import ConfigError
from rusty_r2.export.header import read_header
from rusty_r2.export.hosting import OllamaHostingProfile
from rusty_r2.export.template import TemplateError, derive

PARAMETERS: dict[str, type[Any]] = {
    **dict.fromkeys(
        ("num_ctx", "num_thread", "num_gpu", "main_gpu", "num_batch", "num_keep", "num_predict", "seed"), int
    ),
    **dict.fromkeys(("top_k", "repeat_last_n"), int),
    **dict.fromkeys(("temperature", "top_p", "min_p", "typical_p", "repeat_penalty"), float),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), float),
    "use_mmap": bool,
    "stop": list,
}
"""what the server knows; it takes any other word in silence, so they are checked here"""
NAME = re.compile(r"(?:[\w][\w.-]*/){0,3}[\w][\w.-]*(?::[\w][\w.-]*)?", re.ASCII)
PLAIN = "{{ .Prompt }}"
"""for a file without a chat template: the words go in as they are"""


@dataclass(frozen=True)
class Recipe:
    """Everything /api/create or a Modelfile says."""

    gguf: Path
    template: str
    system: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    """num_ctx, stop, temperature, … (PARAMETERS)"""

    def __post_init__(self) -> None:
        for name, value in self.parameters.items():
            kind = PARAMETERS.get(name)
            if kind is None:
                raise ConfigError(f"Ollama has no parameter {name!a}; it has {', '.join(sorted(PARAMETERS))}")
            fits = isinstance(value, (int, float) if kind is float else kind)
            if not fits or (isinstance(value, bool) and kind is not bool):
                raise ConfigError(f"the parameter {name} is a {kind.__name__}, not {value!a}")

    def request(self, model: str, digest: str) -> dict[str, Any]:
        """The body of /api/create, the file's blob being there already."""
        return {
            "model": model,
            "files": {self.gguf.name: f"sha256:{digest}"},
            "template": self.template,
            "system": self.system,
            "parameters": self.parameters,
        }

    def modelfile(self) -> str:
        """The same as a Modelfile."""
        lines = [f"FROM {_path(self.gguf.resolve())}", f"TEMPLATE {quoted(self.template, 'template')}"]
        if self.system:
            lines.append(f"SYSTEM {quoted(self.system, 'system prompt')}")
        for name, value in self.parameters.items():
            for one in value if isinstance(value, list) else [value]:
                lines.append(f"PARAMETER {name} {_scalar(one, name)}")
        return "\n".join(lines) + "\n"


def describe(
    gguf_path: str | Path,
    *,
    system: str = "",
    template: str | None = None,
    stop: list[str] | None = None,
    profile: OllamaHostingProfile | None = None,
    **parameters: Any,
) -> Recipe:
    """The recipe of a GGUF file: its own template and stop words, and what was asked for."""
    path = Path(gguf_path)
    facts = read_header(path)
    own_template, own_stop = _from_file(facts, needed=template is None)
    context = int(facts.get(f"{facts.get('general.architecture')}.context_length", 0))
    settled = (profile.to_parameters() if profile else {}) | {
        k: v for k, v in parameters.items() if v is not None
    }
    stops = own_stop if stop is None else stop
    if stops:
        settled["stop"] = list(dict.fromkeys(stops))
    recipe = Recipe(path, own_template if template is None else template, system, settled)
    if context and settled.get("num_ctx", 0) > context:  # more than the model was made for
        settled["num_ctx"] = context
    return recipe


def _from_file(facts: dict[str, Any], *, needed: bool) -> tuple[str, list[str]]:
    """The Go template and the stop words the file's own metadata gives."""
    bos, eos = (_token(facts, name) for name in ("bos", "eos"))
    stops = [eos] if eos else []
    own = facts.get("tokenizer.chat_template")
    if not own:
        return PLAIN, stops
    try:
        adds_bos = bool(facts.get("tokenizer.ggml.add_bos_token", False))
        pieces = derive(own, bos=bos, eos=eos, adds_bos=adds_bos)
    except TemplateError as error:
        if needed:
            raise TemplateError(f"{error}. Give a Go template yourself: template=…") from error
        return PLAIN, stops
    return pieces.to_go(), [word for word in (pieces.stop, *stops) if word]


def _token(facts: dict[str, Any], name: str) -> str:
    number = facts.get(f"tokenizer.ggml.{name}_token_id")
    words = facts.get("tokenizer.ggml.tokens", [])
    return str(words[number]) if isinstance(number, int) and number < len(words) else ""


def check_name(model: str) -> str:
    """A name Ollama accepts, or one clear line."""
    if not NAME.fullmatch(model):
        raise ConfigError(f"{model!a} is no name for a model: letters, digits, . _ - and one :tag")
    return model


def quoted(text: str, what: str) -> str:
    """`text` in a Modelfile's quotes, which cannot be escaped: what would break out is refused."""
    strange = next((c for c in text if not (c.isprintable() or c in "\n\t")), None)
    if strange is not None:
        raise ConfigError(
            f"a Modelfile cannot hold the character {strange!a} of the {what}. Create it over HTTP"
        )
    read = '"""'
    for line in text.split("\n")[:-1]:
        read += line
        if read.rstrip().endswith('"""') and len(read.rstrip()) >= 6:
            raise ConfigError(
                f'a line of the {what} ends in """, which ends a text in a Modelfile. Create it over HTTP'
            )
        read += "\n"
    return f'"""{text}"""'


def _scalar(value: Any, name: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return (
            quoted(value, f"parameter {name}") if '"' in value or "\n" in value else f'"{_line(value, name)}"'
        )
    return str(value)


def _path(path: Path) -> str:
    return f'"{_line(str(path), "path")}"'


def _line(text: str, what: str) -> str:
    if not text.isprintable():
        raise ConfigError(f"a Modelfile cannot hold the {what} {text!a}")
    return text
