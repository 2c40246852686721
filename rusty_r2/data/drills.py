# SPDX-License-Identifier: AGPL-3.0-or-later
"""Practice without end: rows for the trainer, made from nothing, none of them ever seen twice.

    rusty data drills --output-dir drills          copying lessons, and gym tasks with any words for names
    rusty data drills --output-dir drills --episodes episodes.jsonl --text corpus --text-share 0.2
    rusty train supervised --data-dir drills

A model that meets the same episode twice begins to know it by heart; here there is always another one.
Gym tasks are those of the training split (held-out words stay out, by their hash) with their gold
solution, not played: only tasks of a single action. Each worker makes, tokenises and packs; the rows lie in
two arrays that are mapped, not read: drills first, then played episodes (data/episodes.py), then plain text
(data/prose.py), which the trainer deals out evenly.
"""

from __future__ import annotations

import json
import keyword
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rusty_r2 import files
from rusty_r2.data.episode import Episode, from_record
from rusty_r2.data.meter import Meter
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.executor import Processes
from rusty_r2.lm.documents import records
from rusty_r2.lm.tokenizer import BOS, CONTROL, SYSTEM, Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rusty_r2.data.packed import Encoded
    from rusty_r2.data.prose import Prose

PART = 1000
"""episodes a worker makes at a time"""
FIRST_SEED = 1 << 40
"""of gym tasks made here: far from those that are played"""
MANIFEST = "drills.json"
KINDS = ("drills", "episodes", "text")
"""rows in the order in which they lie on the disk"""
Out = tuple[IO[bytes], IO[bytes]]
"""the files of ids and of what is learned"""


@dataclass(frozen=True)
class DrillsConfig:
    output_dir: Path
    """the folder to write"""
    lessons: int = 20_000
    """copying lessons"""
    gym: int = 20_000
    """gym tasks"""
    episodes: Path | None = None
    """an episodes file that goes into the same rows (rusty data episodes)"""
    times: int = 1
    """how often each of those episodes comes"""
    text: tuple[str, ...] = ()
    """plain text to mix in: corpus folders, text files or folders, JSONL, or `machine`"""
    text_share: float = 0.2
    """share of the rows that are plain text, where --text is given; every token of theirs is learned"""
    shown_families: float = 1.0
    """share of the training families that are demonstrated, by a hash; the others are left to PPO"""
    shown_wordings: float = 1.0
    """share of each list of wordings that is; practice.toml's come last (none of them at 0.06 or less)"""
    seq_len: int = 1024
    """tokens of a row"""
    tokenizer_path: Path | None = None
    """tokenizer folder or tokenizer.json; default: the one that ships"""
    seed: int = 0
    """the same seed, the same rows"""
    workers: int = 0
    """processes; 0 takes one for each core"""

    def __post_init__(self) -> None:
        if min(self.lessons, self.gym, self.workers) < 0 or self.lessons + self.gym < 1 or self.seq_len < 256:
            raise ConfigError("--lessons and --gym are counts, not both 0; --seq-len is at least 256")
        if self.episodes is not None and (self.times < 1 or not self.episodes.is_file()):
            raise ConfigError(f"{self.episodes} must be a file, --times 1 or more. Type: rusty data episodes")
        from rusty_r2.gym.shown import Shown

        Shown(self.shown_families, self.shown_wordings)  # refuses what is no share
        if not 0 < self.text_share < 1:
            raise ConfigError("--text-share is above 0 and below 1; leave out --text for no text")
        for source in self.text:
            if source != "machine" and not Path(source).exists():
                raise ConfigError(f"--text {source} does not exist. Make a corpus: rusty data corpus")


def build(config: DrillsConfig) -> str:
    """Make a folder of rows."""
    if not files.may_replace(config.output_dir):
        raise ConfigError(
            f"{config.output_dir} holds other files, which would be lost. Type: --output-dir NEW_FOLDER"
        )
    words = Tokenizer.load(config.tokenizer_path)
    with files.whole_folder(config.output_dir) as folder, Meter() as meter:
        made = _write(folder, words, config, meter)
        facts = {
            "rows": sum(kind.rows for kind in made.values()),
            "seq_len": config.seq_len,
            "kinds": {name: vars(kind) for name, kind in made.items()},
            "tokenizer": words.fingerprint,
            "lessons": config.lessons,
            "gym": config.gym,
            "shown": [config.shown_families, config.shown_wordings],
            "file": files.digest(config.episodes) if config.episodes else "",
            "text": list(config.text),
            "seed": config.seed,
        }
        files.write(folder / MANIFEST, json.dumps(facts, indent=1) + "\n")
    told = "\n".join(f"{name}: {kind}" for name, kind in made.items() if kind.rows)
    return f"{told}\n{config.output_dir}\nnext: rusty train supervised --data-dir {config.output_dir}"


@dataclass
class Kind:
    """What there is of drills, episodes or text."""

    rows: int = 0
    pieces: int = 0
    """whole conversations, or beginnings of documents"""
    tokens: int = 0
    learned: int = 0
    """tokens that the loss counts"""
    dropped: int = 0
    """conversations longer than a row"""
    passes: float = 1.0
    """how often the same text comes"""

    def add(self, ids: NDArray[np.uint16], own: NDArray[np.bool_], tokens: int, dropped: int = 0) -> None:
        self.rows += len(ids)
        self.pieces += int((ids == BOS).sum())
        self.tokens += tokens
        self.learned += int(own.sum())
        self.dropped += dropped

    def __str__(self) -> str:
        told = f"{self.pieces:,} in {self.rows:,} rows, {self.tokens:,} tokens, {self.learned:,} learned"
        told += f"; {self.dropped:,} were too long" if self.dropped else ""
        return told + (f"; the same text comes {self.passes:.1f} times" if self.passes > 1 else "")


def is_drills(path: Path) -> bool:
    return (path / MANIFEST).is_file()


@dataclass(frozen=True)
class Drills:
    """The rows of a folder, mapped."""

    ids: NDArray[np.uint16]
    own: NDArray[np.bool_]
    kinds: dict[str, range]
    """which rows are what"""
    learned: float
    """share of the tokens that the loss counts"""

    def said(self, tokenizer: Tokenizer, rows: range) -> Iterator[str]:
        """The turns and texts of some rows as text; what the system says, the same in each, is left out."""
        import numpy as np

        text = self.kinds["text"]
        yield from _said(tokenizer, self.ids[rows.start : min(rows.stop, text.start)].ravel())
        windows = self.ids[max(rows.start, text.start) : rows.stop]
        if len(windows):  # each begins with the last token of the one before
            yield from _said(tokenizer, np.append(windows[0, :1], windows[:, 1:].ravel()))

    def parts(self, first: float) -> tuple[list[range], list[range]]:
        """The first share of every kind of rows, and the others."""
        ends = [kind.start + int(len(kind) * first) for kind in self.kinds.values()]
        starts = zip(self.kinds.values(), ends, strict=True)
        pairs = [(range(kind.start, end), range(end, kind.stop)) for kind, end in starts]
        return [one for one, _ in pairs], [other for _, other in pairs]


def _said(tokenizer: Tokenizer, ids: NDArray[np.uint16]) -> Iterator[str]:
    import numpy as np

    cuts = np.flatnonzero(ids < len(CONTROL))
    starts, ends = np.append(0, cuts + 1), np.append(cuts, len(ids))
    heads = np.append(BOS, ids[cuts])
    for at in np.flatnonzero((ends > starts) & (heads != SYSTEM)):
        yield tokenizer.decode(ids[starts[at] : ends[at]].tolist())


def open_drills(folder: Path, tokenizer: Tokenizer, length: int | None = None) -> Drills:
    """The rows of a folder that was made with this tokenizer for this length, or for any."""
    import numpy as np

    facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    length = int(facts.get("seq_len", 0)) if length is None else length
    for name, ours in (("tokenizer", tokenizer.fingerprint), ("seq_len", length)):
        if facts.get(name) != ours:
            seen = f"{folder} was made with {name} {facts.get(name)}, not {ours}"
            raise ConfigError(f"{seen}. Make it again: rusty data drills")
    try:
        made = {name: Kind(**facts["kinds"][name]) for name in KINDS}
        shape = (sum(kind.rows for kind in made.values()), length + 1)
        ids = np.memmap(folder / "ids.u16", np.uint16, "r", shape=shape)
        own = np.memmap(folder / "own.u8", np.bool_, "r", shape=shape)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} is damaged: {error}. Make it again: rusty data drills") from error
    kinds, start = {}, 0
    for name, kind in made.items():
        kinds[name], start = range(start, start + kind.rows), start + kind.rows
    tokens = sum(kind.tokens for kind in made.values())
    return Drills(ids, own, kinds, sum(kind.learned for kind in made.values()) / max(1, tokens))


@dataclass(frozen=True)
class _Job:
    kind: str
    """lesson, gym or file"""
    first: int
    count: int
    config: DrillsConfig
    records: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """of a file: where they stand, and what they are"""


def _jobs(kind: str, count: int, config: DrillsConfig) -> Iterator[_Job]:
    for first in range(0, count, PART):
        yield _Job(kind, first, min(PART, count - first), config)


def _file_jobs(config: DrillsConfig) -> Iterator[_Job]:
    """The file's training episodes; workers check, tokenise and pack them."""
    if config.episodes is None:
        return
    every = enumerate(records(config.episodes), 1)
    ours = ((f"{config.episodes}:{at}", one) for at, one in every if (one.get("split") or "train") == "train")
    first = 0
    while some := list(islice(ours, PART)):
        yield _Job("file", first, len(some), config, some)
        first += len(some)


def _write(folder: Path, words: Tokenizer, config: DrillsConfig, meter: Meter) -> dict[str, Kind]:
    workers = config.workers or os.cpu_count() or 1
    jobs = [*_jobs("lesson", config.lessons, config), *_jobs("gym", config.gym, config)]
    random.Random(config.seed).shuffle(jobs)
    made = {name: Kind() for name in KINDS}
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers are parallel already
    with (
        Processes(workers) as pool,
        open(folder / "ids.u16", "wb") as ids_file,
        open(folder / "own.u8", "wb") as own_file,
    ):
        out = (ids_file, own_file)
        for name, some in (("drills", jobs), ("episodes", _file_jobs(config))):
            for ids, own, tokens, dropped in pool.stream(_make, some):
                _put(out, ids, own)
                made[name].add(ids, own, tokens, dropped)
                meter.show(f"{made[name].pieces:,} {name}, {made[name].tokens:,} tokens")
        _check(made)
        if config.text:
            from rusty_r2.data.prose import Prose, tokenised

            meter.show("reading text")
            text = tokenised(config.text, config.tokenizer_path, pool.stream)
            _write_text(out, Prose.read(config.text, words, text), made, config)
    return made


def _write_text(
    out: tuple[IO[bytes], IO[bytes]], prose: Prose, made: dict[str, Kind], config: DrillsConfig
) -> None:
    """As many rows of text as make their share of all."""
    others = made["drills"].rows + made["episodes"].rows
    count = max(1, round(others * config.text_share / (1 - config.text_share)))
    for ids in prose.rows(count, length=config.seq_len, seed=config.seed):
        own = ids != BOS
        own[:, 0] = False  # nothing comes before it
        _put(out, ids, own)
        made["text"].add(ids, own, ids.size - len(ids))
    made["text"].passes = prose.passes(count, config.seq_len)


def _put(out: Out, ids: NDArray[np.uint16], own: NDArray[np.bool_]) -> None:
    out[0].write(ids.tobytes())
    out[1].write(own.tobytes())


def _check(made: dict[str, Kind]) -> None:
    """Of a conversation some tokens are learned and some are not."""
    for name, kind in made.items():
        if kind.tokens and kind.learned in (0, kind.tokens):
            share = 100 * kind.learned // kind.tokens
            raise DataError(
                f"{share}% of the {kind.tokens:,} tokens of {name} are supervised: the mask is wrong"
            )


def _make(job: _Job) -> tuple[NDArray[np.uint16], NDArray[np.bool_], int, int]:
    """One worker's part: rows, which of their tokens are learned, tokens, episodes that were too long."""
    import numpy as np

    from rusty_r2.data.lessons import lessons
    from rusty_r2.data.packed import encode, pack

    config = job.config
    words, names = _words(config.tokenizer_path)
    made: Iterable[Episode]
    if job.kind == "lesson":
        made = lessons(names, job.count, seed=config.seed * 1_000_003 + job.first)
    elif job.kind == "gym":
        made = _tasks(task_names(config.tokenizer_path), job)
    else:
        made = (from_record(record, where) for where, record in job.records)
    every = list(encode(words, made))
    fitting: list[Encoded] = [one for one in every if len(one[0]) <= config.seq_len]
    rng = random.Random(f"{config.seed}/{job.first}")
    packed: list[Encoded] = []
    for _ in range(config.times if job.kind == "file" else 1):
        rng.shuffle(fitting)
        packed.append(pack(fitting, config.seq_len))
    tokens = len(packed) * sum(len(one[0]) for one in fitting)
    ids, own = (np.concatenate([one[i] for one in packed]) for i in (0, 1))
    return ids, own, tokens, len(every) - len(fitting)


def _tasks(names: tuple[str, ...], job: _Job) -> Iterator[Episode]:
    """`count` single-action tasks, families and levels in turn."""
    from rusty_r2.data.played import asked
    from rusty_r2.gym.families import FAMILIES
    from rusty_r2.gym.families.base import How
    from rusty_r2.gym.proof import gold
    from rusty_r2.gym.shown import Shown

    config = job.config
    some = Shown(config.shown_families, config.shown_wordings)
    how = How(wider=names, shown=some.wordings, judged=False)
    places = [(FAMILIES[name], level) for name in some.names for level in FAMILIES[name].levels]
    number, made = FIRST_SEED + config.seed * 1_000_000_007 + 4 * job.first, 0
    while made < job.count:
        family, level = places[number % len(places)]
        task = family.make(number, level, "train", how)
        number += 1
        if len(gold(task)) == 1:
            made += 1
            yield asked(task, "gym", "AGPL-3.0-or-later")


@cache
def _words(path: Path | None) -> tuple[Tokenizer, list[str]]:
    from rusty_r2.data.lessons import vocabulary

    words = Tokenizer.load(path)
    return words, vocabulary(words)


@cache
def task_names(path: Path | None) -> tuple[str, ...]:
    """Words that can be a name in a task: the gym's own, and the tokenizer's of three letters or more."""
    from rusty_r2.gym.families.words import WORDS

    more = (word.lower() for word in _words(path)[1] if len(word) > 2)
    return tuple(dict.fromkeys([*WORDS, *(word for word in more if not keyword.iskeyword(word))]))
