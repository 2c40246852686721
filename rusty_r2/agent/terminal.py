# SPDX-License-Identifier: AGPL-3.0-or-later
"""The conversation of one person with one agent: `rusty chat`, and `rusty ask "…"` for a single request.

    rusty chat --model rusty --workspace . --allow workspace --ask writes
    echo "what is in here?" | rusty chat

A request is worked on in the main loop (rollout.py) for several steps, in the person's folder
(workspace.py), until there is an answer, a bare no of the person, or no turn is left. Every exchange
becomes a trace in the store. Ctrl-C stops the answer, not the program. What is typed after a colon is
carried out in commands.py; how things look is in screen.py, how they are typed in keyboard.py.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rusty_r2.agent.address import MindOptions, open_policy
from rusty_r2.agent.approval import Allow, Approval, Ask
from rusty_r2.agent.policy import Listener, Policy, Reply, remembered
from rusty_r2.agent.prompt import conversation
from rusty_r2.agent.rollout import begin, rollout
from rusty_r2.agent.telling import counted
from rusty_r2.closing import shut
from rusty_r2.config import SPEECH, home
from rusty_r2.errors import ConfigError, ContextFull, PolicyError, RustyError, SandboxError
from rusty_r2.gym.safetext import one_line
from rusty_r2.protocol import MAX_REPLY
from rusty_r2.trace import ExecutionTrace, new_id

if TYPE_CHECKING:
    from rusty_r2.agent.screen import Screen
    from rusty_r2.agent.workspace import Workspace

Scorer = Callable[[ExecutionTrace], str]
"""what `:reward` shows; the rewards are another room, so the door brings it"""
UNANSWERED = ("turns", "malformed", "repeats")
"""ends of a request that nobody wanted and that no error has told of"""
MOST_TURNS, KEPT_TURNS = 64, 16
"""a conversation longer than the first is cut to about the second; seldom, because it is then read again"""


@dataclass(frozen=True)
class ChatConfig(MindOptions):
    model: str = "rusty"
    """which mind: rusty, runs/NAME, a checkpoint, script:FILE, hf:NAME, gguf:PATH, ollama:NAME, http://…"""
    workspace: Path = Path()
    """the folder to work in"""
    allow: Allow = "workspace"
    """what commands may do: read the folder, change it, or also reach whatever this machine can reach"""
    ask: Ask = "writes"
    """when to ask: always, before the folder changes (writes), or never"""
    dry: bool = False
    """begin in dry run: show what would change and touch nothing"""
    store: bool = True
    """keep every exchange as a trace; --no-store switches it off"""
    store_url: str = ""
    """another trace store: a file, or postgresql://…"""
    max_turns: int = 8
    """steps on one request"""
    remember: int | None = None
    """earlier requests that the mind reads again with each new one; by itself ours reads none, others all"""
    timeout: float = 60.0
    """seconds a command may take"""
    level: str = "auto"
    """sandbox level: auto, ns, bwrap or landlock"""


@dataclass(frozen=True)
class AskConfig(ChatConfig):
    remember: int | None = field(default=0, init=False)
    """there is nothing before the one request"""
    query: Annotated[tuple[str, ...], tyro.conf.Positional, SPEECH] = ()
    """what is wanted, in quotes or word by word; nothing, or -, reads it from standard input"""
    json: bool = False
    """print the whole trace as one JSON object"""


class Stopped(RustyError):
    """A person stopped the answer, or it had no end."""


def chat(config: ChatConfig, *, score: Scorer | None = None, policy: Policy | None = None) -> None:
    """Talk until `:q`, Ctrl-D or the end of standard input."""
    from rusty_r2.agent.screen import Screen

    live = sys.stdin.isatty() and sys.stdout.isatty()
    with opened(config, Screen(live=live), score, policy) as talk:
        if live:
            _talk_on_a_terminal(talk, config)
        else:
            _talk_in_a_pipe(talk)


def ask(config: AskConfig, *, score: Scorer | None = None, policy: Policy | None = None) -> None:
    """One request, one answer on standard output; what was done on the way goes to standard error.

    PolicyError where there is no answer, also after its trace was printed; SandboxError where what was
    done could not be kept."""
    from rusty_r2.agent.screen import Screen

    piped = config.query in ((), ("-",)) and not sys.stdin.isatty()
    query = (sys.stdin.read() if piped else " ".join(config.query)).strip()
    if query in ("", "-"):
        raise ConfigError('nothing was asked. Type: rusty ask "who are you?"')
    screen = Screen(live=False, out=sys.stderr if config.json else None)
    with opened(config, screen, score, policy) as talk:
        if sys.stdin.isatty() and sys.stdout.isatty():
            talk.place.approval.asker = _keyboard(talk, config).ask
        trace = talk.request(query)
    if config.json:
        import json

        print(json.dumps(trace.to_dict()), flush=True)
    if trace.ended == "unasked":
        raise PolicyError(_unasked(trace, "rusty ask"))
    if "error" in trace.extra:
        raise PolicyError(f"no answer: {one_line(trace.extra['error'], 1000)}")
    if trace.ended != "done":
        steps = counted(len(trace.steps), "step")
        raise PolicyError(
            f"no answer: {trace.ended} after {steps}. Ask in other words, or talk it over: rusty chat"
        )
    if talk.place.left:
        who = f"To see who may write there, type: ls -ld {talk.place.folder}"
        raise SandboxError(f"not kept: {', '.join(talk.place.left)}. {who}")


@contextmanager
def opened(config: ChatConfig, screen: Screen, score: Scorer | None, policy: Policy | None) -> Iterator[Talk]:
    """A mind, a place and a store, closed again at the end."""
    from rusty_r2.agent.workspace import LIMITS, Workspace
    from rusty_r2.store import TraceStore

    if min(config.max_turns, config.max_new_tokens, config.timeout) <= 0:
        raise ConfigError("--max-turns, --max-new-tokens and --timeout must be more than 0")
    if (config.remember or 0) < 0:
        raise ConfigError("--remember must be 0 or more")
    limits = replace(LIMITS, wall_s=config.timeout, cpu_s=max(1, round(config.timeout)))
    with Workspace(
        config.workspace, allow=config.allow, approval=Approval(config.ask), watcher=screen,
        limits=limits, level=config.level,
    ) as place, ExitStack() as closing:  # fmt: skip
        place.dry = config.dry
        # before the mind: a home that cannot be written is said before a kernel is compiled for it
        store = closing.enter_context(TraceStore(config.store_url or None)) if config.store else None
        mind = policy or open_policy(config.model, config)
        talk = Talk(mind, place, screen, store=store, config=config, score=score)
        try:
            yield talk
        finally:
            if policy is None:
                shut(talk.policy)


class Heard:
    """A policy that is listened to: its pieces go to the screen, and it stops when told to."""

    def __init__(self, policy: Policy, screen: Screen, stop: threading.Event) -> None:
        self._policy, self._screen, self._stop = policy, screen, stop
        self.name, self.digest, self.sampling = policy.name, policy.digest, policy.sampling
        self.replies: list[Reply] = []
        self.speaking = False
        self.trace: ExecutionTrace | None = None
        """the newest one it was shown: what is left where the loop is cut short"""

    def reply(self, trace: ExecutionTrace, *, listen: Listener | None = None) -> Reply:
        self.trace = trace
        length = 0

        def hear(piece: str) -> None:
            nonlocal length
            length += len(piece)
            if self._stop.is_set():
                raise Stopped("stopped")
            if length > MAX_REPLY:
                raise Stopped(f"the reply passed {MAX_REPLY:,} characters without an end")
            self._screen.hear(piece)

        self._screen.begin_reply()
        try:
            if self._stop.is_set():
                raise Stopped("stopped")
            self.speaking = True
            reply = self._policy.reply(trace, listen=hear)
        finally:
            self.speaking = False
            self._screen.end_reply()
        self.replies.append(reply)
        return reply


class Talk:
    """One conversation: what was said, and what a person can do about it."""

    def __init__(
        self,
        policy: Policy,
        place: Workspace,
        screen: Screen,
        *,
        store: Any = None,
        config: ChatConfig | None = None,
        score: Scorer | None = None,
    ) -> None:
        self.policy, self.place, self.screen, self.store, self.score = policy, place, screen, store, score
        self.config = config or ChatConfig()
        self.session = new_id()
        self.last: ExecutionTrace | None = None
        self.history: list[dict[str, Any]] = []

    def request(self, query: str) -> ExecutionTrace:
        """Work on one request; whatever happens, what was said is a trace."""
        heard = Heard(self.policy, self.screen, self.place.cancel)
        fresh = replace(
            begin(heard, self.place, query=query),
            session_id=self.session, agent_name="rusty",
            history=remembered(self.policy, self.history, self.config.remember),
        )  # fmt: skip
        heard.trace = fresh
        try:
            with _stoppable(self.place.cancel, heard):
                trace = rollout(heard, self.place, fresh, max_turns=self.config.max_turns)
        except (RustyError, KeyboardInterrupt, EOFError) as error:
            stopped = isinstance(error, (Stopped, KeyboardInterrupt, EOFError))
            if stopped or not isinstance(self.config, AskConfig):  # `ask` says it at its end
                forget = ", or begin again: :reset" if isinstance(error, ContextFull) else ""
                self.screen.error((str(error) or "stopped") + forget)
            why = {} if stopped else {"error": str(error)}
            trace = replace(
                heard.trace,
                ended="stopped" if stopped else type(error).__name__,
                extra={**heard.trace.extra, **why},
            )
        self._end(trace, heard.replies)
        return trace

    def _end(self, trace: ExecutionTrace, replies: list[Reply]) -> None:
        if trace.ended == "done":
            self.screen.answer(trace.answer)
        elif not isinstance(self.config, AskConfig):  # `ask` says it at its end
            self._no_answer(trace)
        if replies and self.screen.live:
            self.screen.notice(_speed(trace, replies))
        if not self.place.dry:
            self.place.close()
        self.last = trace
        whole = replace(trace, history=self.history)  # another mind may read more of it
        self.history = _shortened([turn._asdict() for turn in conversation(whole)[1:]])
        if self.store is not None:
            try:
                self.store.append(trace)
            except RustyError as error:
                self.screen.error(f"not stored: {error}")

    def _no_answer(self, trace: ExecutionTrace) -> None:
        if trace.ended == "unasked":
            self.screen.error(_unasked(trace, "rusty chat"))
        elif trace.ended in UNANSWERED:
            steps = counted(len(trace.steps), "step")
            self.screen.error(f"no answer after {steps} ({trace.ended}); say more, or :reset")


def _unasked(trace: ExecutionTrace, command: str) -> str:
    """What was left undone where nobody could be asked, and how to have it done."""
    undone = one_line(trace.steps[-1].observation.rpartition("SYSTEM_MSG: ")[2], 400)
    return f"{undone}. To allow it, type: {command} --ask never …"


def _shortened(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """{role, content} of the turns; the oldest requests go when there are too many."""
    said = [{"role": turn["role"], "content": turn["text"]} for turn in turns]
    if len(said) <= MOST_TURNS:
        return said
    starts = [at for at, turn in enumerate(said) if turn["role"] == "user" and at >= len(said) - KEPT_TURNS]
    return said[starts[0] if starts else len(said) :]


def _speed(trace: ExecutionTrace, replies: list[Reply]) -> str:
    tokens, seconds = sum(r.tokens_out for r in replies), sum(r.seconds for r in replies)
    rate = f", {tokens / seconds:,.0f} tokens/s" if seconds else ""
    return f"{counted(len(trace.steps), 'step')}, first word after {replies[0].seconds_to_first:.2f} s{rate}"


@contextmanager
def _stoppable(stop: threading.Event, heard: Heard) -> Iterator[None]:
    """Ctrl-C ends a command in good order, and a mind at once: it may hang on a server. Twice ends all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: Any) -> None:
        again = stop.is_set()
        stop.set()
        if again or heard.speaking:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _keyboard(talk: Talk, config: ChatConfig) -> Any:
    from rusty_r2.agent.commands import COMMANDS
    from rusty_r2.agent.keyboard import Keyboard

    history = home() / "chat_history" if config.store else None
    return Keyboard(talk.screen, list(COMMANDS), talk.place.folder, history)


def _talk_on_a_terminal(talk: Talk, config: ChatConfig) -> None:
    from rusty_r2.agent.commands import carry_out, greeting

    keyboard = _keyboard(talk, config)
    talk.place.approval.asker = keyboard.ask
    talk.screen.say(greeting(talk))
    while True:
        try:
            line = keyboard.request(dry=talk.place.dry)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if line.strip() and not carry_out(talk, line):
            return


def _talk_in_a_pipe(talk: Talk) -> None:
    """One request a line; nobody can be asked, so what needs a yes ends its request."""
    from rusty_r2.agent.commands import carry_out

    for line in sys.stdin:
        if line.strip() and not carry_out(talk, line.rstrip("\n")):
            return


def who() -> str:
    """Whose label it is."""
    return os.environ.get("USER") or "person"
