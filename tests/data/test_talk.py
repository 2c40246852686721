# SPDX-License-Identifier: AGPL-3.0-or-later
"""Talk: whatever comes in, one short action goes out."""

from __future__ import annotations

import random
import re

from rusty_r2.data import talk
from rusty_r2.data.names import Namer
from rusty_r2.data.voice import dangerous_command
from rusty_r2.eval.actions import TALK
from rusty_r2.protocol import Cmd, Msg, parse

WORDS = ("quark", "lantern", "Vortex", "mango", "pickle", "reboot", "mkfs")


def test_talk_is_answered_by_a_short_message() -> None:
    asked = set()
    for seed in range(3000):
        episode = talk.talk(Namer(WORDS, random.Random(seed)))
        action = parse(episode.turns[2][1])
        assert isinstance(action, Msg) and 2 < len(action.message) < 90
        assert not re.search(r"[@$][a-z]|\|", action.message)
        asked.add(episode.turns[1][1])
    assert len(asked) > 2000 and "" in asked
    assert not {one.lower().rstrip("?.") for one in asked} & {one.lower().rstrip("?.") for one in TALK}


def test_a_tool_gets_what_was_given_and_nothing_else() -> None:
    for seed in range(2000):
        episode = talk.tool(Namer(WORDS, random.Random(seed)))
        action, request = parse(episode.turns[2][1]), episode.turns[1][1]
        assert isinstance(action, Cmd) and not dangerous_command(action.command)
        for part in action.command.split():
            if re.search(r"\d|[.:]", part):
                assert part.strip("-") in request, (request, action.command)


def test_walls_of_text_stay_within_a_row() -> None:
    longest = max(
        len(talk._paste(Namer(WORDS, random.Random(seed))).turns[1][1].split()) for seed in range(200)
    )
    assert 60 < longest < 2 * talk.LONGEST
