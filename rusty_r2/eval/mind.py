# SPDX-License-Identifier: AGPL-3.0-or-later
"""A mind on the bench: the same questions for ours and for others, each asked in its fastest honest way.

    mind = open_mind("rusty", device="cpu", batch=64)
    for number, text in mind.answer(asks, Speech(grammar=True)): ...
    for played in mind.play(enumerate(tasks), Speech(), EnvConfig()): ...

Our own RWKV answers many questions side by side and plays many episodes at once (agent/players.py), and so
does a Hugging Face model (batched.py). Any other address is a Policy asked one thing after another. A mind
that never saw our protocol is given examples (`shots`) as earlier turns of the conversation; ours is not, it
was trained on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rusty_r2.agent.address import ELSEWHERE, MindOptions, borrowed, find, meant, open_policy
from rusty_r2.agent.policy import Policy
from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.agent.rollout import begin, rollout
from rusty_r2.agent.speech import closing
from rusty_r2.closing import shut
from rusty_r2.errors import ProtocolError
from rusty_r2.gym.env import CodingEnv, EnvConfig
from rusty_r2.protocol import parse
from rusty_r2.task import Task
from rusty_r2.trace import ExecutionTrace

if TYPE_CHECKING:
    from rusty_r2.lm.engine import Engine
    from rusty_r2.lm.grammar import ActionGrammar
    from rusty_r2.lm.tokenizer import Tokenizer

Shot = tuple[str, str]
"""an example: what was asked, and the reply"""


@dataclass(frozen=True)
class Speech:
    """How replies are drawn."""

    grammar: bool = True
    temperature: float = 0.0
    max_new_tokens: int = 128
    seed: int = 0


@dataclass(frozen=True)
class Ask:
    """One question on its own, with examples for minds that need them."""

    request: str
    shots: tuple[Shot, ...] = ()


@dataclass(frozen=True)
class Played:
    """One task played to its end."""

    number: int
    task: Task
    replies: tuple[str, ...]
    valid: int
    passed: bool
    masked: bool
    """the sandbox failed: this episode says nothing"""


class Mind(Protocol):
    address: str
    digest: str
    ours: bool
    """trained on our protocol: needs no examples"""

    def answer(self, asks: Sequence[Ask], speech: Speech) -> Iterator[tuple[int, str]]:
        """The reply to each ask, by its place, in whatever order they come."""

    def play(
        self, tasks: Iterable[tuple[int, Task]], speech: Speech, env: EnvConfig, shots: Sequence[Shot] = ()
    ) -> Iterator[Played]:
        """Play every (number, task); the number decides the draws."""


def open_mind(address: str, *, device: str = "cpu", batch: int = 64) -> Mind:
    address = meant(address)
    kind, colon, rest = address.partition(":")
    folder = None if colon else borrowed(Path(address).expanduser())
    if (kind == "hf" and colon) or folder is not None:
        from rusty_r2.eval.batched import Batched

        return Batched.load(rest if folder is None else str(folder), address, device=device, batch=batch)
    if (kind in ELSEWHERE or kind == "script") and colon:
        return Borrowed(address, device)
    return Ours(address, find(address), device, batch)


class Ours:
    """A checkpoint of our own, asked in batches."""

    ours = True

    def __init__(self, address: str, folder: Path, device: str, batch: int) -> None:
        from rusty_r2.agent.rwkv import RwkvPolicy

        loaded = RwkvPolicy.load(folder, MindOptions(grammar=False, device=device), name=address)
        self.address, self.digest, self.batch = address, loaded.digest, batch
        self.engine: Engine = loaded.engine
        self.tokenizer: Tokenizer = loaded.tokenizer
        self._made: ActionGrammar | None = None

    def answer(self, asks: Sequence[Ask], speech: Speech) -> Iterator[tuple[int, str]]:
        from rusty_r2.lm.chat import encode_turn, open_chat, open_reply
        from rusty_r2.lm.decoding import Decoder
        from rusty_r2.lm.sampling import Sampling

        opening = self.engine.new_state(1)
        self.engine.prefill([[*open_chat(), *encode_turn(self.tokenizer, "system", SYSTEM)]], opening)
        sampling = Sampling(speech.temperature, seed=speech.seed)
        # alike lengths side by side: a batch is as slow as its longest row
        order = sorted(range(len(asks)), key=lambda place: len(asks[place].request))
        for at in range(0, len(order), self.batch):
            places = order[at : at + self.batch]
            turns = [self._turns(asks[place]) for place in places]
            decoder = Decoder(
                self.engine,
                [[*turn, *open_reply()] for turn in turns],
                sampling,
                speech.max_new_tokens,
                grammar=self._grammar() if speech.grammar else None,
                seeds=[speech.seed + place for place in places],
            )
            decoder.state = self.engine.select(opening, [0] * len(places))
            while not decoder.done:
                decoder.advance()
            for place, said in zip(places, decoder.completions(), strict=True):
                text = self.tokenizer.decode(said.tokens)
                cut = speech.grammar and said.reason == "length"
                yield place, text + closing(text) if cut else text

    def play(
        self, tasks: Iterable[tuple[int, Task]], speech: Speech, env: EnvConfig, shots: Sequence[Shot] = ()
    ) -> Iterator[Played]:
        from rusty_r2.agent.players import Players
        from rusty_r2.lm.sampling import Sampling

        wanted = list(tasks)
        players = Players(
            self.tokenizer,
            slots=max(1, min(self.batch, len(wanted))),
            sampling=Sampling(speech.temperature, seed=speech.seed),
            max_new_tokens=speech.max_new_tokens,
            env=env,
            grammar=self._grammar() if speech.grammar else None,
        )
        try:
            for one in players.play(self.engine, wanted):
                yield Played(one.number, one.task, tuple(one.replies), one.valid, one.passed, one.masked)
        finally:
            players.close()

    def _turns(self, ask: Ask) -> list[int]:
        from rusty_r2.lm.chat import encode_turn

        said = [turn for shot in ask.shots for turn in zip(("user", "assistant"), shot, strict=True)]
        return [t for turn in (*said, ("user", ask.request)) for t in encode_turn(self.tokenizer, *turn)]

    def _grammar(self) -> ActionGrammar:
        if self._made is None:
            from rusty_r2.lm.grammar import ActionGrammar

            self._made = ActionGrammar(self.tokenizer, vocab_size=self.engine.shape.words)
        return self._made


class Borrowed:
    """Any other address: one question after another, through its Policy."""

    ours = False

    def __init__(self, address: str, device: str) -> None:
        self.address, self._device = address, device
        self._options = MindOptions(temperature=0.0, top_k=0, device=device)
        self._policy: Policy = open_policy(address, self._options)
        self.digest = self._policy.digest

    def answer(self, asks: Sequence[Ask], speech: Speech) -> Iterator[tuple[int, str]]:
        policy = self._speaking(speech)
        for place, ask in enumerate(asks):
            trace = ExecutionTrace(system_prompt=SYSTEM, user_query=ask.request, history=history(ask.shots))
            yield place, policy.reply(trace).text

    def play(
        self, tasks: Iterable[tuple[int, Task]], speech: Speech, env: EnvConfig, shots: Sequence[Shot] = ()
    ) -> Iterator[Played]:
        policy = self._speaking(speech)
        for number, task in tasks:
            with CodingEnv([task], env) as room:
                place = _Watched(room)
                trace = replace(begin(policy, place, task=task), history=history(shots))
                trace = rollout(policy, place, trace, max_turns=env.max_turns)
            replies = tuple(step.reply for step in trace.steps)
            valid = sum(is_action(reply) for reply in replies)
            yield Played(number, task, replies, valid, bool(place.info["passed"]), trace.ended == "masked")

    def _speaking(self, speech: Speech) -> Policy:
        """The policy with these options; opened anew where they differ."""
        wanted = MindOptions(
            grammar=speech.grammar,
            temperature=speech.temperature,
            top_k=0,
            max_new_tokens=speech.max_new_tokens,
            seed=speech.seed,
            device=self._device,
        )
        if wanted != self._options:
            shut(self._policy)
            self._policy, self._options = open_policy(self.address, wanted), wanted
        return self._policy


class _Watched:
    """A place that remembers what it said last about itself."""

    def __init__(self, place: CodingEnv) -> None:
        self.place, self.info = place, dict[str, Any]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        wanted, self.info = self.place.reset(seed=seed, options=options)
        return wanted, self.info

    def step(self, reply: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        seen, reward, done, cut_short, self.info = self.place.step(reply)
        return seen, reward, done, cut_short, self.info


def history(shots: Sequence[Shot]) -> list[dict[str, str]]:
    """Examples as earlier turns of a trace."""
    return [
        {"role": role, "content": text}
        for shot in shots
        for role, text in zip(("user", "assistant"), shot, strict=True)
    ]


def is_action(reply: str) -> bool:
    try:
        parse(reply)
    except ProtocolError:
        return False
    return True
