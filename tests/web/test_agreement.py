"""Cohen's kappa by its definition, and who is compared with whom."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rusty_r2.store import TraceStore
from rusty_r2.web.agreement import LEARNED, PEOPLE, REWARD, agreement, compare
from rusty_r2.web.search import second_opinions

said = st.dictionaries(st.sampled_from("abcdefgh"), st.booleans())


def test_a_known_table():
    one = dict.fromkeys(range(25), True) | dict.fromkeys(range(25, 50), False)
    other = {key: (key < 20 or 25 <= key < 35) for key in range(50)}
    pair = compare("a", one, "b", other)
    assert (pair.both_good, pair.only_first, pair.only_second, pair.both_bad) == (20, 5, 10, 15)
    assert pair.share == 0.7 and pair.kappa == pytest.approx(0.4) and pair.words == "fair"


@settings(deadline=None)
@given(said, said)
def test_kappa_is_its_definition(one, other):
    pair = compare("a", one, "b", other)
    shared = one.keys() & other.keys()
    assert pair.count == len(shared)
    if not shared:
        assert pair.kappa is None
        return
    agree = sum(one[key] == other[key] for key in shared) / len(shared)
    chance = (
        sum(
            sum(one[key] is value for key in shared) * sum(other[key] is value for key in shared)
            for value in (True, False)
        )
        / len(shared) ** 2
    )
    assert pair.share == pytest.approx(agree)
    assert (pair.kappa is None) == (chance == 1)
    if pair.kappa is not None:
        assert pair.kappa == pytest.approx((agree - chance) / (1 - chance))
        assert -1 <= pair.kappa <= 1 + 1e-9
    assert compare("b", other, "a", one).kappa == pair.kappa
    assert set(pair.apart) == {key for key in shared if one[key] != other[key]}


@pytest.fixture(params=["sqlite", "postgresql"])
def any_store(request, tmp_path):
    if request.param == "sqlite":
        opened = TraceStore(tmp_path / "any.db")
    else:
        opened = TraceStore(request.getfixturevalue("postgres_url"))
    with opened:
        yield opened
        if request.param == "postgresql":
            from rusty_r2.tables import TABLES

            TABLES.drop_all(opened.engine)


def test_last_words_count_and_everybody_is_compared(any_store, trace):
    store = any_store
    for number in range(6):
        store.append(trace(number, reward_score=0.9 if number < 3 else 0.1))
    ids = [f"trace-{number:05d}" for number in range(6)]
    for key in ids[:4]:
        store.label(key, True, who="ada")
    store.label(ids[0], False, who="ada")
    store.label(ids[3], None, who="ada")
    for key in ids[:3]:
        store.label(key, key != ids[0], who="grace")
    store.label(ids[1], True, who=LEARNED, manual=False)
    store.append(trace(7, label=True, manual_review=True, labeled_by="linus", reward_score=0.2))
    told = agreement(store)
    assert told.judges == {"ada": 3, "grace": 3, "linus": 1, REWARD: 7, LEARNED: 1}
    pairs = {(pair.first, pair.second): pair for pair in told.pairs}
    assert pairs["ada", "grace"].kappa == 1.0 and pairs["ada", "grace"].count == 3
    assert ("ada", "linus") not in pairs
    both = pairs[PEOPLE, REWARD]
    assert (both.both_good, both.both_bad, both.only_first, both.only_second) == (2, 0, 1, 1)
    assert pairs[PEOPLE, LEARNED].count == 1 and set(both.apart) == {ids[0], "trace-00007"}


def test_second_opinions_are_what_others_judged(any_store, trace):
    for number in range(3):
        any_store.append(trace(number))
    any_store.label("trace-00000", True, who="ada")
    any_store.label("trace-00001", True, who="ada")
    any_store.label("trace-00001", False, who="grace")
    any_store.label("trace-00002", True, who=LEARNED, manual=False)
    assert second_opinions(any_store, "grace", 9) == ["trace-00000"]
    assert second_opinions(any_store, "ada", 9) == []
    assert second_opinions(any_store, "linus", 9) == ["trace-00001", "trace-00000"]


def test_the_page_tells_it(serve, client, store, trace):
    for number in range(4):
        store.append(trace(number))
        store.label(f"trace-{number:05d}", number % 2 == 0, who="ada")
        store.label(f"trace-{number:05d}", number < 2, who="grace")
    status, _, body = client(serve()).get("/agreement")
    assert status == 200 and "50%" in body and "0.00" in body and "/trace?id=trace-00001" in body
