"""Labelling: what comes next, and taking it back."""

import pytest

from rusty_r2.rewards.learned import LearnedReward
from rusty_r2.web.sitting import Sitting


@pytest.fixture
def sitting(store, tmp_path):
    def start(who="ada", **options):
        return Sitting(store, who, tmp_path / "learned.npz", **options)

    return start


def test_newest_first_until_something_was_learned(sitting, store, trace):
    store.append_many(trace(number) for number in range(3))
    one = sitting()
    seen = []
    while (now := one.next()) is not None:
        seen.append(now.trace_id)
        assert one.next().trace_id == now.trace_id
        one.judge(now.trace_id, True, "fine")
    assert seen == ["trace-00002", "trace-00001", "trace-00000"] and one.labelled == 3
    assert store.count(label=True) == 3 and store.get("trace-00000").labeled_by == "ada"


def test_doubt_comes_first(sitting, store, trace, tmp_path):
    words = {True: "sorted neatly", False: "crashed badly"}
    known = [
        trace(n, user_query=f"{words[n % 2 == 0]} {n}", label=n % 2 == 0, manual_review=True)
        for n in range(40)
    ]
    reward = LearnedReward(tmp_path / "learned.npz")
    assert reward.learn_from_traces(known).learned
    reward.save()
    mixed = {50: words[True], 51: f"{words[True]} {words[False]}", 52: words[False]}
    store.append_many(trace(number, user_query=text) for number, text in mixed.items())
    doubts = {number: reward.doubt(store.get(f"trace-{number:05d}")) for number in mixed}
    first = sitting()
    assert first.next().trace_id == f"trace-{max(doubts, key=doubts.get):05d}" and "doubt" in first.order


def test_a_damaged_learned_reward_teaches_nothing(sitting, store, trace, tmp_path):
    (tmp_path / "learned.npz").write_bytes(b"not a reward")
    store.append(trace(1))
    assert sitting().next().trace_id == "trace-00001"


def test_skipped_ones_do_not_come_back_but_undo_brings_them(sitting, store, trace):
    store.append_many(trace(number) for number in range(2))
    one = sitting()
    one.skip(one.next().trace_id)
    assert one.next().trace_id == "trace-00000"
    one.skip("trace-00000")
    assert one.next() is None and store.count(labeled=True) == 0
    assert one.undo() == "trace-00000" and one.next().trace_id == "trace-00000"
    assert one.undo() == "trace-00001" and one.next().trace_id == "trace-00001"
    assert one.undo() is None and store.labels("trace-00001") == []


def test_undo_takes_the_label_back(sitting, store, trace):
    store.append(trace(1))
    one = sitting()
    one.judge("trace-00001", False, "bad")
    assert one.next() is None
    one.undo()
    assert store.get("trace-00001").label is None and one.labelled == 0
    assert [said["label"] for said in store.labels("trace-00001")] == [False, None]
    assert one.next().trace_id == "trace-00001"


@pytest.mark.parametrize(("who", "manual"), [("grace", True), ("learned", False)])
def test_undo_gives_back_what_another_said(sitting, store, trace, who, manual):
    store.append(trace(1))
    store.label("trace-00001", True, note="as it was", who=who, manual=manual)
    one = sitting()
    one.judge("trace-00001", False)
    assert store.get("trace-00001").label is False
    one.undo()
    now = store.get("trace-00001")
    assert (now.label, now.review_notes, now.labeled_by) == (True, "as it was", who)
    assert now.manual_review is manual


def test_undo_leaves_what_another_said_since(sitting, store, trace):
    store.append(trace(1))
    one, other = sitting(), sitting("bob", second=True)
    one.judge("trace-00001", True)
    other.judge("trace-00001", False, "wrong")
    assert one.undo() == "trace-00001"
    found = store.get("trace-00001")
    assert (found.label, found.labeled_by, found.review_notes) == (False, "bob", "wrong")


def test_what_somebody_else_labelled_meanwhile_is_passed_over(sitting, store, trace):
    store.append_many(trace(number) for number in range(3))
    one = sitting()
    assert one.next().trace_id == "trace-00002"
    store.label("trace-00002", True, who="grace")
    assert one.next().trace_id == "trace-00001"


def test_second_opinions(sitting, store, trace):
    store.append_many(trace(number) for number in range(2))
    store.label("trace-00000", True, who="grace")
    one = sitting(second=True)
    assert one.next().trace_id == "trace-00000"
    one.judge("trace-00000", False)
    assert one.next() is None
    one.undo()
    assert store.get("trace-00000").labeled_by == "grace" and one.next().trace_id == "trace-00000"


def test_names_are_kept_by_the_browser_and_cannot_be_the_labelers(serve, client, store, trace):
    store.append(trace(1))
    page = client(serve())
    status, headers, _ = page.post("/name", {"who": "Ada Löve\u202elace"})
    assert (
        status == 303 and "HttpOnly" in headers["set-cookie"] and "SameSite=strict" in headers["set-cookie"]
    )
    cookie = headers["set-cookie"].partition(";")[0]
    page.post("/label?id=trace-00001", {"said": "bad"}, Cookie=cookie)
    assert store.get("trace-00001").labeled_by == "Ada Löve\\u202elace"
    for name in ("", "  ", "learned", "Learned"):
        assert page.post("/name", {"who": name})[0] == 400


def test_on_its_own_page_a_trace_is_labelled_and_stays(serve, client, store, trace):
    store.append(trace(1))
    page = client(serve())
    status, headers, _ = page.post("/label?id=trace-00001&back=trace", {"said": "good"})
    assert (status, headers["location"]) == (303, "/trace?id=trace-00001")
    assert page.post("/undo?back=trace", {})[1]["location"] == "/trace?id=trace-00001"
    assert page.post("/label?id=trace-00001", {"said": "perhaps"})[0] == 400
    assert page.post("/label?id=nobody", {"said": "good"})[0] == 404
    assert store.get("trace-00001").label is None
