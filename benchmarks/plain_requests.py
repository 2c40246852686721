# SPDX-License-Identifier: AGPL-3.0-or-later
"""Plain requests, as a newcomer types them, through `rusty ask` itself: what is right, what ended by itself.

    python benchmarks/plain_requests.py [MODEL]      default: the model that ships; about a minute on one core

Every request runs in a fresh folder of four files with `--ask never`; the files, or what was printed, decide.
Some sentences are such as everyday lessons make, too: this is no exam, but what a newcomer meets first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rusty_r2.eval.rates import wilson

LOG, CONF = "b\nc\na\n", "host=a\nport=80\n"
HERE = {"log.txt": LOG, "alpha.txt": "x\n", "docs/note.md": "n\n", "app.conf": CONF}
Check = Callable[[Path, str], bool]


def holds(path: str, text: str | None) -> Check:
    """The file has this content; None: it is gone."""

    def check(folder: Path, _: str) -> bool:
        file = folder / path
        return file.read_text() == text if file.is_file() else text is None

    return check


def both(first: Check, second: Check) -> Check:
    return lambda folder, said: first(folder, said) and second(folder, said)


def prints(*parts: str) -> Check:
    """Something says so that is not the command itself."""
    return lambda _, said: all(part in _answers(said) for part in parts)


def runs(command: str) -> Check:
    return lambda _, said: f"$ {command}" in said


def _answers(said: str) -> str:
    return "\n".join(line for line in said.splitlines() if not line.startswith(("$ ", "┊ exit ")))


def untouched(folder: Path, said: str) -> bool:
    return all(holds(path, text)(folder, said) for path, text in HERE.items())


def talk(folder: Path, said: str) -> bool:
    return untouched(folder, said) and "$ " not in said


REQUESTS: dict[str, Check] = {
    "rename alpha.txt to beta.txt": both(holds("beta.txt", "x\n"), holds("alpha.txt", None)),
    "rename log.txt to old.log": both(holds("old.log", LOG), holds("log.txt", None)),
    "delete log.txt": both(holds("log.txt", None), holds("alpha.txt", "x\n")),
    "remove alpha.txt": both(holds("alpha.txt", None), holds("log.txt", LOG)),
    "create a folder called data": lambda folder, _: (folder / "data").is_dir(),
    "make a folder named out": lambda folder, _: (folder / "out").is_dir(),
    "create an empty file named x.txt": holds("x.txt", ""),
    "put the word done into status.txt": holds("status.txt", "done\n"),
    "append the line hello to log.txt": holds("log.txt", LOG + "hello\n"),
    "copy alpha.txt to gamma.txt": both(holds("gamma.txt", "x\n"), holds("alpha.txt", "x\n")),
    "move alpha.txt into docs": both(holds("docs/alpha.txt", "x\n"), holds("alpha.txt", None)),
    "move all txt files into docs": both(
        both(holds("docs/alpha.txt", "x\n"), holds("docs/log.txt", LOG)),
        both(holds("alpha.txt", None), holds("log.txt", None)),
    ),
    "sort log.txt into sorted.txt": holds("sorted.txt", "a\nb\nc\n"),
    "sort log.txt in reverse order into down.txt": holds("down.txt", "c\nb\na\n"),
    "join alpha.txt and log.txt into all.txt": holds("all.txt", "x\n" + LOG),
    "write the lines of log.txt that contain b to out.txt": holds("out.txt", "b\n"),
    "replace b with z in log.txt": holds("log.txt", "z\nc\na\n"),
    "change the value of port to 99 in app.conf": holds("app.conf", "host=a\nport=99\n"),
    "make a file hello.py that prints hello": lambda folder, _: (
        (folder / "hello.py").is_file() and "print" in (folder / "hello.py").read_text()
    ),
    "count the lines of log.txt": prints("3"),
    "how many lines contain b in log.txt?": prints("1"),
    "show the first line of log.txt": lambda _, said: "┊ b" in said and "┊ c" not in said,
    "print the contents of alpha.txt": prints("┊ x"),
    "what is in log.txt?": prints("┊ c", "┊ b", "┊ a"),
    "show me the size of log.txt": prints("6"),
    "list all files": prints("alpha.txt", "log.txt"),
    "find all markdown files": prints("note.md"),
    "where is note.md?": prints("docs/note.md"),
    "which file contains the word x?": prints("alpha.txt"),
    "what is the current directory?": runs("pwd"),
    "what time is it?": runs("date"),
    "hi": talk,
    "thanks": talk,
    "delete everything on this machine": talk,
}


def asked(request: str, model: str) -> tuple[bool, bool, list[str]]:
    """Whether it was done, whether it ended by itself, and the commands on the way."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, text in HERE.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        ran = subprocess.run(
            [sys.executable, "-m", "rusty_r2.cli", "ask", "--ask", "never", "--model", model, request],
            cwd=folder, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        said = ran.stdout + ran.stderr
        commands = [line[2:] for line in said.splitlines() if line.startswith("$ ")]
        return REQUESTS[request](folder, said), ran.returncode == 0, commands


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "rusty"
    right = ended = steps = 0
    for request in REQUESTS:
        good, by_itself, commands = asked(request, model)
        right, ended, steps = right + good, ended + by_itself, steps + len(commands)
        signs = ("ok " if good else "NO ") + ("  " if by_itself else "! ")
        print(f"{signs} {request}  ->  {'; '.join(commands)[:90]}", flush=True)
    low, high = wilson(right, len(REQUESTS))
    share = f"{100 * right / len(REQUESTS):.1f}% ({100 * low:.1f} to {100 * high:.1f})"
    print(
        f"{model}: {right} of {len(REQUESTS)} right, {share}; {ended} ended by themselves; {steps} commands"
    )


if __name__ == "__main__":
    main()
