# SPDX-License-Identifier: AGPL-3.0-or-later
"""Training pairs that are nearly held-out ones are known; others are left in peace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rusty_r2.data.near import NearHeldOut

LONG = "find all regular files with permissions 777 under and below the home directory of a user"
HELD = NearHeldOut([("List all files by time", "ls -la 'My Docs'"), (LONG, "find ~ -perm 777 -type f")])


@pytest.mark.parametrize(
    ("description", "command", "near"),
    [
        ("list all the files by time", 'ls  -la "my docs"', True),
        ("Show hidden things, newest last, in a long format", "ls -la 'My Docs'", False),
        ("List all files by time", "ls -lat", False),
        ("Please " + LONG.upper() + " and print them", "find ~ -perm 777 -print", True),
        (" ".join(LONG.split()[:12]), "find ~", False),
    ],
)
def test_near_is_the_same_command_for_much_the_same_words_or_a_long_run_of_them(
    description: str, command: str, near: bool
) -> None:
    assert HELD.meets(description, command) is near


def test_what_is_held_out_is_what_the_rows_say(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"description": "Show the current folder", "command": "pwd -P", "split": "dev"},
        {"description": "Show the date of today", "command": "date -I", "split": "train"},
        {"page": "no pair at all", "split": "dev"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held = NearHeldOut.of([path])
    assert held.meets("show the current folder", "pwd -P") and held.met == 1
    assert not held.meets("Show the date of today", "date -I") and held.met == 1
