# SPDX-License-Identifier: AGPL-3.0-or-later
"""How soon each mind begins to answer, how fast it goes on, and how often what it says is an action.

    OMP_NUM_THREADS=1 python benchmarks/agent.py [--rounds 3] [--tokens 24] [--requests 6] [ADDRESS ...]

By default every mind that can run here without a network: ours, SmolLM2 through llama.cpp in process, through
transformers, and behind llama.cpp's own server. Each round opens nothing anew and asks every mind in turn, so
that all meet the same machine:

first    a new conversation: the system prompt is known, the request is not
next     the same conversation one turn on: what was read is not read again
again    the same turn for a mind that must read all of it, where forgetting can be asked for
tokens/s of an answer of a fixed length, after its first token

CPU seconds of this process (the server computes in it, too), medians and the spread. Then a few plain
requests at temperature 0, with the grammar and without, and the share of replies that are actions.
"""

import argparse
import os
import statistics
import time
from contextlib import ExitStack
from dataclasses import replace

from rusty_r2.agent.address import MindOptions, open_policy
from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.errors import ProtocolError, RustyError
from rusty_r2.protocol import parse
from rusty_r2.trace import ExecutionTrace, Step

OUTPUT = "exit 0\n" + "\n".join(f"-rw-r--r-- 1 rusty rusty {n * 37:6d} part_{n:02d}.py" for n in range(8))
REQUESTS = (
    "List the files.",
    "Run the tests.",
    "What does total.py do?",
    "Say hello.",
    "Make a file notes.txt that says hi.",
    "How much disk space is free?",
    "Which Python is this?",
    "Find every TODO in the sources.",
    "Count the lines of main.py.",
    "Remove the build folder.",
)


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("addresses", nargs="*")
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--tokens", type=int, default=24)
    words.add_argument("--requests", type=int, default=6)
    given = words.parse_args()
    with ExitStack() as stack:
        addresses = given.addresses or ["rusty", "gguf:smollm2", "hf:smollm2", served(stack)]
        options = MindOptions(temperature=0, grammar=False, max_new_tokens=given.tokens, context=2048)
        minds = {address: mind for address in addresses if (mind := opened(address, options))}
        speed(minds, given.rounds)
        rates(list(minds), replace(options, max_new_tokens=2 * given.tokens), given.requests)


def served(stack):
    """SmolLM2 behind llama.cpp's OpenAI-compatible server, in this process so that its CPU time is seen."""
    from rusty_r2.lm import smollm2
    from rusty_r2.lm.llama import Llama

    try:
        model = stack.enter_context(Llama(smollm2.gguf_file(), context=2048))
    except RustyError:
        return "http://127.0.0.1:1/v1"
    os.environ["RUSTY_API_KEY"] = model.key
    return model.url


def opened(address, options):
    before = time.process_time()
    try:
        mind = open_policy(address, options)
        mind.reply(ExecutionTrace(user_query="Hi", system_prompt=SYSTEM))  # the system prompt is read once
    except RustyError as error:
        print(f"{shown(address):16s} left out: {error}")
        return None
    print(f"{shown(address):16s} open and warm after {time.process_time() - before:.1f} s CPU")
    return mind


def speed(minds, rounds):
    found = {address: {"first": [], "next": [], "again": [], "rate": []} for address in minds}
    for number in range(rounds):
        for address, mind in minds.items():
            trace = ExecutionTrace(user_query=f"What is in part {number}, and why?", system_prompt=SYSTEM)
            first, rate, reply = timed(mind, trace)
            following = trace.then(Step(reply.text, OUTPUT))
            then, other, _ = timed(mind, following)
            again = forgotten(mind, following)
            mind.reply(ExecutionTrace(user_query="Hi", system_prompt=SYSTEM))
            for name, value in (("first", first), ("next", then), ("again", again)):
                found[address][name] += [value] if value is not None else []
            found[address]["rate"] += [rate, other]
    print(f"\n{'mind':16s} {'first token':>20s} {'next turn':>20s} {'all read again':>20s} {'tokens/s':>18s}")
    for address, values in found.items():
        cells = [spread(values[name], "{:.2f} s") for name in ("first", "next", "again")]
        print(f"{shown(address):16s} " + " ".join(f"{cell:>20s}" for cell in cells), end=" ")
        print(f"{spread(values['rate'], '{:.0f}'):>18s}", flush=True)


def timed(mind, trace):
    """CPU seconds to the first piece, tokens a CPU second after it, the reply."""
    started, first = time.process_time(), []
    reply = mind.reply(trace, listen=lambda _: first or first.append(time.process_time()))
    ended = time.process_time()
    began = first[0] if first else ended
    rate = (reply.tokens_out - 1) / (ended - began) if reply.tokens_out > 4 and ended > began else 0.0
    return began - started, rate, reply


def forgotten(mind, trace):
    """The first token of a mind that remembers nothing of this conversation, its system prompt included."""
    if hasattr(mind, "_memories"):
        mind._memories.clear()
    elif hasattr(getattr(mind, "model", None), "_memories"):
        mind.model.close()
    else:
        return None
    return timed(mind, trace)[0]


def rates(addresses, options, many):
    print(f"\n{'mind':16s} {'actions with grammar':>22s} {'without':>12s}")
    for address in addresses:
        cells = []
        for grammar in (True, False):
            mind = open_policy(address, replace(options, grammar=grammar))
            asked = REQUESTS[:many]
            cells.append(f"{sum(is_action(mind, request) for request in asked)} of {len(asked)}")
        print(f"{shown(address):16s} {cells[0]:>22s} {cells[1]:>12s}", flush=True)


def is_action(mind, request):
    try:
        parse(mind.reply(ExecutionTrace(user_query=request, system_prompt=SYSTEM)).text)
    except ProtocolError:
        return False
    return True


def spread(values, form):
    known = sorted(value for value in values if value)
    if not known:
        return "–"
    middle = statistics.median(known)
    return f"{form.format(middle)} ({known[0]:.2g}–{known[-1]:.2g})"


def shown(address):
    return "http (llama.cpp)" if address.startswith("http://127.0.0.1") else address


if __name__ == "__main__":
    main()
