# SPDX-License-Identifier: AGPL-3.0-or-later
"""Who speaks: anything that reads a trace so far and writes the next reply.

A policy is one verb. What it needs to remember (our model's state, a server's cache) is its own
affair, keyed by the turns so far; a trace only ever grows, so nothing has to be read twice. The real
minds are in rwkv.py and its neighbours; `ScriptedPolicy` keeps the contract without a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rusty_r2.agent.prompt import conversation
from rusty_r2.errors import PolicyError
from rusty_r2.trace import ExecutionTrace

Listener = Callable[[str], None]
"""is told each piece of text as it is written"""
Said = list[dict[str, Any]]
"""{role, content} of the turns of a conversation"""


@dataclass(frozen=True)
class Reply:
    """What a mind said, and what is known about how it said it."""

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    tokens_in: int = 0
    """tokens read for this reply; what was read before is not counted again"""
    tokens_out: int = 0
    seconds_to_first: float = 0.0
    seconds: float = 0.0
    facts: dict[str, object] = field(default_factory=dict)
    """whatever else the trace should know: finish reason, server timings"""


class Policy(Protocol):
    name: str
    """the address it was made from"""
    digest: str
    """which weights: a checksum, or whatever the server calls them"""

    def reply(self, trace: ExecutionTrace, *, listen: Listener | None = None) -> Reply:
        """The next reply. Raises PolicyError where the mind cannot be reached."""

    def sampling(self) -> dict[str, object]:
        """How replies are drawn, for the trace."""


def remembered(policy: Policy, said: Said, requests: int | None = None) -> Said:
    """What of a conversation a mind reads again with its next request: its last few requests, or all.

    Not told how many, a mind's own `remembers` counts; most have none, and read all."""
    most = getattr(policy, "remembers", None) if requests is None else requests
    starts = [at for at, turn in enumerate(said) if turn["role"] == "user"]
    if most is None or most >= len(starts):
        return said
    return said[starts[-most] :] if most else []


class Shown:
    """A policy that keeps the newest trace it was shown: what is left where it fails and the loop ends."""

    def __init__(self, policy: Policy, trace: ExecutionTrace) -> None:
        self._policy, self.trace = policy, trace
        self.name, self.digest, self.sampling = policy.name, policy.digest, policy.sampling

    def reply(self, trace: ExecutionTrace, *, listen: Listener | None = None) -> Reply:
        self.trace = trace
        return self._policy.reply(trace, listen=listen)

    def cut_short(self, error: Exception) -> ExecutionTrace:
        """That trace, with what ended it."""
        said = {**self.trace.extra, "error": str(error)}
        return replace(self.trace, ended=type(error).__name__, extra=said)


class ScriptedPolicy:
    """Says the given lines in order, from request to request; for tests, demos and replaying a trace."""

    name = "script"
    digest = ""

    def __init__(self, *lines: str) -> None:
        self.lines = lines

    def reply(self, trace: ExecutionTrace, *, listen: Listener | None = None) -> Reply:
        said = sum(turn.role == "assistant" for turn in conversation(trace))
        if said >= len(self.lines):
            raise PolicyError(f"the script has {len(self.lines)} lines and is at its end")
        text = self.lines[said]
        if listen is not None:
            listen(text)
        return Reply(text, tokens_out=len(text.split()))

    def sampling(self) -> dict[str, object]:
        return {}
