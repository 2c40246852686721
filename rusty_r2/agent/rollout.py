# SPDX-License-Identifier: AGPL-3.0-or-later
"""The main loop: a policy speaks, the place it works in answers, the trace grows.

Chat, trace collection and evaluation all run this one function. What differs between them is which
`Policy` is asked, which `Place` answers (the gym's CodingEnv, or the user's own folder in
workspace.py) and who reads the trace afterwards. PPO plays many episodes at once and keeps the same
turns, the same places and the same rules (players.py).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Protocol

from rusty_r2.agent.policy import Listener, Policy
from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.trace import ExecutionTrace, Step


class Place(Protocol):
    """Where an agent works: Gymnasium's two verbs on plain text."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]: ...

    def step(self, reply: str) -> tuple[str, float, bool, bool, dict[str, Any]]: ...


def begin(policy: Policy, place: Place, *, seed: int | None = None, **options: Any) -> ExecutionTrace:
    """A trace with nothing said yet: what is wanted, and by whom it will be done."""
    wanted, info = place.reset(seed=seed, options=options)
    return ExecutionTrace(
        user_query=wanted,
        task_name=info.get("task", ""),
        system_prompt=SYSTEM,
        model=policy.name,
        model_digest=policy.digest,
        sampling=policy.sampling(),
    )


def rollout(
    policy: Policy, place: Place, trace: ExecutionTrace, *, max_turns: int = 8, listen: Listener | None = None
) -> ExecutionTrace:
    """Let `policy` work on `trace` until it is done or its turns run out."""
    started = time.perf_counter()
    for _ in range(max_turns):
        reply = policy.reply(trace, listen=listen)
        seen, reward, done, cut_short, info = place.step(reply.text)
        ok = bool(info.get("valid", True) and info.get("ok", True))
        step = Step(reply.text, seen, ok, reward, [*reply.token_ids], [*reply.logprobs])
        said = {**reply.facts, "seconds": reply.seconds, "seconds_to_first": reply.seconds_to_first}
        trace = replace(
            trace.then(step),
            extra={**trace.extra, "replies": [*trace.extra.get("replies", ()), said]},
            total_tokens_in=trace.total_tokens_in + reply.tokens_in,
            total_tokens_out=trace.total_tokens_out + reply.tokens_out,
            llm_calls_count=trace.llm_calls_count + 1,
            sandbox_level=info.get("level") or trace.sandbox_level,
            ended="masked" if info.get("masked") else "done" if done else info.get("ended", "turns"),
        )
        if done or cut_short:
            break
    took = 1000 * (time.perf_counter() - started)
    judged = trace.task_name and trace.ended != "masked"  # a person's own folder gives no verdict
    score = sum(step.reward for step in trace.steps) if judged else None
    return replace(trace, final_response=trace.answer, execution_duration_ms=took, reward_score=score)
