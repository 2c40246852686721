# SPDX-License-Identifier: AGPL-3.0-or-later
"""Everything about a PPO run that is not mathematics: its folder, models, players, evaluation, stopping.

`Training` is a context manager; ppo.py drives it. What a checkpoint holds, and how a run goes on from one, is
ppo_state.py.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rusty_r2 import files
from rusty_r2.agent import players
from rusty_r2.agent.players import Episode, Players
from rusty_r2.data.drills import task_names
from rusty_r2.errors import CheckpointError, RustyError, TrainingError
from rusty_r2.eval.rates import wilson
from rusty_r2.gym.curriculum import Curriculum, CurriculumConfig
from rusty_r2.gym.env import EnvConfig
from rusty_r2.gym.farm import Makers
from rusty_r2.gym.sandbox import open_sandbox
from rusty_r2.lm import checkpoint
from rusty_r2.lm.engine import Engine
from rusty_r2.lm.grammar import ActionGrammar
from rusty_r2.lm.sampling import Sampling
from rusty_r2.lm.tokenizer import VOCAB, Tokenizer
from rusty_r2.run import Run, newest
from rusty_r2.task import Task
from rusty_r2.train import heldout, ppo_state
from rusty_r2.train.buffer import RolloutBuffer
from rusty_r2.train.loop import Stop
from rusty_r2.train.optim import Descent, groups, keep_words, learning_rate, optimizer
from rusty_r2.train.ppo import PPOConfig, to_come
from rusty_r2.train.ppo_replay import Replay
from rusty_r2.train.progress import Progress, stopped
from rusty_r2.train.session import choose_device

MAY_CHANGE = (
    *("init_checkpoint", "tokenizer_path", "total_timesteps", "log_dir", "checkpoints_dir", "ckpt_interval"),
    *("eval_interval", "device", "max_minutes", "replay"),
)
PATIENCE = 5
"""updates in a row that may be skipped for not being finite"""
SPEAKS = 0.05
"""share of valid actions below which a first round shows a policy that does not know the protocol"""
HEAVIEST = 2.0
"""weight a token may get for being likelier under the trained weights than under the playing ones"""
ROWS = {"cpu": 16, "cuda": 256}
"""episodes that are scored at once, by device"""
FAINT = 1e-5
"""gradients below this make small steps: else Adam moves words that are never said as fast as the others"""
RESERVE = 5.0
"""seconds kept for saving and going, of --max-minutes"""


class Training:
    """One run in progress."""

    def __init__(self, config: PPOConfig) -> None:
        self.config, self.began = config, time.monotonic()
        self.device = choose_device(config.device)
        if not (config.init_checkpoint / "config.json").is_file():
            raise CheckpointError(
                f"{config.init_checkpoint} holds no model to start from. Type: rusty train supervised --help"
            )
        self.words = self._tokenizer_folder()
        self.tokenizer = Tokenizer.load(self.words)
        self.replay = None if config.replay is None else Replay(config, self.words, self.device)
        self.start = checkpoint.load(config.init_checkpoint, device=self.device, dtype=torch.float32).eval()
        self.start.requires_grad_(False)
        if len(self.tokenizer) != self.start.config.vocab_size:
            raise CheckpointError(
                f"the tokenizer has {len(self.tokenizer):,} words and {config.init_checkpoint} "
                f"{self.start.config.vocab_size:,}. Give its own: --tokenizer-path"
            )
        open_sandbox(at_least="landlock").close()  # a sandbox that will not start is said now
        self.sampling = Sampling(
            temperature=config.temperature, top_k=config.top_k, seed=config.seed * 1_000_003
        )
        self.curriculum = Curriculum(
            CurriculumConfig(config.seed, config.families, max_difficulty=config.max_difficulty),
            wider=task_names(self.words) if config.wide_names else (),
        )
        self.heldout = heldout.tasks(
            config.eval_tasks, families=config.families, max_difficulty=config.max_difficulty
        )
        self.validation = heldout.validation(
            config.valid_tasks, families=config.families, max_difficulty=config.max_difficulty
        )
        self.run = Run.start(
            "ppo",
            config,
            folder=config.checkpoints_dir,
            resume=config.resume,
            may_change=MAY_CHANGE,
            events=config.log_dir,
        )
        self.folder = self.run.folder
        self.done, self.best, self.tokens = 0, -1.0, 0
        """rounds played, the best share of validation tasks solved, tokens played in this go"""
        self.last = False
        """the round under way is the last one"""
        self.lately, self.examined = deque[float](maxlen=3), 0.0
        """seconds of the last rounds (the first compiles), and of the last evaluation"""
        self.last_score: heldout.Score | None = None
        self.first_score: list[Any] = []
        try:
            self._prepare()
        except RustyError:
            self.run.close("error: not begun")
            raise

    def _prepare(self) -> None:
        resumed = self.run.resumed_from
        self.model = checkpoint.load(
            resumed or self.config.init_checkpoint, device=self.device, dtype=torch.float32
        ).eval()  # no dropout: the update must score what the rollout sampled
        keep_words(self.model, self.config.freeze_words)
        adamw = optimizer("adamw", groups(self.model, weight_decay=0.0, layer_lr=False), betas=(0.9, 0.95))
        for group in adamw.param_groups:
            group["eps"] = FAINT
        self.descent = Descent(adamw, clip=self.config.max_grad_norm)
        if resumed is not None:
            ppo_state.restore(self, resumed)
        grammar = ActionGrammar(self.tokenizer) if self.config.constrain else None
        self.players = self._players(self.sampling, grammar, self.config.quiet)
        self.examinees = self._players(Sampling(temperature=0.0), grammar)
        self.makers = Makers()
        self.engine: Engine | None = None
        ends = self.began + (60 * self.config.max_minutes or float("inf"))
        self.progress = Progress(self.config.updates, until=ends)
        self.stop = Stop()

    def _players(self, sampling: Sampling, grammar: ActionGrammar | None, quiet: float = 0.0) -> Players:
        config = self.config
        return Players(
            self.tokenizer,
            slots=config.slots,
            sampling=sampling,
            max_new_tokens=config.max_new_tokens,
            env=EnvConfig(config.max_turns, partial=config.partial, turn=config.turn, quiet=quiet),
            grammar=grammar,
        )

    def __enter__(self) -> Training:
        self.stop.__enter__()
        self.run.__enter__()
        self.progress.begin_at(self.done)
        self.progress.say(f"{self.config.updates} rounds of {self.config.episodes} episodes; {self.folder}")
        if self.replay is not None and self.replay.data.note:
            self.progress.say(f"of what is replayed, {self.replay.data.note}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.players.close()
        self.examinees.close()
        self.makers.close()
        self.stop.__exit__(kind, error, trace)
        if kind is None and self.done < self.config.updates:
            self.run.close("stopped")
        self.run.__exit__(kind, error, trace)
        self.progress.close()
        if kind is None:
            self.progress.say(self._farewell())

    def rounds(self) -> Iterator[int]:
        """The numbers of the rounds still to play; a stop that was asked for, or the clock, ends them."""
        while self.done < self.config.updates and not self.stop.asked and not self.last:
            yield self.done + 1

    def play(self, number: int) -> tuple[RolloutBuffer, dict[str, float]]:
        """A round of episodes, ready to be judged."""
        began, before = time.perf_counter(), dict(self.players.seconds)
        engine = self._speaker()
        first = number * self.config.episodes
        tasks = self._tasks()
        drawn = time.perf_counter()
        episodes = sorted(
            self.players.play(engine, ((first + i, task) for i, task in enumerate(tasks))),
            key=lambda episode: episode.number,
        )
        took = time.perf_counter() - drawn
        for episode in episodes:
            if not episode.masked:
                self.curriculum.report(episode.task, episode.passed)
        told = players.facts(episodes)
        self._speaks(number, told)
        buffer = RolloutBuffer(episodes, self.device)
        if not len(buffer):
            raise TrainingError("the sandbox failed in every episode of a round. Type: rusty doctor")
        self._show(number, episodes)
        scoring = time.perf_counter()
        self._first_guess(buffer)
        self._score(buffer)
        told |= {"time/tasks_s": drawn - began, "time/score_s": time.perf_counter() - scoring}
        told["time/tokens_per_s"] = told["play/tokens"] / took
        told["time/episodes_per_s"] = len(episodes) / took
        for part, seconds in self.players.seconds.items():
            told[f"time/{part}_share"] = (seconds - before[part]) / took
        return buffer, told

    def learn(self, loss: Tensor) -> None:
        """Add its gradient to those of the step."""
        self.descent.backward(loss)

    def descend(self, number: int) -> None:
        """One step of the optimizer; steps that are not finite are left out and counted."""
        self.descent.step(self._rate(number), torch.ones((), device=self.device))
        if int(self.descent.skipped_in_a_row) >= PATIENCE:
            found = newest(self.folder) or self.config.init_checkpoint
            raise TrainingError(
                f"{PATIENCE} updates in a row were not finite. Start from the last checkpoint with a lower "
                f"rate: rusty train ppo --init-checkpoint {found} --lr {self.config.lr / 3:.1g}"
            )

    def _rate(self, number: int) -> float:
        """It falls with the rounds, or with the clock where that will end the run first."""
        done = (number - 1) / self.config.updates
        if self.config.max_minutes:
            done = max(done, min(1.0, (time.monotonic() - self.began) / (60 * self.config.max_minutes)))
        return learning_rate(
            round(1e6 * done), peak=self.config.lr, total=10**6, warmup=0, floor=0.1, shape="linear"
        )

    def _late(self) -> bool:
        """Another round, the last evaluation and saving would not fit into the minutes given."""
        needed = time.monotonic() - self.began + max(self.lately) + self.examined + RESERVE
        return bool(self.config.max_minutes) and needed > 60 * self.config.max_minutes

    def finish(self, number: int, facts: dict[str, Any]) -> None:
        """Log a round, and where it is time evaluate and save."""
        self.done = number
        facts["optim/skipped"] = float(self.descent.skipped)
        self.run.log(number, facts)
        shown = {"reward": facts["reward/mean"], "pass": facts["play/pass_rate"], "kl": facts["policy/kl"]}
        self.tokens += int(facts["play/tokens"])
        self.progress.report(number, self.tokens, shown)
        self.lately.append(facts["time/round_s"])
        self.last = last = number == self.config.updates or bool(self.stop.asked) or self._late()
        if last or (self.config.eval_interval and number % self.config.eval_interval == 0):
            self.evaluate(number)
        if last or number % self.config.ckpt_interval == 0:
            self._save(number)

    def evaluate(self, number: int) -> None:
        """How many held-out tasks are solved now; what solves most validation tasks is kept in best/."""
        began = time.perf_counter()
        seen, score = heldout.evaluate(self.examinees, self._speaker(), self.validation, self.heldout)
        self.last_score = score
        low, high = score.interval
        told = {
            "eval/pass_rate": score.rate,
            "eval/low": low,
            "eval/high": high,
            "eval/valid": score.valid_rate,
            "eval/validation": seen.rate,
        }
        told |= {f"eval_by_family/{name}": a / b for name, (a, b) in score.families.items()}
        told |= {} if self.replay is None else self.replay.held_out(self.model)
        if not self.first_score:
            self.first_score = [score.passed, score.played]
        place = self.folder / "best"
        best = not seen.played or seen.rate > self.best  # with no validation tasks, the newest are the best
        if best or not place.is_dir():
            self.best = seen.rate
            with files.whole_folder(place) as folder:
                checkpoint.save(folder, self.model, tokenizer=self.words)
        self.examined = time.perf_counter() - began
        self.run.log(number, told | {"time/eval_s": self.examined})
        kept = f"; validation {100 * seen.rate:.1f}%{', the best so far' if best else ''}"
        known = f"; replay {told['eval/replay']:.4f} nats" if "eval/replay" in told else ""
        self.progress.say(f"round {number}: {score}{kept if seen.played else ''}{known}")
        self.progress.pause(self.examined)

    def _speaker(self) -> Engine:
        """The model as it is now, ready to speak; on a GPU the recordings of the last one stay."""
        take = getattr(self.engine.model, "take", None) if self.engine is not None else None
        if self.engine is None or take is None or not take(self.model):
            self.engine = Engine.from_model(
                self.model, weights=self.config.rollout_weights, device=self.device
            )
        return self.engine

    @torch.no_grad()
    def _first_guess(self, buffer: RolloutBuffer) -> None:
        """A value head that was never trained says what is to come on average, not that nothing is.

        Else every early token of a reply would seem worse than its end, whatever comes of it.
        """
        if not self.model.value_head.weight.any():
            guess = to_come(buffer.rewards())
            self.model.value_head.bias.fill_(guess)
            buffer.value[:] = guess

    @torch.no_grad()
    def _score(self, buffer: RolloutBuffer) -> None:
        """What the starting policy thinks of every choice, and the present one where other weights played."""
        now, value = np.zeros_like(buffer.logp), np.zeros_like(buffer.value)
        others = self.config.rollout_weights != "fp32"
        for batch in buffer.in_order(ROWS.get(self.device, ROWS["cpu"])):
            logp = batch.choices(self.start, self.sampling).logp
            buffer.start_logp[batch.places] = logp.cpu().numpy()
            if others:
                choices = batch.choices(self.model, self.sampling)
                now[batch.places], value[batch.places] = (
                    numbers.cpu().numpy() for numbers in (choices.logp, choices.value)
                )
        if others:
            buffer.weight = np.minimum(np.exp(now - buffer.logp), HEAVIEST)
            buffer.logp, buffer.value = now, value

    def _tasks(self) -> list[Task]:
        """The tasks of a round, drawn before the first is played: timing decides nothing."""
        size = self.config.group_size if self.config.advantage == "group" else 1
        left_out, drawn = {task.name for task in self.validation}, list[Task]()
        while missing := self.config.episodes // size - len(drawn):
            some = self.makers.draw(self.curriculum, missing)
            drawn += [task for task in some if task.name not in left_out]
        return [task for task in drawn for _ in range(size)]

    def _speaks(self, number: int, told: dict[str, float]) -> None:
        if number == 1 and not self.config.constrain and told["play/valid_rate"] < SPEAKS:
            share = f"{100 * told['play/valid_rate']:.1f}% of its replies are actions"
            raise TrainingError(
                f"{self.config.init_checkpoint} does not speak the protocol: {share}. Teach it first: "
                "rusty data episodes, then rusty train supervised --init"
            )

    def _show(self, number: int, episodes: list[Episode]) -> None:
        """Two episodes of a round as text: one that passed, one that did not."""
        for passed in (True, False):
            chosen = next((episode for episode in episodes if episode.passed == passed), None)
            if chosen is not None:
                said = [chosen.seen[0]]
                for reply, seen in zip(chosen.replies, chosen.seen[1:], strict=True):
                    said += [f"> {reply}", seen]
                self.run.text(number, "episode/passed" if passed else "episode/failed", "\n\n".join(said))

    def _save(self, number: int) -> None:
        with self.run.checkpoint(number) as folder:
            checkpoint.save(folder, self.model, tokenizer=self.words)
            ppo_state.save(self, folder)

    def _tokenizer_folder(self) -> Path:
        given = self.config.tokenizer_path
        if given is not None:
            return given
        own = self.config.init_checkpoint
        return own if (own / "tokenizer.json").is_file() else VOCAB

    def _farewell(self) -> str:
        said = []
        if self.last_score is not None and self.first_score:
            passed, played = self.first_score
            low, high = wilson(passed, played)
            share = f"{100 * passed / max(1, played):.1f}% ({100 * low:.1f} to {100 * high:.1f})"
            said = [f"before: {share} of them", f"after: {self.last_score}"]
        if self.done < self.config.updates:
            again = f"rusty train ppo --config {self.folder}/config.json"
            again += f" --checkpoints-dir {self.folder} --resume auto"
            said.append(stopped(f"after round {self.done}", again))
        else:
            said.append(f"next: rusty lm generate --checkpoint {self.folder / 'best'}")
        return "\n".join(said)
