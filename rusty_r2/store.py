# SPDX-License-Identifier: AGPL-3.0-or-later
"""Where traces are kept: one table of traces, one of the tools they used, one of every label ever given.

    store = TraceStore()                              # SQLite in the data home
    store = TraceStore("postgresql+psycopg://…")      # the same code on PostgreSQL

An append that returned is on the disk: a process killed the next moment loses nothing, and a trace
is whole or not there. Many processes may write at once. Secrets are cut out on the way in. The
trace itself is kept as JSON, word for word; columns hold what is searched. How traces go to and
come from files is in archive.py.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, SQLAlchemyError, StatementError

from rusty_r2.closing import Closing
from rusty_r2.config import home
from rusty_r2.errors import StoreError
from rusty_r2.redact import redact
from rusty_r2.tables import (
    LABELS,
    META,
    SUMMARY,
    TABLES,
    TOOLS,
    TRACES,
    VERSION,
    Filter,
    as_filter,
    indexes_of_bodies,
    narrowed,
    to_body,
    to_row,
    to_trace,
)
from rusty_r2.trace import ExecutionTrace, now


class TraceStore(Closing):
    """Traces in a database; safe to share between threads and processes."""

    def __init__(self, url: str | Path | None = None) -> None:
        self.url = _url(url)
        self.engine = sa.create_engine(self.url, **_engine_options(self.url))
        if self.engine.dialect.name == "sqlite":
            sa.event.listen(self.engine, "connect", _prepare_sqlite)
            sa.event.listen(self.engine, "begin", _begin_sqlite)
        self._writer = self.engine.execution_options(writes=True)
        try:
            with self._guard("open the traces"):
                self._open()
        except StoreError:
            self.engine.dispose()
            raise

    def append(self, trace: ExecutionTrace) -> str:
        """Keep one trace; returns its id once it is on the disk."""
        self.append_many([trace])
        return trace.trace_id

    def append_many(self, traces: Iterable[ExecutionTrace], *, known: str = "refuse") -> int:
        """Keep many, all or none. A trace whose id is known is refused, or passed over (known="skip")."""
        rows = [to_row(trace.redacted()) for trace in traces]
        with self._guard("append"), self._writer.begin() as connection:
            there = self._known(connection, [row["trace_id"] for row in rows])
            fresh: dict[str, dict[str, Any]] = {}
            for row in rows:
                again = row["trace_id"]
                if again not in there and again not in fresh:
                    fresh[again] = row
                elif known == "refuse" and again in there:
                    raise StoreError(f"trace {again} is in the store already. Type: rusty trace show {again}")
                elif known == "refuse":
                    raise StoreError(f"trace {again} is given twice. Give each its own id")
            tools = [
                {"trace_id": key, "tool": tool} for key, row in fresh.items() for tool in row.pop("tools")
            ]
            if fresh:
                connection.execute(sa.insert(TRACES), list(fresh.values()))
            if tools:
                connection.execute(sa.insert(TOOLS), tools)
        return len(fresh)

    def get(self, trace_id: str) -> ExecutionTrace:
        with self._guard("read"), self.engine.connect() as connection:
            row = (
                connection.execute(sa.select(TRACES).where(TRACES.c.trace_id == trace_id)).mappings().first()
            )
        if row is None:
            raise StoreError(f"there is no trace {trace_id!a} in {self.where}. Type: rusty trace list")
        return to_trace(row)

    def find(self, wanted: Filter | None = None, **narrow: Any) -> list[ExecutionTrace]:
        """The traces that fit, newest first unless asked otherwise."""
        return list(self.each(wanted, **narrow))

    def each(self, wanted: Filter | None = None, **narrow: Any) -> Iterator[ExecutionTrace]:
        """The same one by one, for more traces than memory holds."""
        asked = sa.select(TRACES)
        with self._guard("read"), self.engine.connect() as connection:
            found = connection.execution_options(yield_per=500)
            for row in found.execute(narrowed(asked, as_filter(wanted, narrow))).mappings():
                yield to_trace(row)

    def listing(self, wanted: Filter | None = None, **narrow: Any) -> list[dict[str, Any]]:
        """The columns of the traces that fit, without their bodies: quick at any size."""
        with self._guard("read"), self.engine.connect() as connection:
            rows = connection.execute(narrowed(sa.select(*SUMMARY), as_filter(wanted, narrow))).mappings()
            return [dict(row) for row in rows]

    def count(self, wanted: Filter | None = None, **narrow: Any) -> int:
        asked = replace(as_filter(wanted, narrow), limit=None, offset=0)
        with self._guard("read"), self.engine.connect() as connection:
            inner = narrowed(sa.select(TRACES.c.trace_id), asked, ordered=False).subquery()
            return int(connection.execute(sa.select(sa.func.count()).select_from(inner)).scalar_one())

    def label(
        self, trace_id: str, label: bool | None, *, note: str = "", who: str = "person", manual: bool = True
    ) -> None:
        """Say what a trace was worth. Every label is kept; a classifier's never covers a person's."""
        at = now()
        with self._guard("label"), self._writer.begin() as connection:
            found = connection.execute(
                sa.select(TRACES.c.manual).where(TRACES.c.trace_id == trace_id)
            ).first()
            if found is None:
                raise StoreError(f"there is no trace {trace_id!a} in {self.where}. Type: rusty trace list")
            note, _ = redact(note)
            said = {"trace_id": trace_id, "label": label, "note": note, "who": who, "at": at}
            connection.execute(sa.insert(LABELS).values(said))
            if found.manual and not manual:
                return
            current = {"label": label, "manual": manual and label is not None, "note": note}
            changed = sa.update(TRACES).where(TRACES.c.trace_id == trace_id)
            connection.execute(changed.values(**current, labeled_by=who, labeled_at=at))

    def take_back(self, before: ExecutionTrace, *, who: str) -> None:
        """Undo a label of `who`: the one in `before` holds again, or what somebody else said since."""
        found = self.get(before.trace_id)
        self.label(before.trace_id, None, note="undone", who=who)
        said = before if found.labeled_by == who else found
        if said.label is not None:
            by_hand = said.manual_review or not said.labeled_by
            note, author = said.review_notes, said.labeled_by
            self.label(said.trace_id, said.label, note=note, who=author, manual=by_hand)

    def labels(self, trace_id: str) -> list[dict[str, Any]]:
        """Every label a trace was given, oldest first."""
        asked = sa.select(LABELS).where(LABELS.c.trace_id == trace_id).order_by(LABELS.c.number)
        with self._guard("read"), self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(asked).mappings()]

    def score(self, trace_id: str, reward: float, parts: Mapping[str, float] | None = None) -> None:
        """Keep a computed reward and its parts beside the trace."""
        trace = replace(self.get(trace_id), reward_score=reward, reward_parts=dict(parts or {}))
        with self._guard("score"), self._writer.begin() as connection:
            changed = sa.update(TRACES).where(TRACES.c.trace_id == trace_id)
            connection.execute(changed.values(reward=reward, body=to_body(trace)))

    def statistics(self, wanted: Filter | None = None, **narrow: Any) -> dict[str, Any]:
        """Counts and means in the words of the seeds, or {"total": 0}."""
        inner = narrowed(
            sa.select(*SUMMARY), replace(as_filter(wanted, narrow), limit=None), ordered=False
        ).subquery()
        labelled = sa.func.count(inner.c.label)
        positive = sa.func.sum(sa.case((inner.c.label.is_(True), 1), else_=0))
        means = [sa.func.avg(inner.c[name]) for name in ("tool_calls", "reasoning_steps", "cost")]
        with self._guard("read"), self.engine.connect() as connection:
            row = connection.execute(
                sa.select(sa.func.count(), labelled, positive, *means).select_from(inner)
            ).one()
        total, known, good = (int(value or 0) for value in row[:3])
        if not total:
            return {"total": 0}
        return {
            "total": total,
            "labeled": known,
            "unlabeled": total - known,
            "positive_labels": good,
            "negative_labels": known - good,
            "avg_tool_calls": float(row[3]),
            "avg_reasoning_steps": float(row[4]),
            "avg_cost": float(row[5]),
        }

    @property
    def where(self) -> str:
        """The address without its password."""
        return self.engine.url.render_as_string(hide_password=True)

    def close(self) -> None:
        self.engine.dispose()

    def _open(self) -> None:
        """Make the tables in an empty database; refuse one that belongs to somebody else."""
        with self._writer.begin() as connection:
            tables = set(sa.inspect(connection).get_table_names())
            if META.name not in tables:
                ours = tables & set(TABLES.tables)
                if ours or (tables and self.engine.dialect.name == "sqlite"):
                    raise StoreError(f"{self.where} is another program's database. Name an empty one")
                if self.engine.dialect.name == "postgresql":
                    connection.execute(sa.text("SELECT pg_advisory_xact_lock(7278)"))
                TABLES.create_all(connection)
                if not connection.execute(sa.select(META)).first():
                    connection.execute(sa.insert(META).values(key="schema", value=VERSION))
            if self.engine.dialect.name == "sqlite":
                for index in indexes_of_bodies():
                    connection.execute(index)
            found = connection.execute(sa.select(META.c.value).where(META.c.key == "schema")).scalar()
        if found != VERSION:
            raise StoreError(f"{self.where} has schema {found}, not {VERSION}. Type: pip install -U rusty-r2")

    def _known(self, connection: sa.Connection, ids: list[str]) -> set[str]:
        known: set[str] = set()
        for start in range(0, len(ids), 500):
            some = ids[start : start + 500]
            known |= set(
                connection.execute(sa.select(TRACES.c.trace_id).where(TRACES.c.trace_id.in_(some))).scalars()
            )
        return known

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """Every failure of the database is one clear line."""
        try:
            yield
        except StatementError as error:
            raise StoreError(f"cannot {what} in {self.where}: {_cause(error)}") from error
        except UnicodeEncodeError as error:
            half = f"{error.object!a:.60} holds half a character (a lone surrogate)"
            raise StoreError(f"cannot {what} in {self.where}: {half}") from error
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot {what} in {self.where}: {error}") from error


def without_password(address: str) -> str:
    """A store's address as it may be written down; the password is then asked of PGPASSWORD or ~/.pgpass."""
    if "://" not in address:
        return address
    url = _url(address)
    query = {name: value for name, value in url.query.items() if name != "password"}
    kept = sa.URL.create(url.drivername, url.username, None, url.host, url.port, url.database, query)
    return kept.render_as_string()


def _url(given: str | Path | None) -> sa.URL:
    if isinstance(given, str) and "://" in given:
        try:
            url = sa.make_url(given)
        except SQLAlchemyError as error:
            raise StoreError(
                "the store's address is not a database URL, such as postgresql+psycopg://user@host/name"
            ) from error
        return (
            url.set(drivername="postgresql+psycopg") if url.drivername in ("postgresql", "postgres") else url
        )
    path = Path(given) if given is not None else home() / "traces.db"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot make {path.parent}: {error.strerror}. Set RUSTY_HOME to a folder you may write"
        ) from error
    if given is None and not path.exists():
        with suppress(OSError):  # opening it will say so
            path.touch(mode=0o600)  # what somebody asked an agent is theirs to show
    return sa.URL.create("sqlite", database=str(path))


def _engine_options(url: sa.URL) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": 60, "check_same_thread": False}}
    try:
        __import__("psycopg")
    except ModuleNotFoundError as error:
        raise StoreError("PostgreSQL needs psycopg. Type: pip install 'rusty-r2[postgres]'") from error
    return {"pool_pre_ping": True}


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """Write-ahead log, flushed at each commit; transactions are begun by `_begin_sqlite`."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout=60000")
    _use_log(cursor)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _use_log(cursor: Any, patience: float = 60.0) -> None:
    """A new file is turned to its log by one opener alone, and for that SQLite itself does not wait."""
    until = time.monotonic() + patience
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _begin_sqlite(connection: sa.Connection) -> None:
    """Who will write says so at once: two readers that turn writers would deadlock."""
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _cause(error: StatementError) -> str:
    text = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
    if isinstance(error, DatabaseError) and "not a database" in text:
        return "the file is not a database. Name another one"
    return text
