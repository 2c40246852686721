# SPDX-License-Identifier: AGPL-3.0-or-later
"""The two kinds of mind a loop can improve, each with its own way from rows to something that runs.

`Borrowed` is a Hugging Face base with LoRA: train (kto, sft, dpo, grpo) → merge → GGUF. `Own` is our RWKV:
supervised on good episodes, or PPO in the gym; its checkpoint is what runs, so there is nothing to merge.
Both return what the stage machinery keeps (stages.py) and can be called again after a kill.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rusty_r2 import files
from rusty_r2.errors import CheckpointError, ConfigError, TrainingError
from rusty_r2.loop import gate
from rusty_r2.loop.config import LoopConfig
from rusty_r2.loop.gathering import RowsAsked, make_episodes, make_rows
from rusty_r2.loop.stages import Made
from rusty_r2.registry import Registry, artefact_digest
from rusty_r2.run import newest

CONFIGS = {"kto": "KTOConfig", "sft": "SFTConfig", "dpo": "DPOConfig", "replay": "ReplayConfig"}
PASSED_ON = (
    "max_steps",
    "learning_rate",
    "batch_size",
    "accumulate",
    "max_length",
    "lora_r",
    "device",
    "seed",
)
"""options of the loop that training takes as they are; 0 leaves training's own default"""


class Mind(Protocol):
    """What the loop asks of a kind of mind."""

    def rows(self, folder: Path, traces: Path, judged: Path, asked: RowsAsked) -> Made: ...

    def train(self, folder: Path, rows: Path) -> Made: ...

    def merge(self, folder: Path, run: Path) -> Made: ...

    def export(self, folder: Path, merged: Path) -> Made: ...

    def gate(self, folder: Path, artefact: Path, merged: Path, run: Path) -> Made: ...


def mind_for(config: LoopConfig, registry: Registry) -> Mind:
    """The kind that the base is; a name stays with one kind, for old and new must be comparable."""
    current = registry.current(config.name)
    if current is not None and (current.kind == "rwkv") is not config.own:
        kind = "our own model" if current.kind == "rwkv" else "a GGUF file"
        raise ConfigError(f"{current.label} is {kind}, and --base {config.base} is not. Take another --name")
    if config.own:
        return Own(config, registry)
    _check_base(config.base)
    return Borrowed(config, registry)


def _check_base(name: str) -> None:
    """A slip is said before a round that was begun is changed for it."""
    from rusty_r2.lm import smollm2
    from rusty_r2.train.lora import find_base

    if name == smollm2.NAME:  # its folder takes half a minute to make: training does
        return
    try:
        find_base(name)
    except (CheckpointError, ConfigError) as error:
        raise type(error)(str(error).replace("--base-model", "--base")) from error


class Borrowed:
    """A Hugging Face model, improved with LoRA and served as a GGUF file."""

    def __init__(self, config: LoopConfig, registry: Registry) -> None:
        self.config, self.registry = config, registry

    def rows(self, folder: Path, traces: Path, judged: Path, asked: RowsAsked) -> Made:
        return make_rows(folder, traces, judged, asked)

    def train(self, folder: Path, rows: Path) -> Made:
        word = "replay" if self.config.method == "grpo" else self.config.method
        module = importlib.import_module(f"rusty_r2.train.{word}")
        given = {name: value for name in PASSED_ON if (value := getattr(self.config, name))}
        asked = getattr(module, CONFIGS[word])(
            data=rows, base_model=self.config.base, output_dir=folder / "run", resume="auto", **given
        )
        return _trained(Path(module.train(asked)))

    def merge(self, folder: Path, run: Path) -> Made:
        from rusty_r2.train.merge import merge_into

        made = merge_into(run, folder / "merged")
        return Made({"size": _size(made)}, (made,))

    def export(self, folder: Path, merged: Path) -> Made:
        from rusty_r2.export.gguf import suitable, write_gguf
        from rusty_r2.export.source import Source

        chosen = self.config.quantization
        if chosen == "auto":
            chosen = suitable(Source.open(merged))
        written = write_gguf(merged, folder / "model.gguf", chosen)
        facts = {
            "quantization": written.quantization,
            "size": written.size,
            "sha256": written.sha256,
            "parameters": written.parameters,
            "bits per weight": round(written.bits_per_weight, 3),
            "fallbacks": f"{written.fallbacks} of {written.matrices} matrices",
        }
        return Made(facts, (written.path,))

    def gate(self, folder: Path, artefact: Path, merged: Path, run: Path) -> Made:
        from rusty_r2.export.check import LEARNED, check

        report = check(artefact, merged, positions=self.config.positions)
        failed = [one for one in report.findings if not one.passed]
        problems = [f"{one.name}: {one.said}" for one in failed if one.name != LEARNED]  # the run says that
        old, name = self._in_use(folder, report.quantization)
        measured: list[gate.Measured] = []
        if not problems:  # a file that is not the model answers for nobody
            if asked := gate.questions(self.config.probes):
                measured.append(gate.probe({"old": str(old), "new": str(artefact)}, asked))
            if self.config.played:
                measured += gate.play(f"gguf:{old}", f"gguf:{artefact}", self.config.played)
        findings = [{"name": f.name, "passed": f.passed, "said": f.said} for f in report.findings]
        before = gate.outcomes_before(self.registry, self.config.name)
        said = _verdict(report.sha256, problems, measured, run, name, before)
        return Made({**said, "findings": findings})

    def _in_use(self, folder: Path, quantization: str) -> tuple[Path, str]:
        """The file to beat: the one in use, or the base as a file of the same type."""
        current = self.registry.current(self.config.name)
        if current is not None:
            return self.registry.resolve(self.config.name).path, current.label
        from rusty_r2.export.gguf import write_gguf

        base = self.config.base
        out = folder / "baseline.gguf"
        if not out.exists():
            write_gguf(_whole_base(base, folder), out, quantization)
        return out, f"the base, {base}"


class Own:
    """Our RWKV: its checkpoint is what runs."""

    def __init__(self, config: LoopConfig, registry: Registry) -> None:
        self.config, self.registry = config, registry

    def rows(self, folder: Path, traces: Path, judged: Path, asked: RowsAsked) -> Made:
        return make_episodes(folder, traces, judged, asked, needed=self.config.method != "ppo")

    def train(self, folder: Path, rows: Path) -> Made:
        start = self._start()
        if self.config.method == "ppo":
            from rusty_r2.train import ppo

            wanted = {
                "total_timesteps": self.config.max_steps,
                "num_steps": min(self.config.max_steps, ppo.PPOConfig.num_steps),  # few replies, one round
                "lr": self.config.learning_rate,
            }
            given: dict[str, Any] = {name: value for name, value in wanted.items() if value}
            asked = ppo.PPOConfig(
                init_checkpoint=start,
                checkpoints_dir=folder / "run",
                resume="auto",
                device=self.config.device,
                seed=self.config.seed,
                eval_tasks=max(1, self.config.played),
                **given,
            )
            run = Path(ppo.train(asked))
        else:
            from rusty_r2.train import supervised

            run = supervised.train(
                supervised.SupervisedConfig(
                    data_dir=rows,
                    init=start,
                    checkpoints_dir=folder / "run",
                    resume="auto",
                    max_steps=self.config.max_steps or 100,
                    lr=self.config.learning_rate or 3e-4,
                    batch_size=self.config.batch_size or 8,
                    seq_len=self.config.max_length or 512,
                    device=self.config.device,
                    seed=self.config.seed,
                )
            )
        return _trained(run)

    def merge(self, folder: Path, run: Path) -> Made:
        best = run / "best"
        found = best if any(best.glob("model*.safetensors")) else newest(run)
        if found is None:
            raise CheckpointError(f"{run} holds no whole checkpoint. Type: rusty loop again")
        return Made({"checkpoint": str(found), "note": "our own model has nothing to merge"})

    def export(self, folder: Path, merged: Path) -> Made:
        """The checkpoint without what only training needs."""
        from rusty_r2.agent.address import find
        from rusty_r2.train import ppo_state, resume

        left = {resume.TENSORS, resume.FACTS, ppo_state.MOMENTS, ppo_state.STATE, files.CHECKSUMS}
        out = folder / "model"
        if not out.exists():
            with files.whole_folder(out) as inside:
                for path in find(str(merged)).iterdir():
                    if path.is_file() and path.name not in left:
                        shutil.copyfile(path, inside / path.name)
        return Made({"sha256": artefact_digest(out), "size": _size(out)}, (out,))

    def gate(self, folder: Path, artefact: Path, merged: Path, run: Path) -> Made:
        current = self.registry.current(self.config.name)
        old = self.registry.resolve(self.config.name).address if current else str(self._start())
        name = current.label if current else f"where it started, {self.config.base}"
        measured = gate.play(old, str(artefact), max(1, self.config.played))
        before = gate.outcomes_before(self.registry, self.config.name)
        said = _verdict(artefact_digest(artefact), [], measured, run, name, before)
        return Made({**said, "findings": []})

    def _start(self) -> Path:
        from rusty_r2.agent.address import find

        current = self.registry.current(self.config.name)
        if current is not None:
            return self.registry.resolve(self.config.name).path
        return find(self.config.base)


def _whole_base(name: str, folder: Path) -> Path:
    """The base's weights: an adapter of an earlier run merged, a hub name where training has put it."""
    from rusty_r2.train.lora import find_base
    from rusty_r2.train.merge import merge_into

    base = find_base(name)
    if base.adapters:
        return merge_into(base.adapters[-1], folder / "baseline")
    if base.remote:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(base.path, local_files_only=True))
    return Path(base.path)


def _verdict(
    sha256: str,
    problems: Sequence[str],
    measured: Sequence[gate.Measured],
    run: Path,
    against: str,
    before: Mapping[str, gate.Outcomes],
) -> dict[str, Any]:
    facts = gate.run_facts(run)
    said = gate.conclude(sha256, file_problems=problems, measured=measured, run=facts, before=before)
    return {
        "passed": said.passed and not said.worse,
        "gate": {"passed": said.passed, "sha256": sha256, "worse": said.worse, "reasons": list(said.reasons)},
        "against": against,
        "measured": [one.facts() for one in measured],
    }


def _trained(run: Path) -> Made:
    """A run that came to its end; one that was stopped goes on when the loop does."""
    if gate.run_facts(run).get("ended") != "done" or newest(run) is None:
        raise TrainingError(
            f"training in {run} was stopped before its end, and saved. To go on, type: the same command again"
        )
    return Made(_told(run), (run,))


def _told(run: Path) -> dict[str, Any]:
    """What is worth telling of a run: how it ended, and what it says of itself before and after."""
    facts = gate.run_facts(run)
    kept = ("name", "ended", "started", "finished", "worse", "before_after", "git", "version")
    return {key: facts[key] for key in kept if key in facts}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
