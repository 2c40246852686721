"""Two commands are the same where they do the same, and only harmless ones are run."""

import pytest

from rusty_r2.eval.sandboxed import Twin, can_run, tree_for


@pytest.mark.parametrize(
    ("gold", "other", "same"),
    [
        ("sort -u notes.txt", "sort notes.txt | uniq", True),
        ("sort -u notes.txt", "sort notes.txt", False),
        ("mkdir empty", "mkdir -p empty", True),
        ("mkdir empty", "mkdir other", False),
        ("chmod 600 notes.txt", "chmod u=rw,go= notes.txt", True),
        ("chmod 600 notes.txt", "chmod 644 notes.txt", False),
        ("rm -r backup", "rm backup/notes.txt && rmdir backup", True),
        ("find . -name '*.mp3'", "find . -iname '*.mp3'", True),
        ("cat notes.txt", "curl http://example.com", False),
        ("echo hi > x", "seq 3 > x", False),
    ],
)
def test_same_is_what_comes_of_it(gold, other, same):
    twin = Twin(gold)
    assert twin.is_telling and twin.same(gold)
    assert twin.same(other) is same


@pytest.mark.parametrize("gold", ["true", "cat nothing/here", "false", "test -f notes.txt", "date +%N"])
def test_a_command_that_leaves_nothing_or_fails_proves_nothing(gold):
    assert not Twin(gold).is_telling


@pytest.mark.parametrize(
    "command",
    [
        "curl http://example.com",
        "ls; python3 -c 1",
        "echo $(reboot)",
        "echo `reboot`",
        "find . -exec sh -c x ;",
        "ls | xargs bash",
        "sudo ls",
        "X=1 env",
        "echo x > /dev/sda",
        "",
        "echo 'half",
    ],
)
def test_only_harmless_programs_are_run(command):
    assert not can_run(command)


def test_names_that_a_command_mentions_are_there():
    made = tree_for("tar xf source.tar -C some_directory/ ./a.txt *.log / . ..")
    assert {"source.tar", "some_directory/a.txt", "a.txt", "one.log"} <= set(made)
    assert all(name and not name.startswith(("/", ".")) for name in made)
