"""One suite for every address: SQLite always, PostgreSQL where it is installed."""

import json
import os
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace

import pytest
import sqlalchemy as sa

from rusty_r2 import archive
from rusty_r2.errors import StoreError, TraceError
from rusty_r2.store import TraceStore, without_password
from rusty_r2.tables import TABLES
from rusty_r2.trace import ExecutionTrace, Step, ToolCallTrace


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "sqlite":
        yield str(tmp_path / "traces.db")
        return
    address = request.getfixturevalue("postgres_url")
    yield address
    engine = sa.create_engine(address)
    TABLES.drop_all(engine)
    engine.dispose()


@pytest.fixture
def store(url):
    with TraceStore(url) as opened:
        yield opened


def trace(n=0, **given):
    tools = [ToolCallTrace("shell" if n % 2 else "search", {"n": n}, "ok", True, 1.0)] * (n % 3)
    facts = {
        "agent_name": f"agent{n % 2}",
        "user_query": f"Question {n}",
        "timestamp": f"2026-01-{n % 28 + 1:02d}T10:00:00+00:00",
    }
    return ExecutionTrace(**{**facts, "tool_calls": tools, "final_response": f"answer {n}", **given})


def test_what_goes_in_comes_out(store):
    kept = trace(
        4, steps=[Step("hi", "there", token_ids=[1, 2])], extra={"from": "elsewhere"}, sampling={"t": 0.5}
    )
    store.append(kept)
    assert store.get(kept.trace_id) == kept


@pytest.mark.parametrize(
    "text", ["naïve 日本語 🎉", "nul \0 inside", "lone \ud800 half", "quote ' \" ; DROP TABLE traces", "%_\\"]
)
def test_any_text_is_kept(store, text):
    kept = trace(user_query=text, final_response=text)
    store.append(kept)
    assert store.get(kept.trace_id).user_query == text


def test_filters(store):
    store.append_many([trace(n, reward_score=n / 10) for n in range(10)])
    assert [t.user_query for t in store.find(agent="agent1", limit=2)] == ["Question 9", "Question 7"]
    assert store.count(tool="shell") == 4 - 1  # 1, 5, 7 use it; 3 and 9 call nothing
    assert store.count(min_reward=0.65) == 3 and store.count(max_reward=0.05) == 1
    assert store.count(since="2026-01-03", until="2026-01-05") == 3
    for hour in ("2026-01-03T23:59", "2026-01-03 23:59"):
        assert (store.count(since=hour), store.count(until=hour)) == (7, 3)
    assert (
        store.count(text="QUESTION 7") == 1
        and store.count(text="answer") == 10
        and store.count(text="%") == 0
    )
    assert store.count(min_tool_calls=2) == 3
    assert [row["query"] for row in store.listing(newest_first=False, limit=1, offset=2)] == ["Question 2"]


def test_labels_keep_who_when_and_why_and_a_person_wins(store):
    one = store.append(trace())
    store.label(one, True, who="classifier", manual=False)
    assert store.get(one).label is True and not store.get(one).manual_review
    store.label(one, False, note="wrong; its password: hunter22-x", who="ann")
    store.label(one, True, who="classifier", manual=False)
    now = store.get(one)
    assert (now.label, now.review_notes, now.labeled_by, now.manual_review) == (
        False,
        "wrong; its password: [redacted:named]",
        "ann",
        True,
    )
    assert now.labeled_at and [said["who"] for said in store.labels(one)] == [
        "classifier",
        "ann",
        "classifier",
    ]
    assert (
        store.count(labeled=True) == 1 and store.count(label=False) == 1 and store.count(labeled=False) == 0
    )


def test_statistics(store):
    assert store.statistics() == {"total": 0}
    ids = [store.append(trace(n)) for n in range(4)]
    store.label(ids[0], True)
    store.label(ids[1], False)
    found = store.statistics()
    assert {k: found[k] for k in ("total", "labeled", "unlabeled", "positive_labels", "negative_labels")} == {
        "total": 4, "labeled": 2, "unlabeled": 2, "positive_labels": 1, "negative_labels": 1
    }  # fmt: skip
    assert found["avg_tool_calls"] == pytest.approx((0 + 1 + 2 + 0) / 4)


def test_scores_are_kept_with_their_parts(store):
    one = store.append(trace())
    store.score(one, 0.75, {"tests": 1.0, "brief": 0.5})
    assert store.get(one).reward_score == 0.75 and store.get(one).reward_parts == {"tests": 1.0, "brief": 0.5}


def test_secrets_are_cut_out_on_the_way_in(store):
    secret = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"
    one = store.append(trace(user_query=f"use {secret}"))
    assert secret not in json.dumps(store.get(one).to_dict()) and store.get(one).redactions == 1
    assert store.count(text=secret) == 0


def test_an_id_is_kept_once_and_a_batch_is_all_or_nothing(store):
    first = trace(1)
    store.append(first)
    with pytest.raises(StoreError, match="already"):
        store.append_many([trace(2), replace(first, user_query="other")])
    twice = trace(4)
    with pytest.raises(StoreError, match=f"trace {twice.trace_id} is given twice"):
        store.append_many([trace(2), twice, twice])
    assert store.count() == 1 and store.append_many([first, twice, twice], known="skip") == 1


def test_what_cannot_be_kept_is_refused_whole(store):
    with pytest.raises(StoreError, match="cannot be kept"):
        store.append_many([trace(), trace(extra={"x": object()})])
    with pytest.raises(TraceError, match="total_cost"):
        store.append(trace(total_cost=10**400))
    assert store.count() == 0
    with pytest.raises(StoreError, match="cannot score") as told:
        store.score(store.append(trace()), 10**400)
    assert "\n" not in str(told.value)


def test_half_a_character_where_a_database_needs_a_whole_one_is_one_line(store):
    half = "a\ud800"
    known = store.append(trace(1))
    for deed in (
        lambda: store.append(trace(2, trace_id=half)),
        lambda: store.append(trace(3, timestamp=half)),
        lambda: store.get(half),
        lambda: store.label(half, True),
        lambda: store.label(known, True, who=half),
        lambda: store.find(agent=half),
    ):
        with pytest.raises(StoreError, match=r"'a\\ud800' holds half a character") as told:
            deed()
        assert "\n" not in str(told.value)
    assert store.count() == 1


def test_a_missing_trace_is_one_clear_line(store):
    for ask in (lambda: store.get("nope"), lambda: store.label("nope", True)):
        with pytest.raises(StoreError, match="rusty trace list"):
            ask()


def test_many_threads_and_openers_at_once(url):
    def write():
        with TraceStore(url) as mine:
            for n in range(15):
                mine.label(mine.append(trace(n)), True)

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with TraceStore(url) as store:
        assert store.count(label=True) == 90


KILLS = textwrap.dedent("""
    import os, random, signal, sys
    from rusty_r2.store import TraceStore
    from rusty_r2.trace import ExecutionTrace, ToolCallTrace
    url, kills = sys.argv[1], int(sys.argv[2])
    TraceStore(url).close()
    chance = random.Random(7)

    def work(pipe):
        store = TraceStore(url)
        while True:
            calls = [ToolCallTrace("t", {"x": "y" * 500}, "z" * 500, True, 1.0)] * 3
            kept = store.append(ExecutionTrace(user_query="q" * 300, tool_calls=calls))
            os.write(pipe, kept.encode() + b"\\n")

    for _ in range(kills):
        mouths = []
        for _ in range(2):
            ear, mouth = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(ear)
                work(mouth)
            os.close(mouth)
            mouths.append((child, os.fdopen(ear)))
        heard = [ear.readline() for _, ear in mouths for _ in range(chance.randrange(8, 16))]
        for child, _ in mouths:
            os.kill(child, signal.SIGKILL)
        for child, ear in mouths:
            heard += ear.readlines()
            ear.close()
            os.waitpid(child, 0)
        sys.stdout.write("".join(line for line in heard if line.endswith("\\n")))
""")


def test_killed_at_any_moment_no_acknowledged_trace_is_lost_and_none_is_half_there(url):
    kills = 50 if "://" not in url else 10
    said = subprocess.run(
        [sys.executable, "-c", KILLS, url, str(kills)], check=True, capture_output=True, text=True
    )
    acknowledged = set(said.stdout.split())
    assert len(acknowledged) >= 20 * kills
    with TraceStore(url) as store:
        there = {found.trace_id: found for found in store.each(limit=None)}
        tools = store.count(tool="t")
    assert acknowledged <= set(there)
    assert all(len(found.tool_calls) == 3 and found.user_query == "q" * 300 for found in there.values())
    assert tools == len(there)


@pytest.mark.parametrize("form", ["rl_traces", "out.jsonl", "out.parquet"])
def test_archives_round_trip(store, tmp_path, form):
    if form.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="pip install 'rusty-r2[data]'")
    kept = [trace(n, extra={"k": n}, user_query=f"naïve {n}") for n in range(5)]
    store.append_many(kept)
    assert archive.export(store, tmp_path / form) == 5
    with TraceStore(tmp_path / "second.db") as second:
        assert archive.load(second, tmp_path / form).added == 5
        assert archive.load(second, tmp_path / form).known == 5
        assert second.find(newest_first=False) == kept
    if form == "rl_traces":
        assert (tmp_path / form / "2026-01-01" / f"{kept[0].trace_id}.json").is_file()


def test_an_import_says_which_line_was_no_trace(tmp_path):
    (tmp_path / "in.jsonl").write_text(
        '{"user_query": "q"}\nnot json\n[]\n{"user_query": 1}\n'
        '{"user_query": "q", "total_cost": NaN}\n{"user_query": "q", "k": [1e999]}\n' + "[" * 100_000 + "\n"
        '{"user_query": "q", "k": ' + '{"a":' * 600 + "1" + "}" * 601 + "\n"
    )
    with TraceStore(tmp_path / "t.db") as store:
        done = archive.load(store, tmp_path / "in.jsonl")
    assert done.added == 1 and [p.split(":")[1] for p in done.problems] == list("2345678")


def test_a_cell_of_a_table_that_is_no_trace_is_named(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"body": [None, '{"user_query": "q"}']}), tmp_path / "in.parquet")
    with TraceStore(tmp_path / "t.db") as store:
        done = archive.load(store, tmp_path / "in.parquet")
    assert done.added == 1 and len(done.problems) == 1 and "row 1" in done.problems[0]


def test_an_id_cannot_lead_outside_the_folder(tmp_path):
    with TraceStore(tmp_path / "t.db") as store:
        store.append(trace(trace_id="../../evil"))
        archive.export(store, tmp_path / "out")
    assert [p.parent.parent.name for p in tmp_path.rglob("*evil*")] == ["out"]


@pytest.mark.parametrize("when", ["../../x", "/tmp", "", "a\0b", "٢٠٢٦-٠١-٠١"])
def test_a_time_cannot_lead_outside_the_folder(tmp_path, when):
    with TraceStore(tmp_path / "t.db") as store:
        store.append(trace(timestamp=when))
        archive.export(store, tmp_path / "out" / "here" / "traces")
    (made,) = tmp_path.rglob("*.json")
    assert made.parent == tmp_path / "out" / "here" / "traces" / "undated"


def test_a_foreign_file_is_refused_and_left_as_it_was(tmp_path):
    text = tmp_path / "notes.db"
    text.write_text("these are my notes, not a database, and they are long enough to look like one " * 20)
    before = text.read_bytes()
    with pytest.raises(StoreError, match="not a database"):
        TraceStore(text)
    assert text.read_bytes() == before


def test_a_foreign_database_is_refused_and_left_as_it_was(tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as other:
        other.execute("CREATE TABLE orders (n INTEGER)")
    other.close()
    with pytest.raises(StoreError, match="another program"):
        TraceStore(tmp_path / "shop.db")
    with sqlite3.connect(tmp_path / "shop.db") as other:
        assert [name for (name,) in other.execute("SELECT name FROM sqlite_master")] == ["orders"]
    other.close()


def test_a_store_of_another_version_is_refused(tmp_path):
    TraceStore(tmp_path / "t.db").close()
    with sqlite3.connect(tmp_path / "t.db") as other:
        other.execute("UPDATE rusty_meta SET value = '99'")
    other.close()
    with pytest.raises(StoreError, match="schema 99"):
        TraceStore(tmp_path / "t.db")


def test_a_folder_that_may_not_be_written_and_a_server_that_is_not_there(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="RUSTY_HOME"):
        TraceStore(tmp_path / "file" / "t.db")
    with pytest.raises(StoreError, match="cannot open"):
        TraceStore(tmp_path)
    pytest.importorskip("psycopg", reason="pip install 'rusty-r2[postgres]'")
    with pytest.raises(StoreError, match="cannot open") as caught:
        TraceStore("postgresql://bob:hunter2@127.0.0.1:1/x")
    assert "hunter2" not in str(caught.value)


def test_a_full_disk_is_one_clear_line_and_leaves_the_store_whole(tmp_path):
    with TraceStore(tmp_path / "t.db") as store:
        store.append(trace(1))
        with store.engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 2}")
            connection.rollback()
        with pytest.raises(StoreError, match="full"):
            store.append(trace(2, final_response="x" * 100_000))
        assert store.count() == 1


def test_the_store_in_the_data_home_is_its_owners_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("RUSTY_HOME", str(tmp_path / "home"))
    with TraceStore() as store:
        store.append(trace())
        made = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "home").iterdir()}
    assert "traces.db" in made and set(made.values()) == {0o600}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; run as a user")
def test_a_read_only_store_is_one_clear_line(tmp_path):
    TraceStore(tmp_path / "t.db").close()
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="cannot"):
            TraceStore(tmp_path / "t.db").append(trace())
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("", ""),
        ("data/traces.db", "data/traces.db"),
        ("sqlite:///a/b.db", "sqlite:///a/b.db"),
        (
            "postgresql://me:hush@db:5432/x?sslmode=require",
            "postgresql+psycopg://me@db:5432/x?sslmode=require",
        ),
        ("postgresql+psycopg://db/x?user=me&password=hush", "postgresql+psycopg://db/x?user=me"),
    ],
)
def test_a_password_is_not_written_down(address, written):
    assert without_password(address) == written
