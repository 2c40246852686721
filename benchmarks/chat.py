# SPDX-License-Identifier: AGPL-3.0-or-later
"""How soon our model begins to answer in a chat, how fast it goes on, and what remembering is worth.

    OMP_NUM_THREADS=1 python benchmarks/chat.py [CHECKPOINT]

A conversation of several requests, each with a screenful of command output after it, is answered twice in
turns: by a policy that carries its state, and by one that reads everything again each time. Then the
same replies with the grammar on and off. Without a checkpoint the weights are random, of the seeds' size (4
layers, 512 wide, 24,000 words, int8): speed does not depend on what they say. CPU seconds, medians.
"""

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from rusty_r2.agent.address import MindOptions
from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.agent.rwkv import RwkvPolicy
from rusty_r2.lm.engine import Engine
from rusty_r2.lm.shape import Shape, random_source
from rusty_r2.lm.tokenizer import Tokenizer
from rusty_r2.trace import ExecutionTrace, Step

REQUESTS = 8
TOKENS = 64
OPTIONS = MindOptions(temperature=0.7, max_new_tokens=TOKENS)
OUTPUT = "exit 0\n" + "\n".join(f"-rw-r--r-- 1 rusty rusty {n * 37:6d} part_{n:02d}.py" for n in range(24))


def main() -> None:
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    engine, tokenizer, start = open_model(given)
    print(f"{engine.shape.layers} layers, {engine.shape.hidden} wide, {engine.weights}, {engine.backend}")
    print(f"ready after {start:.2f} s CPU\n")
    carried, again = RwkvPolicy(engine, tokenizer, OPTIONS), RwkvPolicy(engine, tokenizer, OPTIONS)
    print("request  tokens remembered  first token, state carried   first token, all read again   ratio")
    ratios, said = [], []
    for number in range(REQUESTS):
        query = f"What changed in part {number}?"
        trace = ExecutionTrace(user_query=query, system_prompt=SYSTEM, history=list(said))
        mine, read = first_token(carried, trace)
        again._memories.clear()
        theirs, whole = first_token(again, trace)
        ratios.append(theirs / mine)
        print(f"{number + 1:7d} {whole - read:18d} {1000 * mine:22.1f} ms {1000 * theirs:28.1f} ms "
              f"{ratios[-1]:10.1f}", flush=True)  # fmt: skip
        reply = carried.reply(trace).text
        words = (("user", query), ("assistant", reply), ("observation", OUTPUT))
        said += [{"role": role, "content": text} for role, text in words]
    print(f"\nlast request: {ratios[-1]:.1f} times sooner with the state carried\n")
    for grammar in (True, False):
        options = replace(OPTIONS, grammar=grammar)
        found = [speak(RwkvPolicy(engine, tokenizer, replace(options, seed=n))) for n in range(10)]
        speeds, valid = sorted(speed for speed, _ in found), sum(ok for _, ok in found)
        print(f"grammar {'on ' if grammar else 'off'}  {statistics.median(speeds):6.0f} tokens/s "
              f"({speeds[0]:.0f}–{speeds[-1]:.0f}), {valid} of {len(found)} replies are actions")  # fmt: skip


def open_model(folder: Path | None) -> tuple[Engine, Tokenizer, float]:
    began = time.process_time()
    own = folder / "tokenizer.json" if folder else None
    tokenizer = Tokenizer.load(own if own and own.is_file() else None)
    if folder:
        engine = Engine.load(folder)
    else:
        shape = Shape(words=len(tokenizer), embed=256, hidden=512, inner=2048, layers=4)
        engine = Engine.build(random_source(shape), weights="int8")
    return engine, tokenizer, time.process_time() - began


class FirstToken(Exception):
    """Enough was heard."""


def first_token(policy: RwkvPolicy, trace: ExecutionTrace) -> tuple[float, int]:
    """CPU seconds until the first piece of text, and how many tokens were read for it."""
    read = 0
    prefill = policy.engine.prefill

    def counted(rows, state):  # type: ignore[no-untyped-def]
        nonlocal read
        read += sum(map(len, rows))
        return prefill(rows, state)

    def stop(piece: str) -> None:
        raise FirstToken

    policy.engine.prefill = counted  # type: ignore[method-assign]
    began = time.process_time()
    try:
        policy.reply(trace, listen=stop)
    except FirstToken:
        return time.process_time() - began, read
    finally:
        policy.engine.prefill = prefill  # type: ignore[method-assign]
    raise SystemExit("no token came")


def speak(policy: RwkvPolicy) -> tuple[float, bool]:
    """Tokens a second of CPU, and whether the reply was an action."""
    policy.reply(ExecutionTrace(user_query="Warm up.", system_prompt=SYSTEM))
    began = time.process_time()
    reply = policy.reply(ExecutionTrace(user_query="What changed?", system_prompt=SYSTEM))
    speed = reply.tokens_out / (time.process_time() - began)
    return speed, Step(reply.text).action is not None


if __name__ == "__main__":
    main()
