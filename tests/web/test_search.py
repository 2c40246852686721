"""Finding traces: every filter against a plain loop, in every database."""

import pytest
import sqlalchemy as sa

from rusty_r2.store import TraceStore
from rusty_r2.tables import TRACES
from rusty_r2.trace import ToolCallTrace
from rusty_r2.web import search
from rusty_r2.web.search import Question, family_of


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def full(request, tmp_path_factory, trace):
    url = (
        tmp_path_factory.mktemp("full") / "any.db"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres_url")
    )
    with TraceStore(url) as store:
        store.append_many(trace(number, **facts(number)) for number in range(120))
        for number in range(0, 120, 3):
            store.label(f"trace-{number:05d}", number % 2 == 0, who="ada")
        store.label("trace-00001", True, who="learned", manual=False)
        yield store
        if request.param == "postgresql":
            from rusty_r2.tables import TABLES

            TABLES.drop_all(store.engine)


def facts(number):
    return {
        "agent_name": f"agent{number % 3}",
        "model": ('mod"el', "50%_off", "plain")[number % 3],
        "ended": "done" if number % 4 else "turns",
        "task_name": f"{('rename', 'rename_all', 'sort')[number % 3]}-1-train-{number}",
        "system_prompt": 'say "model": "other" \ud83d',
        "tool_calls": [ToolCallTrace("model", {"model": "other"}, None, True, 0.0)]
        if number % 5 == 0
        else [],
    }


def matches(number):
    told = facts(number)
    label = {True: "good", False: "bad"}[number % 2 == 0] if number % 3 == 0 else "none"
    return told | {"label": "good" if number == 1 else label, "family": family_of(told["task_name"])}


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        ({}, lambda n: True),
        ({"agent": "agent1"}, lambda n: n % 3 == 1),
        ({"model": 'mod"el'}, lambda n: n % 3 == 0),
        ({"model": "50%_off"}, lambda n: n % 3 == 1),
        ({"model": "mod"}, lambda n: False),
        ({"status": "turns"}, lambda n: n % 4 == 0),
        ({"family": "rename"}, lambda n: n % 3 == 0),
        ({"family": "sort", "status": "done"}, lambda n: n % 3 == 2 and n % 4),
        ({"label": "good"}, lambda n: matches(n)["label"] == "good"),
        ({"label": "bad"}, lambda n: matches(n)["label"] == "bad"),
        ({"label": "none"}, lambda n: matches(n)["label"] == "none"),
        ({"label": "person"}, lambda n: n % 3 == 0),
        ({"label": "machine"}, lambda n: n == 1),
        ({"label": "<script>"}, lambda n: True),
        ({"text": "NUMBER 7"}, lambda n: str(n).startswith("7")),
        ({"text": "100%"}, lambda n: False),
        ({"tool": "model"}, lambda n: n % 5 == 0),
        ({"since": "2026-11-01T01:00", "until": "2026-11-01T01:10"}, lambda n: 60 <= n < 70),
        ({"until": "2026-10-31"}, lambda n: False),
    ],
    ids=lambda given: str(given) if isinstance(given, dict) else "",
)
def test_every_filter_finds_what_fits(full, asked, fits):
    wanted = [f"trace-{n:05d}" for n in reversed(range(120)) if fits(n)]
    found, page, more = [], 1, True
    while more:
        answer = search.find(full, Question.of(asked | {"page": str(page)}))
        assert len(answer.rows) <= search.PAGE
        assert answer.total in (None, len(wanted))
        found += [row["trace_id"] for row in answer.rows]
        page, more = page + 1, answer.more
    assert found == wanted


def test_a_row_tells_model_ending_and_task(full):
    row = search.find(full, Question()).rows[0]
    assert (row["model"], row["ended"], row["task_name"]) == ("plain", "done", "sort-1-train-119")
    offered = search.choices(full)
    assert offered["model"] == ["50%_off", 'mod"el', "plain"] and offered["status"] == ["done", "turns"]
    assert offered["family"] == ["rename", "rename_all", "sort"]


@pytest.mark.parametrize("page", ["0", "-1", "x", "", "99999999999", "²", "1e3"])
def test_a_wrong_page_is_the_first(page):
    assert Question.of({"page": page}).page == 1


def test_a_question_survives_its_link():
    asked = Question.of({"text": "a&b=c", "label": "good", "page": "3", "evil": "x"})
    assert (
        asked.link(4) == "/traces?text=a%26b%3Dc&label=good&page=4" and asked.narrow and not asked.into_bodies
    )


def test_the_page_lists_filters_and_turns(serve, client, store, trace):
    store.append_many(trace(number) for number in range(120))
    page = client(serve())
    status, _, body = page.get("/traces")
    assert status == 200 and "120 traces" in body and "number 119" in body and "page 1 of 3" in body
    assert "number 19" in page.get("/traces?page=3")[2]
    assert "Nothing fits" in page.get("/traces?page=4&text=number")[2]
    one = page.get("/traces?text=number+42")[2]
    assert "number 42" in one and one.count("data-stop") == 1


def test_an_empty_store_says_what_to_do(serve, client):
    page = client(serve())
    assert "rusty trace import FILE" in page.get("/traces")[2]
    assert "Nothing waits" in page.get("/label")[2]
    assert "Nothing to compare yet" in page.get("/agreement")[2]
    assert "rusty train supervised" in page.get("/runs")[2] and "rusty data rows" in page.get("/shelf")[2]


def test_what_only_bodies_know_is_found_by_an_index(tmp_path, trace):
    """Also in a store that was made before there was one."""
    path = tmp_path / "any.db"
    with TraceStore(path) as store:
        store.append_many(trace(number, **facts(number)) for number in range(20))
        for name in ("model", "ended", "task_name"):
            with store.engine.begin() as connection:
                connection.execute(sa.text(f"DROP INDEX traces_by_{name}"))
    with TraceStore(path) as store:
        for asked in ({"model": "rare"}, {"status": "turns"}, {"family": "rename"}):
            query = search._beside(sa.select(TRACES.c.trace_id), store, Question.of(asked))
            words = query.compile(store.engine, compile_kwargs={"literal_binds": True})
            plan = search.read(store, sa.text(f"EXPLAIN QUERY PLAN {words}"))
            assert not [step for step in plan if "SCAN" in step[-1]], plan
        assert len(search.find(store, Question.of({"status": "turns"})).rows) == 5
