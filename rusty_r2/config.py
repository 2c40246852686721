# SPDX-License-Identifier: AGPL-3.0-or-later
"""Options are dataclasses: written as JSON, read from JSON or TOML, checked once, at this border.

`read` gives defaults to a command (`--config FILE`), `resolved` is what a run folder keeps, and
`home` is where everything lives that is not in the user's own folders:

    $RUSTY_HOME, else the platform's data folder + "rusty-r2"
        traces.db     the trace store
        models/       exported and deployed models
        cache/        what can be made again: compiled kernels, converted base models
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from rusty_r2.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SPEECH = "speech"
"""in the hint of an option without a name: a person's own words, and some may begin with a dash"""


def home() -> Path:
    """The data home. Nothing is created by asking."""
    given = os.environ.get("RUSTY_HOME")
    if given:
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "rusty-r2"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "rusty-r2"


def read(path: Path) -> dict[str, Any]:
    """A TOML or JSON file as a dict, or one clear line."""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a table of options, not a {type(data).__name__}")
    return data


def known_only(data: dict[str, Any], config: type[Any], *, source: str) -> dict[str, Any]:
    """`data` with dashes made underscores; an option the dataclass does not have is an error."""
    if not is_dataclass(config):
        raise TypeError(f"{config} is not a dataclass")
    names = {field.name for field in fields(config) if field.init}
    given = {key.replace("-", "_"): value for key, value in data.items()}
    unknown = sorted(set(given) - names)
    if unknown:
        raise ConfigError(f"{source}: unknown option {unknown[0]!a}; known are {', '.join(sorted(names))}")
    return given


def resolved(config: Any) -> dict[str, Any]:
    """Every option of a dataclass with the value in force, as plain JSON data."""
    return {field.name: plain(getattr(config, field.name)) for field in fields(config)}


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: paths and enums become words, dataclasses become tables."""
    if is_dataclass(value) and not isinstance(value, type):
        return resolved(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value
