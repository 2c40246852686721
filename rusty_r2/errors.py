# SPDX-License-Identifier: AGPL-3.0-or-later
"""Every failure has the name of the border it crossed.

RustyError
├── ConfigError       a setting is unknown, missing or out of range; a file given by the user is wrong
├── ProtocolError     the model's reply is not an action (its hint is shown to the model)
├── TaskError         a task folder is incomplete, or contradicts itself
├── SandboxError      the sandbox itself broke; a command that merely failed is a Result
├── TraceError        data from outside is not a trace
├── RewardError       a reward is broken, or the engine in use can be cheated (rewards/base.py)
├── StoreError        a trace could not be written, read or found
├── DataError         a corpus, a dataset or a row is not what it should be
├── CheckpointError   a run folder holds no weights, or weights of another shape
├── TrainingError     a run cannot go on: non-finite for too long, nothing to learn from
├── PolicyError       a mind could not be reached, or gave no answer
│   └── ContextFull   a conversation is longer than the mind's context
└── MissingExtra      an optional part is not installed; the message carries the install line

A message says what happened, what was seen, and ends with the next command to type.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class RustyError(Exception):
    """Base of them all: `rusty` prints its message on one line and exits with 1."""


class ConfigError(RustyError):
    """A setting is unknown, missing or out of range; a file given by the user is wrong."""


class ProtocolError(RustyError):
    """The model's reply is not an action. `hint` tells the model what to say instead."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


class TaskError(RustyError):
    """A task folder is incomplete, or contradicts itself."""


class SandboxError(RustyError):
    """The sandbox itself broke. Trainers mask the rollout; it is never a score."""


class TraceError(RustyError):
    """Data from outside is not a trace."""


class StoreError(RustyError):
    """A trace could not be written, read or found."""


class DataError(RustyError):
    """A corpus, a dataset or a row is not what it should be."""


class CheckpointError(RustyError):
    """A run folder holds no weights, or weights of another shape."""


class TrainingError(RustyError):
    """A run cannot go on: non-finite for too long, nothing to learn from."""


class PolicyError(RustyError):
    """A mind could not be reached, or gave no answer."""


class ContextFull(PolicyError):
    """A conversation is longer than the mind's context, and nothing of it was cut."""


class MissingExtra(RustyError):
    """An optional part is not installed; the message carries the install line."""


def need(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency where it is used, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingExtra(f"{module} is not installed. Type: pip install 'rusty-r2[{extra}]'") from error
