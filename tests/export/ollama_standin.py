"""A stand-in for an Ollama server that keeps the contract recorded from a real one (ollama_contract.jsonl).

It is strict: blobs are checked by their SHA-256, files by their magic, names, templates and bodies as the
real one does, and most refusals come as HTTP 200 with an error line. It has no model: an answer names the
file it comes from and the prompt that was rendered, so that tests can tell one file from another.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from pathlib import Path

_spec = importlib.util.spec_from_file_location("serving", Path(__file__).parents[1] / "serving.py")
serving = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(serving)

NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[\w.-]+)*(:[\w][\w.-]*)?")
QUANTIZE = ("F32", "F16", "Q4_K_S", "Q4_K_M", "Q8_0")


class StandIn(serving.Server):
    """What the server holds, and how it may be told to misbehave."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.blobs: dict[str, bytes] = {}
        self.models: dict[str, dict] = {}
        self.version = "0.33.0"
        self.room = 1 << 40
        self.hang_up_in = ""
        """break the connection in this endpoint"""
        self.meddle = None
        """called with every model that is made"""
        self.seen: list[tuple[str, str]] = []


def stand_in():
    return serving.running(StandIn())


def full(name: str) -> str:
    """The real server too finds a model whatever the case of its name, with or without library/."""
    name = name.casefold().removeprefix("library/")
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def balanced(template: str) -> str:
    """What Go would say of the template, for the faults a test makes."""
    depth = 0
    for action in re.findall(r"\{\{(.*?)\}\}", template, re.S):
        word = action.strip("- \t\n").split(" ")[0]
        depth += (word in ("if", "range", "with")) - (word == "end")
    if depth or re.search(r"\{\{[^}]*\}(?!\})", template):
        return 'template error: template: :1: unexpected "}" in if'
    return ""


def render(template: str, messages: list[dict], system: str) -> str:
    """As much of Go's template language as rusty_r2.export.template writes."""
    system = next((m["content"] for m in messages if m["role"] == "system"), system)
    if system and not any(m["role"] == "system" for m in messages):
        messages = [{"role": "system", "content": system}, *messages]
    head, _, rest = template.partition("{{ range .Messages }}")
    if not rest:
        return template.replace("{{ .Prompt }}", messages[-1]["content"])
    start = re.match(r"\{\{ if not \.System \}\}(.*?)\{\{ end \}\}", head, re.S)
    out = start[1] if start and not system else ""
    body, _, cue = rest.rpartition("{{ end }}{{ end }}")
    branches = re.split(r'\{\{ (?:else )?if eq \.Role "(\w+)" \}\}', body)[1:]
    around = dict(zip(branches[::2], branches[1::2], strict=True))
    for message in messages:
        out += around.get(message["role"], "").replace("{{ .Content }}", message["content"])
    return (out + cue).replace('{{ "{{" }}', "{{")


def parse_modelfile(source: str) -> list[tuple[str, str]]:
    """Ollama's own reading of a Modelfile: values end at a line break where their quotes are closed."""
    found, at = [], 0
    while at < len(source):
        if source[at] in " \t\n":
            at += 1
            continue
        end = source.index(" ", at)
        name, at = source[at:end].lower(), end + 1
        if name == "parameter":
            end = source.index(" ", at)
            name, at = source[at:end], end + 1
        value = ""
        while at < len(source):
            if source[at] == "\n" and unquote(value.strip()) is not None:
                break
            value, at = value + source[at], at + 1
        assert unquote(value.strip()) is not None, "unexpected end of file"
        found.append((name, unquote(value.strip())))
    return found


def unquote(value: str) -> str | None:
    for quotes in ('"""', '"'):
        if value.startswith(quotes):
            closed = len(value) >= 2 * len(quotes) and value.endswith(quotes)
            return value[len(quotes) : len(value) - len(quotes)] if closed else None
    return value


class Handler(serving.Handler):
    server: StandIn

    def do_GET(self):
        self.begin()
        if self.path == "/api/version":
            self.say({"version": self.server.version})
        elif self.path == "/api/tags":
            self.say({"models": [self.listed(name) for name in self.server.models]})
        else:
            self.send(404, b"404 page not found", "text/plain")

    def do_HEAD(self):
        self.begin()
        digest = self.path.removeprefix("/api/blobs/")
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            self.send(400, b"", "application/json; charset=utf-8")
        else:
            self.send(200 if digest in self.server.blobs else 404, b"", None)

    def do_DELETE(self):
        self.begin()
        name = self.body()["model"]
        if self.server.models.pop(full(name), None) is None:
            self.fail(404, f"model '{name}' not found")
        else:
            self.send(200, b"", None)

    def do_POST(self):
        self.begin()
        if self.path.startswith("/api/blobs/"):
            return self.take_blob()
        asked = self.body()
        if self.server.hang_up_in == self.path:
            self.lines([{"status": "parsing GGUF"}], whole=False)
            self.close_connection = True
            return None
        return {
            "/api/create": self.create,
            "/api/show": self.show,
            "/api/chat": self.chat,
            "/api/copy": self.copy,
        }[self.path](asked)

    def take_blob(self):
        size = int(self.headers["Content-Length"])
        digest = self.path.removeprefix("/api/blobs/")
        if size > self.server.room:
            self.rfile.read(size)
            return self.fail(500, "write blob: no space left on device")
        data = self.rfile.read(size)
        found = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if found != digest:
            return self.fail(400, f'digest mismatch, expected "{digest}", got "{found}"')
        known = digest in self.server.blobs
        self.server.blobs[digest] = data
        return self.send(200 if known else 201, b"", None)

    def create(self, asked):
        if not NAME.fullmatch(asked.get("model", "")):
            return self.fail(400, "invalid model name")
        if not asked.get("from") and not asked.get("files"):
            return self.fail(400, "neither 'from' or 'files' was specified")
        if any(name.startswith("/") for name in asked.get("files", {})):
            return self.fail(400, "file path must be relative")
        told = [{"status": "parsing GGUF"}]
        problem = self.problem_of(asked)
        if not problem:
            digest = next(iter(asked["files"].values()))
            made = {key: asked.get(key) or "" for key in ("template", "system")}
            made |= {"digest": digest, "parameters": dict(asked.get("parameters") or {})}
            if self.server.meddle:
                self.server.meddle(made)
            self.server.models[full(asked["model"])] = made
            told += [{"status": "writing manifest"}, {"status": "success"}]
        else:
            told.append({"error": problem})
        if asked.get("stream") is False and not problem:
            return self.say({"status": "success"})
        return self.lines(told)

    def problem_of(self, asked) -> str:
        digest = next(iter(asked["files"].values()))
        if digest not in self.server.blobs:
            return f"open ollama/models/blobs/{digest.replace(':', '-')}: no such file or directory"
        if not self.server.blobs[digest].startswith(b"GGUF"):
            return "supplied file was not in GGUF format"
        kind = asked.get("quantize", "").upper()
        if kind and kind not in QUANTIZE:
            return f"unsupported quantization type {kind} - supported types are {', '.join(QUANTIZE)}"
        return balanced(asked.get("template") or "")

    def show(self, asked):
        made = self.server.models.get(full(asked["model"]))
        if made is None:
            return self.fail(404, f"model '{full(asked['model'])}' not found")
        lines = []
        for name, value in made["parameters"].items():
            for one in value if isinstance(value, list) else [value]:
                shown = f"{one:g}" if isinstance(one, float) else json.dumps(one, ensure_ascii=False)
                lines.append(f"{name:<30} {shown}")
        blob = made["digest"].replace(":", "-")
        text = f'# Modelfile generated by "ollama show"\n\nFROM ollama/models/blobs/{blob}\n'
        return self.say(
            {
                "modelfile": text,
                "parameters": "\n".join(lines),
                "template": made["template"],
                "system": made["system"],
                "details": {"format": "gguf"},
                "model_info": {},
            }
        )

    def chat(self, asked):
        made = self.server.models.get(full(asked["model"]))
        if made is None:
            return self.fail(404, f"model '{asked['model']}' not found")
        prompt = render(made["template"], asked["messages"], made["system"])
        if asked.get("_debug_render_only"):
            return self.say({"model": asked["model"], "_debug_info": {"rendered_template": prompt}})
        words = [f"{made['digest'][7:15]} ", hashlib.sha256(prompt.encode()).hexdigest()[:8]]
        if asked.get("stream") is False:
            message = {"role": "assistant", "content": "".join(words)}
            return self.say(
                {"model": asked["model"], "message": message, "done": True, "done_reason": "stop"}
            )
        said = [{"message": {"role": "assistant", "content": word}, "done": False} for word in words]
        end = {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}
        return self.lines([{"model": asked["model"], **line} for line in (*said, end)])

    def copy(self, asked):
        made = self.server.models.get(full(asked["source"]))
        if made is None:
            return self.fail(404, f'model "{asked["source"]}" not found')
        self.server.models[full(asked["destination"])] = json.loads(json.dumps(made))
        return self.send(200, b"", None)

    def listed(self, name):
        made = self.server.models[name]
        size = len(self.server.blobs[made["digest"]])
        return {
            "name": name,
            "model": name,
            "size": size,
            "digest": made["digest"][7:],
            "details": {"format": "gguf"},
        }

    def begin(self):
        self.server.seen.append((self.command, self.path))
