# SPDX-License-Identifier: AGPL-3.0-or-later
"""Supervised episodes in the protocol, from everything at hand, mixed and written as JSONL.

    rusty data episodes                                      the gym, this machine, Rusty's own words
    rusty data episodes --source tldr.jsonl gsm8k.jsonl      and descriptions/commands, questions/answers,
                                                             coding rows, other episodes; train rows only

Where they come from: played.py (gold solutions through the gym), pairs.py (descriptions and commands),
coding.py and functions.py (code), voice.py (small talk, facts, refusals), this file (questions, chats and
the mix). The same options give the same file. Rows for the trainer are made by data/rows.py.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rusty_r2 import files
from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.data.dedup import digest_of
from rusty_r2.data.episode import Episode, ask, from_record
from rusty_r2.data.meter import Meter
from rusty_r2.data.near import NearHeldOut, pair_of
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.lm.documents import Document, files_below, is_jsonl, records
from rusty_r2.lm.tokenizer import Tokenizer
from rusty_r2.protocol import Msg

SHARES = {"CMD": 0.42, "EDIT": 0.24, "STEPS": 0.1, "MSG": 0.1, "DEBUG": 0.05, "REPAIR": 0.04, "CHAT": 0.03}
SHARES |= {"REFUSE": 0.02}
"""of the episodes; EDITs are long, so by tokens they weigh about as much as CMDs"""
WORK = ("CMD", "EDIT", "STEPS", "DEBUG")
"""kinds of which there can hardly be too many"""
LONGEST = 60
"""words of an answer in a message"""


@dataclass(frozen=True)
class EpisodesConfig:
    source: tuple[Path, ...] = ()
    """JSONL files (or folders of them): description/command, question/answer, coding rows, episodes"""
    output: Path = Path("episodes.jsonl")
    """the file to write"""
    count: int = 60_000
    """the most episodes to write"""
    gym: int = 12_000
    """gym tasks to play"""
    shown_families: float = 1.0
    """share of the gym's training families that are demonstrated, by a hash; the others are left to PPO"""
    shown_wordings: float = 1.0
    """share of each list of wordings that is; practice.toml's come last (none of them at 0.06 or less)"""
    lessons: int = 8_000
    """copying lessons (data/lessons.py)"""
    code: tuple[str, ...] = ("machine",)
    """where functions come from: sources as for `rusty data corpus`; empty for none"""
    functions: int = 12_000
    """the most functions to take"""
    keep_near: bool = False
    """also take training pairs that are nearly held-out ones of the same sources (data/near.py)"""
    seed: int = 0
    """the same seed, the same file"""
    workers: int = 0
    """gym tasks played at the same time; 0 takes one for each core"""

    def __post_init__(self) -> None:
        if self.count < 1 or min(self.gym, self.lessons, self.functions, self.workers) < 0:
            raise ConfigError(
                "--count must be at least 1; --gym, --lessons, --functions and --workers 0 or more"
            )
        from rusty_r2.gym.shown import Shown

        Shown(self.shown_families, self.shown_wordings)  # refuses what is no share


def build(config: EpisodesConfig) -> str:
    """Make an episodes file."""
    from rusty_r2.data.played import repairs

    pools = Pools(config.seed)
    with Meter() as meter:
        held = NearHeldOut.of([] if config.keep_near else _sources(config))
        for episode, weight in collect(config, held, meter):
            pools.add(episode, weight)
    rng = random.Random(f"{config.seed}/after")
    some = int(config.count * SHARES["REPAIR"]) // 3
    single = [pools.draw(kind, some, rng) for kind in ("CMD", "MSG", "EDIT")]
    for episode in itertools.chain(
        repairs(itertools.chain(*single), rng), chats(pools, int(config.count * SHARES["CHAT"]), rng)
    ):
        pools.add(episode, 1.0)
    chosen = pools.mix(config.count)
    if not chosen:
        raise DataError("no episode was made. Give --source, or --gym above 0")
    random.Random(config.seed).shuffle(chosen)
    _write(config.output, chosen)
    counted = Counter(episode.kind for episode in chosen)
    told = ", ".join(f"{count:,} {kind}" for kind, count in counted.most_common())
    told += f"\n{held.met:,} pairs left out that are nearly held-out ones" if held.met else ""
    following = f"next: rusty train supervised --data-dir {config.output}"
    return f"{len(chosen):,} episodes: {told}\n{config.output}\n{following}"


class Pools:
    """Episodes by kind, each with a priority drawn from its weight; the same text is kept once."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"{seed}/pools")
        self._seen: set[bytes] = set()
        self._kinds: dict[str, list[tuple[float, int, Episode]]] = defaultdict(list)
        self.size = 0

    def add(self, episode: Episode, weight: float) -> None:
        said = "\0".join(turn[1] for turn in episode.turns[1:])
        priority = -math.log(1.0 - self._rng.random()) / weight
        if digest_of(said) not in self._seen and episode.split == "train":
            self._seen.add(digest_of(said))
            self._kinds[episode.kind].append((priority, self.size, episode))
            self.size += 1

    def draw(self, kind: str, count: int, rng: random.Random) -> list[Episode]:
        """Some episodes of a kind with one request and one reply."""
        short = [one for _, _, one in self._kinds[kind] if len(one.turns) == 3]
        return rng.sample(short, min(count, len(short)))

    def mix(self, count: int) -> list[Episode]:
        """`count` episodes by SHARES; where a kind runs short, work fills up, as far as there is any."""
        ranked = {kind: sorted(pool)[:count] for kind, pool in sorted(self._kinds.items())}
        taken = {kind: min(len(pool), int(count * SHARES.get(kind, 0.05))) for kind, pool in ranked.items()}
        short = count - sum(taken.values())
        while short > 0:
            open_ = [kind for kind in WORK if taken.get(kind, 0) < len(ranked.get(kind, ()))]
            if not open_:
                break
            for kind in open_:
                more = min(len(ranked[kind]) - taken[kind], max(1, short // len(open_)), short)
                taken[kind] += more
                short -= more
        return [one for kind, pool in ranked.items() for _, _, one in pool[: taken[kind]]]


def collect(config: EpisodesConfig, held: NearHeldOut, meter: Meter) -> Iterator[tuple[Episode, float]]:
    """Every episode that can be made, with its weight in the mix; no pair that is near what is held out."""
    from rusty_r2.data import everyday, voice
    from rusty_r2.data.drills import task_names
    from rusty_r2.data.lessons import lessons, vocabulary
    from rusty_r2.data.played import Chances, play
    from rusty_r2.gym import catalog
    from rusty_r2.gym.farm import cores
    from rusty_r2.gym.shown import Shown

    rng = random.Random(f"{config.seed}/collect")
    some = Shown(config.shown_families, config.shown_wordings)
    playing = partial(play, seed=config.seed, workers=config.workers or cores(), chances=Chances.among(some))
    if config.gym:  # first: what can fail on a machine should fail early
        tasks = catalog.tasks("train", seed=config.seed, count=config.gym, some=some, wider=task_names(None))
        yield from _weigh(meter.track(playing(tasks, source="gym"), "gym tasks played", config.gym), 50.0)
    if config.lessons:
        words, few = vocabulary(Tokenizer.load()), config.lessons // 4
        made = lessons(words, config.lessons, seed=config.seed)
        yield from _weigh(meter.track(made, "lessons", config.lessons), 10.0)
        run = everyday.played(words, few, seed=config.seed)
        yield from _weigh(meter.track(run, "everyday commands", few), 30.0)
    yield from _weigh(voice.small_talk(rng), 1.5)
    yield from _weigh(voice.refusals(), 1.0)
    for path in _sources(config):
        yield from meter.track(from_file(path, rng, held, playing), path.name)
    for source in config.code:
        code = itertools.islice(_from_code(source, rng), config.functions)
        yield from _weigh(meter.track(code, f"functions of {source}", config.functions), 1.0)


@dataclass(frozen=True)
class Origin:
    """The file that rows come from, for errors and for the episodes' own record."""

    path: Path
    source: str
    licence: str

    @classmethod
    def of(cls, path: Path) -> Origin:
        """The licence is what a manifest.json beside the file says of it, if there is one."""
        manifest = path.with_name("manifest.json")
        listed = json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else []
        entries = [one for one in listed if isinstance(one, dict) and one.get("file") == path.name]
        licence = str(entries[0].get("licence")) if entries else "see the source"
        return cls(path, path.name.partition(".jsonl")[0], licence)


def from_file(
    path: Path, rng: random.Random, held: NearHeldOut, playing: Callable[..., Iterator[Episode]]
) -> Iterator[tuple[Episode, float]]:
    """The episodes of one JSONL file, whatever its rows are."""
    from rusty_r2.data import coding
    from rusty_r2.data.played import asked

    origin = Origin.of(path)
    if coding.is_coding(next(records(path), {})):
        tasks = list(coding.tasks(path))
        source, licence = origin.source, origin.licence
        untested = (asked(task, source, licence) for task in tasks if not coding.is_played(task))
        yield from _weigh(untested, 3.0)
        tested = (task for task in tasks if coding.is_played(task))
        yield from _weigh(playing(tested, source=source, licence=licence), 5.0)
        return
    told: set[str] = set()
    for number, row in enumerate(records(path), 1):
        pair = pair_of(row)
        if row.get("split", "train") != "train" or row.get("intercode_overlap"):
            continue
        if pair is None or not held.meets(*pair):
            yield from from_row(row, rng, told, origin, number)


def from_row(
    row: dict[str, Any], rng: random.Random, told: set[str], origin: Origin, number: int
) -> Iterator[tuple[Episode, float]]:
    """The episodes of one row: a pair, a question, or an episode as it is."""
    from rusty_r2.data import pairs

    source, licence = str(row.get("source") or origin.source), str(row.get("licence") or origin.licence)
    if "turns" in row:
        yield from_record({"kind": "STEPS"} | row, f"{origin.path}:{number}"), 1.0
    elif row.keys() >= {"description", "command"}:
        yield from _weigh(pairs.commands(row, rng, source, licence), 5.0 if pairs.core(row) else 1.0)
        if "page" in row and row["page"] not in told:
            told.add(row["page"])
            yield pairs.about(row, rng, source, licence), 1.0 if pairs.core(row) else 0.2
    elif row.keys() >= {"question", "answer"}:
        yield from _weigh(question(row, rng, source, licence), 0.2)
    else:
        fields = ", ".join(row)[:80]
        raise DataError(
            f"{origin.path}:{number}: no pair, question, task or episode; its fields are {fields}"
        )


def question(row: Mapping[str, Any], rng: random.Random, source: str, licence: str) -> Iterator[Episode]:
    """A question and its answer in Rusty's voice; none where the answer is long."""
    from rusty_r2.data import voice

    answer = re.sub(r"<<[^>]*>>", "", str(row["answer"])).strip()
    answer = re.sub(r"\n#### *(.+)$", r"\nAnswer: \1.", answer)
    if len(answer.split()) <= LONGEST:
        yield ask("MSG", source, str(row["question"]), Msg(voice.dress(answer, rng)), licence)


def chats(pools: Pools, count: int, rng: random.Random) -> Iterator[Episode]:
    """Several requests in one conversation: messages, and at the end perhaps an action."""
    talk = pools.draw("MSG", 3 * count, rng)
    last = pools.draw("CMD", count, rng) + pools.draw("REFUSE", count // 5, rng)
    for final in last:
        if len(talk) < 3:
            return
        parts = [talk.pop() for _ in range(rng.randint(1, 3))] + [final]
        turns = tuple(turn for part in parts for turn in part.turns[1:])
        yield Episode(
            "CHAT", "chat", (("system", SYSTEM), *turns), " AND ".join({p.licence: 0 for p in parts})
        )


def _from_code(source: str, rng: random.Random) -> Iterator[Episode]:
    """Functions and man pages of a source, in turn as they come."""
    from rusty_r2.data import pairs
    from rusty_r2.data.functions import functions
    from rusty_r2.data.sources import documents_of

    manuals: list[Document] = []

    def code() -> Iterator[Document]:
        for document in documents_of(source):
            if document.source == "man-pages":
                manuals.append(document)
            yield document

    for episode in functions(code(), rng):
        yield episode
        while manuals:
            yield from pairs.manual(manuals.pop(), rng)
    for document in manuals:
        yield from pairs.manual(document, rng)


def _weigh(episodes: Iterable[Episode], weight: float) -> Iterator[tuple[Episode, float]]:
    return ((episode, weight) for episode in episodes)


def _sources(config: EpisodesConfig) -> list[Path]:
    """The JSONL files that --source names."""
    found = itertools.chain.from_iterable(files_below(_there(root)) for root in config.source)
    return [path for path in found if is_jsonl(path)]


def _there(root: Path) -> Path:
    if not root.exists():
        raise DataError(f"{root} does not exist. Give JSONL files or folders of them")
    return root


def _write(path: Path, episodes: list[Episode]) -> None:
    files.write(path, "".join(episode.to_json() + "\n" for episode in episodes))
