# SPDX-License-Identifier: AGPL-3.0-or-later
"""Finding traces among many: the store's filter, and beside it what only the body of a trace knows.

Agent, label, dates and words have columns of their own. Model, ending and task are read out of the body by
the database: SQLite has an index of them, PostgreSQL looks trace by trace from the newest on until a page is
full. Nothing is ever written here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlencode

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from rusty_r2.errors import StoreError
from rusty_r2.store import TraceStore
from rusty_r2.tables import IN_BODY, LABELS, SUMMARY, TRACES, Filter, in_body, narrowed

PAGE = 50
"""traces on a page"""
LONGEST = 200
"""characters of one field that are asked for"""
SAMPLE = 1000
"""newest traces whose models, endings and families are offered"""
LABEL_CHOICES = ("", "none", "good", "bad", "person", "machine")


@dataclass(frozen=True)
class Question:
    """What the form above the list says."""

    text: str = ""
    agent: str = ""
    model: str = ""
    status: str = ""
    family: str = ""
    label: str = ""
    tool: str = ""
    since: str = ""
    until: str = ""
    page: int = 1

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Question:
        words = {f.name: given.get(f.name, "").strip()[:LONGEST] for f in fields(cls) if f.name != "page"}
        page = given.get("page", "1")
        if words["label"] not in LABEL_CHOICES:
            words["label"] = ""
        return cls(**words, page=int(page) if page.isdecimal() and 0 < len(page) < 8 and int(page) else 1)

    @property
    def into_bodies(self) -> bool:
        return bool(self.model or self.status or self.family)

    @property
    def narrow(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self) if f.name != "page")

    def link(self, page: int) -> str:
        said = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "page"}
        return "/traces?" + urlencode({k: v for k, v in said.items() if v} | {"page": str(page)})

    def filter(self, **more: Any) -> Filter:
        return Filter(
            agent=self.agent or None,
            tool=self.tool or None,
            text=self.text or None,
            since=self.since or None,
            until=self.until or None,
            label={"good": True, "bad": False}.get(self.label),
            labeled={"none": False, "person": True, "machine": True}.get(self.label),
            **more,
        )


@dataclass(frozen=True)
class Found:
    rows: list[dict[str, Any]]
    more: bool
    """there is another page"""
    total: int | None
    """how many fit in all; None where counting would mean reading every body"""

    @property
    def pages(self) -> int | None:
        return None if self.total is None else max(1, -(-self.total // PAGE))


def find(store: TraceStore, asked: Question) -> Found:
    """One page of what fits, newest first."""
    page = asked.filter(limit=PAGE + 1, offset=(asked.page - 1) * PAGE)
    query = _beside(narrowed(sa.select(*SUMMARY), page), store, asked)
    rows = [dict(row._mapping) for row in read(store, query)]
    known = asked.page == 1 or bool(rows)
    total = page.offset + len(rows) if known and len(rows) <= PAGE else None
    if total is None and (_sqlite(store) or not asked.into_bodies):
        ids = narrowed(sa.select(TRACES.c.trace_id), asked.filter(limit=None), ordered=False)
        every = _beside(ids, store, asked).subquery()
        total = int(read(store, sa.select(sa.func.count()).select_from(every))[0][0])
    rows, more = rows[:PAGE], len(rows) > PAGE
    told = facts(store, [row["trace_id"] for row in rows])
    return Found([row | told.get(row["trace_id"], dict.fromkeys(IN_BODY, "")) for row in rows], more, total)


def _beside(query: sa.Select[Any], store: TraceStore, asked: Question) -> sa.Select[Any]:
    """The conditions that the store's filter does not have."""
    if asked.label in ("person", "machine"):
        query = query.where(TRACES.c.manual.is_(asked.label == "person"))
    for field, wanted in (("model", asked.model), ("ended", asked.status)):
        if wanted:
            query = query.where(_says(store, field, wanted))
    if asked.family:
        query = query.where(_says(store, "task_name", asked.family, begins=True))
    return query


def _says(store: TraceStore, field: str, wanted: str, *, begins: bool = False) -> sa.ColumnElement[bool]:
    body = TRACES.c.body
    if _sqlite(store):
        value = in_body(field)
        longer = sa.and_(value >= f"{wanted}-", value < f"{wanted}.")  # "." follows "-"
        return sa.or_(value == wanted, longer) if begins else value == wanted
    # PostgreSQL refuses to read JSON with half a character in it, which a trace may have: look at the words
    written = f'"{field}": {json.dumps(wanted)}'
    ends = body.contains(written, autoescape=True)
    return sa.or_(ends, body.contains(f"{written[:-1]}-", autoescape=True)) if begins else ends


def facts(store: TraceStore, ids: Sequence[str]) -> dict[str, dict[str, str]]:
    """Model, ending and task of some traces."""
    sqlite = _sqlite(store)
    columns = [in_body(name) for name in IN_BODY] if sqlite else [TRACES.c.body]
    found: dict[str, dict[str, str]] = {}
    for start in range(0, len(ids), 500):
        some = TRACES.c.trace_id.in_(ids[start : start + 500])
        for key, *values in read(store, sa.select(TRACES.c.trace_id, *columns).where(some)):
            told = values if sqlite else [json.loads(values[0]).get(name) for name in IN_BODY]
            found[key] = {name: str(value or "") for name, value in zip(IN_BODY, told, strict=True)}
    return found


def _sqlite(store: TraceStore) -> bool:
    return store.engine.dialect.name == "sqlite"


def choices(store: TraceStore) -> dict[str, list[str]]:
    """What the newest traces offer to choose from: agents, models, endings, families."""
    newest = read(store, narrowed(sa.select(TRACES.c.trace_id, TRACES.c.agent), Filter(limit=SAMPLE)))
    told = facts(store, [key for key, _ in newest]).values()
    offered = {
        "agent": {agent for _, agent in newest},
        "model": {one["model"] for one in told},
        "status": {one["ended"] for one in told},
        "family": {family_of(one["task_name"]) for one in told},
    }
    return {name: sorted(value for value in values if value)[:200] for name, values in offered.items()}


def family_of(task: str) -> str:
    """The family of a task of the gym: `rename-1-train-7` is of `rename`; another name is its own."""
    family, *rest = task.rsplit("-", 3)
    return family if len(rest) == 3 and rest[0].isdecimal() and rest[2].isdecimal() else task


def second_opinions(store: TraceStore, who: str, limit: int) -> list[str]:
    """Traces that another person judged and this one did not, newest first."""
    mine = sa.select(LABELS.c.number).where(
        LABELS.c.trace_id == TRACES.c.trace_id, LABELS.c.who == who, LABELS.c.label.is_not(None)
    )
    wanted = (TRACES.c.manual.is_(True), TRACES.c.labeled_by != who, ~mine.exists())
    query = sa.select(TRACES.c.trace_id).where(*wanted).order_by(TRACES.c.timestamp.desc()).limit(limit)
    return [key for (key,) in read(store, query)]


def read(store: TraceStore, query: sa.Select[Any]) -> list[Any]:
    """What the database answers; its failure is one line."""
    try:
        with store.engine.connect() as connection:
            return list(connection.execute(query))
    except SQLAlchemyError as error:
        raise StoreError(f"cannot read {store.where}: {error}. Type: rusty trace list") from error
