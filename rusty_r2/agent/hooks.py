# SPDX-License-Identifier: AGPL-3.0-or-later
"""Recording an agent that knows nothing of us.

    hook_into_agent(agent, collector)     # from now on every run becomes a trace
    unhook(agent)                         # and now no more

Any object with `a_run` will do (also `a_stream`; `arun_function` for its tools), sync, async or streaming.
The agent never notices: results and exceptions pass through as they are, and whatever goes wrong on our side
is only logged. Tokens and cost come from the agent's running totals (`total_tokens_in`, …), as the difference
over the run; where runs of one agent overlapped the difference says nothing, and the numbers stay unknown
(`TraceCollector.record_usage` is exact). A run inside a run is a trace of its own, with its parent's id.

Not covered: streams that are objects of their own class are passed on unread.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rusty_r2.agent.collector import Running, TraceCollector
from rusty_r2.agent.plain import amount, count, plain, text
from rusty_r2.errors import ConfigError

RUNS = ("a_run", "a_stream")
TOOLS = ("arun_function",)
QUERIES = ("query", "user_query", "prompt", "message", "task", "user_input", "input")
SESSIONS = ("session_id", "session", "thread_id")
ANSWERS = ("final_response", "response", "content", "text", "output", "answer", "chunk", "delta")
TOTALS = ("total_tokens_in", "total_tokens_out", "total_cost_accumulated", "total_llm_calls")
HOOK = "_rusty_hook"
_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())


@dataclass
class Hook:
    """One agent being recorded."""

    agent: Any
    collector: TraceCollector
    active: bool = True
    runs: list[Run] = field(default_factory=list)
    """those that have not ended"""
    replaced: dict[str, tuple[Callable[..., Any], Any]] = field(default_factory=dict)
    """our function by name, and what the object itself held there before (None: its class's method)"""


@dataclass(eq=False)
class Run:
    """One run of a hooked agent."""

    running: Running
    totals: tuple[float, ...]
    alone: bool = True
    heard: list[str] = field(default_factory=list)
    """the pieces of a stream"""


def hook_into_agent(agent: Any, collector: TraceCollector) -> None:
    """Record every run of `agent`. Hooking again changes nothing; another collector takes over."""
    there = getattr(agent, HOOK, None)
    if isinstance(there, Hook) and there.agent is agent and there.active:
        if there.collector is collector:
            return
        unhook(agent)
    names = [name for name in (*RUNS, *TOOLS) if callable(getattr(agent, name, None))]
    if not set(names) & set(RUNS):
        raise ConfigError(f"a {type(agent).__name__} cannot be hooked: it has no {' or '.join(RUNS)}")
    hook = Hook(agent, collector)
    try:
        setattr(agent, HOOK, hook)
        agent._trace_collector = collector
        for name in names:
            _replace(hook, name)
    except (AttributeError, TypeError) as error:
        raise ConfigError(f"a {type(agent).__name__} cannot be hooked: {error}") from error


def unhook(agent: Any) -> bool:
    """Undo `hook_into_agent`; False where there was nothing to undo."""
    hook = getattr(agent, HOOK, None)
    if not isinstance(hook, Hook) or not hook.active:
        return False
    hook.active = False  # somebody may have wrapped our function again: it only passes on from now on
    for name, (ours, before) in hook.replaced.items():
        if vars(agent).get(name) is not ours:
            continue
        if before is None:
            delattr(agent, name)
        else:
            setattr(agent, name, before)
    delattr(agent, HOOK)
    del agent._trace_collector
    return True


def _replace(hook: Hook, name: str) -> None:
    real = getattr(hook.agent, name)
    ours = _run_wrapper(hook, real) if name in RUNS else _tool_wrapper(hook, real)
    hook.replaced[name] = (ours, getattr(hook.agent, "__dict__", {}).get(name))
    setattr(hook.agent, name, ours)


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────


def _run_wrapper(hook: Hook, real: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the same kind as `real`."""

    @functools.wraps(real)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        run = _begin(hook, real, args, kwargs)
        return await _awaited(hook, run, real(*args, **kwargs))

    @functools.wraps(real)
    def plainly(*args: Any, **kwargs: Any) -> Any:
        run = _begin(hook, real, args, kwargs)
        with _recording(hook, run):
            result = real(*args, **kwargs)
        return _passed_on(hook, run, result)

    def start(*args: Any, **kwargs: Any) -> tuple[Run | None, Any]:
        return _begin(hook, real, args, kwargs), real(*args, **kwargs)

    if inspect.iscoroutinefunction(real):
        return coroutine
    if inspect.isasyncgenfunction(real):
        return functools.update_wrapper(functools.partial(_async_pieces, hook, start), real)
    if inspect.isgeneratorfunction(real):
        return functools.update_wrapper(functools.partial(_pieces, hook, start), real)
    return plainly


async def _awaited(hook: Hook, run: Run | None, waiting: Any) -> Any:
    with _recording(hook, run):
        result = await waiting
    return _passed_on(hook, run, result)


def _passed_on(hook: Hook, run: Run | None, result: Any) -> Any:
    """The result itself; one that is not there yet is watched until it is."""
    if run is None:
        return result
    if inspect.iscoroutine(result):
        return _awaited(hook, run, result)
    if inspect.isasyncgen(result):
        return _async_pieces(hook, lambda: (run, result))
    if inspect.isgenerator(result):
        return _pieces(hook, lambda: (run, result))
    if isinstance(result, asyncio.Future):
        result.add_done_callback(functools.partial(_settled, hook, run))
        return result
    _end(hook, run, result)
    return result


async def _async_pieces(
    hook: Hook, start: Callable[..., tuple[Run | None, Any]], /, *args: Any, **kwargs: Any
) -> AsyncGenerator[Any, Any]:
    """An async generator, step by step: only its own steps belong to the run, not what its reader does."""
    run, source = start(*args, **kwargs)
    step: Callable[[], Any] = functools.partial(source.asend, None)
    while True:
        try:
            with _recording(hook, run, StopAsyncIteration):
                piece = await step()
        except StopAsyncIteration:
            _end(hook, run, None)
            return
        _hear(run, piece)
        try:
            step = functools.partial(source.asend, (yield piece))
        except GeneratorExit:
            _end(hook, run, None, ended="closed")
            await source.aclose()
            raise
        except BaseException as error:
            step = functools.partial(source.athrow, error)


def _pieces(
    hook: Hook, start: Callable[..., tuple[Run | None, Any]], /, *args: Any, **kwargs: Any
) -> Generator[Any, Any, Any]:
    """The same for a generator."""
    run, source = start(*args, **kwargs)
    step: Callable[[], Any] = functools.partial(source.send, None)
    while True:
        try:
            with _recording(hook, run, StopIteration):
                piece = step()
        except StopIteration as stop:
            _end(hook, run, stop.value)
            return stop.value
        _hear(run, piece)
        try:
            step = functools.partial(source.send, (yield piece))
        except GeneratorExit:
            _end(hook, run, None, ended="closed")
            source.close()
            raise
        except BaseException as error:
            step = functools.partial(source.throw, error)


@contextmanager
def _recording(hook: Hook, run: Run | None, *fine: type[BaseException]) -> Generator[None, None, None]:
    """What happens inside belongs to the run; an exception ends it and goes on."""
    here: AbstractContextManager[None] = hook.collector.within(run.running) if run else nullcontext()
    with here:
        try:
            yield
        except fine:
            raise
        except BaseException as error:
            _failed(hook, run, error)
            raise


# ── tools ───────────────────────────────────────────────────────────────────────────────────────────


def _tool_wrapper(hook: Hook, real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        call = _Call(hook, args, kwargs)
        with call:
            call.result = result = await real(*args, **kwargs)
        return result

    @functools.wraps(real)
    def plainly(*args: Any, **kwargs: Any) -> Any:
        call = _Call(hook, args, kwargs)
        with call:
            call.result = result = real(*args, **kwargs)
            call.later = inspect.iscoroutine(result)
        return call.awaited(result) if call.later else result

    return coroutine if inspect.iscoroutinefunction(real) else plainly


class _Call:
    """One tool call, from before it to after it."""

    def __init__(self, hook: Hook, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.hook, self.began, self.result = hook, time.monotonic(), None
        self.later = False
        """the result is a coroutine: the call ends when it does"""
        self.name, self.arguments = _quietly(lambda: _tool(args, kwargs), ("unknown", {}))

    async def awaited(self, waiting: Any) -> Any:
        self.later = False
        with self:
            self.result = result = await waiting
        return result

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self.hook.active and not self.later:
            _quietly(lambda: self._record(error), None)

    def _record(self, error: BaseException | None) -> None:
        spent = (time.monotonic() - self.began) * 1000
        said = f"{type(error).__name__}: {text(error)}" if error is not None else _complaint(self.result)
        result = None if error is not None else self.result
        self.hook.collector.record_tool_call(self.name, self.arguments, result, said is None, spent, said)


def _tool(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any]:
    named = dict(kwargs)
    name = args[0] if args else named.pop("function_name", named.pop("name", "unknown"))
    return text(name), plain({"args": list(args[1:]), "kwargs": named})


def _complaint(result: Any) -> str | None:
    """What a tool says went wrong, where it says so in the usual words."""
    if isinstance(result, Mapping) and (result.get("success") is False or result.get("error")):
        return text(result.get("error") or "success is False")
    return None


# ── beginning and end of a run: nothing here can reach the agent ────────────────────────────────────


def _begin(hook: Hook, real: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run | None:
    return _quietly(lambda: _begun(hook, real, args, kwargs), None) if hook.active else None


def _begun(hook: Hook, real: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run | None:
    given = inspect.signature(real).bind(*args, **kwargs)
    given.apply_defaults()
    named = {**given.arguments, **given.arguments.get("kwargs", {})}
    query = next((named[name] for name in QUERIES if name in named), args[0] if args else "")
    session = text(next((named[name] for name in SESSIONS if named.get(name) is not None), "default"))
    here = hook.collector.here()
    outer = here.trace if here is not None and not here.over else None
    if outer is not None and (outer.user_query, outer.session_id) == (text(query), session):
        return None  # a method that is made of another one: one run, one trace
    amd = getattr(hook.agent, "amd", None)
    name = getattr(amd, "name", None) or getattr(hook.agent, "name", None) or type(hook.agent).__name__
    system = getattr(amd, "system_message", "")
    known = {"agent_name": text(name), "system_prompt": system if isinstance(system, str) else ""}
    parent = {"parent_trace_id": outer.trace_id} if outer is not None else {}
    running = hook.collector.begin(session, text(query), **known, extra=parent)
    run = Run(running, _totals(hook.agent))
    for other in hook.runs:
        other.alone = run.alone = False
    hook.runs.append(run)
    return run


def _totals(agent: Any) -> tuple[float, ...]:
    return tuple(amount(getattr(agent, name, 0)) for name in TOTALS)


def _end(hook: Hook, run: Run | None, result: Any, ended: str = "done") -> None:
    if run is not None:
        _quietly(lambda: _ended(hook, run, result, ended), None)


def _ended(hook: Hook, run: Run, result: Any, ended: str) -> None:
    if run in hook.runs:
        hook.runs.remove(run)
    trace = run.running.trace
    spent = [after - before for before, after in zip(run.totals, _totals(hook.agent), strict=True)]
    if not run.alone:
        trace.extra["usage"] = "unknown: runs of this agent overlapped"
    elif not trace.llm_calls_count and any(part > 0 for part in spent):
        trace.total_tokens_in, trace.total_tokens_out = count(spent[0]), count(spent[1])
        trace.total_cost, trace.llm_calls_count = amount(spent[2]), count(spent[3])
    hook.collector.end(run.running, _answer(result) or "".join(run.heard), ended)


def _failed(hook: Hook, run: Run | None, error: BaseException) -> None:
    def note() -> None:
        if run is not None and not run.running.over:
            said = f"{type(error).__name__}: {text(error)}"
            run.running.trace.tasks_failed.append({"error": said, "type": "execution_error"})
            _ended(hook, run, "".join(run.heard) or f"Error: {said}", type(error).__name__)

    _quietly(note, None)


def _settled(hook: Hook, run: Run, future: asyncio.Future[Any]) -> None:
    error = asyncio.CancelledError() if future.cancelled() else future.exception()
    if error is not None:
        _failed(hook, run, error)
    else:
        _end(hook, run, future.result())


def _hear(run: Run | None, piece: Any) -> None:
    if run is not None:
        run.heard.append(_quietly(lambda: _answer(piece, data=False), ""))


def _answer(result: Any, *, data: bool = True) -> str:
    """The words in a result: a text, the first of a tuple, the telling field of a dict or an object."""
    if isinstance(result, tuple) and result:
        result = result[0]
    if result is None or isinstance(result, str):
        return result or ""
    for name in ANSWERS:
        found = result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)
        if isinstance(found, str):
            return found
    return text(result) if data else ""


def _quietly(work: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return work()
    except Exception:  # the agent's own call must not fail because of us
        _log.exception("a run could not be recorded")
        return otherwise
