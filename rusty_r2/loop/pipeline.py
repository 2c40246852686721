# SPDX-License-Identifier: AGPL-3.0-or-later
"""The documented class: from the traces of an agent to a model that Ollama runs.

    pipeline = TrainingPipeline(agent_name="isaa", base_model="Qwen/Qwen2.5-1.5B-Instruct", method="grpo")
    results = pipeline.run_full_pipeline(deploy_ollama=True)

It is `rusty loop` with the words of the document: each step is a stage of a round, the gate decides, and a
candidate that fails it is not deployed (results["promoted"] is False, results["reasons"] says why).
Single steps (`prepare_data`, `train`, `save`, `export_to_gguf`, `deploy_to_ollama`) go on from each other.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rusty_r2 import files
from rusty_r2.data import rows
from rusty_r2.data.pipeline import DatasetPipeline
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.loop.config import LoopConfig, Method
from rusty_r2.loop.minds import CONFIGS, PASSED_ON
from rusty_r2.loop.run import go

DEFAULT = "Qwen/Qwen2.5-1.5B-Instruct"


class TrainingPipeline:
    """Traces → rows → LoRA → merged → GGUF → gate → Ollama."""

    def __init__(
        self,
        agent_name: str,
        base_model: str = DEFAULT,
        output_dir: str | Path | None = None,
        method: Method = "grpo",
        **options: Any,
    ) -> None:
        """`options` are those of the loop (LoopConfig): max_steps, learning_rate, quantization, …"""
        self.agent_name = agent_name
        self.name = re.sub(r"[^A-Za-z0-9._-]", "-", agent_name).strip("-.") or "agent"
        self.base_model = base_model
        self.method: Method = method
        self.output_dir = Path(output_dir) if output_dir is not None else Path("loops") / self.name
        self.options = options
        self.data_path: Path | None = None
        self.run_path: Path | None = None
        self.model_path: Path | None = None
        self.gguf_path: Path | None = None

    def prepare_data(self, min_examples: int = 2) -> Path:
        """Write the rows of this agent's traces, and return the file."""
        data = DatasetPipeline(self.agent_name)
        out = self.output_dir / f"{self.method}.jsonl"
        examples: Sequence[Any]
        with contextlib.closing(data.store):
            if self.method == "kto":
                examples = data.build_kto_dataset(out)
            elif self.method == "grpo":
                examples = data.build_grpo_dataset(out)
            else:
                raise ConfigError(
                    f"the pipeline trains kto or grpo, not {self.method}. Type: rusty loop --help"
                )
        if len(examples) < min_examples:
            raise DataError(
                f"{len(examples)} rows came of the traces of {self.agent_name}; {min_examples} are needed. "
                "Type: rusty trace list"
            )
        self.data_path = out
        return out

    def train(
        self,
        dataset: str | Path | Sequence[dict[str, Any]] | None = None,
        reward_funcs: Sequence[Callable[..., Any]] | None = None,
        min_examples: int = 2,
    ) -> Path:
        """Train on the rows (those given, or of prepare_data); returns the run's folder."""
        _recorded_only(reward_funcs)
        if isinstance(dataset, (str, Path)):
            self.data_path = Path(dataset)
        elif dataset is not None:
            self.data_path = rows.save(iter(dataset), self.output_dir / f"{self.method}.jsonl")
        elif self.data_path is None:
            self.prepare_data(min_examples)
        word = "replay" if self.method == "grpo" else self.method
        module = importlib.import_module(f"rusty_r2.train.{word}")
        given = {name: value for name in PASSED_ON if (value := self.options.get(name))}
        config = getattr(module, CONFIGS[word])(
            data=self.data_path,
            base_model=self.base_model,
            output_dir=self.output_dir / "run",
            resume="auto",
            **given,
        )
        self.run_path = Path(module.train(config))
        return self.run_path

    def save(self, merge_lora: bool = True) -> Path:
        """The merged model's folder, or the adapter's."""
        from rusty_r2.train.merge import copy_adapter, find_adapter, merge_into

        run = self.run_path or self.train()
        target = self.output_dir / ("merged" if merge_lora else "adapter")
        made = merge_into(run, target) if merge_lora else copy_adapter(find_adapter(run), target)
        if merge_lora:
            self.model_path = made
        return made

    def export_to_gguf(self, quantization: str = "Q4_K_M") -> str:
        """The merged model as a GGUF file."""
        from rusty_r2.export.gguf import GGUFExporter

        model = self.model_path or self.save()
        self.gguf_path = Path(GGUFExporter(model, output_dir=self.output_dir).convert(quantization))
        return str(self.gguf_path)

    def deploy_to_ollama(self, model_name: str | None = None) -> str:
        """Check the file against the merged model and serve it; returns the name for `ollama run`."""
        from rusty_r2.export.check import check
        from rusty_r2.export.ollama import OllamaDeployer

        path = self.gguf_path or Path(self.export_to_gguf())
        report = check(path, self.model_path or self.output_dir / "merged")
        if not report.passed:
            raise ConfigError(f"{path} failed its check ({', '.join(report.failed)}) and is not deployed")
        return OllamaDeployer().create_model(model_name or self.name, path, replace=True)

    def run_full_pipeline(
        self, reward_funcs: Sequence[Callable[..., Any]] | None = None, deploy_ollama: bool = True
    ) -> dict[str, Any]:
        """One round of the loop; errors are raised, and the next call goes on where this one stopped."""
        _recorded_only(reward_funcs)
        asked = {"agent": self.agent_name, **self.options}
        config = LoopConfig(
            name=self.name,
            base=self.base_model,
            method=self.method,
            out=self.output_dir,
            ollama=deploy_ollama,
            **asked,
        )
        if deploy_ollama:
            from rusty_r2.export.ollama import OllamaDeployer

            OllamaDeployer(host=config.ollama_host or None).require_server()  # before minutes of work
        done = go(config)
        results = {
            "agent_name": self.agent_name,
            "method": self.method,
            "base_model": self.base_model,
            "promoted": done.promoted,
            "version": done.label,
            "in_use": done.in_use,
            "reasons": list(done.reasons),
            "ollama_model": done.deployed or None,
            "report": str(done.report),
            "round": str(done.folder),
            "stages": done.facts,
        }
        files.write(self.output_dir / "pipeline_results.json", json.dumps(results, indent=2) + "\n")
        return results


def _recorded_only(reward_funcs: Sequence[Callable[..., Any]] | None) -> None:
    """Rewards are questions to traces here; a function of TRL's kind belongs to online training."""
    if reward_funcs:
        raise ConfigError(
            "reward_funcs pay for new answers, and these were recorded. Make a BaseReward of it and give "
            "reward=('FILE.py:Class',), or train online: rusty train grpo --reward FILE.py:Class"
        )
