# SPDX-License-Identifier: AGPL-3.0-or-later
"""The gate of the loop: may this artefact take the place of the one in use?

Three questions, each of which can say no. Is the file the model (export/check.py, for GGUF files)? Did
training make it worse by its own held-out rows (the run's before and after)? Does it still know what
the one in use knows: held-out tasks of the gym, and questions with known answers (probes.toml, or the user's
own), which a poisoned or overtrained model fails first. Both are asked the same, so they are compared in
pairs (eval/rates.py): `worse` means that it loses more than chance takes from equals. So that many small
losses do not add up, it is compared with the best of the versions that were in use before, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rusty_r2.agent.telling import counted
from rusty_r2.config import read
from rusty_r2.errors import ConfigError
from rusty_r2.eval.rates import Paired, Rate, paired
from rusty_r2.registry import Gate, Registry
from rusty_r2.run import noted

PROBES = Path(__file__).with_name("probes.toml")
ANSWER = 32
"""tokens of an answer to a probe"""
OUTCOMES = "outcomes"
"""what a version solved and what not, among its scores: a later one is compared with it"""
BEST_LEVEL = 0.01
"""for the best of many, which is also the luckiest of them"""
Outcomes = Mapping[str, Mapping[str, bool]]
"""measure -> question or task -> solved"""


@dataclass(frozen=True)
class Measured:
    """One measure of the old and the new."""

    name: str
    old: Mapping[str, bool]
    """each question or task that could be counted, and whether it was solved"""
    new: Mapping[str, bool]
    samples: list[dict[str, str]] = field(default_factory=list)
    """some answers of both, to read"""

    @property
    def pairs(self) -> Paired:
        return paired(self.old, self.new)

    @property
    def verdict(self) -> str:
        pairs = self.pairs
        return "worse" if pairs.worse() else "better" if pairs.better() else "no sure difference"

    def facts(self) -> dict[str, Any]:
        pairs = self.pairs
        return {
            "name": self.name,
            "old": _rate(pairs.old),
            "new": _rate(pairs.new),
            "lost": pairs.lost,
            "gained": pairs.gained,
            "verdict": self.verdict,
            "samples": self.samples,
            OUTCOMES: dict(self.new),
        }


def probe(files: dict[str, str], asked: Sequence[dict[str, Any]], threads: int = 0) -> Measured:
    """Ask the GGUF files `old` and `new` every probe, greedily, and count the right answers."""
    from rusty_r2.lm.llama import Llama

    answers: dict[str, list[str]] = {}
    for who in ("old", "new"):
        with Llama(files[who], context=512, threads=threads or None) as model:
            answers[who] = [
                model.chat([{"role": "user", "content": one["ask"]}], max_new_tokens=ANSWER).text
                for one in asked
            ]
            _say(f"   {counted(len(asked), 'question')} asked of the {who} one")
    right = {
        who: [is_right(text, one["any"]) for text, one in zip(said, asked, strict=True)]
        for who, said in answers.items()
    }
    order = sorted(range(len(asked)), key=lambda at: right["old"][at] == right["new"][at])
    samples = [
        {"asked": asked[at]["ask"], "old": answers["old"][at], "new": answers["new"][at]} for at in order[:8]
    ]
    solved = {who: {one["ask"]: good for one, good in zip(asked, right[who], strict=True)} for who in right}
    return Measured("questions with known answers", solved["old"], solved["new"], samples)


def questions(probes: str) -> list[dict[str, Any]]:
    """What `--probes` means: `shipped`, `none`, or the questions of a file."""
    return [] if probes == "none" else read_probes(PROBES if probes == "shipped" else Path(probes))


def read_probes(path: Path) -> list[dict[str, Any]]:
    """The questions of a file, checked."""
    found = read(path).get("probe")
    if not isinstance(found, list) or not found:
        raise ConfigError(f"{path} holds no [[probe]] with `ask` and `any`")
    for number, one in enumerate(found, 1):
        words = one.get("any")
        if not isinstance(one.get("ask"), str) or not isinstance(words, list) or not words:
            raise ConfigError(f"{path}, probe {number}: `ask` is a text and `any` a list of right words")
    return found


def is_right(answer: str, words: Sequence[str]) -> bool:
    """Whether one of the words stands in the answer as a word."""
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", answer, re.IGNORECASE) for word in words)


def play(old: str, new: str, count: int) -> list[Measured]:
    """Held-out tasks of the gym, the same for both."""
    from rusty_r2.eval import gym

    passed, samples = {}, []
    for who, address in (("old", old), ("new", new)):
        played = gym.counted(address, count, shown=2, longest=128, turns=3)
        passed[who] = {one.task.name: one.passed for one in played}
        samples.append({one.task.name: (one.replies or ("",))[0] for one in played[:4]})
        _say(f"   {counted(count, 'task')} played by the {who} one")
    told = [
        {"asked": name, "old": said, "new": samples[1].get(name, "")}
        for name, said in list(samples[0].items())[:4]
    ]
    return [Measured("held-out tasks of the gym", passed["old"], passed["new"], told)]


def conclude(
    sha256: str,
    *,
    file_problems: Sequence[str] = (),
    measured: Sequence[Measured] = (),
    run: dict[str, Any] | None = None,
    before: Mapping[str, Outcomes] | None = None,
) -> Gate:
    """All answers as one; `before` is what versions that were in use before solved, by their labels."""
    reasons = [*file_problems]
    worse = bool((run or {}).get("worse"))
    if worse:
        reasons.append("its own held-out rows: worse than its base")
    untried = [one.name for one in measured if not one.pairs.new.total]
    reasons += [f"{name}: nothing could be counted. Look at the sandbox: rusty doctor" for name in untried]
    for one in measured:
        pairs, (best, label) = one.pairs, _best(one, before or {})
        if pairs.worse():
            reasons.append(f"{one.name}: {pairs.new} where the one in use has {pairs.old}, {pairs}")
        elif best.worse(BEST_LEVEL):
            reasons.append(f"{one.name}: {best.new} where {label}, the best so far, had {best.old}, {best}")
        else:
            continue
        worse = True
    return Gate(not (file_problems or untried), sha256, worse, tuple(reasons))


def _best(one: Measured, before: Mapping[str, Outcomes]) -> tuple[Paired, str]:
    """This one beside that version of those before that solved most of the same things."""
    found = [(paired(kept.get(one.name, {}), one.new), label) for label, kept in before.items()]
    return max(found, key=lambda pair: pair[0].old.share, default=(paired({}, {}), ""))


def outcomes_before(registry: Registry, name: str) -> dict[str, Outcomes]:
    """What the versions solved that were in use and not rolled back, as far as it was kept."""
    current, earlier = registry.pointer(name)
    numbers = [*earlier, *([current] if current is not None else [])]
    versions = [one for one in registry.versions(name) if one.number in numbers]
    return {one.label: one.scores[OUTCOMES] for one in versions if OUTCOMES in one.scores}


def scores(facts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Measures (as their facts) as a record of the registry keeps them."""
    told = {
        one["name"]: {"this": one["new"], "in use then": one["old"], "verdict": one["verdict"]}
        for one in facts
    }
    return told | {OUTCOMES: {one["name"]: one[OUTCOMES] for one in facts}}


def run_facts(run: Path) -> dict[str, Any]:
    """What a training run noted about itself."""
    return noted(run / "run.json")


def _rate(rate: Rate) -> dict[str, Any]:
    return {"passed": rate.passed, "total": rate.total, "low": rate.low, "high": rate.high}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
