# SPDX-License-Identifier: AGPL-3.0-or-later
"""Where nobody is looking, progress is a line now and then."""

import pytest

from rusty_r2.data import meter


def test_a_log_hears_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with meter.Meter() as quiet:
        assert list(quiet.track(range(3), "tasks", 3)) == [0, 1, 2]
    assert capsys.readouterr().err == "", "what is over soon says nothing"
    now = [0.0]
    monkeypatch.setattr(meter.time, "monotonic", lambda: now[0])
    with meter.Meter() as loud:
        for _ in loud.track("abc", "tasks", 200):
            now[0] += 20.0
    told = capsys.readouterr().err.splitlines()
    assert told == ["tasks: 2 of 200, 0.0 a second, 132 min left"]
