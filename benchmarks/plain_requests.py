# SPDX-License-Identifier: AGPL-3.0-or-later
"""Plain requests, as a newcomer types them, through `rusty ask` itself: what is right, what ended by itself.

    python benchmarks/plain_requests.py [MODEL]            34 requests; ten seconds of one core
    python benchmarks/plain_requests.py [MODEL] --exam     the exam, by kind; about a minute

MODEL is the one that ships unless another is named. Every request runs in a fresh folder with `--ask never`;
what is in the folder afterwards, and what was printed, decide. Some sentences of the 34 (plain_requests.toml)
are such as everyday lessons make, too: they are no exam, but what a newcomer meets first. Those of
plain_exam.toml are kept out of the lessons. A request names a folder (`here`) and what must be true in the
end; everything that it does not name must be as it was (`.git` and caches aside):

    files    these hold this text, or one of several; a newline at the end may be missing
    like     these hold something that this pattern is found in
    gone     these are no longer there, with all below them
    folders  these are new folders
    links    these are symbolic links to that
    modes    the rights of these, in octal, match this pattern
    then     these commands, run afterwards, print something that this pattern is found in
    runs     some command has this pattern in it
    says     these patterns are found in what was printed or answered; `never`: these are not
    talk     something was answered, and nothing was run or edited

`gold` is a command that does it, and `answer` what to say then: tests/test_plain_requests.py plays them.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rusty_r2.agent import terminal
from rusty_r2.agent.address import open_policy
from rusty_r2.agent.policy import Policy
from rusty_r2.agent.terminal import AskConfig
from rusty_r2.errors import RustyError
from rusty_r2.eval.rates import Rate
from rusty_r2.gym.sandbox import open_sandbox

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Tree = dict[str, tuple[str, str]]
"""path → what stands there (file, folder or link), and its text or target"""
UNSEEN = {".git", "__pycache__"}
OURS = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "HOME": os.devnull,
}
"""a folder comes out the same, whoever makes it"""


@dataclass(frozen=True)
class Told:
    """What a person saw of one request."""

    answer: str
    """the message at the end"""
    way: str
    """commands, their output, changes: each line behind its mark"""

    def behind(self, mark: str) -> list[str]:
        return [line[2:] for line in self.way.splitlines() if line.startswith(mark)]

    @property
    def commands(self) -> list[str]:
        return self.behind("$ ")

    @property
    def printed(self) -> str:
        """Output and answer, without the commands themselves."""
        ends = re.compile(r"exit \d+|stopped: \w+")
        return "\n".join([*(line for line in self.behind("┊ ") if not ends.fullmatch(line)), self.answer])


def load(name: str) -> tuple[dict[str, dict[str, str]], list[dict[str, Any]]]:
    """The folders of a file, and its requests, each with its kind."""
    tables = tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    folders = tables.pop("here")
    return folders, [{"kind": kind, **request} for kind, group in tables.items() for request in group]


def furnish(folder: Path, files: dict[str, str]) -> Tree:
    """The files, then what the command under `!` makes of them."""
    for path, text in files.items():
        if path != "!":
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    subprocess.run(["bash", "-c", files.get("!", "")], cwd=folder, env=OURS, check=True)
    return tree(folder)


def tree(folder: Path) -> Tree:
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if UNSEEN & set(name.parts):
            continue
        if path.is_symlink():
            found[str(name)] = ("link", os.path.relpath(os.path.realpath(path), os.path.realpath(folder)))
        elif path.is_dir():
            found[str(name)] = ("folder", "")
        else:
            found[str(name)] = ("file", path.read_text(encoding="utf-8", errors="replace"))
    return found


def wanted(before: Tree, request: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """What may stand where, in the end."""
    gone = tuple(request.get("gone", ()))
    kept = {
        path: [what]
        for path, what in before.items()
        if not f"{path}/".startswith(tuple(f"{g}/" for g in gone))
    }
    for path, texts in request.get("files", {}).items():
        kept[path] = [("file", text) for text in ([texts] if isinstance(texts, str) else texts)]
    kept |= {path: [("link", target)] for path, target in request.get("links", {}).items()}
    new = [*request.get("folders", ()), *(f"{path}/.." for path in [*kept, *request.get("like", ())])]
    for path in map(os.path.normpath, new):
        for parent in (path, *map(str, Path(path).parents)):
            if parent != ".":
                kept.setdefault(parent, [("folder", "")])
    return kept


def wrong(request: dict[str, Any], folder: Path, before: Tree, told: Told) -> str:
    """Why this is not what was asked for; empty where it is."""
    after, like = tree(folder), request.get("like", {})
    may = wanted(before, request)
    for path in sorted((after.keys() | may.keys()) - like.keys()):
        if not any(_same(after.get(path), one) for one in may.get(path, [None])):
            return f"{path} is {'there, but wrong' if path in after else 'not there'}"
    for path, pattern in like.items():
        if after.get(path, ("", ""))[0] != "file" or not _found(pattern, after[path][1]):
            return f"{path} is not as it should be"
    for path, pattern in request.get("modes", {}).items():
        if not re.fullmatch(pattern, mode := f"{(folder / path).stat().st_mode & 0o777:03o}"):
            return f"{path} has the rights {mode}"
    return _unsaid(request, told) or _undone(request, folder)


def _unsaid(request: dict[str, Any], told: Told) -> str:
    if request.get("talk") and (told.way.strip() or not told.answer.strip()):
        return "not just an answer"
    for pattern in request.get("says", ()):
        if not _found(pattern, told.printed):
            return f"nothing says {pattern}"
    for pattern in request.get("never", ()):
        if _found(pattern, told.printed):
            return f"something says {pattern}"
    unrun = [p for p in request.get("runs", ()) if not any(_found(p, command) for command in told.commands)]
    return f"nothing ran {unrun[0]}" if unrun else ""


def _undone(request: dict[str, Any], folder: Path) -> str:
    """The commands run afterwards, on a view of the folder: they may be a model's own programs."""
    for command, pattern in request.get("then", {}).items():
        with open_sandbox(workspace=folder, mode="overlay") as box:
            if not _found(pattern, box.run(command).output):
                return f"{command} does not print {pattern}"
    return ""


def _same(one: tuple[str, str] | None, other: tuple[str, str] | None) -> bool:
    if one is None or other is None or not (one[1] and other[1]):
        return one == other
    return one[0] == other[0] and one[1].removesuffix("\n") == other[1].removesuffix("\n")


def _found(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.MULTILINE) is not None


def asked(request: dict[str, Any], files: dict[str, str], mind: Policy) -> tuple[str, bool, list[str]]:
    """What is wrong, whether it ended by itself, and the commands on the way."""
    with tempfile.TemporaryDirectory() as name:
        before = furnish(folder := Path(name), files)
        config = AskConfig(query=(request["ask"],), workspace=folder, ask="never", store=False)
        out, way, by_itself = io.StringIO(), io.StringIO(), True
        with redirect_stdout(out), redirect_stderr(way):
            try:
                terminal.ask(config, policy=copy(mind))  # which counts what it has said, and draws by that
            except RustyError:
                by_itself = False
        told = Told(out.getvalue(), way.getvalue())
        return wrong(request, folder, before, told), by_itself, told.commands


def main() -> None:
    parser = argparse.ArgumentParser(description="plain requests through rusty ask")
    parser.add_argument("model", nargs="?", default="rusty")
    parser.add_argument("--exam", action="store_true", help="the exam instead of the 34")
    options = parser.parse_args()
    folders, requests = load("plain_exam.toml" if options.exam else "plain_requests.toml")
    mind = open_policy(options.model)
    right, total = Counter[str](), Counter(request["kind"] for request in requests)
    ended = steps = 0
    for request in requests:
        reason, by_itself, commands = asked(request, folders[request["here"]], mind)
        right[request["kind"]] += not reason
        ended, steps = ended + by_itself, steps + len(commands)
        signs = ("NO " if reason else "ok ") + ("  " if by_itself else "! ")
        why = f"  ({reason})" if reason else ""
        print(f"{signs} {request['ask']}  ->  {'; '.join(commands)[:90]}{why}", flush=True)
    for kind, number in total.items():
        print(f"{kind}: {Rate(right[kind], number)}, {right[kind]} of {number}")
    rate = Rate(right.total(), total.total())
    print(f"{options.model}: {rate.passed} of {rate.total} right, {rate}", end="; ")
    print(f"{ended} ended by themselves; {steps} commands")


if __name__ == "__main__":
    main()
