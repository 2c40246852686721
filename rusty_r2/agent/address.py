# SPDX-License-Identifier: AGPL-3.0-or-later
"""One line of text picks a mind.

rusty                     the model that ships with the package, or the newest one trained here
runs/ppo-7  runs/kto-2    a run folder (its best/ or newest checkpoint), or a checkpoint folder
script:FILE               replies read from a file, one a line
hf:NAME  gguf:PATH        a borrowed model through transformers or llama.cpp; hf:smollm2 needs no network
smollm2                   the same as hf:smollm2
ollama:NAME  http://…     a model behind a server

The kinds that are not ours live in modules of their own, loaded when their word is said; each offers
`from_address(rest, options) -> Policy`.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path

from rusty_r2.agent.policy import Policy, ScriptedPolicy
from rusty_r2.errors import PolicyError
from rusty_r2.lm import smollm2
from rusty_r2.registry import Registry
from rusty_r2.run import newest

OURS = "rusty_rwkv"
"""what config.json calls our own models"""
SHIPPED = Path(__file__).parents[1] / "lm" / "shipped"
ELSEWHERE = {"hf": "hf", "gguf": "gguf", "ollama": "http", "http": "http", "https": "http"}
"""the word before the colon, and the module that knows what it means"""


@dataclass(frozen=True)
class MindOptions:
    """How a mind speaks, whichever it is."""

    grammar: bool = True
    """only valid actions can be said, where the mind allows it"""
    temperature: float = 0.2
    """0 takes the likeliest word"""
    top_k: int = 50
    """only the k likeliest words; 0: all"""
    top_p: float = 1.0
    """only the likeliest words that together reach this probability"""
    max_new_tokens: int = 512
    """the longest reply"""
    context: int = 4096
    """tokens that a borrowed mind may read and write in one conversation; ours has no such limit"""
    seed: int = 0
    """the same seed and the same words get the same answers"""
    device: str = "cpu"
    """cpu, or cuda"""


def open_policy(address: str, options: MindOptions | None = None) -> Policy:
    """The mind at `address`. PolicyError, in one line, where there is none."""
    options, address = options or MindOptions(), meant(address)
    kind, colon, rest = address.partition(":")
    if kind == "script" and colon:
        return _script(Path(rest))
    if kind in ELSEWHERE and colon:
        return _elsewhere(kind, address if kind.startswith("http") else rest, options)
    if (folder := borrowed(Path(address).expanduser())) is not None:
        return _elsewhere("hf", str(folder), options)
    if not Path(address).expanduser().exists() and address.partition("@")[0] in (kept := Registry()).names():
        return open_policy(kept.resolve(address).address, options)
    return _ours(address, find(address), options)


def meant(address: str) -> str:
    """The address that is meant: hf:smollm2 by its short word, where nothing else has that name."""
    if address != smollm2.NAME or Path(address).exists() or address in Registry().names():
        return address
    return f"hf:{address}"


def find(address: str) -> Path:
    """The folder with the weights of one of our own models."""
    if address == "rusty":
        return _shipped()
    folder = Path(address).expanduser()
    if not folder.exists():
        raise PolicyError(
            f"{address!a} is neither a folder nor an address. Say rusty, smollm2, runs/NAME, script:FILE, "
            "hf:NAME, gguf:PATH, ollama:NAME, http://HOST or a name from: rusty models"
        )
    found = _weights(folder)
    if found is None:
        raise PolicyError(f"{folder} holds no model. Train one: rusty train supervised --help")
    return found


def borrowed(folder: Path) -> Path | None:
    """Where a run or a checkpoint holds a Hugging Face model or a LoRA adapter; None where it does not."""
    places = [folder, folder / "best", newest(folder) if folder.is_dir() else None]
    found = [place / inside for place in places if place is not None for inside in ("", "adapter")]
    return next((place for place in found if _is_borrowed(place)), None)


def _is_borrowed(folder: Path) -> bool:
    if (folder / "adapter_config.json").is_file():
        return True
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return isinstance(config, dict) and config.get("model_type", OURS) != OURS
    except (OSError, ValueError):
        return False


def _shipped() -> Path:
    """The shipped model; without it the newest of the runs started here."""
    if _holds_weights(SHIPPED):
        return SHIPPED
    runs = sorted(Path("runs").glob("*/"), key=lambda run: run.stat().st_mtime, reverse=True)
    found = next((weights for run in runs if (weights := _weights(run)) is not None), None)
    if found is None:
        raise PolicyError(
            "this installation ships no model, and runs/ holds none. "
            "Train one: rusty train supervised --help, or name another: --model ADDRESS"
        )
    return found


def _weights(folder: Path) -> Path | None:
    """The folder itself, a run's best/, or its newest whole checkpoint."""
    if _holds_weights(folder):
        return folder
    if _holds_weights(folder / "best"):
        return folder / "best"
    return newest(folder) if folder.is_dir() else None


def _holds_weights(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob("model*.safetensors"))


def _ours(address: str, folder: Path, options: MindOptions) -> Policy:
    from rusty_r2.agent.rwkv import RwkvPolicy

    shown = "rusty" if folder == SHIPPED else address if address != "rusty" else f"rusty ({folder})"
    return RwkvPolicy.load(folder, options, name=shown)


def _script(path: Path) -> Policy:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise PolicyError(f"the script {path} cannot be read: {why}") from error
    return ScriptedPolicy(*(line for line in lines if line.strip()))


def _elsewhere(kind: str, rest: str, options: MindOptions) -> Policy:
    module = f"rusty_r2.agent.{ELSEWHERE[kind]}"
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise PolicyError(
            f"this version cannot open {kind}: addresses. Say rusty, runs/NAME or script:FILE"
        ) from error
    policy: Policy = found.from_address(rest, options)
    return policy
