"""Rows are made ready ahead, in order, and a source that breaks is heard."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")

from rusty_r2.data.shards import Rows  # noqa: E402
from rusty_r2.errors import DataError  # noqa: E402
from rusty_r2.train.batches import Feeder  # noqa: E402

CPU = torch.device("cpu")


class Counting:
    """Row r of step s is full of 10 s + r; every second target counts."""

    def __init__(self, broken_at=None):
        self.asked = []
        self.broken_at = broken_at

    def rows(self, step, which):
        self.asked.append(step)
        if step == self.broken_at:
            raise DataError("the disk is gone")
        ids = np.array([[10 * step + row] * 4 for row in which])
        odd = np.arange(4)[None].repeat(len(which), 0) % 2 == 1
        return Rows(ids, ids + 1, odd, np.zeros_like(odd))


def test_steps_come_in_order_and_parts_are_the_whole():
    feeder = Feeder(Counting(), start=3, stop=6, which=range(2, 7), device=CPU)
    batches = list(feeder)
    feeder.close()
    assert [batch.step for batch in batches] == [3, 4, 5]
    assert batches[0].ids[:, 0].tolist() == [32, 33, 34, 35, 36] and batches[0].supervised == 10
    parts = list(batches[1].parts(2))
    assert [len(part.ids) for _, part in parts] == [2, 2, 1]
    assert torch.equal(torch.cat([part.ids for _, part in parts]), batches[1].ids)
    assert sum(part.supervised for _, part in parts) == 10
    assert parts[0][1].where().tolist() == [1, 3, 5, 7]


def test_a_few_are_made_ahead_and_no_more():
    source = Counting()
    feeder = Feeder(source, start=0, stop=1000, which=range(2), device=CPU, ahead=2)
    next(iter(feeder))
    feeder.close()
    assert len(source.asked) < 10 and not any(thread is feeder._thread for thread in threading.enumerate())


def test_a_source_that_breaks_is_heard_where_its_rows_are_asked_for():
    feeder = Feeder(Counting(broken_at=1), start=0, stop=3, which=range(2), device=CPU)
    left = iter(feeder)
    assert next(left).step == 0
    with pytest.raises(DataError, match="the disk is gone"):
        next(left)
    feeder.close()
