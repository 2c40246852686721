# SPDX-License-Identifier: AGPL-3.0-or-later
"""`rusty models`: the commands of the registry.

rusty models                    every model: version in use, size, where it comes from, its gate
rusty models agent              one of them: versions, lineage, history
rusty models add FILE --name agent
rusty models promote agent      put the newest version in use, if its gate is green
rusty models rollback agent     back to the one before, also where it is served
rusty models gc --dry-run       what could be thrown away
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rusty_r2.errors import ConfigError
from rusty_r2.registry import Gate, Registry, RegistryError, Version, artefact_digest
from rusty_r2.run import LINEAGE, newest, noted

WORSE = ("tasks", "training")
"""questions of the gate that compare with another model: the one in use, the base"""


@dataclass(frozen=True)
class ModelsConfig:
    name: Annotated[str, tyro.conf.Positional] = ""
    """one model, in full; all of them where not given"""
    json: bool = False
    """print for scripts"""


def show(config: ModelsConfig) -> str:
    """What was trained, from what, how it scored, and which one is in use."""
    registry = Registry()
    if config.name:
        registry.version(config.name)
        told = _everything(registry, config.name)
        return json.dumps(told, indent=1) if config.json else _one(registry, config.name)
    names = registry.names()
    if config.json:
        return json.dumps([_everything(registry, name) for name in names], indent=1)
    if not names:
        return f"{registry.root} holds no models yet\nnext: rusty loop --help"
    rows = [("model", "in use", "versions", "kind", "size", "from", "gate", "served")]
    return _columns([*rows, *(_row(registry, name) for name in names)]) + f"\nnext: rusty models {names[0]}"


@dataclass(frozen=True)
class AddConfig:
    artefact: Annotated[Path, tyro.conf.Positional]
    """a GGUF file (its NAME.check.json is read), or a run or checkpoint of our own model"""
    name: str
    """the model it is a version of"""
    base: str = ""
    """what it was made from, for the record"""
    tasks: int = 0
    """held-out tasks of the gym that a checkpoint of ours plays against the one in use: its gate"""


def add(config: AddConfig) -> str:
    """Take an artefact into the registry; it is not in use yet."""
    path, registry = _artefact(config.artefact), Registry()
    scores: dict[str, Any] = {}
    if path.is_file():
        gate = gate_of(path)
    else:
        gate, scores = _played(registry, config.name, path, config.tasks)
    lineage = {"base": config.base, "added from": str(path)}
    made = registry.add(config.name, path, gate=gate, lineage=lineage, scores=scores)
    said = f"{made.label} ({_mb(made.size)})\n{registry.folder_of(made)}"
    after = f"rusty models {made.name}" if _refused(made) else f"rusty models promote {made.name}"
    return f"{said}\nnext: {after}"


@dataclass(frozen=True)
class PromoteConfig:
    name: Annotated[str, tyro.conf.Positional]
    """the model"""
    version: int | None = None
    """which version; the newest where not given"""


def promote(config: PromoteConfig) -> str:
    """Put a version in use, here and where it is served. It must have passed the gate, as it is now."""
    registry = Registry()
    with registry.locked(config.name):
        served = redeploy(registry, registry.allowed(config.name, config.version))
        made = registry.promote(config.name, config.version)
        path = registry.resolve(config.name).path
    return "\n".join([f"{made.label} is in use", *served, str(path), f"next: rusty chat --model {made.name}"])


@dataclass(frozen=True)
class RollbackConfig:
    name: Annotated[str, tyro.conf.Positional]
    """the model"""


def rollback(config: RollbackConfig) -> str:
    """Back to the version that was in use before, here and where it is served."""
    registry = Registry()
    with registry.locked(config.name):
        served = redeploy(registry, registry.previous(config.name))
        made = registry.rollback(config.name)
        path = registry.resolve(config.name).path
    return "\n".join([f"{made.label} is in use again", *served, str(path), f"next: rusty models {made.name}"])


def redeploy(registry: Registry, version: Version) -> list[str]:
    """Serve `version` where its model is served; what was done, in lines.

    Comes before the pointer moves, under the same lock: killed in between, the same command does the whole
    again, and two at once come one after the other."""
    where = registry.deployed(version.name)
    if not where or version.kind != "gguf":
        return []
    from rusty_r2.export.hosting import OllamaHostingProfile
    from rusty_r2.export.ollama import OllamaDeployer

    deployer = OllamaDeployer(host=where["host"])
    path = registry.folder_of(version) / version.file
    said = dict(where["said"])
    profile = OllamaHostingProfile(**said.pop("profile")) if said.get("profile") else None
    deployer.create_model(where["model"], path, replace=True, profile=profile, **said)
    registry.note_deployed(
        version.name, version.number, host=where["host"], model=where["model"], said=where["said"]
    )
    return [f"{where['host']} serves {version.label} as {where['model']}"]


@dataclass(frozen=True)
class CollectConfig:
    name: Annotated[str, tyro.conf.Positional] = ""
    """only this model"""
    keep: int = 1
    """versions before the one in use that stay, for a rollback"""
    dry_run: bool = False
    """only say what would go"""

    def __post_init__(self) -> None:
        if self.keep < 0:
            raise ConfigError("--keep is 0 or more")


def collect(config: CollectConfig) -> str:
    """Remove the weights of versions nobody needs; records and history stay."""
    registry = Registry()
    names = [config.name] if config.name else registry.names()
    found = [one for name in names for one in registry.collect(name, keep=config.keep)]
    sizes = [registry.weight(one) for one in found]
    lines = [f"{one.label:<30} {_mb(n):>12}  {_gate(one)}" for one, n in zip(found, sizes, strict=True)]
    if not config.dry_run:
        for one in found:
            registry.forget_weights(one)
    verb = "would be freed" if config.dry_run else "freed"
    after = "rusty models gc" if config.dry_run and found else "rusty models"
    return "\n".join([*lines, f"{len(found)} versions, {_mb(sum(sizes))} {verb}", f"next: {after}"])


def gate_of(file: Path) -> Gate | None:
    """What `rusty export check` left beside a GGUF file; None where it left nothing."""
    kept = file.with_suffix(".check.json")
    try:
        said = json.loads(kept.read_text(encoding="utf-8"))
        failed = [one for one in said["findings"] if not one["passed"]]
        asked = [one for one in failed if not str(one["said"]).startswith("not asked")] or failed
        reasons = tuple(f"{one['name']}: {one['said']}" for one in asked)
        worse = any(one["name"] in WORSE for one in failed)
        return Gate(bool(said["passed"]), str(said["sha256"]), worse, reasons)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RegistryError(
            f"{kept} is no answer of the gate: {error}. Type: rusty export check {file}"
        ) from error


def _played(registry: Registry, name: str, folder: Path, tasks: int) -> tuple[Gate | None, dict[str, Any]]:
    """The gate of a checkpoint of ours: it plays, and not worse than the one in use."""
    if not tasks:
        return None, {}
    from rusty_r2.loop.gate import conclude, outcomes_before, play, scores

    current = registry.current(name) if name in registry.names() else None
    old = registry.resolve(name).address if current else str(folder)
    measured = play(old, str(folder), tasks)
    told = noted(folder / LINEAGE)  # of an adapter that was merged into it
    before = outcomes_before(registry, name)
    gate = conclude(artefact_digest(folder), measured=measured, run=told, before=before)
    return gate, scores([one.facts() for one in measured])


def _artefact(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise ConfigError(f"{path} does not exist. Type: rusty export gguf --help")
    if any(path.glob("model*.safetensors")):
        return path
    best = path / "best"
    found = best if any(best.glob("model*.safetensors")) else newest(path)
    if found is None:
        raise ConfigError(f"{path} holds no weights. Type: ls {path}")
    artefact_digest(found)
    return found


def _everything(registry: Registry, name: str) -> dict[str, Any]:
    current = registry.current(name)
    return {
        "name": name,
        "current": current.number if current else None,
        "versions": [asdict(one) for one in registry.versions(name)],
        "deployed": registry.deployed(name),
        "history": registry.history(name),
    }


def _row(registry: Registry, name: str) -> tuple[str, ...]:
    current, known = registry.current(name), registry.versions(name)
    shown = current or known[-1]
    where = registry.deployed(name)
    served = f"{where['model']} @{where['version']} ({where['host']})" if where else "-"
    use = f"@{current.number}" if current else "-"
    base = str(shown.lineage.get("base") or "-")
    return (name, use, str(len(known)), shown.kind, _mb(shown.size), base, _gate(shown), served)


def _one(registry: Registry, name: str) -> str:
    from rusty_r2.loop.gate import OUTCOMES

    current = registry.current(name)
    lines = []
    for one in registry.versions(name):
        mark = "*" if current and one.number == current.number else " "
        gone = " (weights collected)" if one.collected else ""
        lines.append(f"{mark} @{one.number}  {one.kind}  {_mb(one.size)}  {one.created}  {_gate(one)}{gone}")
        lines += [
            f"      {key}: {_short(value)}"
            for key, value in (one.lineage | one.scores).items()
            if value and key != OUTCOMES
        ]
    lines.append("history:")
    for event in registry.history(name):
        more = ", ".join(
            f"{k} {_short(v)}" for k, v in event.items() if k not in ("at", "what", "version", "said")
        )
        lines.append(f"  {event['at']}  {event['what']} @{event['version']}  {more}".rstrip())
    return "\n".join([*lines, f"next: {_after(registry, name)}"])


def _after(registry: Registry, name: str) -> str:
    """What to type once a model was looked at; nothing that would be refused."""
    current, earlier = registry.pointer(name)
    if current is not None:
        return f"rusty models rollback {name}" if earlier else f"rusty chat --model {name}"
    return f"rusty loop --name {name}" if _refused(registry.version(name)) else f"rusty models promote {name}"


def _refused(version: Version) -> bool:
    """Whether a promotion would be in vain."""
    return _gate(version) in ("worse", "failed")


def _gate(version: Version) -> str:
    gate = version.gate
    if gate is None:
        return "not tried"
    return "green" if gate.passed and not gate.worse else "worse" if gate.worse else "failed"


def _short(value: Any) -> str:
    """In a line: a rate as `20 of 32`, anything else as it is, cut where it is long."""
    if isinstance(value, dict) and set(value) >= {"passed", "total"}:
        return f"{value['passed']} of {value['total']}"
    if isinstance(value, dict) and "this" in value:
        return ", ".join(f"{name} {_short(one)}" for name, one in value.items())
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else text[:99] + "…"


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _columns(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )
