# SPDX-License-Identifier: AGPL-3.0-or-later
"""`rusty loop`: the whole circle, one round at a time.

    rusty loop --name agent --base smollm2 --method kto
    collect → reward → rows → train → merge → export → gate → promote or keep the old one → deploy → report

Each stage is a folder of the round (stages.py); killed anywhere, the same command goes on where it was. The
model in use changes in two places only, both in one step: the pointer of the registry, and the name on
the server. A candidate that fails the gate is kept with the reasons and never used. Read `go` first.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rusty_r2 import files
from rusty_r2.agent.telling import counted
from rusty_r2.config import resolved
from rusty_r2.errors import ConfigError
from rusty_r2.hardware import EFFECTIVE_BATCH
from rusty_r2.loop import demo, gathering
from rusty_r2.loop.config import LoopConfig
from rusty_r2.loop.gate import questions, scores
from rusty_r2.loop.gathering import RowsAsked
from rusty_r2.loop.minds import Mind, mind_for
from rusty_r2.loop.report import write_report
from rusty_r2.loop.stages import Done, Made, Stages, alone
from rusty_r2.registry import Gate, Registry, RegistryError
from rusty_r2.run import noted

FINISHED = "finished.json"
FEW_STEPS = 5
"""fewer hardly change a model, and the gate takes minutes all the same"""
LEARNS = ("max_steps", "learning_rate", "batch_size", "accumulate", "max_length", "lora_r", "seed")


@dataclass(frozen=True)
class Outcome:
    """How a round ended."""

    folder: Path
    promoted: bool
    label: str
    """the candidate"""
    in_use: str
    """the version in use now; empty where there is none"""
    reasons: tuple[str, ...]
    report: Path
    deployed: str
    """the name on the Ollama server; empty where it is not served"""
    facts: dict[str, dict[str, Any]]
    """what each stage found out"""


def loop(config: LoopConfig) -> str:
    """Go round once, or finish the round that was begun."""
    try:
        done = go(config)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{config.folder} keeps what is done, the same command goes on") from None
    if done.promoted:
        said = f"{done.label} is better or as good, and in use"
        after = f"rusty chat --model {config.name}"
    else:
        kept = f"{done.in_use} stays in use" if done.in_use else "nothing is in use"
        said = f"{done.label} is refused: {'; '.join(done.reasons)}\n{kept}"
        after = f"rusty models {config.name}"
    served = [f"next: ollama run {done.deployed}"] if done.deployed else [f"next: {after}"]
    return "\n".join([said, str(done.report), *served])


def go(config: LoopConfig, *, registry: Registry | None = None, mind: Mind | None = None) -> Outcome:
    """One round."""
    registry = registry or Registry()
    mind = mind or mind_for(config, registry)
    questions(config.probes)  # a file that cannot be read is said now, not after the training
    _check_source(config)
    with alone(config.folder):
        folder = open_round(config)
        stages = Stages(folder, _say)
        traces = stages.run("collect", _asked_of_collect(config), lambda at: _collect(at, config, registry))
        judged = stages.run(
            "reward", {"traces": traces.digest, "reward": config.reward},
            lambda at: gathering.reward(at, traces.output, config.traces()),
        )  # fmt: skip
        wanted = RowsAsked(config.method, config.traces(), config.balance, config.max_rows)
        rows = stages.run(
            "rows", {"judged": judged.digest, "asked": wanted},
            lambda at: mind.rows(at, traces.output, judged.output, wanted),
        )  # fmt: skip
        options = {name: getattr(config, name) for name in LEARNS}
        trained = stages.run(
            "train", {"rows": rows.digest, "base": config.base, "method": config.method, **options},
            lambda at: _train(mind, at, rows, config),
        )  # fmt: skip
        run = trained.output
        merged = stages.run("merge", {"run": trained.digest}, lambda at: mind.merge(at, run))
        weights = merged.output if merged.outputs else run
        exported = stages.run(
            "export", {"merged": merged.digest, "type": config.quantization},
            lambda at: mind.export(at, weights),
        )  # fmt: skip
        tried = _asked_of_gate(config, exported, registry)
        gated = stages.run(
            "gate", tried,
            lambda at: mind.gate(at, exported.output, weights, run),
        )  # fmt: skip
        chosen = stages.run(
            "promote", {"gate": gated.digest},
            lambda at: _promote(config, registry, exported, tried, stages.done),
        )  # fmt: skip
        served = stages.run(
            "deploy", {"promoted": chosen.digest, "ollama": config.ollama, "host": config.ollama_host},
            lambda at: _deploy(config, registry, chosen.facts),
        )  # fmt: skip
        return _finish(config, registry, folder, stages.done, chosen, served)


def open_round(config: LoopConfig) -> Path:
    """The round that was begun and not finished, or a new one."""
    from rusty_r2.store import without_password

    folder = _round(config.folder)
    folder.mkdir(parents=True, exist_ok=True)
    said = resolved(config) | {"store": without_password(config.store)}
    files.write(folder / "config.json", json.dumps(said, indent=2) + "\n")
    return folder


def _round(root: Path) -> Path:
    """The folder of the round that is due."""
    found = {path.name.removeprefix("round-"): path for path in root.glob("round-*/")}
    rounds = {int(number): path for number, path in found.items() if number.isdecimal()}
    newest = max(rounds, default=0)
    begun = newest in rounds and not (rounds[newest] / FINISHED).exists()
    return rounds[newest] if begun else root / f"round-{newest + 1:03d}"


def _check_source(config: LoopConfig) -> None:
    """Before anything is made or emptied; a round that was begun with this source has its traces already."""
    source = config.source
    if source is None or str(source) in demo.WORDS or source.exists():
        return
    if noted(_round(config.folder) / "config.json").get("source") == str(source):
        return
    raise ConfigError(
        f"--source {source} does not exist: a folder or file of traces, or the word demo. "
        "Type: rusty loop --source demo"
    )


def _asked_of_collect(config: LoopConfig) -> dict[str, Any]:
    names = ("source", "store", "agent", "play", "least")
    return {name: getattr(config, name) for name in names}


def _asked_of_gate(config: LoopConfig, exported: Done, registry: Registry) -> dict[str, Any]:
    """A round whose gate was passed must pass again when somebody promoted another model meanwhile."""
    asked = {"artefact": exported.digest, "probes": questions(config.probes), "tasks": config.played}
    number, before = registry.pointer(config.name)
    if number and registry.version(config.name, number).sha256 == exported.facts.get("sha256"):
        number = before[-1] if before else None  # this very artefact was promoted: it was tried against that
    in_use = registry.version(config.name, number).sha256 if number else None
    return asked | {"positions": config.positions, "in use": in_use}


def _collect(folder: Path, config: LoopConfig, registry: Registry) -> Made:
    if config.play:
        current = registry.current(config.name)
        address = registry.resolve(config.name).address if current else _address(config)
        gathering.play(folder, address, config.play, config.store, config.agent, config.seed)
    wanted = config.traces()
    if str(wanted.source) in demo.WORDS and not Path(str(wanted.source)).exists():
        wanted = replace(wanted, source=demo.write(folder, str(wanted.source)))
    return gathering.collect(folder, wanted, least=config.least)


def _address(config: LoopConfig) -> str:
    return config.base if config.own else f"hf:{config.base}"


def _train(mind: Mind, folder: Path, rows: Done, config: LoopConfig) -> Made:
    """The longest stages begin here, so what is hardly worth them is said now."""
    from rusty_r2.train.progress import as_a_stage

    count = rows.facts["rows"]
    steps = -(-count // max(config.batch_size * config.accumulate or EFFECTIVE_BATCH, config.batch_size))
    if config.method in ("kto", "sft", "dpo") and not (config.own or config.max_steps) and steps < FEW_STEPS:
        _say(
            f"   {counted(count, 'row')} make {counted(steps, 'step')} of training, which changes little. "
            f"More traces or labels: rusty web, --play 100; more passes over these: --max-steps 20"
        )
    with as_a_stage():
        return mind.train(folder, rows.outputs[0])


def _promote(
    config: LoopConfig, registry: Registry, exported: Done, tried: dict[str, Any], done: list[Done]
) -> Made:
    """Into the registry either way; in use only with a green gate, over the one it was tried against."""
    with registry.locked(config.name, new=True):
        if _asked_of_gate(config, exported, registry) != tried:
            raise RegistryError(
                f"another version of {config.name} was promoted meanwhile. The same command tries against it"
            )
        return _enter(config, registry, exported, done)


def _enter(config: LoopConfig, registry: Registry, exported: Done, done: list[Done]) -> Made:
    facts = {one.name: one.facts for one in done}
    said = facts["gate"]["gate"]
    gate = Gate(said["passed"], said["sha256"], said["worse"], tuple(said["reasons"]))
    before = registry.current(config.name)
    made = registry.add(
        config.name,
        exported.output,
        gate=gate,
        lineage=_lineage(config, done),
        scores={**scores(facts["gate"]["measured"]), "compared with": facts["gate"]["against"]},
    )
    promoted, why = False, "" if gate.reasons else _doubt(facts["train"], config.name)
    try:
        if not why:
            registry.promote(config.name, made.number)
            promoted = True
    except RegistryError:
        if not gate.reasons:  # no word of the gate: the registry itself is in trouble
            raise
    reasons = list(gate.reasons) or ([why] if why else [])
    return Made(
        {
            "promoted": promoted,
            "version": made.number,
            "label": made.label,
            "reasons": [] if promoted else reasons,
            "before": before.label if before and before.number != made.number else "",
        }
    )


def _doubt(trained: dict[str, Any], name: str) -> str:
    """Why a candidate with a green gate is left to a person; empty where it is not."""
    compared = trained.get("before_after") or {}
    if not compared.get("doubtful"):
        return ""
    rows = f"its own {compared['rows']} held-out rows: below its base, perhaps by chance"
    return f"{rows}. If you want it: rusty models promote {name}"


def _lineage(config: LoopConfig, done: list[Done]) -> dict[str, Any]:
    """From traces to file, each with its digest."""
    by = {one.name: one for one in done}
    return {
        "base": config.base,
        "method": config.method,
        "traces": {"count": by["collect"].facts["traces"], "digest": by["collect"].digest[:16]},
        "rows": {"count": by["rows"].facts["rows"], "digest": by["rows"].digest[:16]},
        "run": str(by["train"].outputs[0]),
        "round": str(by["collect"].folder.parent),
    }


def _deploy(config: LoopConfig, registry: Registry, chosen: dict[str, Any]) -> Made:
    if not config.ollama:
        return Made({"deployed": "", "why": "not asked for"})
    if not chosen["promoted"]:
        return Made({"deployed": "", "why": "nothing was promoted"})
    if registry.version(config.name, chosen["version"]).kind != "gguf":
        return Made({"deployed": "", "why": "our own model runs by itself: rusty chat"})
    with registry.locked(config.name):
        return _serve(config, registry, chosen["version"])


def _serve(config: LoopConfig, registry: Registry, number: int) -> Made:
    """What is served is what is in use: somebody may have gone back meanwhile."""
    model = registry.resolve(config.name)
    if model.version.number != number:
        return Made({"deployed": "", "why": f"{model.version.label} is in use meanwhile"})
    from rusty_r2.export.hosting import auto_profile
    from rusty_r2.export.ollama import OllamaDeployer

    deployer = OllamaDeployer(host=config.ollama_host or None)
    said: dict[str, Any] = {"system_prompt": config.system}
    profile = auto_profile()
    deployer.create_model(config.name, model.path, replace=True, profile=profile, **said)
    where = {"host": deployer.server.url, "model": config.name}
    registry.note_deployed(config.name, number, said={**said, "profile": resolved(profile)}, **where)
    return Made({"deployed": config.name, **where})


def _finish(
    config: LoopConfig, registry: Registry, folder: Path, done: list[Done], chosen: Done, served: Done
) -> Outcome:
    current = registry.current(config.name)
    report = write_report(folder, in_use=current.label if current else "")
    outcome = Outcome(
        folder,
        chosen.facts["promoted"],
        chosen.facts["label"],
        current.label if current else "",
        tuple(chosen.facts["reasons"]),
        report,
        served.facts["deployed"],
        {one.name: one.facts for one in done},
    )
    files.write(folder / FINISHED, json.dumps({"promoted": outcome.promoted, "label": outcome.label}) + "\n")
    if not config.keep:
        _tidy(folder)
    return outcome


def _tidy(folder: Path) -> None:
    """What only this round needed: the merged weights, the base as a file. The registry has the artefact."""
    for path in (*folder.glob("[0-9]*-merge/merged"), *folder.glob("[0-9]*-gate/baseline*")):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
