# SPDX-License-Identifier: AGPL-3.0-or-later
"""The options of the loop. run.py is the loop itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rusty_r2.data.judged import SourceConfig
from rusty_r2.errors import ConfigError
from rusty_r2.registry import NAME

COUNTS = (
    *("play", "least", "max_steps", "learning_rate", "batch_size", "accumulate", "max_length", "lora_r"),
    "played",
)
OWN_TASKS, TASKS = 200, 12
"""held-out tasks of the gate: our own model plays one in 0.1 s, a borrowed one in 10 s"""
Method = Literal["kto", "grpo", "sft", "dpo", "ppo"]


@dataclass(frozen=True)
class LoopConfig:
    """Train from use, prove the artefact, promote it or keep the old one."""

    name: str = "agent"
    """the model in the registry that this loop improves"""
    base: str = "smollm2"
    """what it is made from: smollm2, a folder or hub name; rusty or one of our runs for our own RWKV"""
    method: Method = "kto"
    """how to learn from traces; ours: sft (good episodes) or ppo (in the gym)"""
    source: Path | None = None
    """a folder, .jsonl or .parquet of traces, or the word demo; the store where not given"""
    store: str = ""
    """path or URL of the trace store; the one in the data home where not given"""
    agent: str = ""
    """only traces of this agent"""
    reward: tuple[str, ...] = ()
    """rewards of your own beside the shipped ones: module:Class or FILE.py:Class"""
    play: int = 0
    """first let the model in use play so many tasks of the gym; the traces go to the store"""
    least: int = 4
    """fewer traces than this are not worth a round"""
    max_rows: int | None = None
    """at most so many rows"""
    balance: bool = True
    """KTO: as many good rows as bad ones"""
    eval_share: float = 0.2
    """share of the tasks kept out of training; our own model is not measured on them, only in the gym"""
    max_steps: int = 0
    """training steps (PPO: replies); 0: what the method would do"""
    learning_rate: float = 0.0
    """the highest; 0: the method's own"""
    batch_size: int = 0
    """rows at once; 0: what suits this machine"""
    accumulate: int = 0
    """batches summed up in one step; 0: about 8 rows a step"""
    max_length: int = 0
    """tokens of a row; 0: the method's own"""
    lora_r: int = 0
    """rank of the adapter; 0: what suits this machine"""
    quantization: str = "auto"
    """type of the GGUF file; auto suits the model's size"""
    positions: int = 256
    """places of held-out text at which file and model are compared"""
    probes: str = "shipped"
    """a TOML file of questions with known answers that old and new are asked; none: no questions"""
    tasks: int | None = None
    """held-out tasks that old and new play; default: 200 for our own model, 12 for others; 0: none"""
    ollama: bool = False
    """serve what was promoted with Ollama"""
    ollama_host: str = ""
    """the Ollama server; $OLLAMA_HOST or this machine where not given"""
    system: str = ""
    """system prompt of the served model"""
    out: Path | None = None
    """folder of the rounds; default: loops/NAME. A round that was not finished goes on"""
    keep: bool = False
    """keep what only this round needed: the merged weights, the base as a file"""
    device: str = "auto"
    """auto, cpu, cuda"""
    seed: int = 42
    """of splits, order, training"""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"--name {self.name!a} is no name for a model: letters, digits, . _ -")
        for name in COUNTS:
            if not getattr(self, name) >= 0:
                raise ConfigError(f"--{'tasks' if name == 'played' else name} cannot be negative")
        rows = 1 if self.max_rows is None else self.max_rows
        if self.positions < 8 or not 0 <= self.eval_share < 1 or rows < 1:
            raise ConfigError("--positions is 8 or more, --eval-share 0 up to 1, --max-rows 1 or more")
        if self.own and self.method not in ("sft", "ppo"):
            raise ConfigError(f"our own model learns by sft or ppo, not {self.method}. Type: --method sft")
        if not self.own and self.method == "ppo":
            raise ConfigError("ppo is for our own model. Type: --method grpo, or --base rusty")
        if self.source is not None and self.play:
            raise ConfigError("--play fills the store, --source reads something else: give one of them")

    @property
    def own(self) -> bool:
        """Whether the base is our own RWKV."""
        if self.base == "rusty":
            return True
        path = Path(self.base).expanduser()
        places = [path, path / "best", *sorted(path.glob("step_*"))] if path.is_dir() else []
        return any('"rusty_rwkv"' in _text(place / "config.json") for place in places)

    @property
    def played(self) -> int:
        """Held-out tasks that old and new play."""
        return (OWN_TASKS if self.own else TASKS) if self.tasks is None else self.tasks

    @property
    def folder(self) -> Path:
        return self.out or Path("loops") / self.name

    def traces(self) -> SourceConfig:
        """Where traces come from and how they are judged."""
        return SourceConfig(
            source=self.source,
            store=self.store,
            agent=self.agent,
            reward=self.reward,
            eval_share=self.eval_share,
            seed=self.seed,
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
