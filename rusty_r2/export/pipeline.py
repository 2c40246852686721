# SPDX-License-Identifier: AGPL-3.0-or-later
"""From a merged model to one that Ollama runs, in one call.

    results = ExportPipeline("./merged-model", "toolbox-agent").run("Q4_K_M")
    quick_export("./merged-model", "toolbox-agent", "Q4_K_M")

Convert, check the file against the model it came from, deploy. A file that fails its check is not deployed.
The constructor does nothing; what happened is kept in export_results.json beside the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rusty_r2 import files
from rusty_r2.config import resolved
from rusty_r2.errors import CheckpointError
from rusty_r2.export.check import check
from rusty_r2.export.gguf import GGUFExporter
from rusty_r2.export.hosting import OllamaHostingProfile, named_profile
from rusty_r2.export.ollama import OllamaDeployer


class ExportPipeline:
    """The documented door: GGUF file, check, Ollama."""

    def __init__(
        self, model_path: str | Path, model_name: str = "toolbox-agent", output_dir: str | Path | None = None
    ) -> None:
        self.model_path = Path(model_path)
        self.model_name = model_name
        self.output_dir = Path(output_dir) if output_dir is not None else Path("exports") / model_name
        self.deployer = OllamaDeployer()

    def run(
        self,
        quantization: str = "Q4_K_M",
        system_prompt: str = "",
        hosting_profile: str | OllamaHostingProfile = "auto",
        *,
        positions: int = 256,
        replace: bool = True,
    ) -> dict[str, Any]:
        """Export, check and deploy; returns paths, names and what the check found."""
        profile = named_profile(hosting_profile) if isinstance(hosting_profile, str) else hosting_profile
        self.deployer.require_server()  # before minutes of work
        exporter = GGUFExporter(self.model_path, output_dir=self.output_dir)
        path = Path(exporter.convert(quantization))
        report = check(path, self.model_path, positions=positions)
        if not report.passed:
            raise CheckpointError(
                f"{path} is not the model: {', '.join(report.failed)} failed. "
                f"Type: rusty export check {path} --against {self.model_path}"
            )
        name = self.deployer.create_model(
            self.model_name, path, system_prompt, profile=profile, replace=replace
        )
        files.write(self.output_dir / "hosting_profile.json", json.dumps(resolved(profile), indent=2) + "\n")
        results = {
            "gguf_path": str(path),
            "ollama_model": name,
            "quantization": report.quantization,
            "sha256": report.sha256,
            "size": path.stat().st_size,
            "hosting_profile": resolved(profile),
            "check": {one.name: one.said for one in report.findings},
            "run": f"ollama run {name}",
        }
        files.write(self.output_dir / "export_results.json", json.dumps(results, indent=2) + "\n")
        return results


def quick_export(
    model_path: str | Path, model_name: str = "toolbox-agent", quantization: str = "Q4_K_M"
) -> str:
    """Export and deploy with what suits this machine; returns the name for `ollama run`."""
    return str(ExportPipeline(model_path, model_name).run(quantization)["ollama_model"])
