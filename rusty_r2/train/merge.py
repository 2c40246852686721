# SPDX-License-Identifier: AGPL-3.0-or-later
"""An adapter and its base become one model folder, with a card that says where everything came from.

    rusty train merge runs/kto-1                   runs/kto-1/merged, read by from_pretrained and the export
    rusty train merge runs/kto-1 --adapter-only    runs/kto-1/adapter, to share without the base

The card follows the line back: traces, rows (their digest), options, adapter, merged model, and the table of
before and after. A result that is worse than its base carries that sentence with it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rusty_r2 import files
from rusty_r2.errors import CheckpointError, ConfigError
from rusty_r2.run import LINEAGE, checkpoints, newest, noted
from rusty_r2.train import lora

ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
STATS = "training_stats.json"
"""what `RLTrainer.save_model` puts beside a model"""
SMALL = 16_000_000
"""bytes for tokenizer and card"""
WORDS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


@dataclass(frozen=True)
class MergeConfig:
    """Make one model of an adapter and its base."""

    run: Annotated[Path, tyro.conf.Positional]
    """a run of `rusty train kto, sft, dpo, grpo`, or one of its checkpoints"""
    output: Path | None = None
    """where to; default: RUN/merged, or RUN/adapter"""
    adapter_only: bool = False
    """the adapter alone, with tokenizer and card"""


def merge(config: MergeConfig) -> Path:
    """Merge, or copy the adapter, and return the folder."""
    adapter = find_adapter(config.run)
    name = "adapter" if config.adapter_only else "merged"
    home = config.run if checkpoints(config.run) else config.run.parent
    target = config.output or home / name
    if config.adapter_only:
        return copy_adapter(adapter, target)
    made = merge_into(adapter, target)
    print(f"next: rusty export gguf {made}")
    return made


def find_adapter(path: Path) -> Path:
    """The newest adapter of a run, or the one named."""
    found = newest(path) if checkpoints(path) else path
    if found is None or not all((found / name).is_file() for name in ADAPTER):
        raise CheckpointError(f"{path} holds no LoRA adapter. Type: rusty train kto --help")
    return found


def merge_into(path: Path, target: Path) -> Path:
    """Base plus adapter as one model at `target`, whole or not there."""
    adapter = find_adapter(path)
    _refuse_to_lose(target)
    options = lora.LoraOptions(base_model=str(adapter), device="cpu", precision="fp32")
    model, tokenizer = lora.open_model(options)
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    _enough_room(adapter, target, weights)
    with files.whole_folder(target) as folder:
        _save(model, tokenizer, folder)
        facts = _facts(adapter)
        facts["merged"] = files.digest(next(folder.glob("*.safetensors")))
        (folder / "README.md").write_text(card(facts, merged=True), encoding="utf-8")
        (folder / LINEAGE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return target


def _refuse_to_lose(target: Path) -> None:
    if not files.may_replace(target, also=[STATS]):
        raise ConfigError(f"{target} holds other files, which would be lost. Type: --output NEW_FOLDER")


def _enough_room(adapter: Path, target: Path, needed: int, more: str = "") -> None:
    """ConfigError, before anything is written; the command in it helps whoever asked for the merge."""
    place = next(path for path in (target.absolute(), *target.absolute().parents) if path.exists())
    free, needed = shutil.disk_usage(place).free, int(needed * 1.02) + SMALL
    if free < needed:
        raise ConfigError(
            f"{place} has {free // 10**6:,} MB free and {target.name} needs {needed // 10**6 + 1:,}. "
            f"Free some, or name another disk: rusty train merge {adapter}{more} --output FOLDER"
        )


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    if model.config.model_type in lora.TARGETS:  # our own kind: a checkpoint `rusty lm generate` reads, too
        from rusty_r2.lm import checkpoint
        from rusty_r2.lm.rwkv import TinyRWKVLM

        own = TinyRWKVLM(**vars(model.config.sizes()))
        own.load_state_dict(model.state_dict())
        tokenizer.save_pretrained(folder)
        checkpoint.save(folder, own, tokenizer=folder)
        return
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def copy_adapter(path: Path, target: Path) -> Path:
    """The adapter alone at `target`, with tokenizer and card."""
    adapter = find_adapter(path)
    _refuse_to_lose(target)
    wanted = [path for name in (*ADAPTER, *WORDS) if (path := adapter / name).is_file()]
    _enough_room(adapter, target, sum(path.stat().st_size for path in wanted), " --adapter-only")
    with files.whole_folder(target) as folder:
        for path in wanted:
            shutil.copy2(path, folder / path.name)
        (folder / "README.md").write_text(card(_facts(adapter)), encoding="utf-8")
    return target


def write_card(run: Path) -> Path:
    """The card of a run, beside its checkpoints."""
    return files.write(run / "README.md", card(_facts(find_adapter(run))))


def _facts(adapter: Path) -> dict[str, Any]:
    """What the run's folder knows about an adapter; an adapter from elsewhere knows its base alone."""
    told = noted(adapter.parent / "run.json")
    config = adapter.parent / "config.json"
    known = (
        "name",
        "base",
        "dataset",
        "lineage",
        "worse",
        "before_after",
        "version",
        "git",
        "seed",
        "libraries",
    )
    return {
        **{key: told[key] for key in known if key in told},
        "base": told.get("base") or noted(adapter / ADAPTER[0]).get("base_model_name_or_path", ""),
        "config": files.digest(config) if config.is_file() else "",
        "adapter": files.digest(adapter / ADAPTER[1]),
        "step": adapter.name,
    }


def card(facts: dict[str, Any], *, merged: bool = False) -> str:
    """The model card: what it is, where it came from, what it is worth."""
    lineage = facts.get("lineage", {})
    base = Path(str(facts["base"])).name if Path(str(facts["base"])).is_absolute() else facts["base"]
    line = [
        f"{lineage.get('traces', 0)} traces `{lineage.get('traces_digest') or 'unknown'}`",
        f"{lineage.get('rows', 0)} rows `{str(facts.get('dataset', 'unknown'))[:16]}`",
        f"options `{facts['config'][:16] or 'unknown'}`",
        f"adapter `{facts['adapter'][:16]}` ({facts['step']})",
        *([f"merged `{facts['merged'][:16]}`"] if merged else []),
    ]
    head = ["---", f"base_model: {base}", f"library_name: {'transformers' if merged else 'peft'}"]
    parts = [
        "\n".join([*head, f"tags: [rusty-r2, {facts.get('name', 'lora')}, lora]", "---"]),
        f"# {base}, trained with {facts.get('name', 'LoRA')}",
        "Lineage: " + " → ".join(line),
        f"Made by rusty-r2 {facts.get('version', '')} (seed {facts.get('seed')}).",
        _table(facts),
        "**Worse than its base on held-out rows: not to be promoted.**" if facts.get("worse") else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(facts: dict[str, Any]) -> str:
    compared = facts.get("before_after") or {}
    lines = [
        f"| {name} | " + " | ".join(f"{n[0]:.3f} ({n[1]:.3f} to {n[2]:.3f})" for n in numbers.values()) + " |"
        for name, numbers in compared.items()
        if isinstance(numbers, dict)
    ]
    if not lines:
        return ""
    what = "held-out" if compared.get("held_out") else "training"
    head = [f"| {compared.get('rows')} {what} rows | base | result | change |", "|---|--:|--:|--:|"]
    return "\n".join([*head, *lines])
