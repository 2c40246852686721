# SPDX-License-Identifier: AGPL-3.0-or-later
"""`rusty trace …`: what was recorded, in the terminal.

    rusty trace import chats.jsonl          logs of other programs become traces
    rusty trace list --label none           and are looked through,
    rusty trace show 4f1c2a90               read (the end of an id is enough),
    rusty trace replay 4f1c2a90             watched part by part
    rusty trace label                       and judged, one key each: y n s u c q
    rusty trace export traces.jsonl

A door: what it shows is made by agent/telling.py, what it reads by data/importers/kinds.py.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rusty_r2.agent.telling import counted, headline, parts, short, tell, verdict
from rusty_r2.data.importers import kinds
from rusty_r2.errors import ConfigError, DataError, RustyError, StoreError
from rusty_r2.gym.safetext import one_line
from rusty_r2.rewards.labeler import by_doubt
from rusty_r2.trace import ExecutionTrace

if TYPE_CHECKING:
    from rusty_r2.store import TraceStore
    from rusty_r2.tables import Filter

Label = Literal["any", "good", "bad", "none"]
FILES = (".jsonl", ".json", ".pkl", ".pickle")
_DATE = re.compile(r"\d{4}(?:-\d\d){0,2}(?:[T ]\d\d\S*)?$", re.ASCII)
SHOWN = 20
"""problems of an import that are printed"""


@dataclass(frozen=True)
class Narrow:
    store: str = ""
    """path or URL of the trace store; the one in the data home where not given"""
    agent: str = ""
    """only traces of this agent"""
    session: str = ""
    """only traces of this session"""
    since: str = ""
    """not before this date or time (2026-11-15, 2026-11-15T12:00)"""
    until: str = ""
    """not after this date or time"""
    label: Label = "any"
    """only good ones, bad ones, or those nobody labelled"""
    tool: str = ""
    """only traces that used this tool"""
    text: str = ""
    """words of the request or the answer"""
    min_reward: float | None = None
    max_reward: float | None = None

    def __post_init__(self) -> None:
        for name, said in (("since", self.since), ("until", self.until)):
            if said and not _DATE.match(said):
                raise ConfigError(f"--{name} is {said!a}; say a date or a time: 2026-11-15, 2026-11-15T12:00")

    def wanted(self, limit: int | None, **more: Any) -> Filter:
        from rusty_r2.tables import Filter

        return Filter(
            agent=self.agent or None,
            session=self.session or None,
            since=self.since or None,
            until=self.until or None,
            label={"good": True, "bad": False}.get(self.label),
            labeled=False if self.label == "none" else None,
            tool=self.tool or None,
            text=self.text or None,
            min_reward=self.min_reward,
            max_reward=self.max_reward,
            limit=limit,
            **more,
        )

    def open(self) -> TraceStore:
        return store_at(self.store)


def store_at(address: str) -> TraceStore:
    """The store at an address, or the one in the data home."""
    from rusty_r2.store import TraceStore

    return TraceStore(address or None)


# ── looking ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ListConfig(Narrow):
    limit: int = 30
    """at most so many"""
    oldest_first: bool = False
    json: bool = False
    """one JSON object a line, for scripts"""


def show_list(config: ListConfig) -> str:
    """The traces that fit, newest first."""
    with config.open() as store:
        rows = store.listing(config.wanted(config.limit, newest_first=not config.oldest_first))
        total = store.count(config.wanted(None))
        where = store.where
    if config.json:
        return "\n".join(json.dumps(row) for row in rows)
    if not rows:
        return f"no traces that fit in {where}\nnext: rusty trace import FILE"
    head = f"{'id':<10}  {'when':<16}  label  reward  calls  agent"
    last = f"{len(rows)} of {total} traces in {where}\nnext: rusty trace show {short(rows[0]['trace_id'])}"
    return "\n".join([head, *(headline(row) for row in rows), last])


@dataclass(frozen=True)
class ShowConfig:
    trace: Annotated[str, tyro.conf.Positional]
    """its id, or the end of it"""
    store: str = ""
    """path or URL of the trace store; the one in the data home where not given"""
    lines: int = 40
    """lines of each part that are shown"""
    json: bool = False
    """the whole trace as JSON"""


def show(config: ShowConfig) -> str:
    """One trace: the request, what was done, what came back, the answer."""
    with store_at(config.store) as store:
        trace = named(store, config.trace)
    if config.json:
        return json.dumps(trace.to_dict(), indent=2)
    return f"{tell(trace, lines=config.lines)}\nnext: rusty trace label {short(trace.trace_id)} --good"


@dataclass(frozen=True)
class ReplayConfig:
    trace: Annotated[str, tyro.conf.Positional]
    """its id, or the end of it"""
    store: str = ""
    """path or URL of the trace store; the one in the data home where not given"""
    lines: int = 40
    """lines of each part that are shown"""


def replay(config: ReplayConfig) -> str:
    """One trace as it happened, part by part: any key goes on, q ends. Nothing is run again."""
    with store_at(config.store) as store:
        trace = named(store, config.trace)
    key = keys()
    for number, part in enumerate(parts(trace, lines=config.lines)):
        if number and key() == "q":
            break
        print(part, flush=True)
    return f"next: rusty trace label {short(trace.trace_id)} --good"


@dataclass(frozen=True)
class StatsConfig(Narrow):
    json: bool = False


def stats(config: StatsConfig) -> str:
    """How many traces there are, how many are labelled, and their means."""
    with config.open() as store:
        told = store.statistics(config.wanted(None))
        where = store.where
    if config.json:
        return json.dumps(told)
    lines = [f"{name.replace('_', ' '):<20} {value:.6g}" for name, value in told.items()]
    return "\n".join([*lines, where, "next: rusty trace label"])


def named(store: TraceStore, name: str) -> ExecutionTrace:
    """The trace with this id, or the only one whose id ends so."""
    try:
        return store.get(name)
    except StoreError:
        ids = (row["trace_id"] for row in store.listing(limit=None))
        found = [key for key in ids if len(name) >= 4 and key.endswith(name)]
    if len(found) == 1:
        return store.get(found[0])
    many = f"{len(found)} traces end in {name!a}" if found else f"there is no trace {name!a} in {store.where}"
    raise StoreError(f"{many}. Type: rusty trace list")


# ── labels ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class LabelConfig(Narrow):
    trace: Annotated[str, tyro.conf.Positional] = ""
    """its id, or the end of it; without one, all that nobody labelled are shown one after the other"""
    good: bool = False
    bad: bool = False
    clear: bool = False
    """take the label away"""
    note: str = ""
    who: str = "person"
    """whose verdict it is"""
    limit: int = 50
    """at most so many in one sitting"""


def label(config: LabelConfig) -> str:
    """Say what a trace was worth; without an id, of one unlabelled trace after the other."""
    if not config.trace:
        return _sitting(config)
    if config.good + config.bad + config.clear != 1:
        raise ConfigError("say one of --good, --bad and --clear")
    said = None if config.clear else config.good
    with config.open() as store:
        trace = named(store, config.trace)
        store.label(trace.trace_id, said, note=config.note, who=config.who)
        told = verdict(store.get(trace.trace_id))
    return f"{trace.trace_id}: {told}\nnext: rusty trace label"


def _sitting(config: LabelConfig) -> str:
    if config.good or config.bad or config.clear or config.note:
        raise ConfigError("--good, --bad, --clear and --note need an id. Type: rusty trace list")
    from rusty_r2.rewards.learned import LearnedReward, usual_path

    with config.open() as store:
        wanted = config.wanted(None)
        waiting = store.find(replace(wanted, labeled=False) if config.label == "any" else wanted)
        queue = by_doubt(waiting, LearnedReward(usual_path()))[: config.limit]
        given = Sitting(store, queue, config.who, keys()).go()
        left = store.count(labeled=False)
    done = f"{given} labelled; {left} wait"
    return f"{done}\nnext: {'rusty rewards learn --label' if given else 'rusty trace list'}"


@dataclass
class Sitting:
    """A person with a queue of traces: y good, n bad, s skip, u undo, c comment, q quit."""

    store: TraceStore
    queue: list[ExecutionTrace]
    who: str
    key: Callable[[], str]

    def go(self) -> int:
        """How many labels were given."""
        given: list[int] = []
        at, note = 0, ""
        self._show(at)
        while self.queue:
            pressed = self.key()
            if pressed == "u" and given:
                at = given.pop()
                self.store.take_back(self.queue[at], who=self.who)
            elif pressed in ("q", "") or at == len(self.queue):
                break
            elif pressed == "c":
                print("note: ", end="", flush=True)
                note = sys.stdin.readline().strip()
                continue
            elif pressed in ("y", "n", "s"):
                if pressed != "s":
                    self.store.label(self.queue[at].trace_id, pressed == "y", note=note, who=self.who)
                    given.append(at)
                at, note = at + 1, ""
            else:
                print("y good, n bad, s skip, u undo, c comment, q quit", flush=True)
                continue
            self._show(at)
        return len(given)

    def _show(self, at: int) -> None:
        if at < len(self.queue):
            print(f"\n── {at + 1} of {len(self.queue)} " + "─" * 60)
            print(tell(self.queue[at], lines=20))
            print("good? y n, s skip, u undo, c comment, q quit", flush=True)
        elif self.queue:
            print("that was the last: u undo, any other key ends", flush=True)


def keys() -> Callable[[], str]:
    """One key of a terminal, or the first letter of a line of a pipe; "" at the end."""
    if not sys.stdin.isatty():
        return _letter
    import termios
    import tty

    def key() -> str:
        before = termios.tcgetattr(sys.stdin)
        try:
            tty.setcbreak(sys.stdin, termios.TCSAFLUSH)  # what was typed before it was shown does not count
            pressed = os.read(sys.stdin.fileno(), 64).decode(errors="replace").lower()
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        # two keys at once, or an arrow: nobody has seen what the second would be about
        return "q" if pressed in ("\x04", "\x1b") else pressed if len(pressed) < 2 else "?"

    return key


def _letter() -> str:
    line = sys.stdin.readline()
    return (line.strip()[:1].lower() or "?") if line else ""


# ── in and out ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ExportConfig(Narrow):
    output: Annotated[Path, tyro.conf.Positional] = Path("traces.jsonl")
    """a .jsonl or .parquet file, or a folder with a file for each trace"""


def export(config: ExportConfig) -> str:
    """Write the traces that fit to a file or a folder."""
    from rusty_r2 import archive

    with config.open() as store:
        count = archive.export(store, config.output, config.wanted(None))
    return f"{counted(count, 'trace')}\n{config.output}\nnext: rusty data rows --source {config.output}"


@dataclass(frozen=True)
class ImportConfig:
    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """files or folders: logs, sessions, spans, checkpoints, traces"""
    kind: kinds.Kind = "auto"
    """what they are; seen from their content where not given"""
    agent: str = ""
    """give the traces this agent's name"""
    store: str = ""
    """path or URL of the trace store; the one in the data home where not given"""


def bring_in(config: ImportConfig) -> str:
    """Turn recorded conversations into traces; what is known already is not added twice."""
    added = known = 0
    problems: list[str] = []
    with store_at(config.store) as store:
        for path in _files(config.files):
            try:
                fresh, seen = _bring(store, path, config, problems)
            except RustyError as error:
                if len(config.files) == 1 and config.files[0].is_file():
                    raise
                problems.append(str(error))
                continue
            added, known = added + fresh, known + seen
        where = store.where
    for line in problems[:SHOWN]:
        print(one_line(line, 1000), file=sys.stderr)
    if len(problems) > SHOWN:
        print(f"… and {len(problems) - SHOWN} more", file=sys.stderr)
    if not added and not known:
        raise DataError(
            f"no trace was found in {', '.join(map(str, config.files))}. Kinds: rusty trace import --help"
        )
    passed = counted(len(problems), "part")
    told = f"{counted(added, 'trace')} added, {known} known already, {passed} passed over"
    return f"{told}\n{where}\nnext: rusty trace list"


def _files(given: tuple[Path, ...]) -> Iterator[Path]:
    if not given:
        raise ConfigError("name a file or a folder. Type: rusty trace import chats.jsonl")
    for path in given:
        if path.is_dir():
            inside = (inner for inner in sorted(path.rglob("*")) if inner.is_file())
            yield from (p for p in inside if p.suffix in FILES and not p.name.endswith(".meta.json"))
        else:
            yield path


def _bring(store: TraceStore, path: Path, config: ImportConfig, problems: list[str]) -> tuple[int, int]:
    if path.suffix == ".parquet":
        from rusty_r2 import archive

        done = archive.load(store, path)
        problems += done.problems
        return done.added, done.known
    reading = kinds.read(path, config.kind)
    problems += reading.problems
    for trace in reading.traces:
        trace.agent_name = config.agent or trace.agent_name
    added = store.append_many(reading.traces, known="skip")
    return added, len(reading.traces) - added
