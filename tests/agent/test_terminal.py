"""`rusty chat` and `rusty ask` through the user's door: a real terminal, a pipe, a mind that means harm."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rusty_r2.gym.sandbox import probe
from rusty_r2.protocol import Cmd, Edit, Msg, render
from rusty_r2.store import TraceStore

from .conftest import snapshot
from .terminal_driver import Terminal

NS = any(report.name == "ns" and report.available for report in probe())
needs_ns = pytest.mark.skipif(not NS, reason="needs the sandbox level ns")
DOOR = """
import sys
from rusty_r2 import cli
cli.COMMANDS["chat"] = ("rusty_r2.welcome:chat", "")
cli.COMMANDS["ask"] = ("rusty_r2.welcome:ask", "")
sys.exit(cli.main())
"""
MENDED = "def total(xs):\n    return sum(xs)\n"


def script(tmp_path, *actions):
    path = tmp_path / "script.jsonl"
    path.write_text("".join((a if isinstance(a, str) else render(a)) + "\n" for a in actions))
    return f"script:{path}"


def rusty(*words, said="", **how):
    command = [sys.executable, "-c", DOOR, *map(str, words)]
    return subprocess.run(command, input=said, capture_output=True, text=True, timeout=200, **how)


def ten_exchanges():
    return (
        *(Cmd("python3 check.py"), Edit("total.py", MENDED), Cmd("python3 check.py"), Msg("Mended.")),
        *(Cmd("rm total.py"), Msg("It is gone. Or is it?")),
        *(Cmd("echo x > junk"), Msg("Fine, no junk.")),
        *(Cmd("ls -a"), Msg("Edited, was I.")),
        *(Cmd("cat total.py"), Cmd("cat check.py"), Msg("Read both.")),
        *("uh", Msg("Sorry.")),
        *(Msg("Two lines, I heard."),),
        *(Cmd("sleep 600"),),
        *(Msg("Back again."),),
        *(Msg("Last words."),),
    )


@needs_ns
def test_ten_exchanges_with_a_person_in_charge(folder, tmp_path):
    before = snapshot(folder)
    model = script(tmp_path, *ten_exchanges())
    with Terminal(["-c", DOOR, "chat", "--model", model, "--workspace", str(folder)]) as t:
        t.wait(":help if you must", "you> ")
        t.type("fix the test")  # 1: several steps on one request
        shown = t.wait("write it?", " > ")
        assert "$ python3 check.py" in shown and "AssertionError" in shown and "+    return sum(xs)" in shown
        t.type("y")
        assert "fine" in t.wait("Mended.", "you> ")
        t.type(":good exactly so")
        t.wait("good: ", "you> ")

        t.type(":dry")  # 2: nothing is touched, nobody is asked
        t.wait("nothing is touched", "(dry) you> ")
        t.type("remove it")
        assert "would change 1 path" in t.wait("Or is it?", "(dry) you> ")
        assert (folder / "total.py").read_text() == MENDED
        t.type(":dry")
        t.wait("dry run is over", "you> ")

        t.type("make junk")  # 3: a change that is not kept
        t.wait("keep these changes?", " > ")
        t.type("n no junk here")
        t.wait("Fine, no junk.", "you> ")
        assert not (folder / "junk").exists()

        t.type(":ask always")  # 4: a command the person writes
        t.wait("ask always", "you> ")
        t.type("look around")
        t.wait("run it?", " > ")
        t.type("e")
        t.wait("$ ")
        t.type(" | wc -l; echo edited")
        assert "edited" in t.wait("Edited, was I.", "you> ")

        t.type("read")  # 5: always for this kind
        t.wait("“cat”", " > ")
        t.type("a")
        assert "$ cat check.py\nrun it?" not in t.wait("cat check.py", "Read both.", "you> ")
        t.type(":ask writes")
        t.wait("always yes: cat", "you> ")

        t.type("say something")  # 6: corrected, quietly
        assert "asked again" in t.wait("Sorry.", "you> ")
        t.type(":bad you know why")
        t.wait("bad: ", "you> ")

        t.send("one\x1b\rtwo\r")  # 7: two lines in one request
        t.wait("Two lines, I heard.", "you> ")

        t.type("take your time")  # 8: Ctrl-C stops the answer, not the program
        t.wait("$ ", "sleep 600")
        time.sleep(1)
        t.send("\x03")
        t.wait("stopped", "you> ")
        t.type("hello?")  # 9
        t.wait("Back again.", "you> ")

        t.type(":undo")
        t.wait("undone: fix the test", "restored total.py", "you> ")
        assert snapshot(folder) == before
        t.type(":undo")
        t.wait("nothing to undo", "you> ")

        t.type("anything else?")  # 10
        t.wait("Last words.", "step", "you> ")
        for command, answer in {
            ":reward": " = ", ":trace": "MSG Last words.", ":model": "script", ":allow read": "allow read",
            ":allow network": "allow network", ":nonsense": "Type :help",
            ":help": "take back", ":model hf:x": "Say rusty" if not _has("hf") else "", ":reset": "forgotten",
        }.items():  # fmt: skip
            t.type(command)
            t.wait(answer, "you> ") if answer else t.wait("you> ")
        t.send(":mod\t")  # Tab completes
        t.wait(":model")
        t.send("\r")
        t.wait("script", "you> ")
        t.send("half a line\x03")
        t.wait("you> ")
        t.type(":q")
        assert t.ends() == 0
    assert "\nTraceback" not in t.text
    with TraceStore() as store:
        traces = sorted(store.find(), key=lambda trace: trace.timestamp)
        assert len(traces) == 10 and len({trace.session_id for trace in traces}) == 1
        assert [trace.ended for trace in traces].count("stopped") == 1
        assert traces[0].label is True and traces[0].review_notes == "exactly so"
        assert traces[5].label is False and traces[5].steps[0].ok is False
        assert traces[6].user_query == "one\ntwo"
        assert "no junk here" in traces[2].steps[0].observation
        assert traces[9].history[0]["content"] == "fix the test"


@needs_ns
def test_nobody_says_yes_to_what_they_have_not_seen(folder, tmp_path):
    model = script(tmp_path, Cmd("sleep 4; echo x > a"), Msg("Well."), Cmd("echo x > a"), Msg("Well then."))
    with Terminal(["-c", DOOR, "chat", "--model", model, "--workspace", str(folder), "--no-store"]) as t:
        t.wait("you> ")
        t.send("go\ry\r")  # pasted with the request
        t.wait("sleep 4")
        t.send("y\r")  # typed while the command runs
        t.wait("keep these changes?", " > ")
        time.sleep(0.5)
        assert not (folder / "a").exists()
        t.type("n")
        assert "Well." not in t.wait("1 step", "you> "), "a bare no gives the prompt back"
        t.type("and?")
        t.wait("Well.", "you> ")
        t.type("go on")
        t.wait("keep these changes?", " > ")
        t.send("\x03")  # Ctrl-C at a question stops the request
        t.wait("stopped", "you> ")
        t.type("exit")
        assert t.ends() == 0
    assert not (folder / "a").exists()
    with TraceStore() as store:
        assert store.count() == 0


def _has(module):
    return (Path(__file__).parents[2] / "rusty_r2" / "agent" / f"{module}.py").exists()


# ── a mind that means harm ──────────────────────────────────────────────────────────────────────


@needs_ns
def test_a_hostile_mind_is_only_text(folder, tmp_path):
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_rsa").write_text("PRIVATE")
    before = snapshot(tmp_path)
    program = [str(Path(__file__).with_name("hostile.py")), str(folder)]
    with Terminal(program, env={"HOME": str(home)}) as t:
        t.wait("you> ")
        for query, last in {
            "forge": "y\\u202e", "raw": "gave up", "huge": "more characters", "home": "done", "loud": "done",
            "long": "done", "hello": "still here",
        }.items():  # fmt: skip
            t.type(query)
            t.wait("│ ", last, "step", "you> ")
        t.type("longer")
        t.wait("! the reply passed 1,000,000 characters", "you> ")
        t.type("endless")
        t.wait("more and more")
        t.send("\x03")
        t.wait("! stopped", "you> ")
        t.type("endless")
        t.wait("without an end", "you> ")
        t.type("hello")
        t.wait("still here", "you> ")
        t.send("\x04")
        assert t.ends() == 0
    for sequence in ("\x1b[2J", "\x1b[H", "\x1b]", "\x07", "\u202e", "PRIVATE"):
        assert sequence not in t.raw, f"{sequence!r} reached the terminal"
    lines = [line for line in t.text.split("\n") if "you> :good" in line or "run it?" in line]
    assert lines and all(line.startswith(("│ ", "· ", "$ ")) for line in lines)
    assert len(t.raw) < 2_000_000
    assert snapshot(tmp_path) == before


# ── without a terminal ──────────────────────────────────────────────────────────────────────────


@needs_ns
def test_a_pipe_gets_the_answer_and_nothing_else_on_standard_output(folder, tmp_path):
    model = script(tmp_path, Cmd("cat total.py"), Msg("Two functions."), Cmd("echo x > a"), Msg("Bye."))
    said = "what is here?\nmake a\nand?\n:q\nnever\n"
    done = rusty("chat", "--model", model, "--workspace", folder, said=said)
    assert done.returncode == 0 and done.stdout == "Two functions.\nBye.\n"
    assert "$ cat total.py" in done.stderr
    allow = "! nobody to ask, so not kept: a. To allow it, type: rusty chat --ask never …\n"
    assert done.stderr.count(allow) == 1 and not (folder / "a").exists(), "nobody said yes"
    with TraceStore() as store:
        assert sorted(trace.ended for trace in store.find()) == ["done", "done", "unasked"]


@needs_ns
def test_ask_answers_once(folder, tmp_path):
    model = script(tmp_path, Cmd("echo x > a"), Msg("Made."))
    words = ("--model", model, "--workspace", folder, "--ask", "never")
    assert rusty("ask", "make a", *words).stdout == "Made.\n" and (folder / "a").exists()
    odd = script(tmp_path, Cmd("printf '\\302\\2332J\\342\\200\\256'"), Msg("Made."))
    told = rusty("ask", "--model", odd, *words[2:], "--json", "--no-store", said="make a")
    trace = json.loads(told.stdout)
    assert told.stdout.isascii(), "nothing that a terminal would obey"
    assert trace["user_query"] == "make a" and len(trace["steps"]) == 2
    with TraceStore() as store:
        assert store.count() == 1


def test_a_request_need_not_stand_in_quotes(folder, tmp_path):
    words = ("--model", script(tmp_path, Msg("Rusty-R2.")), "--workspace", folder, "--json")
    for asked in ("who are you?", "what does ls -l or df -h do with - and -1"):
        for said in ([asked, *words], [*asked.split(), *words], [*words, *asked.split()]):
            assert json.loads(rusty("ask", *said).stdout)["user_query"] == asked
    assert json.loads(rusty("ask", "-", *words, said="who?\n").stdout)["user_query"] == "who?"
    wrong = rusty("ask", "who", "are", "you?", *words, "--no-stor")
    assert wrong.returncode == 2 and wrong.stdout == ""
    assert wrong.stderr.startswith("rusty ask: there is no --no-stor; did you mean --store? If it is part of")


@needs_ns
@pytest.mark.parametrize(
    ("action", "left"),
    [
        (Edit("total.py/deep", "x"), "total.py/deep (Not a directory)"),
        (Cmd("echo x > .vimrc"), ".vimrc (protected)"),
        pytest.param(
            Cmd("rm total.py"),
            "total.py (Permission denied)",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere"),
        ),
    ],
)
def test_ask_fails_where_what_was_done_could_not_be_kept(folder, tmp_path, action, left):
    words = ("--workspace", folder, "--ask", "never")
    folder.chmod(0o555 if "Permission" in left else 0o755)
    done = rusty("ask", "do it", "--model", script(tmp_path, action, Msg("Done.")), *words)
    folder.chmod(0o755)
    assert done.returncode == 1 and done.stdout == "Done.\n"
    last = done.stderr.rstrip().split("\n")[-1]
    assert last.startswith("rusty ask: not kept: ") and left in last
    assert last.endswith(f"type: ls -ld {folder}")
    again = script(tmp_path, action, Edit("a", "x"), Msg("Done otherwise."))
    assert rusty("ask", "do it", "--model", again, *words).returncode == 0


@needs_ns
def test_what_is_protected_and_left_behind_is_said_where_the_rest_was_kept(folder, tmp_path):
    mind = script(tmp_path, Cmd("echo x > .vimrc; echo y > a"), Msg("Done."))
    done = rusty("ask", "do it", "--model", mind, "--workspace", folder, "--ask", "never")
    assert done.returncode == 0 and "not kept: .vimrc (protected)" in done.stderr
    assert (folder / "a").read_text() == "y\n" and not (folder / ".vimrc").exists()


def test_a_home_that_cannot_be_is_said_before_the_mind_is_opened(folder, tmp_path):
    (tmp_path / "file").write_text("")
    home = {**os.environ, "RUSTY_HOME": str(tmp_path / "file" / "home")}
    done = rusty("ask", "x", "--model", "script:none", "--workspace", folder, env=home)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"cannot make {tmp_path}/file/home: Not a directory. Set RUSTY_HOME" in done.stderr


@needs_ns
@pytest.mark.parametrize(
    ("action", "options", "undone"),
    [
        (Cmd("echo loud; echo x > a; rm total.py"), (), "not kept: a, total.py"),
        (Cmd("echo x > a"), ("--ask", "always"), "not run: echo x > a"),
        (Edit("a", "x"), (), "not written: a"),
    ],
)
def test_ask_ends_where_there_is_nobody_to_ask(folder, tmp_path, action, options, undone):
    before = snapshot(folder)
    model = script(tmp_path, action, Msg("Never said."))
    words = ("ask", "make a", "--model", model, "--workspace", folder, *options)
    line = f"rusty ask: nobody to ask, so {undone}. To allow it, type: rusty ask --ask never …\n"
    done = rusty(*words)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.endswith(line)
    assert done.stderr.count("nobody") == 1
    assert ("┊ loud" in done.stderr) is ("loud" in str(action)), "what it printed is shown"
    told = rusty(*words, "--json")
    trace = json.loads(told.stdout)
    assert told.returncode == 1 and told.stderr.endswith(line)
    assert trace["ended"] == "unasked" and trace["final_response"] == ""
    assert [step["ok"] for step in trace["steps"]] == [False]
    assert trace["steps"][0]["observation"].endswith(f"SYSTEM_MSG: nobody to ask, so {undone}")
    assert snapshot(folder) == before
    assert rusty(*words, "--ask", "never").stdout == "Never said.\n" and (folder / "a").exists()


@needs_ns
def test_ask_ends_with_a_bare_no(folder, tmp_path):
    model = script(tmp_path, Cmd("echo x > a"), Msg("Never said."))
    with Terminal(["-c", DOOR, "ask", "make a", "--model", model, "--workspace", str(folder)]) as t:
        t.wait("keep these changes?", " > ")
        t.type("n")
        t.wait("rusty ask: no answer: refused after 1 step.")
        assert t.ends() == 1
    assert "Never said." not in t.text and not (folder / "a").exists()


@needs_ns
def test_another_mind_takes_over_and_its_speed_is_shown(folder, tmp_path, small_gguf):
    words = ["chat", "--model", script(tmp_path, Msg("First.")), "--max-new-tokens", "12", "--max-turns", "1"]
    nobody = {"OLLAMA_HOST": "127.0.0.1:1"}
    with Terminal(["-c", DOOR, *words, "--workspace", str(folder), "--context", "512"], env=nobody) as t:
        t.wait("you> ")
        t.type("hello")
        t.wait("First.", "you> ")
        t.type(f":model gguf:{small_gguf}")
        t.wait("temperature 0.2", "context 512", "weights Q4_1", "you> ")
        t.type("hello again")
        t.wait("1 step, first word after ", " tokens/s", "you> ")
        t.type(":model ollama:nobody")
        t.wait("Is it running?", "you> ")
        t.type(":model")
        t.wait("gguf:", "you> ")
        t.type(":q")
        assert t.ends() == 0


def test_no_answer_is_an_error_of_one_line(folder, tmp_path):
    done = rusty("ask", "x", "--model", script(tmp_path, "uh", "uh", "uh"), "--workspace", folder)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.rstrip().split("\n")[-1].startswith("rusty ask: no answer: malformed after 3 steps")
    assert ":reset" not in done.stderr and done.stderr.count("no answer") == 1


def test_a_full_context_names_what_can_be_typed_where_it_is_said(folder, small_gguf):
    long = "word " * 300
    where = ("--model", f"gguf:{small_gguf}", "--workspace", folder, "--context", "256")
    once = rusty("ask", long, *where).stderr
    assert once.count("\n") == 1 and once.endswith("cut. Type: --context with more, or ask for less\n")
    told = rusty("chat", *where, said=long + "\n").stderr
    assert "or ask for less, or begin again: :reset" in told


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--model", "runs/none"), "or a name from: rusty models\n"),
        (("--model", "script:none"), "cannot be read: No such file or directory. Type: rusty chat --help\n"),
        (("--allow", "network", "--level", "bwrap"), "a network needs the sandbox level ns"),
        (("--workspace", "none"), "is not a folder"),
        (("--max-turns", "0"), "must be more than 0"),
    ],
)
def test_a_wrong_option_is_one_line_and_1(words, problem, tmp_path):
    done = rusty("chat", "--no-store", *words, cwd=tmp_path)
    assert done.returncode == 1 and problem in done.stderr and done.stderr.count("\n") == 1


@needs_ns
def test_welcome_without_a_terminal_shows_a_session_and_ends(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "rusty_r2.welcome"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0 and "You're welcome." in done.stdout
    assert "AssertionError" in done.stderr and "total: ok" in done.stderr
