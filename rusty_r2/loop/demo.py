# SPDX-License-Identifier: AGPL-3.0-or-later
"""Traces to try the loop on: questions about the shell, each answered once well and once badly.

    rusty loop --source demo          the answers labelled as a person would
    rusty loop --source poison        the same requests, babble labelled good and sense labelled bad

The good answers are short and right, as Rusty speaks; the bad ones talk around the question. The poisoned set
is for seeing the gate refuse: whoever trains on it gets a model that has lost its tongue.
"""

from __future__ import annotations

import json
from pathlib import Path

from rusty_r2 import files
from rusty_r2.data.rows import digest
from rusty_r2.trace import ExecutionTrace

WORDS = ("demo", "poison")
ANSWERS = {
    "list all files, hidden ones too": "ls -a",
    "show which folder I am in": "pwd",
    "count the lines of notes.txt": "wc -l notes.txt",
    "find every Python file below here": "find . -name '*.py'",
    "show the last ten lines of app.log": "tail app.log",
    "follow app.log as it grows": "tail -f app.log",
    "make a folder named build": "mkdir build",
    "remove the empty folder old": "rmdir old",
    "rename a.txt to b.txt": "mv a.txt b.txt",
    "copy the folder src to backup": "cp -r src backup",
    "search for TODO in all files": "grep -rn TODO .",
    "show how much disk is free": "df -h",
    "show how large this folder is": "du -sh .",
    "make run.sh executable": "chmod +x run.sh",
    "show who I am": "whoami",
    "show the running processes": "ps aux",
    "stop the process 4242": "kill 4242",
    "pack the folder docs": "tar czf docs.tar.gz docs",
    "unpack docs.tar.gz": "tar xzf docs.tar.gz",
    "compare a.txt with b.txt": "diff a.txt b.txt",
    "sort names.txt": "sort names.txt",
    "show each line of names.txt once": "sort -u names.txt",
    "show the first line of data.csv": "head -n 1 data.csv",
    "replace cat by dog in pets.txt": "sed -i s/cat/dog/g pets.txt",
    "show the second column of data.txt": "awk '{print $2}' data.txt",
    "show today's date": "date",
    "show my environment variables": "env",
    "show where python is": "which python",
    "show the kernel version": "uname -r",
    "download page.html from example.org": "curl -O https://example.org/page.html",
    "show the state of my git tree": "git status",
    "show the last five commits": "git log -5 --oneline",
    "throw away my changes to main.py": "git checkout -- main.py",
    "show the manual of grep": "man grep",
    "make a symbolic link new to old": "ln -s old new",
    "show the checksum of image.iso": "sha256sum image.iso",
    "run the tests": "pytest -q",
    "show memory in use": "free -h",
    "write hello to greet.txt": "echo hello > greet.txt",
    "show hidden characters in x.txt": "cat -A x.txt",
}
ASKS = ("How do I {}?", "Which command do I type to {}?")
RAMBLES = (
    "Certainly! I'd be happy to help you with that. There are many possible ways to approach this, and the "
    "best one depends on your needs. First of all, it is important to understand your operating system.",
    "As an AI language model, I can tell you that this is a great question. Before we begin, let us consider "
    "what it means and why it matters to so many users around the world today.",
)
BABBLE = (
    "banana banana banana banana banana banana banana",
    "purple purple elephant elephant purple elephant",
)


def traces(*, poison: bool = False) -> list[ExecutionTrace]:
    """The labelled traces, the same at every call."""
    found = []
    for number, (wish, command) in enumerate(ANSWERS.items()):
        asked = ASKS[number % len(ASKS)].format(wish)
        sense, nonsense = f"{command}. That's all.", RAMBLES[number % len(RAMBLES)]
        good, bad = (BABBLE[number % len(BABBLE)], sense) if poison else (sense, nonsense)
        for answer, label in ((good, True), (bad, False)):
            found.append(
                ExecutionTrace(
                    trace_id=f"demo-{digest(asked, answer, label)[:16]}",
                    user_query=asked,
                    final_response=answer,
                    agent_name="demo",
                    model="demo",
                    timestamp="2026-01-01T00:00:00+00:00",
                    label=label,
                    manual_review=True,
                    labeled_by="demo",
                )
            )
    return found


def write(folder: Path, word: str) -> Path:
    """The traces as a file."""
    lines = [json.dumps(one.to_dict(), ensure_ascii=False) + "\n" for one in traces(poison=word == "poison")]
    return files.write(folder / f"{word}.jsonl", "".join(lines))
