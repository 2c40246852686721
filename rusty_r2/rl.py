# SPDX-License-Identifier: AGPL-3.0-or-later
"""The public names of the agent-RL pipeline in one place.

    from rusty_r2.rl import TraceCollector, RewardEngine, DatasetPipeline

A name is imported when it is first asked for, so that `import rusty_r2.rl` costs nothing and a part
whose libraries are not installed is only missed by who uses it. `MODULES` is the whole list.
"""

from __future__ import annotations

import importlib
from typing import Any

MODULES = {
    "rusty_r2.agent.agent": ("RustyAgent",),
    "rusty_r2.hardware": (
        "HardwareConfig",
        "HardwareProfile",
        "detect_hardware",
        "get_ryzen_optimized_config",
    ),
    "rusty_r2.trace": ("ExecutionTrace", "ReasoningStep", "Step", "ToolCallTrace"),
    "rusty_r2.store": ("TraceStore",),
    "rusty_r2.agent.collector": ("TraceCollector",),
    "rusty_r2.agent.hooks": ("hook_into_agent", "unhook"),
    "rusty_r2.data.checkpoints": ("CheckpointLoader",),
    "rusty_r2.rewards.base": ("BaseReward", "RewardError", "RewardResult"),
    "rusty_r2.rewards.code": ("CodeExecutionReward", "SyntaxValidationReward"),
    "rusty_r2.rewards.conduct": (
        "EfficiencyReward",
        "FormatComplianceReward",
        "TaskCompletionReward",
        "ToolSuccessReward",
    ),
    "rusty_r2.rewards.engine": ("RewardEngine",),
    "rusty_r2.rewards.learned": ("LearnedReward", "LearningReport"),
    "rusty_r2.rewards.labeler": ("by_doubt", "label_unlabelled"),
    "rusty_r2.rewards.audit": ("require_audit", "run_audit"),
    "rusty_r2.data.kto": ("KTODatasetBuilder", "KTOExample"),
    "rusty_r2.data.grpo": ("GRPODatasetBuilder", "GRPOExample"),
    "rusty_r2.data.sft": ("SFTExample", "build_sft"),
    "rusty_r2.data.dpo": ("DPOExample", "build_dpo"),
    "rusty_r2.data.pipeline": ("DatasetPipeline",),
    "rusty_r2.export.types": ("GGUFQuantization",),
    "rusty_r2.export.gguf": ("GGUFExporter",),
    "rusty_r2.export.hosting": ("OllamaHostingProfile",),
    "rusty_r2.export.ollama": ("OllamaDeployer",),
    "rusty_r2.export.pipeline": ("ExportPipeline", "quick_export"),
    "rusty_r2.train.rl_trainer": ("RLTrainer", "TrainingConfig"),
    "rusty_r2.train.grpo_rewards": ("EngineReward", "GymReward"),
    "rusty_r2.executor": ("open_executor",),
    "rusty_r2.loop.pipeline": ("TrainingPipeline",),
    "rusty_r2.registry": ("Registry",),
}
_WHERE = {name: module for module, names in MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"rusty_r2.rl has no name {name!r}; it has {', '.join(sorted(_WHERE))}")
    value = globals()[name] = getattr(importlib.import_module(_WHERE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
