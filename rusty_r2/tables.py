# SPDX-License-Identifier: AGPL-3.0-or-later
"""The tables of the trace store, what may be asked of them, and how a trace and a row become each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from rusty_r2.errors import StoreError
from rusty_r2.protocol import Cmd, Edit
from rusty_r2.trace import ExecutionTrace

VERSION = "1"
TABLES = sa.MetaData()
META = sa.Table(
    "rusty_meta", TABLES, sa.Column("key", sa.String(40), primary_key=True), sa.Column("value", sa.Text)
)
TRACES = sa.Table(
    "traces",
    TABLES,
    sa.Column("trace_id", sa.String(64), primary_key=True),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("session", sa.Text, nullable=False),
    sa.Column("timestamp", sa.String(40), nullable=False),
    sa.Column("query", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),  # request and answer, case folded, for the search
    sa.Column("tool_calls", sa.Integer, nullable=False),
    sa.Column("reasoning_steps", sa.Integer, nullable=False),
    sa.Column("cost", sa.Float, nullable=False),
    sa.Column("label", sa.Boolean),
    sa.Column("manual", sa.Boolean, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("labeled_by", sa.Text, nullable=False),
    sa.Column("labeled_at", sa.String(40), nullable=False),
    sa.Column("reward", sa.Float),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("traces_by_time", "timestamp", "trace_id"),
    sa.Index("traces_by_agent", "agent", "timestamp"),
    sa.Index("traces_by_label", "label", "timestamp"),
    sa.Index("traces_by_reward", "reward"),
)
TOOLS = sa.Table(
    "trace_tools",
    TABLES,
    sa.Column("tool", sa.Text, primary_key=True),
    sa.Column("trace_id", sa.String(64), sa.ForeignKey("traces.trace_id"), primary_key=True),
)
LABELS = sa.Table(
    "trace_labels",
    TABLES,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("trace_id", sa.String(64), sa.ForeignKey("traces.trace_id"), nullable=False, index=True),
    sa.Column("label", sa.Boolean),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("at", sa.String(40), nullable=False),
)
IN_BODY = ("model", "ended", "task_name")
"""fields that have an index and no column, in SQLite"""


def in_body(field: str) -> sa.ColumnClause[str]:
    """A field of the body as SQLite reads it, in the very words of its index."""
    return sa.literal_column(f"json_extract(body, '$.{field}')", sa.Text)


def indexes_of_bodies() -> list[sa.TextClause]:
    """What makes them, also in a store that an older version made."""
    made = "CREATE INDEX IF NOT EXISTS traces_by_{0} ON traces ({1}, timestamp, trace_id)"
    return [sa.text(made.format(field, in_body(field).name)) for field in IN_BODY]


SUMMARY = [column for column in TRACES.c if column.name not in ("body", "text")]


@dataclass(frozen=True)
class Filter:
    """Which traces; a field left alone does not narrow."""

    agent: str | None = None
    session: str | None = None
    since: str | None = None
    """ISO date or time, inclusive"""
    until: str | None = None
    """ISO date or time; a date includes its whole day"""
    label: bool | None = None
    labeled: bool | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    tool: str | None = None
    text: str | None = None
    """words of the request or the answer, in any case"""
    min_tool_calls: int = 0
    limit: int | None = 100
    offset: int = 0
    newest_first: bool = True


def as_filter(wanted: Filter | None, narrow: dict[str, Any]) -> Filter:
    """The filter given, narrowed by the words given beside it."""
    return replace(wanted or Filter(), **narrow)


def narrowed(asked: sa.Select[Any], wanted: Filter, *, ordered: bool = True) -> sa.Select[Any]:
    """`asked` with the conditions of a filter."""
    c = TRACES.c
    exact = {c.agent: wanted.agent, c.session: wanted.session, c.label: wanted.label}
    asked = asked.where(*(column == value for column, value in exact.items() if value is not None))
    if wanted.labeled is not None:
        asked = asked.where(c.label.is_not(None) if wanted.labeled else c.label.is_(None))
    if wanted.since is not None:
        asked = asked.where(c.timestamp >= _moment(wanted.since))
    if wanted.until is not None:
        until = _moment(wanted.until)
        asked = asked.where(c.timestamp <= until + ("T~" if "T" not in until else ""))
    if wanted.min_reward is not None:
        asked = asked.where(c.reward >= wanted.min_reward)
    if wanted.max_reward is not None:
        asked = asked.where(c.reward <= wanted.max_reward)
    if wanted.min_tool_calls:
        asked = asked.where(c.tool_calls >= wanted.min_tool_calls)
    if wanted.tool is not None:
        using = sa.select(TOOLS.c.trace_id).where(TOOLS.c.tool == wanted.tool)
        asked = asked.where(c.trace_id.in_(using))
    if wanted.text:
        asked = asked.where(c.text.contains(_plain(wanted.text).casefold(), autoescape=True))
    if ordered:
        keys = (c.timestamp, c.trace_id)
        asked = asked.order_by(*(key.desc() for key in keys) if wanted.newest_first else keys)
    return asked.limit(wanted.limit).offset(wanted.offset or None)


def _moment(said: str) -> str:
    """A time as timestamps are written, also where a space stands before the hour."""
    return said.strip().replace(" ", "T", 1)


def to_row(trace: ExecutionTrace) -> dict[str, Any]:
    """The columns of a trace, and the names of its tools."""
    return {
        "trace_id": trace.trace_id,
        "agent": _plain(trace.agent_name),
        "session": _plain(trace.session_id),
        "timestamp": trace.timestamp,
        "query": _plain(trace.user_query),
        "text": _plain(f"{trace.user_query}\n{trace.final_response or trace.answer}").casefold(),
        "tool_calls": len(trace.tool_calls) + sum(isinstance(s.action, Cmd | Edit) for s in trace.steps),
        "reasoning_steps": len(trace.reasoning_steps),
        "cost": trace.total_cost,
        "label": trace.label,
        "manual": trace.manual_review,
        "note": _plain(trace.review_notes),
        "labeled_by": trace.labeled_by,
        "labeled_at": trace.labeled_at,
        "reward": trace.reward_score,
        "body": to_body(trace),
        "tools": sorted({_plain(call.tool_name) for call in trace.tool_calls}),
    }


def _plain(text: str) -> str:
    """What every database can hold and search; the body keeps the characters as they came."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def to_body(trace: ExecutionTrace) -> str:
    try:
        return json.dumps(trace.to_dict(), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"trace {trace.trace_id} cannot be kept: {error}") from error


def to_trace(row: Mapping[Any, Any]) -> ExecutionTrace:
    """The trace as it was appended, with the label in force now."""
    return replace(
        ExecutionTrace.from_dict(json.loads(row["body"])),
        label=row["label"],
        manual_review=row["manual"],
        review_notes=row["note"],
        labeled_by=row["labeled_by"],
        labeled_at=row["labeled_at"],
        reward_score=row["reward"],
    )
