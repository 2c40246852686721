# SPDX-License-Identifier: AGPL-3.0-or-later
"""The rooms of the page, one method each: what is asked is read, looked up, and handed to a template.

Reading changes nothing. What changes something is a POST with the form's key (guard.py saw to its origin): a
label, its undoing, and the name of who sits there. A label is written by the store's own verb.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rusty_r2.errors import ConfigError, RustyError, StoreError
from rusty_r2.gym.safetext import one_line
from rusty_r2.registry import Registry
from rusty_r2.rewards.labeler import WHO as LEARNED
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace
from rusty_r2.web import agreement, reading, search
from rusty_r2.web.guard import Keys, read_form, same
from rusty_r2.web.pages import STATIC, Ask, Templates, to
from rusty_r2.web.runs import RunFolder, Runs, config_diff
from rusty_r2.web.shelf import Shelf, Source, lineage, registered, shipped_card
from rusty_r2.web.sitting import Sitting, learned_reward

WHO_COOKIE = "rusty_who"
SHOWN_CURVES = 12
"""curves of a run that are drawn where nothing was chosen"""
MOST_CURVES = 60
LONGEST_NOTE = 4000
MOST_SITTINGS = 64


@dataclass
class Rooms:
    store: TraceStore
    templates: Templates
    runs: Runs
    shelf: Shelf
    learned: Path
    who: str
    registry: Registry = field(default_factory=Registry)
    card: str = field(default_factory=shipped_card)
    _sittings: dict[tuple[str, bool], Sitting] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # ── traces ──────────────────────────────────────────────────────────────────────────────────

    def traces(self, ask: Ask) -> Response:
        asked = search.Question.of(ask.query)
        found = search.find(self.store, asked)
        return self.templates.page(
            "traces",
            ask,
            asked=asked,
            found=found,
            choices=search.choices(self.store),
            where=self.store.where,
            first=(asked.page - 1) * search.PAGE,
        )

    def trace(self, ask: Ask) -> Response:
        trace = self.store.get(ask.query.get("id", ""))
        return self.templates.page("trace", ask, **self._told(trace))

    def _told(self, trace: ExecutionTrace, *, blind: bool = False) -> dict[str, Any]:
        return {
            "trace": trace,
            "parts": reading.parts(trace, blind=blind),
            "before": reading.before(trace),
            "numbers": reading.numbers(trace),
            "labels": self.store.labels(trace.trace_id),
            "rewards": reading.reward_parts(trace),
        }

    # ── labels ──────────────────────────────────────────────────────────────────────────────────

    def label(self, ask: Ask) -> Response:
        sitting = self._sitting(ask)
        trace = sitting.next()
        waiting = self.store.count(labeled=False)
        told = self._told(trace, blind=True) if trace is not None else {}
        return self.templates.page(
            "label", ask, trace_there=trace is not None, sitting=sitting, waiting=waiting, **told
        )

    def give_label(self, ask: Ask) -> Response:
        """y, n and s. `back` says where the person was: in the queue, or looking at one trace."""
        trace_id, said, note = (
            ask.query.get("id", ""),
            ask.form.get("said", ""),
            ask.form.get("note", "").strip(),
        )
        if len(note) > LONGEST_NOTE:
            raise HTTPException(400, f"a note holds at most {LONGEST_NOTE:,} characters")
        sitting = self._sitting(ask)
        if said in ("good", "bad"):
            sitting.judge(trace_id, said == "good", note)
        elif said == "skip":
            sitting.skip(trace_id)
        else:
            raise HTTPException(400, "say good, bad or skip")
        return _go(to("/trace", id=trace_id) if ask.query.get("back") == "trace" else _queue(sitting))

    def undo(self, ask: Ask) -> Response:
        sitting = self._sitting(ask)
        trace_id = sitting.undo()
        back = ask.query.get("back") == "trace" and trace_id is not None
        return _go(to("/trace", id=trace_id or "") if back else _queue(sitting))

    def name(self, ask: Ask) -> Response:
        """Whose labels the next ones are; kept by the browser."""
        who = one_line(ask.form.get("who", "").strip(), 60)[:60]
        if not who or who.casefold() == LEARNED:
            raise HTTPException(400, "a name has letters, and is not that of the learned labeler")
        answer = _go("/label")
        answer.set_cookie(
            WHO_COOKIE, quote(who), httponly=True, samesite="strict", path="/", max_age=31_536_000
        )
        return answer

    def _sitting(self, ask: Ask) -> Sitting:
        kind = (ask.who, ask.query.get("queue") == "second")
        with self._lock:
            if kind not in self._sittings:
                if len(self._sittings) >= MOST_SITTINGS:
                    self._sittings.pop(next(iter(self._sittings)))
                self._sittings[kind] = Sitting(self.store, kind[0], self.learned, second=kind[1])
            return self._sittings[kind]

    def agreement(self, ask: Ask) -> Response:
        reward = learned_reward(self.learned)
        report = str(reward.report) if reward is not None else ""
        return self.templates.page("agreement", ask, told=agreement.agreement(self.store), report=report)

    # ── runs ────────────────────────────────────────────────────────────────────────────────────

    def all_runs(self, ask: Ask) -> Response:
        return self.templates.page("runs", ask, runs=self.runs.all(), root=self.runs.root)

    def run(self, ask: Ask) -> Response:
        run = self.runs.get(ask.query.get("name", ""))
        keys = self.runs.keys(run)
        return self.templates.page(
            "run", ask, run=run, keys=keys, lineage=self._lineage(run), **self._drawn(ask, [run], keys)
        )  # fmt: skip

    def live(self, ask: Ask) -> Response:
        """The curves alone, for a page that is open already; nothing where nothing is new."""
        run = self.runs.get(ask.query.get("name", ""))
        if run.stamp == ask.query.get("stamp"):
            return Response(status_code=204)
        return self.templates.page("curves", ask, run=run, **self._drawn(ask, [run], self.runs.keys(run)))

    def compare(self, ask: Ask) -> Response:
        pair = [self.runs.get(ask.query.get(side, "")) for side in ("a", "b")]
        keys = self.runs.keys(*pair)
        drawn = self._drawn(ask, pair, keys)
        return self.templates.page("compare", ask, pair=pair, keys=keys, options=config_diff(*pair), **drawn)

    def _drawn(self, ask: Ask, runs: list[RunFolder], keys: list[str]) -> dict[str, Any]:
        chosen = [key for key in keys if key in ask.keys][:MOST_CURVES]
        picked = chosen or keys[:SHOWN_CURVES]
        across = "minutes" if ask.query.get("x") == "minutes" else "step"
        return {
            "charts": self.runs.charts(runs, picked, across),
            "picked": picked,
            "across": across,
            "numbers": [self.runs.before_after(run, keys) for run in runs],
        }

    def _lineage(self, run: RunFolder) -> tuple[Source, ...]:
        every = {one.name: one for one in self.runs.all()}
        return lineage(run, every, self.shelf.datasets())

    # ── datasets and models ─────────────────────────────────────────────────────────────────────

    def things(self, ask: Ask) -> Response:
        runs, datasets = self.runs.all(), self.shelf.datasets()
        every = {one.name: one for one in runs}
        made = [(one, lineage(one, every, datasets)) for one in runs if one.saved]
        reward = learned_reward(self.learned)
        return self.templates.page(
            "shelf", ask, datasets=datasets, made=made, folder=self.shelf.folder, unread=self.shelf.unread,
            registered=list(registered(self.registry, every, datasets)), card=self.card,
            reward=str(reward.report) if reward is not None else "",
        )  # fmt: skip

    def static(self, ask: Ask) -> Response:
        name = ask.path.rpartition("/")[2]
        if name not in STATIC:
            raise HTTPException(404, "there is nothing here")
        headers = {"cache-control": "max-age=3600", "content-type": STATIC[name]}
        return Response(self.templates.static[name], headers=headers)


def app(rooms: Rooms, keys: Keys) -> Starlette:
    """The page without its doorkeeper."""
    looks: dict[str, Callable[[Ask], Response]] = {
        "/": lambda _: _go("/traces"),
        "/traces": rooms.traces,
        "/trace": rooms.trace,
        "/label": rooms.label,
        "/agreement": rooms.agreement,
        "/runs": rooms.all_runs,
        "/run": rooms.run,
        "/run/live": rooms.live,
        "/compare": rooms.compare,
        "/shelf": rooms.things,
        "/static/{name}": rooms.static,
    }
    changes = {"/label": rooms.give_label, "/undo": rooms.undo, "/name": rooms.name}
    routes = [Route(path, partial(_answer, rooms, keys, look)) for path, look in looks.items()]
    routes += [
        Route(path, partial(_answer, rooms, keys, change), methods=["POST"])
        for path, change in changes.items()
    ]
    handlers = {kind: partial(_refused, rooms) for kind in (HTTPException, RustyError)}
    return Starlette(routes=routes, exception_handlers=handlers)


async def _answer(rooms: Rooms, keys: Keys, look: Callable[[Ask], Response], request: Request) -> Response:
    form: dict[str, str] = {}
    if request.method == "POST":
        try:
            form = read_form(await request.body())
        except ValueError as error:
            raise HTTPException(400, "this is no form of ours") from error
        if not same(form.get("key", ""), keys.form):
            raise HTTPException(403, "this form is from before a restart: reload the page")
    return await run_in_threadpool(look, _ask(rooms, request, form))


def _ask(rooms: Rooms, request: Request, form: dict[str, str]) -> Ask:
    who = unquote(request.cookies.get(WHO_COOKIE, ""))[:60].strip() or rooms.who
    return Ask(
        request.url.path, dict(request.query_params), tuple(request.query_params.getlist("key")), form,
        one_line(who, 60)[:60],
    )  # fmt: skip


async def _refused(rooms: Rooms, request: Request, error: Exception) -> Response:
    status, said = 500, str(error)
    if isinstance(error, HTTPException):
        status, said = error.status_code, error.detail
    elif isinstance(error, (StoreError, ConfigError)) and said.startswith("there is no"):
        status = 404
    return rooms.templates.page("problem", _ask(rooms, request, {}), status, problem=said, code=status)


def _go(where: str) -> RedirectResponse:
    return RedirectResponse(where, 303)


def _queue(sitting: Sitting) -> str:
    return "/label?queue=second" if sitting.second else "/label"
