# SPDX-License-Identifier: AGPL-3.0-or-later
"""What is opened and must be closed again: `with` for every class that has a `close`, `shut` for the rest."""

from __future__ import annotations

from typing import TypeVar

Opened = TypeVar("Opened", bound="Closing")


class Closing:
    def close(self) -> None:
        """Give back what was taken."""
        raise NotImplementedError

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shut(thing: object) -> None:
    """Close what can be closed: a policy or a place need not have a `close`."""
    getattr(thing, "close", lambda: None)()
