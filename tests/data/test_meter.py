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
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(meter.time, "monotonic", lambda: float(next(clock)))
    with meter.Meter() as loud:
        assert list(loud.track("ab", "tasks", 200)) == ["a", "b"]
    told = capsys.readouterr().err.splitlines()
    assert told and told[-1].startswith("tasks: 2 of 200, ") and told[-1].endswith(" a second")
    assert "min left" in told[-1]
