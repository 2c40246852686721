# SPDX-License-Identifier: AGPL-3.0-or-later
"""Without namespaces of our own: the zygote's half of the levels `landlock`, `bwrap` and `off`.

Every run has a keeper and a payload. The keeper stands in a Landlock domain that lets no signal out, so
its `kill(-1)` reaches the whole tree of the payload and nobody else: a process group that cannot be left.
The payload stands in a second domain below it, with the file rules, seccomp and rlimits; it can neither
signal nor trace the keeper.
"""

from __future__ import annotations

from typing import Any


class Jail:
    def __init__(self, config: dict[str, Any]) -> None:
        self.notes: list[str] = []
        raise OSError("not yet")

    def open(self, request: dict[str, Any]) -> int:
        raise NotImplementedError

    def close(self, request: dict[str, Any]) -> None:
        raise NotImplementedError

    def spawn(self, request: dict[str, Any], fds: list[int]) -> int:
        raise NotImplementedError


def exec_bwrap(*arguments: object) -> None:
    raise NotImplementedError
