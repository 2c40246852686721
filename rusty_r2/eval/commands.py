# SPDX-License-Identifier: AGPL-3.0-or-later
"""From a description to a command: tldr and NL2Bash where `--bench` has them, and a small shipped set.

Two verdicts an answer. Exact: the same words after normalising white space and quotes. Executed: it does the
same as the gold command in a made-up tree (sandboxed.py), on those items whose gold command can be run so.
Greedy, constrained to actions; a MSG or an EDIT is a wrong answer.
"""

from __future__ import annotations

import random
import shlex
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rusty_r2.data import pairs
from rusty_r2.errors import DataError, ProtocolError
from rusty_r2.eval.figures import Figure, absent, share
from rusty_r2.eval.job import EvalConfig, Job, bench_rows, heldout_rows, instead
from rusty_r2.eval.kept import Kept
from rusty_r2.eval.mind import Ask, Shot
from rusty_r2.eval.sandboxed import Twin, can_run
from rusty_r2.protocol import Cmd, parse, render

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SETS = ("tldr", "nl2bash", "shipped")
LONGEST = 96
"""tokens of an answer"""


class Pair(NamedTuple):
    request: str
    command: str


def pairs_of(config: EvalConfig, name: str) -> list[Pair] | None:
    """The held-out pairs of a set; None where its file is absent."""
    if name == "shipped":
        return [Pair(*row) for row in shipped()["heldout"]]
    rows = heldout_rows(config, name)
    return None if rows is None else [_pair(row, name) for row in rows]


def _pair(row: Mapping[str, Any], name: str) -> Pair:
    try:
        return Pair(*pairs.request(row))
    except (KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{name}.jsonl holds a row without a description and a command: {error}") from error


@cache
def shipped() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))


def shots(config: EvalConfig, name: str, count: int) -> tuple[Shot, ...]:
    """Examples from the training part of the same kind of data."""
    rows = bench_rows(config, name, "train") if name != "shipped" else None
    rng = random.Random(config.seed)
    if rows:
        chosen = [_pair(row, name) for row in rng.sample(rows, min(count, len(rows)))]
    else:
        chosen = [Pair(*row) for row in shipped()["examples"][:count]]
    return tuple((pair.request, render(Cmd(pair.command))) for pair in chosen)


def measure(job: Job) -> list[Figure]:
    figures = []
    for name in SETS:
        found = pairs_of(job.config, name)
        if found is None:
            figures += [absent(f"{name} exact", f"no {name}.jsonl; give its folder with --bench")]
        elif not found:
            figures += [absent(f"{name} exact", f"{name}.jsonl has no {job.config.split} rows")]
        else:
            figures += _measure(job, name, job.take(found))
    return figures


def _measure(job: Job, name: str, wanted: Sequence[Pair]) -> list[Figure]:
    given = shots(job.config, name, job.shots)
    with job.kept(f"commands_{name}", shots=given, longest=LONGEST) as kept:
        _ask(job, kept, name, wanted, given)
        rows = [kept.rows[_key(pair)] for pair in wanted]
    ran = [row for row in rows if row["executed"] is not None]
    runs = "where gold can be run" if ran else "no gold command of these items can be run here"
    exact, programs = sum(row["exact"] for row in rows), sum(row["program"] for row in rows)
    are_commands = sum(bool(row["command"]) for row in rows)
    figures = (
        share(f"{name} exact", exact, len(rows), note=job.how),
        share(f"{name} executed", sum(row["executed"] for row in ran), len(ran), note=runs),
        share(f"{name} is a command", are_commands, len(rows), detail=True),
        share(f"{name} right program", programs, len(rows), detail=True),
    )
    return [replace(figure, caveat=instead(job.config, name)) for figure in figures]


def _ask(job: Job, kept: Kept, name: str, wanted: Sequence[Pair], given: tuple[Shot, ...]) -> None:
    todo = [pair for pair in dict.fromkeys(wanted) if _key(pair) not in kept.rows]
    asks = [Ask(pair.request, given) for pair in todo]
    with job.bar(name, len(todo)) as bar, ThreadPoolExecutor(4) as pool:
        verdicts = []
        for place, text in job.mind.answer(asks, job.speech(LONGEST)):
            verdicts.append(pool.submit(_verdict, todo[place], text))
            while verdicts and verdicts[0].done():
                _keep(kept, *verdicts.pop(0).result())
                bar.advance()
        for verdict in verdicts:
            _keep(kept, *verdict.result())
            bar.advance()


def _keep(kept: Kept, pair: Pair, row: dict[str, Any]) -> None:
    kept.add(_key(pair), row)


def _verdict(pair: Pair, text: str) -> tuple[Pair, dict[str, Any]]:
    command = said(text)
    twin = Twin(pair.command) if can_run(pair.command) else None
    executed = twin.same(command) if twin is not None and twin.is_telling else None
    return pair, {
        "asked": pair.request,
        "gold": pair.command,
        "reply": text,
        "command": command,
        "exact": normal(command) == normal(pair.command),
        "executed": executed,
        "program": bool(command.split()) and command.split()[:1] == pair.command.split()[:1],
    }


def said(text: str) -> str:
    """The command in a reply, or "" where it is none."""
    try:
        action = parse(text)
    except ProtocolError:
        return ""
    return action.command if isinstance(action, Cmd) else ""


def normal(command: str) -> str:
    """A command's words, however they were spaced and quoted."""
    try:
        return " ".join(shlex.quote(word) for word in shlex.split(command))
    except ValueError:
        return " ".join(command.split())


def _key(pair: Pair) -> str:
    return f"{pair.request}\t{pair.command}"
