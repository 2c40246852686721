"""What reaches the terminal is ours: whatever a model or a command says, it stays text, behind our bar."""

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rusty_r2.agent.diff import diff
from rusty_r2.agent.screen import LONGEST, Screen
from rusty_r2.agent.unfold import Unfold
from rusty_r2.gym.sandbox import Result
from rusty_r2.protocol import Cmd, Edit, Msg, render

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def heard(text, sizes):
    unfold, said, at = Unfold(), "", 0
    for size in [*sizes, len(text)]:
        said += unfold.feed(text[at : at + size])
        at += size
    return said, unfold


@given(texts, st.lists(st.integers(1, 7), max_size=40), st.booleans())
def test_a_message_is_heard_as_it_is_written(message, sizes, ascii_only):
    text = json.dumps({"action": "MSG", "message": message}, ensure_ascii=ascii_only)
    said, unfold = heard(text, sizes)
    assert said == message and unfold.kind == "MSG" and unfold.done


@given(texts)
def test_commands_and_edits_are_not_shown_before_they_are_whole(text):
    for action in (Cmd(text or "x"), Edit("a.py", text)):
        said, unfold = heard(render(action), [3] * 50)
        assert said == "" and unfold.kind == action.kind


@given(st.text(max_size=80), st.lists(st.integers(1, 5), max_size=30))
def test_anything_can_be_fed(text, sizes):
    heard(text, sizes)
    heard('{"action": "MSG", "message": "' + text, sizes)


def shown(fill, width=40):
    out = io.StringIO()
    screen = Screen(live=True, out=out)
    screen._out.width = width
    fill(screen)
    return out.getvalue()


FORGERIES = [
    "\x1b[2J\x1b[H\x1b]0;title\x07\x1b]52;c;aGk=\x07",
    "fine\ryou> :good\r\n\nyou> rm -rf\nrun it? [y]es > y",
    "abc\b\b\bxyz\x7f\x9b31m\u202eevil\u2066\u200b\u2028you> ",
    "wide 漢字" * 40 + "you> " * 30,
    " " * 39 + "you> " + "\t" * 30 + "you> ",
    "a" * 36 + "you> " + "b" * 200,
]


@pytest.mark.parametrize("text", FORGERIES)
@pytest.mark.parametrize("way", ["answer", "command", "edit", "notice", "error", "stream"])
def test_every_line_starts_with_our_bar_and_nothing_is_obeyed(text, way):
    def fill(screen):
        if way == "stream":
            for piece in re.findall(r".{1,3}", render(Msg(text)), re.S):
                screen.hear(piece)
            screen.end_reply()
        elif way == "edit":
            screen.edit(diff("a.py", b"", text.encode()))
        else:
            getattr(screen, way)(text)

    printed = shown(fill).replace("\r\x1b[K", "")
    printed = re.sub(r"\r\x1b\[2m· \S+ [\d,]+\x1b\[0m\x1b\[K", "", printed)
    assert not set(printed) & set("\r\b\x07\x1b\x7f\x9b\u202e\u2066\u200b\u2028")
    for line in printed.split("\n")[:-1]:
        assert line[:2] in ("│ ", "$ ", "± ", "· ", "! "), line
        assert cell_len(line) < 40


def test_a_huge_message_is_cut_and_says_so():
    printed = shown(lambda screen: screen.answer("x " * 500_000))
    assert len(printed) < 2 * LONGEST and "more characters are in the trace" in printed


def test_in_a_pipe_the_answer_is_plain_and_alone_on_standard_output():
    out, err = io.StringIO(), io.StringIO()
    screen = Screen(live=False, out=out, err=err)
    screen.command("ls")
    screen.hear(render(Msg("Done.\x1b[2J")))
    screen.answer("Done.\x1b[2J")
    assert out.getvalue() == "Done.␛[2J\n" and err.getvalue() == "$ ls\n"


def ran(stdout):
    return Result(0, None, stdout, b"", False, 0, 0.1, 0.1, 0, "exit", "ns")


def test_output_that_is_no_text_takes_one_line():
    printed = shown(lambda screen: screen.result(ran(bytes(range(256)) * 100)), width=400)
    assert printed.count("\n") == 1 and printed.endswith(" … 25,600 bytes that are no text\n")
    for text in ("ein \x1b[1mFüllwort\x1b[0m\n" * 9, "a\0b\0", "漢字\n" * 9, ""):
        assert "no text" not in shown(lambda screen, text=text: screen.result(ran(text.encode())))


def test_a_diff_says_what_changes_and_never_takes_long():
    assert diff("a", b"1\n2\n", b"1\n3\n")[-2:] == ["-2", "+3"]
    assert diff("a", None, b"x\n")[0] == "--- (nothing)"
    assert diff("a", b"1\n", b"1\n")[-1] == diff("a", b"\0", b"\0")[-1] == "@@ the contents are the same @@"
    assert diff("a", b"1\n", b"1\r\n")[-1] == "@@ only line ends changed @@"
    assert diff("a", None, b"")[-1] == "@@ an empty file @@"
    assert "becomes 3 bytes" in diff("a", b"\0\1", b"abc")[-1]
    many = "".join(f"{n}\n" for n in range(100_000)).encode()
    assert "becomes" in diff("a", many, many[::-1])[-1]
