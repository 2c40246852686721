"""Whatever is done through the journal, undoing it gives the folder back as it was."""

import os
import resource
import shutil
import signal
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rusty_r2.agent.journal import KEPT, Journal

PATHS = st.sampled_from(["a", "b", "d", "d/x", "d/y", "d/e/z", "a/under", "new/deep/f"])
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), PATHS, st.binary(max_size=8)),
        st.tuples(st.just("write"), PATHS, st.binary(max_size=8), st.sampled_from([0o600, 0o755])),
        st.tuples(st.just("remove"), PATHS),
        st.tuples(st.just("make_folder"), PATHS),
        st.tuples(st.just("link"), PATHS, st.sampled_from(["a", "d/x", "none"])),
    ),
    max_size=10,
)


def everything(folder):
    """Every path with its kind, mode and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (stat.filemode(mode), content)
    return found


def project(root):
    folder = root / "project"
    (folder / "d" / "e").mkdir(parents=True)
    (folder / "a").write_text("a")
    (folder / "d" / "x").write_text("x")
    (folder / "d" / "x").chmod(0o750)
    (folder / "d" / "l").symlink_to("x")
    return folder


@settings(max_examples=60, deadline=None)
@given(st.lists(DEEDS, min_size=1, max_size=3))
def test_undo_gives_back_the_folder(requests):
    with tempfile.TemporaryDirectory() as name:
        folder = project(Path(name))
        journal = Journal(folder, Path(name) / "undo")
        before = []
        for number, deeds in enumerate(requests):
            journal.begin(str(number))
            state = everything(folder)
            for verb, *words in deeds:
                try:
                    getattr(journal, verb)(*words)
                except OSError:
                    pass  # below a link: refused
            if journal._group is not None:
                before.append(state)
        for state in reversed(before):
            undone = Journal(folder, Path(name) / "undo").undo()
            assert not undone.left and everything(folder) == state
        assert not Journal(folder, Path(name) / "undo").undo().restored


@pytest.mark.parametrize("path", ["../out", "/etc/out", "way/out", "", "."])
def test_nothing_outside_is_reached(tmp_path, path):
    folder = project(tmp_path)
    (tmp_path / "outside").mkdir()
    (folder / "way").symlink_to(tmp_path / "outside")
    journal = Journal(folder, tmp_path / "undo")
    for deed in (lambda: journal.write(path, b"x"), lambda: journal.remove(path)):
        with pytest.raises(OSError, match="."):
            deed()
    assert not list((tmp_path / "outside").iterdir()) and len(list(tmp_path.iterdir())) <= 3
    assert (folder / "a").read_text() == "a"


def test_a_link_at_the_end_is_replaced_and_not_followed(tmp_path):
    folder = project(tmp_path)
    (tmp_path / "secret").write_text("s")
    (folder / "l").symlink_to(tmp_path / "secret")
    Journal(folder, tmp_path / "undo").write("l", b"x")
    assert (tmp_path / "secret").read_text() == "s" and not (folder / "l").is_symlink()


def test_a_hard_link_to_the_outside_is_not_written_through(tmp_path):
    folder = project(tmp_path)
    (tmp_path / "mine").write_text("mine")
    os.link(tmp_path / "mine", folder / "shared")
    Journal(folder, tmp_path / "undo").write("shared", b"agent")
    assert (tmp_path / "mine").read_text() == "mine"


def test_old_requests_are_let_go(tmp_path):
    folder = project(tmp_path)
    journal = Journal(folder, tmp_path / "undo")
    for number in range(KEPT + 3):
        journal.begin(str(number))
        journal.write("a", str(number).encode())
    assert len(list(journal.store.iterdir())) == KEPT
    assert journal.undo().what == str(KEPT + 2) and (folder / "a").read_text() == str(KEPT + 1)


def test_what_was_moved_aside_comes_back_though_nothing_took_its_place(tmp_path, monkeypatch):
    """A disk that is full fails after the old file was moved: undoing must not throw away the only copy."""
    folder = project(tmp_path)
    journal = Journal(folder, tmp_path / "undo")

    def full(place, **_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal, "_own", full)
    with pytest.raises(OSError, match="No space"):
        journal.write("a", b"new")
    undone = Journal(folder, tmp_path / "undo").undo()
    assert undone.restored == ["a"] and (folder / "a").read_text() == "a"


def test_a_full_disk_leaves_the_old_file_where_it_is(tmp_path):
    folder = project(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            Journal(folder, tmp_path / "undo").write("a", b"n" * 200_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (folder / "a").read_text() == "a"


def test_half_a_line_of_a_full_disk_does_not_spoil_the_next(tmp_path):
    folder, journal = project(tmp_path), Journal(tmp_path / "project", tmp_path / "undo")
    journal.write("a", b"1")
    (entries,) = (tmp_path / "undo").rglob("entries.jsonl")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (entries.stat().st_size + 20, before[1]))
    try:
        with pytest.raises(OSError, match="No space"):
            journal.write("b", b"2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    journal.write("c", b"3")
    undone = Journal(folder, tmp_path / "undo").undo()
    assert sorted(undone.restored) == ["a", "c"] and (folder / "a").read_text() == "a"


def killed():
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", ["mkdir", "move", "undo"])
def test_after_a_kill_at_any_moment_undo_still_gives_back_the_folder(tmp_path, monkeypatch, moment):
    folder = project(tmp_path)
    before = everything(folder)
    journal = Journal(folder, tmp_path / "undo")
    if moment == "undo":
        journal.begin("one")
        journal.write("new", b"n")
        journal.write("a", b"other")
        journal.remove("d/x")
    verb = {"mkdir": "rusty_r2.files.write", "move": "shutil.move", "undo": "shutil.move"}[moment]
    real, left = shutil.move, [1 if moment == "undo" else 0]

    def cut(*words):
        left[0] -= 1
        return real(*words) if left[0] >= 0 else killed()

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(verb, cut)
        if moment == "undo":
            journal.undo()
        else:
            journal.write("a", b"other")
    undone = Journal(folder, tmp_path / "undo").undo()
    assert everything(folder) == before and not undone.left and not undone.kept
    assert Journal(folder, tmp_path / "undo").undo().what == ""


def test_what_was_left_alone_keeps_its_old_contents(tmp_path):
    """Somebody changed the file since: it stays, and what the agent replaced is still to be had."""
    folder = project(tmp_path)
    journal = Journal(folder, tmp_path / "undo")
    for again in (1, 2):
        journal.begin("write")
        journal.write("a", b"agent's first")
        journal.write("a", b"agent's second")
        journal.write("b", b"b")
        (folder / "a").write_text("a person's")
        undone = journal.undo()
        assert set(undone.left) == {"a"} and undone.restored == ["b"]
        assert (folder / "a").read_text() == "a person's"
        assert undone.kept["a"].read_text() == ("a" if again == 1 else "a person's")
    assert not journal.undo().what


def test_what_nothing_was_kept_of_leaves_no_folder(tmp_path):
    folder = project(tmp_path)
    journal = Journal(folder, tmp_path / "undo")
    journal.write("b", b"agent's")
    (folder / "b").write_text("a person's")
    undone = journal.undo()
    assert undone.left == ["b"] and not undone.kept and not list(journal.store.iterdir())
    for number in range(KEPT + 3):
        journal.begin(str(number))
        journal.write("a", str(number).encode())
        (folder / "a").write_text("a person's")
        journal.undo()
    journal.write("a", b"")
    assert len(list(journal.store.glob("left-*"))) == KEPT
