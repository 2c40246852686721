# SPDX-License-Identifier: AGPL-3.0-or-later
"""How much of a conversation a mind can bear: everyday requests, one after the other.

    OMP_NUM_THREADS=1 python benchmarks/conversation.py [--model ADDRESS]

The first command of each request is compared with the ones that would do. The sixteen requests come in three
orders, each in one conversation and one folder; then pairs whose second request refers to the first.
"""

from __future__ import annotations

import argparse
import io
import random
import re
import tempfile
import time
from pathlib import Path

from rusty_r2.agent.address import open_policy
from rusty_r2.agent.approval import Approval
from rusty_r2.agent.policy import Policy
from rusty_r2.agent.screen import Screen
from rusty_r2.agent.terminal import ChatConfig, Talk
from rusty_r2.agent.workspace import Workspace

FILES = {
    "fruit.csv": "apple,3\nbanana,12\n",
    "app.log": "ERROR disk full\nINFO ok\nERROR net down\nWARN slow\n",
    "shopping.txt": "milk\neggs\nbread\nmilk\n",
    "config.json": '{"port": 8080}\n',
    "run.sh": "echo hi\n",
    "docs/intro.md": "# Title\n",
    "src/hello.py": "print('hello')\n",
    "empty.tmp": "",
    "blob.bin": "x" * 300_000,
}
ALONE = {
    "make a directory called archive": r"mkdir (-p )?archive",
    "create an empty file named todo.txt": r"touch todo.txt",
    "show the first two lines of app.log": r"head -n? ?2 app.log",
    "make run.sh executable": r"chmod (\+x|u\+x|755) run.sh",
    "replace milk with oat milk in shopping.txt": r"sed -i 's/milk/oat milk/g?' shopping.txt",
    "count how many times ERROR appears in app.log": r"grep -c ERROR app.log|grep -o ERROR app.log \| wc -l",
    "how many lines are in fruit.csv?": r"wc -l (< )?fruit.csv",
    "run run.sh": r"(bash|sh) (\./)?run.sh|./run.sh",
    "find files larger than 100k": r"find \. (-type f )?-size \+100k",
    'append "butter" to shopping.txt': r"""echo ["']?butter["']? >> shopping.txt""",
    "what is the current date?": r"date.*",
    "copy config.json to config.bak": r"cp config.json config.bak",
    "rename run.sh to start.sh": r"mv run.sh start.sh",
    "delete empty.tmp": r"rm (-f )?empty.tmp",
    "list the files here": r"ls( -\w+)?( \.)?",
    "move docs/intro.md into src": r"mv docs/intro.md src/?(intro.md)?",
}
AFTER = {
    ("how many lines are in fruit.csv?", "and in app.log?"): r"wc -l (< )?app.log",
    ("create an empty file named todo.txt", "now delete it"): r"rm (-f )?todo.txt",
    ("make a directory called archive", "move app.log into it"): r"mv app.log archive/?",
    ("show the first two lines of app.log", "and the last two?"): r"tail -n? ?2 app.log",
    ("copy config.json to config.bak", "now show it"): r"cat config.(bak|json)",
}


def commands(mind: Policy, requests: list[str], remember: int) -> list[str]:
    """The first command of each request, in one conversation in a folder of its own."""
    screen = Screen(live=False, out=io.StringIO(), err=io.StringIO())
    with tempfile.TemporaryDirectory() as name:
        for path, text in FILES.items():
            (Path(name) / path).parent.mkdir(exist_ok=True)
            (Path(name) / path).write_text(text, encoding="utf-8")
        with Workspace(Path(name), approval=Approval("never")) as place:
            talk = Talk(mind, place, screen, config=ChatConfig(remember=remember))
            traces = [talk.request(request) for request in requests]
    return [getattr(trace.steps[0].action, "command", "") if trace.steps else "" for trace in traces]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="rusty")
    mind = open_policy(parser.parse_args().model)
    for remember in (0, 1, 3, 99):
        began, right = time.process_time(), 0
        for order in range(3):
            requests = random.Random(order).sample(list(ALONE), len(ALONE))
            did = commands(mind, requests, remember)
            right += sum(bool(re.fullmatch(ALONE[q], c)) for q, c in zip(requests, did, strict=True))
        after = sum(bool(re.fullmatch(p, commands(mind, list(q), remember)[1])) for q, p in AFTER.items())
        told = f"{right} of {3 * len(ALONE)}, referring {after} of {len(AFTER)}"
        print(f"remember {remember:>2}: {told}, {time.process_time() - began:.1f} s CPU")


if __name__ == "__main__":
    main()
