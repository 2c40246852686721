# SPDX-License-Identifier: AGPL-3.0-or-later
"""The checks of plain requests can be met, and none is met for nothing.

Every gold command is played through `rusty ask` in the request's own folder, as a model's would be.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rusty_r2.agent.policy import ScriptedPolicy
from rusty_r2.protocol import Cmd, Msg, render

FILE = Path(__file__).parents[1] / "benchmarks/plain_requests.py"
SPEC = importlib.util.spec_from_file_location("plain_requests", FILE)
plain = importlib.util.module_from_spec(SPEC)
sys.modules["plain_requests"] = plain
SPEC.loader.exec_module(plain)

SHEETS = [plain.load(name) for name in ("plain_requests.toml", "plain_exam.toml")]
REQUESTS = [(folders[asked["here"]], asked) for folders, requests in SHEETS for asked in requests]
FIELDS = {
    *("kind", "ask", "here", "gold", "answer", "files", "like", "gone", "folders", "links", "modes"),
    *("then", "runs", "says", "never", "talk"),
}


def script(request):
    """The gold command, then a message."""
    commands = [render(Cmd(request["gold"]))] if request["gold"] else []
    return ScriptedPolicy(*commands, render(Msg(request.get("answer", "Done."))))


@pytest.mark.parametrize(("folder", "asked"), REQUESTS, ids=[asked["ask"] for _, asked in REQUESTS])
def test_gold_is_right_and_nothing_is_wrong(folder, asked, tmp_path):
    before = plain.furnish(tmp_path, folder)
    assert plain.wrong(asked, tmp_path, before, plain.Told("", "")), "right without doing anything"
    commands = [asked["gold"]] if asked["gold"] else []
    assert plain.asked(asked, folder, script(asked)) == ("", True, commands)


def test_links_in_a_circle_are_seen(tmp_path):
    (tmp_path / "here").symlink_to("there")
    (tmp_path / "there").symlink_to("here")
    assert plain.tree(tmp_path).keys() == {"here", "there"}


def test_requests_say_only_what_is_looked_at():
    for _, request in REQUESTS:
        assert request.keys() <= FIELDS, request["ask"]
    asks = [request["ask"].lower() for _, request in REQUESTS]
    assert len(set(asks)) == len(asks)
