"""Stages of a round: done once, believed while they are the same, begun anew when asked something else."""

import pytest

from rusty_r2 import files
from rusty_r2.errors import ConfigError
from rusty_r2.loop.stages import Made, Stages, alone, read_all


class Counting:
    """Work that counts how often it was done."""

    def __init__(self, text="made"):
        self.times, self.text, self.left = 0, text, None

    def __call__(self, folder):
        self.times += 1
        self.left = sorted(path.name for path in folder.iterdir())
        return Made({"text": self.text}, (files.write(folder / "out.txt", self.text),))


def test_a_stage_is_done_once(tmp_path):
    work = Counting()
    first = Stages(tmp_path).run("a", {"x": 1}, work)
    again = Stages(tmp_path).run("a", {"x": 1}, work)
    assert work.times == 1 and first == again and again.output.read_text() == "made"


def test_asked_something_else_it_begins_from_nothing(tmp_path):
    work = Counting()
    Stages(tmp_path).run("a", {"x": 1}, work)
    second = Stages(tmp_path).run("a", {"x": 2}, work)
    assert work.times == 2 and work.left == ["started.json"] and second.digest != ""


def test_what_it_made_is_believed_only_while_it_is_the_same(tmp_path):
    work = Counting()
    done = Stages(tmp_path).run("a", {}, work)
    done.output.write_text("altered")
    assert Stages(tmp_path).run("a", {}, work).output.read_text() == "made" and work.times == 2


def test_what_was_begun_goes_on_in_its_folder(tmp_path):
    def breaks(folder):
        files.write(folder / "half.txt", "half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        Stages(tmp_path).run("a", {"x": 1}, breaks)
    work = Counting()
    Stages(tmp_path).run("a", {"x": 1}, work)
    assert work.left == ["half.txt", "started.json"]


def test_a_later_stage_follows_when_an_earlier_one_changes(tmp_path):
    second = Counting()
    for text in ("one", "two", "two"):
        stages = Stages(tmp_path)
        first = stages.run("a", {"text": text}, Counting(text))
        stages.run("b", {"a": first.digest}, second)
    assert second.times == 2 and [one.name for one in read_all(tmp_path)] == ["a", "b"]


def test_a_done_marker_cut_in_half_is_no_marker(tmp_path):
    work = Counting()
    done = Stages(tmp_path).run("a", {}, work)
    marker = done.folder / "done.json"
    marker.write_text(marker.read_text()[:40])
    Stages(tmp_path).run("a", {}, work)
    assert work.times == 2


def test_two_loops_in_one_folder_do_not_meet(tmp_path):
    with alone(tmp_path), pytest.raises(ConfigError, match="another loop works in"), alone(tmp_path):
        pass
