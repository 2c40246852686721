"""What the tests of the registry and of `rusty models` share: small files with a green gate."""

import importlib.util
import json
from pathlib import Path

from rusty_r2 import files
from rusty_r2.registry import Gate, artefact_digest


def helper(name):
    """A helper of the export's tests."""
    path = Path(__file__).parent / "export" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"helper_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tiny_gguf, stand_in = helper("tiny_gguf").tiny_gguf, helper("ollama_standin").stand_in


def green(path, **more):
    return Gate(True, artefact_digest(path), **more)


def checked(path, *, passed=True, sha256=None, findings=()):
    """What `rusty export check` leaves beside a file."""
    said = {"passed": passed, "sha256": sha256 or files.digest(path), "findings": list(findings)}
    path.with_suffix(".check.json").write_text(json.dumps(said))
    return path


def add(registry, tmp_path, salt, **gate):
    path = tiny_gguf(tmp_path / f"{salt}.gguf", salt=salt)
    return registry.add("agent", path, gate=green(path, **gate), lineage={"base": "smollm2"})
