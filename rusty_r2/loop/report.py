# SPDX-License-Identifier: AGPL-3.0-or-later
"""The report of a round: one page that needs nothing but a browser.

It is made from the round's folder alone (done.json of each stage, the run's metrics), so it can be made again
at any time: `write_report(Path("loops/agent/round-001"))`. Everything that came from outside, answers of
models above all, is escaped. Pictures are charts.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rusty_r2 import __version__, files
from rusty_r2.loop.charts import Point, curve, histogram, interval, number
from rusty_r2.loop.stages import Done, read_all
from rusty_r2.loop.style import STYLE
from rusty_r2.run import metrics, noted
from rusty_r2.trace import now

CURVES = ("loss", "reward", "margin", "eval", "kl", "entropy", "pass", "bits", "lr")
"""tags with these words are worth a picture, in this order"""
MOST_CURVES = 9
Cell = str
"""HTML, escaped already"""


def write_report(folder: Path, *, in_use: str = "") -> Path:
    """Write report.html and return its path."""
    stages = {one.name: one for one in read_all(folder)}
    config = noted(folder / "config.json")
    facts: dict[str, dict[str, Any]] = {name: one.facts for name, one in stages.items()}
    chosen = facts.get("promote", {})
    verdict = "promoted" if chosen.get("promoted") else "refused"
    title = f"{chosen.get('label') or config.get('name', 'a round')}: {verdict}"
    parts = [
        _banner(title, verdict, chosen, config, in_use),
        _section("Before and after", _before_after(facts)),
        _section("Training", _curves(stages.get("train"))),
        _section("What went in", _went_in(facts, config)),
        _section("What was left out or refused, and why", _refused(facts)),
        _section("The gate", _gate(facts.get("gate", {}))),
        _section("Answers, old and new", _answers(facts.get("gate", {}))),
        _section("Stages", _stages(list(stages.values()), folder)),
    ]
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f"{''.join(parts)}<footer>Rusty-R2 {__version__}, {now()[:19]}Z. Made from {escape(str(folder))}"
        "</footer></main></body></html>\n"
    )
    return files.write(folder / "report.html", page.encode("utf-8", "replace"))


def _banner(
    title: str, verdict: str, chosen: Mapping[str, Any], config: Mapping[str, Any], in_use: str
) -> str:
    before = f" in place of {chosen['before']}" if chosen.get("before") else ""
    if verdict == "promoted":
        said = f"It passed the gate and is in use{escape(before)}."
    else:
        reasons = "".join(f"<li>{escape(str(reason))}</li>" for reason in chosen.get("reasons", []))
        kept = f"{escape(in_use)} stays in use." if in_use else "Nothing is in use."
        said = f"It was trained, tried and not used. {kept}<ul>{reasons}</ul>"
    made = f"{config.get('method', '')} on {config.get('base', '')}"
    head = f'<p class="kind">{escape(made)}</p><h1>{escape(title)}</h1>'
    return f'<header class="{verdict}">{head}<div>{said}</div></header>'


def _before_after(facts: Mapping[str, dict[str, Any]]) -> str:
    gate = facts.get("gate", {})
    rows = [
        (escape(one["name"]), _share(one["old"], "old"), _share(one["new"], "new"), _compared(one))
        for one in gate.get("measured", [])
    ]
    for name, line in _trained(facts).items():
        cells = [_interval(line[key]) for key in ("before", "after", "change")]
        rows.append((f"held-out rows: {escape(name)}", cells[0], cells[1], f"{cells[2]} change"))
    against = escape(str(gate.get("against", "before")))
    if not rows:
        return "<p>Nothing was measured.</p>"
    return _table(("measure", f"before ({against})", "after", "verdict"), rows)


def _trained(facts: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = facts.get("train", {}).get("before_after") or {}
    return {name: line for name, line in found.items() if isinstance(line, dict) and "before" in line}


def _curves(train: Done | None) -> str:
    run = train.outputs[0] if train is not None and train.outputs else None
    logged = metrics(run) if run is not None and run.is_dir() else []
    series: dict[str, list[Point]] = {}
    for line in logged:
        for tag, value in line.items():
            if tag not in ("step", "time") and isinstance(value, (int, float)):
                series.setdefault(tag, []).append((float(line["step"]), float(value)))
    drawn = [
        tag
        for tag in sorted(series, key=_interest)
        if len(series[tag]) > 1 and _interest(tag)[0] < len(CURVES)
    ]
    pictures = [curve(tag, series[tag]) for tag in drawn[:MOST_CURVES]]
    if not pictures:
        return "<p>Training logged no curve.</p>"
    return f'<div class="charts">{"".join(pictures)}</div>'


def _interest(tag: str) -> tuple[int, str]:
    place = next((at for at, word in enumerate(CURVES) if word in tag.lower()), len(CURVES))
    return place, tag


def _went_in(facts: Mapping[str, dict[str, Any]], config: Mapping[str, Any]) -> str:
    collect, reward, rows = (facts.get(name, {}) for name in ("collect", "reward", "rows"))
    lines = [
        ("traces", f"{collect.get('traces', 0):,} from {collect.get('from', '')}"),
        ("labels", _counts(collect.get("labels", {}))),
        ("of the agents", _counts(collect.get("agents", {}))),
        ("by the models", _counts(collect.get("models", {}))),
        ("judged by", _counts(reward.get("by", {}))),
        ("mean reward", "–" if reward.get("mean") is None else f"{reward['mean']:.3f}"),
        ("parts", _counts(reward.get("parts", {}))),
        ("rows", f"{rows.get('rows', 0):,} to learn from, {rows.get('held out', 0):,} held out"),
        ("of them", _counts(rows.get("counts", {}))),
        ("base", str(config.get("base", ""))),
        ("file", _file(facts.get("export", {}))),
    ]
    shown = [(f'<span class="name">{escape(name)}</span>', escape(value)) for name, value in lines if value]
    table = _table((), shown)
    scores = reward.get("scores") or []
    picture = f'<div class="charts">{histogram("rewards of the traces", scores)}</div>' if scores else ""
    notes = "".join(f'<p class="note">{escape(str(note))}</p>' for note in rows.get("notes", []))
    return table + notes + picture


def _file(made: Mapping[str, Any]) -> str:
    shown = dict(made)
    if "size" in shown:
        shown["size"] = f"{shown['size'] / 1e6:,.1f} MB"
    if "sha256" in shown:
        shown["sha256"] = f"{shown['sha256'][:16]}…"
    return _counts(shown)


def _refused(facts: Mapping[str, dict[str, Any]]) -> str:
    collect, reward, rows = (facts.get(name, {}) for name in ("collect", "reward", "rows"))
    lines: list[tuple[Cell, Cell, Cell]] = []
    lines += [("no trace", "1", escape(str(line))) for line in collect.get("no traces", [])]
    lines += [("worth nothing", str(n), escape(str(why))) for why, n in reward.get("refused", {}).items()]
    lines += [("no row", f"{n:,}", escape(str(why))) for why, n in rows.get("left out", {}).items()]
    promote = facts.get("promote", {})
    lines += [("the model itself", "1", escape(str(why))) for why in promote.get("reasons", [])]
    if not lines:
        return "<p>Nothing.</p>"
    return _table(("what", "how many", "why"), lines)


def _gate(gate: Mapping[str, Any]) -> str:
    findings = gate.get("findings", [])
    if not findings:
        return (
            "<p>Our own model runs as it was trained: there is no other file to compare.</p>" if gate else ""
        )
    rows = [(_mark(one["passed"]), escape(str(one["name"])), escape(str(one["said"]))) for one in findings]
    return _table(("", "question", "answer"), rows)


def _answers(gate: Mapping[str, Any]) -> str:
    rows = [
        tuple(f"<pre>{escape(str(sample[key]))}</pre>" for key in ("asked", "old", "new"))
        for one in gate.get("measured", [])
        for sample in one.get("samples", [])
    ]
    return _table(("asked", "old", "new"), rows) if rows else "<p>None were kept.</p>"


def _stages(stages: Sequence[Done], folder: Path) -> str:
    rows = [
        (
            f"<code>{escape(one.folder.name)}</code>",
            f"{one.seconds:,.1f} s",
            f"<code>{one.digest[:12]}</code>",
            escape(", ".join(path.relative_to(one.folder).as_posix() for path in one.outputs)),
        )
        for one in stages
    ]
    total = sum(one.seconds for one in stages)
    again = f"rusty loop --config {folder / 'config.json'}"
    return (
        _table(("stage", "took", "digest", "made"), rows)
        + f"<p>{total / 60:,.1f} minutes of work. The same options again: <code>{escape(again)}</code></p>"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    top = f"<thead><tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr></thead>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def _share(rate: Mapping[str, Any], kind: str) -> Cell:
    share = 100 * rate["passed"] / rate["total"] if rate["total"] else 0.0
    said = f"{share:.1f}% <small>({100 * rate['low']:.0f} to {100 * rate['high']:.0f}), "
    return f"{said}{rate['passed']} of {rate['total']}</small>{interval(dict(rate), kind)}"


def _interval(three: Sequence[float]) -> Cell:
    middle, low, high = (number(float(value)) for value in three)
    return f"{middle} <small>({low} to {high})</small>"


def _compared(one: Mapping[str, Any]) -> Cell:
    pairs = f" <small>{one['lost']} lost, {one['gained']} gained</small>" if "lost" in one else ""
    return _verdict(one["verdict"]) + pairs


def _verdict(word: str) -> Cell:
    kind = {"better": "good", "worse": "bad"}.get(word, "even")
    return f'<span class="tag {kind}">{escape(word)}</span>'


def _mark(passed: bool) -> Cell:
    return '<span class="tag good">ok</span>' if passed else '<span class="tag bad">fail</span>'


def _counts(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in found.items() if value is not None)


def _value(value: Any) -> str:
    return (
        number(float(value))
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        else str(value)
    )
