# SPDX-License-Identifier: AGPL-3.0-or-later
"""Rusty as an object in somebody's program: sessions that remember, counters, checkpoints.

    agent = RustyAgent("runs/ppo-7", lambda: Workspace(Path("project")))
    agent.run("why does the test fail?", session_id="monday")
    await agent.a_run("and now?", session_id="monday")

The names are those that tracing tools hook into: `a_run`, `arun_function`, `amd.name` and the four running
totals. Every command and edit goes through `arun_function`, so whoever replaces that sees each of them.
A checkpoint is plain JSON in the shape of AgentCheckpoint 2.0; nothing is ever unpickled.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rusty_r2 import files
from rusty_r2.agent.address import MindOptions, open_policy
from rusty_r2.agent.approval import Approval
from rusty_r2.agent.policy import Policy, Shown, remembered
from rusty_r2.agent.prompt import SYSTEM, conversation
from rusty_r2.agent.rollout import Place, begin, rollout
from rusty_r2.agent.workspace import Workspace
from rusty_r2.closing import Closing, shut
from rusty_r2.config import home
from rusty_r2.errors import ConfigError, PolicyError, ProtocolError, RustyError, TraceError
from rusty_r2.protocol import Cmd, Edit, Msg, parse, render
from rusty_r2.trace import ExecutionTrace, Step, now

Outcome = tuple[str, float, bool, bool, dict[str, Any]]
TOOL: dict[type, str] = {Cmd: "run_command", Edit: "write_file"}
"""what the actions are called where agents have tools"""
GIVEN_UP = "whoever asked waits no more"
_SESSION: contextvars.ContextVar[str] = contextvars.ContextVar("rusty_session", default="default")


class Cancelled(RustyError):
    """A request was given up by whoever made it."""


@dataclass(frozen=True)
class Identity:
    """What tracing tools call the agent model data."""

    name: str
    system_message: str = SYSTEM


@dataclass
class Session:
    """One conversation, and the place it works in."""

    session_id: str
    place: Place
    history: list[dict[str, Any]] = field(default_factory=list)
    """{role, content, timestamp} each, oldest first"""
    created_at: str = field(default_factory=now)
    last_activity: str = field(default_factory=now)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """requests of one session wait for each other"""
    over: threading.Event | None = None
    """of the newest request: set where whoever made it waits no more"""
    outcome: Outcome | None = None
    """what the last step in the place gave, beyond the words a tool returns"""


class RustyAgent(Closing):
    _trace_collector: Any = None
    """who records this agent from outside (hooks.py)"""

    def __init__(
        self,
        policy: Policy | str = "rusty",
        place: Callable[[], Place] | None = None,
        *,
        name: str = "rusty",
        max_turns: int = 8,
        options: MindOptions | None = None,
        store: Any = None,
    ) -> None:
        """`place` makes the place of each session; by default the current folder, read-only."""
        self.policy = open_policy(policy, options) if isinstance(policy, str) else policy
        self._opened = isinstance(policy, str)
        self.amd = Identity(name)
        self.max_turns, self.store = max_turns, store
        self.sessions: dict[str, Session] = {}
        self.tools: dict[str, Callable[..., Any]] = {
            "run_command": self._run_command,
            "write_file": self._write_file,
        }
        self.total_tokens_in = self.total_tokens_out = self.total_llm_calls = 0
        self.total_cost_accumulated = 0.0
        self.last_trace: ExecutionTrace | None = None
        self._place = place or (lambda: Workspace(Path(), allow="read", approval=Approval("never")))
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="rusty-agent")
        self._lock = threading.Lock()

    def run(self, query: str, session_id: str = "default", **options: Any) -> str:
        """`a_run` for programs without an event loop; also works inside one."""
        with ThreadPoolExecutor(1) as alone:
            return str(alone.submit(asyncio.run, self.a_run(query, session_id, **options)).result())

    async def a_run(self, query: str, session_id: str = "default", **options: Any) -> str:
        """Work on a request until there is an answer; "" where it ended otherwise."""
        loop = asyncio.get_running_loop()
        session = self.session(session_id)
        here = contextvars.copy_context()  # whoever watches this run also sees the tools it calls
        over = threading.Event()
        work = loop.run_in_executor(self._pool, here.run, self._work, session, query, loop, over)
        try:
            return (await work).final_response
        except asyncio.CancelledError:
            over.set()  # the thread ends before its next word or step, and a command that runs is stopped
            stop = getattr(session.place, "cancel", None)
            if session.over is over and stop is not None:
                stop.set()
            raise

    async def arun_function(self, function_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call one tool by its name."""
        if function_name not in self.tools:
            raise PolicyError(f"there is no tool {function_name!a}; there are {', '.join(self.tools)}")
        result = self.tools[function_name](*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    def add_tool(self, tool: Callable[..., Any], name: str = "") -> None:
        """Another function for `arun_function`."""
        self.tools[name or tool.__name__] = tool

    def session(self, session_id: str) -> Session:
        with self._lock:
            if session_id not in self.sessions:
                self.sessions[session_id] = Session(session_id, self._place())
            return self.sessions[session_id]

    def close(self) -> None:
        """Give the places back, and the mind where it was opened here."""
        self._pool.shutdown()
        for session in self.sessions.values():
            shut(session.place)
        if self._opened:
            shut(self.policy)

    # ── one request ─────────────────────────────────────────────────────────────────────────────

    def _work(
        self, session: Session, query: str, loop: asyncio.AbstractEventLoop, over: threading.Event
    ) -> ExecutionTrace:
        def go_on(piece: str = "") -> None:
            if over.is_set():
                raise Cancelled(GIVEN_UP)

        with session.lock:
            go_on()
            session.over = over
            _SESSION.set(session.session_id)
            place = _Called(self, session, loop, go_on)
            whole = [{"role": turn["role"], "content": turn["content"]} for turn in session.history]
            said = remembered(self.policy, whole)
            fresh = begin(self.policy, place, query=query)
            fresh = replace(fresh, session_id=session.session_id, agent_name=self.amd.name, history=said)
            shown = Shown(self.policy, fresh)
            try:
                trace = rollout(shown, place, fresh, max_turns=self.max_turns, listen=go_on)
            except RustyError as error:
                self._record(shown.cut_short(error))
                raise
            turns = conversation(trace)[1 + len(said) :]
            session.history += [
                {"role": turn.role, "content": turn.text, "timestamp": now()} for turn in turns
            ]
            session.last_activity = now()
        self._record(trace)
        return trace

    def _record(self, trace: ExecutionTrace) -> None:
        """Count and keep a trace, also one that an error cut short."""
        with self._lock:
            self.total_tokens_in += trace.total_tokens_in
            self.total_tokens_out += trace.total_tokens_out
            self.total_llm_calls += trace.llm_calls_count
            self.last_trace = trace
        watched = getattr(self._trace_collector, "current_trace", None)
        if watched is not None:  # the answer alone does not tell how a run ended
            watched.ended = trace.ended
        if self.store is not None:
            self.store.append(trace)

    async def _run_command(self, command: str) -> str:
        return await self._act(Cmd(command))

    async def _write_file(self, path: str, content: str) -> str:
        return await self._act(Edit(path, content))

    async def _act(self, action: Cmd | Edit) -> str:
        session = self.session(_SESSION.get())
        session.outcome = await asyncio.to_thread(session.place.step, render(action))
        return session.outcome[0]

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────────

    def checkpoint(self) -> dict[str, Any]:
        """Everything said so far and the totals, as plain data."""
        return {
            "version": "2.0",
            "timestamp": now(),
            "agent_name": self.amd.name,
            "agent_config": {**asdict(self.amd), "model": self.policy.name, "digest": self.policy.digest},
            "sessions_data": {"version": 2, "sessions": {s: _told(v) for s, v in [*self.sessions.items()]}},
            "statistics": {
                "total_tokens_in": self.total_tokens_in,
                "total_tokens_out": self.total_tokens_out,
                "total_cost": self.total_cost_accumulated,
                "total_llm_calls": self.total_llm_calls,
            },
            "metadata": {},
        }

    def save_checkpoint(self, folder: Path | None = None) -> Path:
        """Write a checkpoint; returns the file."""
        folder = folder or home() / "Agents" / "checkpoint" / self.amd.name
        stamp = datetime.now(timezone.utc).strftime("%Y%m%d_%H%M%S")
        text = json.dumps(self.checkpoint(), ensure_ascii=False, indent=2) + "\n"
        return files.write(folder / f"agent_checkpoint_{stamp}.json", text)

    def load_checkpoint(self, path: Path) -> None:
        """Go on from a checkpoint: its conversations and totals replace ours."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            totals, sessions = data["statistics"], data["sessions_data"]["sessions"]
            histories = {name: _heard(session["chat_history"]) for name, session in sessions.items()}
            numbers = [int(totals[f"total_{name}"]) for name in ("tokens_in", "tokens_out", "llm_calls")]
            cost = float(totals["total_cost"])
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TraceError(f"{path} is not a checkpoint of an agent: {error!a}") from error
        for name, history in histories.items():
            self.session(name).history = history
        self.total_tokens_in, self.total_tokens_out, self.total_llm_calls = numbers
        self.total_cost_accumulated = cost


class _Called:
    """A session's place whose commands and edits go through the agent's `arun_function`."""

    def __init__(
        self, agent: RustyAgent, session: Session, loop: asyncio.AbstractEventLoop, go_on: Callable[[], None]
    ) -> None:
        self.agent, self.session, self.loop, self.go_on = agent, session, loop, go_on

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return self.session.place.reset(seed=seed, options=options)

    def step(self, reply: str) -> Outcome:
        self.go_on()
        try:
            action = parse(reply)
        except ProtocolError:
            return self.session.place.step(reply)
        if isinstance(action, Msg):
            return self.session.place.step(reply)
        self.session.outcome = None
        call = self.agent.arun_function(TOOL[type(action)], **asdict(action))
        try:
            seen = asyncio.run_coroutine_threadsafe(call, self.loop).result()
        except futures.CancelledError as error:  # its loop ended
            raise Cancelled(GIVEN_UP) from error
        return self.session.outcome or (str(seen), 0.0, False, False, {})


def _told(session: Session) -> dict[str, Any]:
    """A session as other tools read it: OpenAI's messages, and beside each the turn as it was."""
    said = []
    for number, turn in enumerate(session.history):
        own = {"timestamp": turn["timestamp"], "turn": [turn["role"], turn["content"]]}
        said.append(_message(turn, number) | own)
    return {
        "session_id": session.session_id,
        "created_at": session.created_at,
        "last_activity": session.last_activity,
        "metadata": {},
        "chat_history": said,
        "version": 2,
    }


def _message(turn: dict[str, Any], number: int) -> dict[str, Any]:
    role, content = turn["role"], turn["content"]
    if role == "observation":
        return {"role": "tool", "tool_call_id": f"call_{number - 1}", "content": content}
    action = Step(content).action if role == "assistant" else None
    if action is None or isinstance(action, Msg):
        return {"role": role, "content": action.message if action else content}
    called = {"name": TOOL[type(action)], "arguments": json.dumps(asdict(action), ensure_ascii=False)}
    call = {"id": f"call_{number}", "type": "function", "function": called}
    return {"role": role, "content": "", "tool_calls": [call]}


def _heard(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Undo `_told`; messages of other agents are taken as they are, a role we do not speak of is an error."""
    known = {"user": "user", "assistant": "assistant", "tool": "observation", "system": "system"}
    turns = [message.get("turn") or (known[message["role"]], message["content"]) for message in said]
    times = [str(message.get("timestamp", "")) for message in said]
    return [
        {"role": str(role), "content": str(content), "timestamp": at}
        for (role, content), at in zip(turns, times, strict=True)
    ]
