# SPDX-License-Identifier: AGPL-3.0-or-later
"""The checks of plain requests can be met, and none is met for nothing.

Every gold command is played through `rusty ask` in the request's own folder, as a model's would be.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rusty_r2.agent import terminal
from rusty_r2.agent.policy import ScriptedPolicy
from rusty_r2.agent.terminal import AskConfig
from rusty_r2.protocol import Cmd, Msg, render

FILE = Path(__file__).parents[1] / "benchmarks/plain_requests.py"
SPEC = importlib.util.spec_from_file_location("plain_requests", FILE)
plain = importlib.util.module_from_spec(SPEC)
sys.modules["plain_requests"] = plain
SPEC.loader.exec_module(plain)

SHEETS = {name: plain.load(name) for name in ("plain_requests.toml", "plain_exam.toml")}
REQUESTS = [(name, request) for name, (_, requests) in SHEETS.items() for request in requests]
FIELDS = {
    *("kind", "ask", "here", "gold", "answer", "files", "like", "gone", "folders", "links", "modes"),
    *("then", "runs", "says", "never", "talk"),
}


@pytest.mark.parametrize(
    ("sheet", "request_"), REQUESTS, ids=lambda part: part["ask"][:40] if isinstance(part, dict) else ""
)
def test_gold_is_right_and_nothing_is_wrong(sheet, request_, tmp_path, capsys):
    before = plain.furnish(tmp_path, SHEETS[sheet][0][request_["here"]])
    assert plain.wrong(request_, tmp_path, before, plain.Told("", "")), "right without doing anything"
    script = [render(Cmd(request_["gold"]))] if request_["gold"] else []
    script.append(render(Msg(request_.get("answer", "Done."))))
    config = AskConfig(query=request_["ask"], workspace=tmp_path, ask="never", store=False)
    terminal.ask(config, policy=ScriptedPolicy(*script))
    told = plain.Told(*capsys.readouterr())
    assert plain.wrong(request_, tmp_path, before, told) == ""


def test_requests_say_only_what_is_looked_at():
    for _, request in REQUESTS:
        assert request.keys() <= FIELDS, request["ask"]
    asks = [request["ask"].lower() for _, request in REQUESTS]
    assert len(set(asks)) == len(asks)
