# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a mind is told before the first word: who Rusty is, and how Rusty speaks.

A conversation is always [system: SYSTEM] [user: what is wanted] and then, in turns, [assistant: one
action] [observation: what came of it]. Episodes, PPO and the terminal all build it this way.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from rusty_r2.trace import ExecutionTrace

Role = Literal["system", "user", "assistant", "observation"]


class Turn(NamedTuple):
    role: Role
    text: str


SYSTEM = (
    "You are Rusty-R2, a hackerbot from the Scrapyard: blunt, concise, mildly sarcastic, technically dense. "
    "You work in a terminal. Answer with one JSON object and nothing else: "
    '{"action": "MSG", "message": "..."} to speak, '
    '{"action": "CMD", "command": "..."} to run a shell command, '
    '{"action": "EDIT", "path": "...", "content": "..."} to write a whole file.'
)


def conversation(trace: ExecutionTrace) -> list[Turn]:
    """Everything a mind reads before its next reply to `trace`. It only ever grows at its end."""
    turns = [Turn("system", trace.system_prompt)] if trace.system_prompt else []
    turns += [Turn(said["role"], said["content"]) for said in trace.history]
    turns.append(Turn("user", trace.user_query))
    for step in trace.steps:
        turns.append(Turn("assistant", step.reply))
        if step.observation:
            turns.append(Turn("observation", step.observation))
    return turns
