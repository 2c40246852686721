# SPDX-License-Identifier: AGPL-3.0-or-later
"""The documented classes for training a borrowed mind: TrainingConfig and RLTrainer.

    trainer = RLTrainer(TrainingConfig(base_model="smollm2", method="kto"))
    trainer.setup()
    trainer.train(dataset)
    trainer.save_model(merge_lora=True)

They are the commands' own code under the document's names: `train_kto` is `rusty train kto`, `train_grpo` is
`rusty train replay` for recorded groups and `rusty train grpo` where reward functions pay for new answers.
A dataset may be rows, examples of our builders, a `datasets.Dataset` or a file. What today's libraries or
this machine cannot do as asked (a batch of one for KTO, bf16 without its instructions) is done the nearest
way, and said.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rusty_r2 import files
from rusty_r2.config import known_only, read, resolved
from rusty_r2.data import rows
from rusty_r2.errors import ConfigError, DataError, TrainingError, need
from rusty_r2.hardware import HardwareConfig, detect_hardware
from rusty_r2.train import lora
from rusty_r2.train.lora import LoraOptions

if TYPE_CHECKING:
    from rusty_r2.train.before_after import Comparison

METHODS = ("grpo", "kto", "sft", "dpo")
RewardFunction = Callable[..., Sequence[float | None]]


@dataclass
class TrainingConfig:
    """The document's settings, all of them in force."""

    base_model: str = "Qwen/Qwen2.5-1.5B-Instruct"
    output_dir: str = "./rl_output"
    method: str = "grpo"
    """grpo, kto, sft or dpo"""
    lora_r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    lora_target_modules: list[str] = field(default_factory=lambda: ["q_proj", "v_proj", "k_proj", "o_proj"])
    """by name; a model of another build gets those of its own kind"""
    learning_rate: float = 5e-5
    num_epochs: int = 3
    per_device_batch_size: int = 1
    gradient_accumulation_steps: int = 8
    max_seq_length: int = 2048
    num_generations: int = 4
    max_completion_length: int = 512
    beta: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    use_cpu: bool = True
    use_bf16: bool = False
    use_fp16: bool = False
    gradient_checkpointing: bool = True
    warmup_ratio: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    logging_steps: int = 10
    save_steps: int = 100
    eval_steps: int = 50
    early_stopping_patience: int = 3
    """held-out evaluations without a gain (GRPO: generations without a difference) that end it; 0: never"""
    seed: int = 42

    def to_dict(self) -> dict[str, Any]:
        return resolved(self)

    @classmethod
    def from_hardware_config(cls, hw_config: HardwareConfig, **overrides: Any) -> TrainingConfig:
        """What suits a machine; an override that is no setting is an error."""
        known_only(overrides, cls, source="TrainingConfig.from_hardware_config")
        args = hw_config.to_training_args()
        suited: dict[str, Any] = {
            "lora_r": hw_config.lora_r,
            "lora_alpha": hw_config.lora_alpha,
            "per_device_batch_size": args["per_device_train_batch_size"],
            "gradient_accumulation_steps": args["gradient_accumulation_steps"],
            "num_generations": hw_config.num_generations,
            "max_completion_length": hw_config.max_completion_length,
            "use_cpu": args["use_cpu"],
            "use_bf16": args["bf16"],
            "use_fp16": args["fp16"],
            "gradient_checkpointing": hw_config.gradient_checkpointing,
        }
        return cls(**{**suited, **overrides})

    def save(self, path: str | Path) -> None:
        files.write(Path(path), json.dumps(self.to_dict(), indent=2) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> TrainingConfig:
        return cls(**known_only(read(Path(path)), cls, source=str(path)))


class RLTrainer:
    """One base model, one method, one folder."""

    def __init__(self, config: TrainingConfig) -> None:
        if config.method not in METHODS:
            raise ConfigError(f"there is no method {config.method!a}; there are {', '.join(METHODS)}")
        self.config = config
        self.output_dir = Path(config.output_dir)
        self.base: lora.Base | None = None
        self.tokenizer: Any = None
        self.run: Path | None = None
        """the folder of the run, after training"""
        self.saved: Path | None = None

    def setup(self) -> None:
        """Find the base model and open its tokenizer; its weights are loaded when they are trained."""
        need("trl", extra="lora")
        self.base = lora.find_base(self.config.base_model, detect_hardware())
        self._kind = lora.open_config(self.base).model_type
        self.tokenizer = lora.open_tokenizer(self.base)
        self.config.save(self.output_dir / "training_config.json")

    def train(self, dataset: Any, reward_funcs: Sequence[RewardFunction] | None = None) -> dict[str, Any]:
        """Train by the configured method; the summary."""
        if self.config.method == "grpo":
            return self.train_grpo(dataset, reward_funcs)
        if reward_funcs:
            raise ConfigError(
                f"reward functions are for grpo; {self.config.method} learns from its rows alone"
            )
        return self._tuned(self.config.method, dataset)

    def train_kto(self, dataset: Any) -> dict[str, Any]:
        """Rows {prompt, completion, label}."""
        return self._tuned("kto", dataset)

    def train_grpo(
        self, dataset: Any, reward_funcs: Sequence[RewardFunction] | None = None
    ) -> dict[str, Any]:
        """Recorded groups {prompt, completions, rewards}; or prompts, whose answers the functions pay."""
        from rusty_r2.train import grpo, replay

        found = list(plain_rows(dataset))
        if not reward_funcs and not all("completions" in row for row in found):
            raise DataError(
                "these rows have no recorded completions, and nothing says what new ones are worth. "
                "Give train_grpo reward_funcs=[...], or rows of: rusty data grpo"
            )
        patience: dict[str, Any] = {"patience": self.config.early_stopping_patience, "beta": self.config.beta}
        if not reward_funcs:
            data = self._written("grpo", found)
            given = replay.ReplayConfig(data=data, **patience, **self._options("grpo"))
            self.run = Path(replay.train(given))
            return self.get_training_summary()
        data = self._written("prompts", [{"prompt": row["prompt"]} for row in found])
        made = self._options("grpo")
        rows_a_step = self.config.per_device_batch_size * self.config.gradient_accumulation_steps
        asked = self.config.num_epochs * len(found) * self.config.num_generations
        given_online = grpo.GRPOConfig(
            data=data,
            num_generations=self.config.num_generations,
            max_new_tokens=self.config.max_completion_length,
            max_steps=max(1, -(-asked // rows_a_step)),
            **patience,
            **{name: value for name, value in made.items() if name != "epochs"},
        )
        self.run = _pay(given_online, reward_funcs)
        return self.get_training_summary()

    def _tuned(self, method: str, dataset: Any) -> dict[str, Any]:
        from rusty_r2.train import dpo, kto, sft

        shared = {
            "data": self._written(method, plain_rows(dataset)),
            "eval_interval": self.config.eval_steps,
            "patience": self.config.early_stopping_patience if self.config.eval_steps else 0,
            **self._options(method),
        }
        if method == "kto":
            weights: dict[str, Any] = {
                "desirable_weight": self.config.desirable_weight,
                "undesirable_weight": self.config.undesirable_weight,
            }
            made = kto.train(kto.KTOConfig(beta=self.config.beta, **weights, **shared))
        elif method == "dpo":
            made = dpo.train(dpo.DPOConfig(beta=self.config.beta, **shared))
        else:
            made = sft.train(sft.SFTConfig(**shared))
        self.run = Path(made)
        return self.get_training_summary()

    def _options(self, method: str) -> dict[str, Any]:
        """The document's settings as the commands' options, the nearest that can be done."""
        if self.base is None:
            self.setup()
        config = self.config
        batch, accumulate = config.per_device_batch_size, config.gradient_accumulation_steps
        if method == "kto" and batch < 2:
            batch, accumulate = 2, max(1, accumulate // 2)
        return {
            "base_model": config.base_model,
            "output_dir": self._next_run(method),
            "epochs": float(config.num_epochs),
            "batch_size": batch,
            "accumulate": accumulate,
            "max_length": config.max_seq_length,
            "learning_rate": config.learning_rate,
            "lora_r": config.lora_r,
            "lora_alpha": config.lora_alpha,
            "lora_dropout": config.lora_dropout,
            "lora_targets": () if self._kind in lora.TARGETS else tuple(config.lora_target_modules),
            "warmup": config.warmup_ratio,
            "weight_decay": config.weight_decay,
            "clip": config.max_grad_norm,
            "gradient_checkpointing": config.gradient_checkpointing,
            "log_interval": config.logging_steps,
            "ckpt_interval": config.save_steps,
            "device": "cpu" if config.use_cpu else "auto",
            "precision": self._precision(),
            "seed": config.seed,
        }

    def _precision(self) -> str:
        config = self.config
        asked = "bf16" if config.use_bf16 else "fp16" if config.use_fp16 else "fp32"
        slow = asked == "fp16" or (asked == "bf16" and not detect_hardware().has_cpu_bf16)
        if config.use_cpu and slow:
            warnings.warn(
                f"{asked} on this CPU would be many times slower than fp32: fp32 it is", stacklevel=4
            )
            return "fp32"
        return asked

    def _next_run(self, method: str) -> Path:
        taken = [path.name.rpartition("-")[2] for path in self.output_dir.glob(f"{method}-*")]
        return self.output_dir / f"{method}-{max([int(n) for n in taken if n.isdecimal()], default=0) + 1}"

    def _written(self, name: str, found: Iterable[Mapping[str, Any]]) -> Path:
        return rows.save(found, self.output_dir / f"{name}.jsonl")

    def save_model(self, output_path: str | Path | None = None, merge_lora: bool = True) -> str:
        """The trained model as one folder, or its adapter alone, with training_stats.json; its path."""
        from rusty_r2.train.merge import STATS, copy_adapter, merge_into

        target = Path(output_path) if output_path is not None else self.output_dir / "final"
        (merge_into if merge_lora else copy_adapter)(self._trained(), target)
        files.write(target / STATS, json.dumps(self.get_training_summary(), indent=2) + "\n")
        self.saved = target
        return str(target)

    def evaluate(self, eval_dataset: Any, metrics: Sequence[str] | None = None) -> dict[str, Any]:
        """Base and result on these rows: each number before, after and its change, with intervals."""
        found = _compared(self._trained(), list(plain_rows(eval_dataset)), self.config).facts()
        unknown = sorted(set(metrics or ()) - set(found))
        if unknown:
            raise ConfigError(f"there is no number {unknown[0]!a}; there are {', '.join(found)}")
        return {name: found[name] for name in metrics} if metrics else found

    def get_training_summary(self) -> dict[str, Any]:
        """What ran and what came of it; before training, what would."""
        from rusty_r2.run import checkpoints, metrics, step_of

        about = {"method": self.config.method, "base_model": self.config.base_model}
        if self.run is None:
            return {**about, "status": "not trained"}
        told = json.loads((self.run / "run.json").read_text(encoding="utf-8"))
        logged = [line for line in metrics(self.run) if line.get("loss/train") is not None]
        steps = [step_of(path) for path in checkpoints(self.run)]
        return {
            **about,
            "status": told["ended"],
            "run": str(self.run),
            "steps": max(steps, default=0),
            "final_loss": logged[-1]["loss/train"] if logged else None,
            "worse": told.get("worse"),
            "before_after": told.get("before_after"),
            "lineage": told.get("lineage"),
        }

    def _trained(self) -> Path:
        if self.run is None:
            raise TrainingError("nothing was trained yet. Call train(dataset) first")
        return self.run


def plain_rows(dataset: Any) -> Iterable[dict[str, Any]]:
    """Rows of whatever a dataset is given as."""
    if isinstance(dataset, (str, Path)):
        return rows.load(dataset)
    return [dict(row) if isinstance(row, Mapping) else row.to_dict() for row in dataset]


def _compared(run: Path, found: list[dict[str, Any]], config: TrainingConfig) -> Comparison:
    """The comparison of `rusty train`, on rows that were given."""
    from peft import PeftModel

    from rusty_r2.data.validate import kind_of
    from rusty_r2.train import before_after, dpo, kto, sft
    from rusty_r2.train.encoded import encode, heard
    from rusty_r2.train.merge import find_adapter
    from rusty_r2.train.tuning import Method

    if not found:
        raise DataError("there are no rows to evaluate on")
    nowhere = Path(run)
    methods: dict[str, Method] = {
        "kto": kto.KTO(kto.KTOConfig(data=nowhere)),
        "dpo": dpo.DPO(dpo.DPOConfig(data=nowhere)),
        "sft": sft.SFT(),
    }
    kind = kind_of(found[0])
    if kind not in methods:
        raise DataError(f"these are {kind} rows; evaluate takes rows of kto, dpo or sft")
    adapter = find_adapter(run)
    base = lora.find_base(str(adapter))
    under = lora.Base(base.name, base.path, base.adapters[:-1])
    options = LoraOptions(base_model=under.name, device="cpu" if config.use_cpu else "auto", precision="fp32")
    model, tokenizer = lora.open_model(options, under)
    method = methods[kind]
    said = [[encode(tokenizer, *texts) for texts in method.texts(heard(tokenizer, row))] for row in found]
    flat = [one[side] for side in range(len(said[0])) for one in said]
    both = before_after.both(PeftModel.from_pretrained(model, str(adapter)), flat, pad=tokenizer.pad_token_id)
    return method.compare(found, *both, True)


def _pay(config: Any, functions: Sequence[RewardFunction]) -> Path:
    """Online GRPO whose answers are paid by the caller's functions."""
    from rusty_r2.train.grpo_paid import PaidByFunctions

    with ExitStack() as stack:
        return Path(PaidByFunctions(config, stack, functions).train())
