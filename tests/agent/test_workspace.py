"""A person's folder in an agent's hands: what changes, what never does, and that all of it can be undone."""

import contextlib
import io
import os
import socket
import threading
import time
from dataclasses import replace

import pytest

from rusty_r2.agent.approval import Answer, Approval
from rusty_r2.agent.policy import ScriptedPolicy
from rusty_r2.agent.protected import PROTECTED, is_protected
from rusty_r2.agent.rollout import begin, rollout
from rusty_r2.agent.screen import Screen
from rusty_r2.agent.workspace import LIMITS, Unseen, Workspace
from rusty_r2.errors import ConfigError
from rusty_r2.gym.sandbox import probe
from rusty_r2.protocol import Cmd, Edit, Msg, render

from .conftest import snapshot

LEVELS = [report.name for report in probe() if report.available and report.name != "off"]
BOUND = "ns" in LEVELS or (LEVELS and os.geteuid() != 0)
pytestmark = pytest.mark.skipif(not BOUND, reason="no sandbox level here can show a folder of this user")
needs_ns = pytest.mark.skipif("ns" not in LEVELS, reason="needs the sandbox level ns")

MENDED = "def total(xs):\n    return sum(xs)\n"


class Seen(Unseen):
    def __init__(self):
        self.told, self.changed = [], []

    def edit(self, lines):
        self.told += lines

    def notice(self, text):
        self.told.append(text)

    def changes(self, changes, *, dry):
        self.changed.append((dry, [(change.kind, change.path) for change in changes]))


class Person:
    """Says what it was told to say, and remembers what it was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def __call__(self, question):
        self.asked.append((question.about, question.kind))
        return self.answers.pop(0)


YES, NO = Answer(True), Answer(False, note="not today")


def place(folder, ask="never", *answers, **options):
    person, seen = Person(*answers), Seen()
    work = Workspace(folder, approval=Approval(ask, person), watcher=seen, **options)
    work.person, work.seen = person, seen
    work.reset(options={"query": "a request"})
    return work


def do(work, action):
    seen, _, done, cut, info = work.step(render(action) if not isinstance(action, str) else action)
    return seen, done or cut, info


@pytest.mark.parametrize("command", ["touch made", "cat total.py"])
def test_a_trace_tells_how_its_only_command_was_bound(folder, level, command):
    if level != "ns" and os.geteuid() == 0:
        pytest.skip("started by root, only ns can show a folder of root's")
    policy = ScriptedPolicy(render(Cmd(command)), render(Msg("Done.")))
    with place(folder, level=level) as work:
        trace = rollout(policy, work, begin(policy, work, query="x"))
        assert (trace.ended, trace.sandbox_level) == ("done", level)
        policy = ScriptedPolicy(render(Msg("Hello.")))
        assert rollout(policy, work, begin(policy, work, query="y")).sandbox_level == "", "nothing was run"


@needs_ns
def test_a_request_is_worked_on_and_undone(folder):
    before = snapshot(folder)
    with place(folder) as work:
        seen, over, info = do(work, Cmd("python3 check.py"))
        assert seen.startswith("exit 1") and "AssertionError" in seen and not over and not info["ok"]
        assert do(work, Edit("total.py", MENDED))[0] == "wrote total.py"
        assert do(work, Cmd("python3 check.py"))[0] == "exit 0\nfine"
        command = "mkdir -p new/deep; echo x > new/deep/f; chmod +x new/deep/f; rm check.py; ln -s total.py l"
        assert do(work, Cmd(command))[0] == "exit 0"
        assert do(work, Msg("Done."))[1]
        assert (folder / "new/deep/f").read_text() == "x\n" and os.access(folder / "new/deep/f", os.X_OK)
        assert not (folder / "check.py").exists() and (folder / "l").readlink().name == "total.py"
        assert (folder / "total.py").read_text() == MENDED
        undone = work.undo()
    assert undone.what == "a request" and not undone.left
    assert snapshot(folder) == before and not (folder / "new").exists() and not (folder / "l").is_symlink()


@needs_ns
def test_the_same_failure_twice_in_a_row_ends_it(folder):
    with place(folder) as work:
        check = Cmd("python3 check.py")
        assert not do(work, check)[1]
        do(work, Edit("total.py", "def total(xs):\n    return 7\n"))
        assert not do(work, check)[1], "something was tried in between"
        seen, over, info = do(work, check)
        assert over and seen.startswith("exit 1") and info["ended"] == "repeats"
        assert work.seen.told[-1].endswith("stopped")
        work.reset(options={"query": "again"})
        assert not do(work, check)[1]
        assert not do(work, Cmd("true"))[1] and not do(work, Cmd("true"))[1], "success may be repeated"


@needs_ns
def test_commands_see_what_was_kept_and_caches_stay_out(folder):
    with place(folder) as work:
        do(work, Cmd("echo 1 > a"))
        assert do(work, Cmd("cat a; python3 -c 'import total'"))[0] == "exit 0\n1"
    assert not (folder / "__pycache__").exists()
    assert work.seen.changed == [(False, [("added", "a")])]


@needs_ns
def test_undo_goes_back_request_by_request_and_survives_a_restart(folder):
    with place(folder) as work:
        do(work, Edit("total.py", "one\n"))
        work.reset(options={"query": "another"})
        do(work, Edit("total.py", "two\n"))
    with place(folder) as later:
        assert later.undo().what == "another" and (folder / "total.py").read_text() == "one\n"
        assert later.undo().what == "a request" and "sum" in (folder / "total.py").read_text()
        assert later.undo().what == ""


def test_undo_leaves_what_somebody_changed_since(folder):
    with place(folder) as work:
        do(work, Edit("total.py", "agent\n"))
        do(work, Edit("fresh.py", "agent\n"))
        (folder / "total.py").write_text("person\n")
        undone = work.undo()
    assert undone.left == ["total.py"] and undone.restored == ["fresh.py"]
    assert (folder / "total.py").read_text() == "person\n"


PLOTS = [
    "echo x > .git/hooks/post-commit; echo x >> .git/config",
    "echo TOKEN=mine > .env; echo x > .env.local",
    "rm -rf .git; mkdir .github; echo x > .github/evil.yml",
    "mkdir -p sub/.git/hooks; echo x > sub/.git/hooks/pre-commit; echo x > ../outside",
    "ln -s /etc/passwd out; ln -s ../secret up; echo x > /tmp/evil; rm -rf ~ /home",
]


@needs_ns
@pytest.mark.parametrize("plot", PLOTS)
def test_protected_paths_and_the_outside_stay_as_they_are(folder, plot):
    (folder.parent / "secret").write_text("s")
    before = snapshot(folder.parent)
    with place(folder) as work:
        do(work, Cmd(plot))
    after = snapshot(folder.parent)
    assert after == before
    assert not (folder / "out").is_symlink() and not (folder / "up").is_symlink()


@needs_ns
@pytest.mark.parametrize(
    ("command", "name", "answers"),
    [
        ("echo KEY=new >> .env", ".env", ()),
        ("rm .env", ".env", ()),
        ("mv .env b", ".env", (YES,)),
        ("echo x > .vimrc", ".vimrc", ()),
    ],
)
def test_what_stays_behind_is_said_and_not_asked_about(folder, command, name, answers):
    (folder / ".env").write_text("KEY=hush42\n")
    with place(folder, "writes", *answers) as work:
        assert do(work, Cmd(command))[0] == f"exit 0\nSYSTEM_MSG: Not kept: {name} (protected)"
        assert work.seen.told[-1] == f"not kept: {name} (protected)"
        assert "hush42" not in str(work.seen.told) and not work.person.answers
        assert do(work, Cmd("cat .env"))[0] == "exit 0" and len(work.seen.changed) == 1
    assert (folder / ".env").read_text() == "KEY=hush42\n" and not (folder / ".vimrc").exists()


@pytest.mark.parametrize("path", [".git/hooks/x", ".env", "a/.env.prod", "sub/.git/config", ".ssh/config"])
def test_an_edit_of_a_protected_path_is_refused(folder, path):
    before = snapshot(folder)
    with place(folder) as work:
        seen, over, info = do(work, Edit(path, "x"))
    assert seen.startswith("SYSTEM_MSG: EDIT refused") and "protected" in seen and not over and not info["ok"]
    assert snapshot(folder) == before and is_protected(path)


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "link/evil", "loop", ""])
def test_an_edit_does_not_leave_the_folder(folder, path, tmp_path):
    (tmp_path / "outside").mkdir()
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "loop").symlink_to(tmp_path / "outside" / "made")
    before = snapshot(tmp_path)
    with place(folder) as work:
        assert do(work, Edit(path, "x"))[0].startswith("SYSTEM_MSG: EDIT refused")
    assert snapshot(tmp_path) == before


@pytest.mark.timeout(60)
def test_an_edit_does_not_wait_for_a_pipe(folder):
    os.mkfifo(folder / "pipe")
    with place(folder) as work:
        assert do(work, Edit("pipe", "x"))[0] == "SYSTEM_MSG: EDIT refused: pipe is not a file"


@needs_ns
def test_files_that_are_not_compared_are_named_and_all_can_be_looked_at(folder):
    screen = Screen(live=False, err=io.StringIO())
    (folder / "a_link").symlink_to("check.py")
    with place(folder) as work:
        work.watcher = screen
        made = "for n in $(seq 10 60); do echo $n > f$n; done"
        do(work, Cmd(f"rm a_link; echo swapped > a_link; rm check.py; {made}"))
    for wanted in ("- check.py", "+ f60", "@@ not compared: f60 (added, 3 bytes) @@", "+swapped"):
        assert any(wanted in line for line in screen.hidden), (wanted, screen.hidden)


@needs_ns
def test_a_dry_run_touches_nothing_and_goes_on_from_itself(folder):
    before = snapshot(folder)
    with place(folder, "always") as work:
        work.dry = True
        assert do(work, Edit("total.py", MENDED))[0] == "wrote total.py"
        assert do(work, Cmd("python3 check.py; rm check.py"))[0] == "exit 0\nfine"
        assert work.seen.changed[-1][0] and ("deleted", "check.py") in work.seen.changed[-1][1]
        assert "+    return sum(xs)" in work.seen.told
    with place(folder) as really:
        assert "AssertionError" in do(really, Cmd("python3 check.py"))[0]
    assert snapshot(folder) == before and not work.person.asked


@needs_ns
def test_secrets_are_not_read_either(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / ".env.prod").write_text("KEY=hush\n")
    before = snapshot(folder)
    with place(folder, "writes") as work:
        seen = do(work, Cmd("cat .env sub/.env.prod; grep -r hush .; ls -a"))[0]
        assert ".env" in seen and "KEY" not in seen and "TOKEN" not in seen
        do(work, Cmd("true"))
    assert snapshot(folder) == before and not work.seen.changed and not work.person.asked


def test_files_that_a_request_names_are_shown_as_the_gym_shows_them(folder, tmp_path):
    (tmp_path / "outside").write_text("hush")
    (folder / "link").symlink_to(tmp_path / "outside")
    with place(folder) as work:
        told, _ = work.reset(options={"query": "Fix total.py, please."})
        assert told == (
            "Fix total.py, please.\n\nCURRENT_FILE: total.py\ndef total(xs):\n    return sum(xs[1:])"
        )
        for query in (
            "hello",
            "read .env",
            "read ../outside",
            "read link",
            "read .git/config",
            "/etc/passwd .",
        ):
            assert work.reset(options={"query": query})[0] == query
        # anything but code is only listed: what it holds is for commands to find out
        (folder / "notes.txt").write_text("hush")
        for query in ("count the lines of notes.txt", "is there a notes.txt?"):
            told, _ = work.reset(options={"query": query})
            assert told == f"{query}\n\nFILES: check.py link notes.txt total.py"


def test_read_only_means_it(folder):
    before = snapshot(folder)
    with place(folder, allow="read") as work:
        assert "read-only" in do(work, Edit("total.py", MENDED))[0]
        assert "def total" in do(work, Cmd("cat total.py; echo x > total.py; touch new"))[0]
    assert snapshot(folder) == before


CALL = """python3 -c "import socket; print(socket.create_connection(('localhost', {})).recv(9))" """


@pytest.fixture
def outside():
    """A server on this machine, outside the sandbox."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    with listening.accept()[0] as caller:
                        caller.sendall(b"pong")

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@needs_ns
def test_a_network_is_there_only_where_the_dial_says_so(folder, outside):
    call = Cmd(CALL.format(outside))
    for allow, reached in (("workspace", False), ("network", True), ("read", False)):
        with place(folder, allow=allow) as work:
            assert ("pong" in do(work, call)[0]) is reached
    with place(folder) as work:
        assert "pong" not in do(work, call)[0]
        work.allow = "network"
        assert "pong" in do(work, call)[0]
        work.allow = "workspace"
        assert "pong" not in do(work, call)[0]


@needs_ns
def test_with_a_network_a_person_is_asked_before_and_secrets_stay_unseen(folder, outside):
    """What was sent away cannot be taken back, not even in a dry run."""
    with place(folder, "writes", NO, YES, NO, allow="network") as work:
        assert "The user said no" in do(work, Cmd(CALL.format(outside)))[0]
        assert "hush" not in do(work, Cmd("cat .env"))[0]
        work.dry = True
        assert "The user said no" in do(work, Cmd("ls"))[0]
        assert [about for about, _ in work.person.asked] == ["run"] * 3
    with place(folder, allow="network") as work:
        do(work, Cmd("echo x > new; echo y > .env"))
        assert (folder / "new").read_text() == "x\n" and (folder / ".env").read_text() == "TOKEN=hush\n"


@pytest.mark.parametrize("level", ["bwrap", "landlock"])
def test_where_secrets_can_be_read_there_is_no_network(folder, level):
    with pytest.raises(ConfigError, match="level ns"):
        place(folder, allow="network", level=level)
    with place(folder) as work:
        work.level = level
        with pytest.raises(ConfigError, match="level ns"):
            work.allow = "network"
        assert work.allow == "workspace"


def test_a_missing_folder_is_an_error(folder):
    with pytest.raises(ConfigError, match="is not a folder"):
        place(folder / "none")


def test_malformed_replies_are_corrected_up_to_a_limit(folder):
    with place(folder) as work:
        seen, over, info = do(work, "no")
        assert seen.startswith("SYSTEM_MSG: Invalid format: ") and '{"action"' in seen and not over
        assert not info["valid"]
        do(work, Edit("a", "x"))
        assert [do(work, "no")[1] for _ in range(3)] == [False, False, True], "an action begins it anew"
        assert any("asked again" in line for line in work.seen.told)


def test_a_command_can_be_stopped(folder):
    with place(folder) as work:
        threading.Timer(0.5, work.cancel.set).start()
        started = time.monotonic()
        assert do(work, Cmd("sleep 50"))[0].startswith("stopped: cancelled")
        assert time.monotonic() - started < 40


@pytest.mark.skipif("landlock" not in LEVELS or os.geteuid() == 0, reason="needs landlock, and not root")
def test_without_copies_the_question_comes_first_and_undo_still_works(folder):
    before = snapshot(folder)
    with place(folder, "writes", NO, YES, level="landlock") as work:
        assert "said no" in do(work, Cmd("echo x > a; rm total.py"))[0]
        do(work, Cmd("echo x > a; rm total.py"))
        assert work.person.asked[0][0] == "run" and not (folder / "total.py").exists()
        work.approval.ask = "never"
        do(work, Cmd("echo mine > .env; echo x > .git/hooks/post-commit"))
        assert (folder / ".env").read_text() == "TOKEN=hush\n" and not list((folder / ".git/hooks").iterdir())
        work.undo()
    assert snapshot(folder) == before


@needs_ns
def test_a_folder_that_grew_too_large_to_remember_is_said(folder):
    with place(folder, limits=replace(LIMITS, disk=1 << 20)) as work:
        work._copies, work._box = False, work._open("rw", PROTECTED)
        do(work, Cmd("head -c 700000 /dev/zero > a; head -c 700000 /dev/zero > b"))
        assert any("cannot be undone" in line for line in work.seen.told)
