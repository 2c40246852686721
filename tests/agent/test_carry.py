"""What a command changed is told as it is: the lines, the mode, or that nothing in the file is new."""

import pytest

from rusty_r2.agent.approval import Approval
from rusty_r2.agent.workspace import Unseen, Workspace
from rusty_r2.gym.sandbox import probe
from rusty_r2.protocol import Cmd, render

pytestmark = pytest.mark.skipif(
    not any(report.name == "ns" and report.available for report in probe()),
    reason="needs the sandbox level ns",
)


class Seen(Unseen):
    def __init__(self):
        self.lines = []

    def edit(self, lines):
        self.lines += lines


def told(folder, command):
    """What a person reads about the files, and the folder is as the command left it."""
    seen = Seen()
    with Workspace(folder, approval=Approval("never"), watcher=seen) as place:
        place.reset(options={"query": "a request"})
        place.step(render(Cmd(command)))
    return seen.lines


def test_a_new_mode_is_told_with_and_without_new_lines(folder):
    (folder / "go.sh").write_text("echo hi\n")
    (folder / "go.sh").chmod(0o644)
    lines = told(folder, "chmod 755 go.sh")
    assert lines[-2:] == ["@@ the contents are the same @@", "@@ mode 644 becomes 755 @@"]
    assert (folder / "go.sh").stat().st_mode & 0o777 == 0o755
    lines = told(folder, "echo more >> go.sh; chmod 700 go.sh")
    assert lines[-2:] == ["+more", "@@ mode 755 becomes 700 @@"]


def test_a_command_that_finds_nothing_to_replace_is_not_told_as_a_change_of_lines(folder):
    before = (folder / "total.py").read_bytes()
    lines = told(folder, "sed -i s/port=.*/port=9/ total.py")
    assert lines == ["--- total.py", "+++ total.py", "@@ the contents are the same @@"]
    assert (folder / "total.py").read_bytes() == before


def test_a_file_in_place_of_a_link_has_no_older_mode(folder):
    (folder / "a_link").symlink_to("total.py")
    lines = told(folder, "rm a_link; echo own > a_link")
    assert "+own" in lines and not any("mode" in line for line in lines)


def test_what_stays_behind_is_not_compared(folder):
    lines = told(folder, "git init -q . || mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; echo y > new")
    assert "+y" in lines and not any(".git/hooks" in line for line in lines)
