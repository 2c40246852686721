# SPDX-License-Identifier: AGPL-3.0-or-later
"""The environment: what each reply shows and earns, what never pays, and what ends it."""

import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rusty_r2.errors import ConfigError, TaskError
from rusty_r2.gym.env import CodingEnv, EnvConfig, clip, waits
from rusty_r2.gym.verdict import judge
from rusty_r2.protocol import Cmd, Edit, Msg, render
from rusty_r2.task import Calls, Case, Code, Task, Tree

START = "def double(n):\n    pass\n"
RIGHT = "def double(n):\n    return n * 2\n"
DOUBLE = Task(
    "double",
    "Make double(n) return twice n.",
    Calls("d.py", "double", (Case((2,), 4), Case((5,), 10))),
    {"d.py": START},
    {"d.py": RIGHT},
)
MOVE = Task(
    "move", "Rename a.txt to b.txt.", Tree({"a.txt": None, "b.txt": "1\n"}), {"a.txt": "1\n", "in/c": "2\n"}
)
COUNT = Task("count", "How many lines?", Tree(answer="3"), {"a.txt": "x\ny\nz\n"})


needs_sandbox = pytest.mark.usefixtures("confined")
pytestmark = needs_sandbox


def edit(content: str, path: str = "d.py") -> str:
    return render(Edit(path, content))


def run(command: str) -> str:
    return render(Cmd(command))


def say(message: str) -> str:
    return render(Msg(message))


def played(task: Task, *replies: str, config: EnvConfig | None = None):
    """Every step of an episode."""
    with CodingEnv(config=config) as env:
        env.reset(options={"task": task})
        return [env.step(reply) for reply in replies]


def test_the_first_observation_is_the_task_and_the_file():
    with CodingEnv() as env:
        seen, info = env.reset(options={"task": DOUBLE})
    assert seen == "Make double(n) return twice n.\n\nCURRENT_FILE: d.py\ndef double(n):\n    pass"
    assert info["task"] == "double"
    assert info["turn"] == 0


def test_a_file_that_the_prompt_quotes_is_not_shown_twice():
    with CodingEnv() as env:
        seen, _ = env.reset(options={"task": replace(DOUBLE, prompt=f"Complete this:\n\n{START}")})
        assert seen == f"Complete this:\n\n{START}\nCURRENT_FILE: d.py"
        seen, _ = env.reset(options={"task": replace(DOUBLE, files={"d.py": ""})})
        assert seen == "Make double(n) return twice n.\n\nCURRENT_FILE: d.py"


def test_the_file_to_work_on_comes_first_and_long_ones_are_cut():
    task = replace(DOUBLE, files={"a.py": "# long\n" * 90, "d.py": START})
    with CodingEnv(config=EnvConfig(max_file=200)) as env:
        seen, _ = env.reset(options={"task": task})
    assert seen.index("d.py") < seen.index("a.py")
    assert "characters left out" in seen
    assert len(seen) < 400


def test_a_terminal_task_shows_names_but_not_what_is_in_folders():
    with CodingEnv() as env:
        assert env.reset(options={"task": MOVE})[0] == "Rename a.txt to b.txt.\n\nFILES: a.txt in/"


def test_a_right_edit_earns_all_of_it():
    ((seen, reward, terminated, truncated, info),) = played(DOUBLE, edit(RIGHT))
    assert seen == "wrote d.py\nTEST_RESULT: all pass"
    assert reward == pytest.approx(1.0)
    assert (terminated, truncated) == (True, False)
    assert info["passed"]
    assert info["rewards"] == {"parses": 0.3, "passes": 0.7}
    assert info["level"]


def test_code_that_parses_is_paid_once():
    first, second, third = played(
        DOUBLE,
        edit("def double(n):\n    return n\n"),
        edit("def double(n):\n    return n + 1\n"),
        edit(RIGHT),
    )
    assert first[1] == pytest.approx(0.3)
    assert "0 of 2 pass" in first[0]
    assert second[1] == 0
    assert third[1] == pytest.approx(0.7)
    assert third[2]


def test_the_result_never_tells_a_hidden_value():
    ((seen, *_),) = played(DOUBLE, edit("def double(n):\n    return n\n"))
    assert "returned 2" in seen
    assert "4" not in seen


def test_code_that_cannot_be_read_costs():
    ((seen, reward, *_),) = played(DOUBLE, edit("def double(n)\n    return"))
    assert reward == pytest.approx(-0.1)
    assert "parse" in seen


@pytest.mark.parametrize(
    "content",
    [
        START,
        "",
        "# def double(n): return n * 2\n",
        "x = 1\n",
        "import os\nos._exit(0)\n",
        "raise SystemExit(0)\n",
    ],
    ids=["unchanged", "empty", "comment", "other", "exit", "raise"],
)
def test_what_does_no_work_earns_nothing(content):
    ((_, reward, terminated, _, info),) = played(DOUBLE, edit(content))
    assert reward <= 0
    assert not terminated
    assert not info["passed"]


def test_a_file_that_lacks_what_was_asked_for_earns_nothing():
    empty = replace(DOUBLE, files={"d.py": ""})
    for task in (empty, replace(empty, check=Code("d.py", "assert double(2) == 4", "assert", "double"))):
        assert played(task, edit("x = 1\n"))[0][1] == 0
        assert played(task, edit("def double(n): return 0\n"))[0][1] == pytest.approx(0.3)
        assert played(task, edit(RIGHT))[0][1] == pytest.approx(1.0)


def test_a_command_shows_how_it_ended_and_what_it_said():
    steps = played(MOVE, run("echo hello; echo oops >&2; exit 3"), run("mv a.txt b.txt"))
    assert steps[0][0].splitlines()[0] == "exit 3"
    assert "hello" in steps[0][0]
    assert "oops" in steps[0][0]
    assert steps[0][1] == 0
    seen, reward, terminated, _, info = steps[1]
    assert seen == "exit 0\nTEST_RESULT: all pass"
    assert reward == pytest.approx(1.0)
    assert terminated
    assert info["passed"]


def test_the_workspace_lives_from_turn_to_turn():
    steps = played(MOVE, run("mkdir x && cp a.txt x/y"), edit("7\n", "x/z"), run("cat x/y x/z"))
    assert "1\n7" in steps[2][0]


def test_what_was_to_stay_must_stay():
    ((_, reward, terminated, _, info),) = played(MOVE, run("mv a.txt b.txt; rm in/c"))
    assert not terminated
    assert reward == 0
    assert "in/c" in info["why"]


def test_a_code_task_can_be_solved_by_a_command():
    ((_, reward, terminated, *_),) = played(DOUBLE, run("sed -i 's/pass/return n * 2/' d.py"))
    assert terminated
    assert reward == pytest.approx(1.0)


def test_talk_costs_and_goes_on_where_the_files_decide():
    first, second = played(DOUBLE, say("Done."), edit(RIGHT))
    assert first[1] == pytest.approx(-0.1)
    assert not first[2]
    assert second[2]


def test_an_answer_ends_the_episode():
    right = played(COUNT, run("wc -l a.txt"), say("3 lines"))[-1]
    wrong = played(COUNT, say("4"))[-1]
    assert (right[1], right[2]) == (pytest.approx(1.0), True)
    assert (wrong[1], wrong[2]) == (pytest.approx(-0.1), True)


def test_silence_is_worth_no_more_than_a_wrong_answer():
    ((_, reward, terminated, truncated, info),) = played(COUNT, run("ls"), config=EnvConfig(max_turns=1))
    assert (terminated, truncated) == (False, True)
    assert reward == pytest.approx(-0.1)
    assert info["rewards"] == {"unanswered": -0.1}
    assert played(MOVE, run("ls"), config=EnvConfig(max_turns=1))[0][1] == 0


QUIET = EnvConfig(quiet=1.0, max_turns=3)


def test_as_in_a_chat_nothing_is_said_of_tests_and_a_message_ends_and_pays():
    first, last = played(MOVE, run("mv a.txt b.txt"), say("Done."), config=QUIET)
    assert first[0] == "exit 0"
    assert (first[1], first[2], first[4]["passed"]) == (0.0, False, False)
    assert last[1:3] == (1.0, True)
    assert last[4]["passed"]
    early = played(MOVE, say("Done."), config=QUIET)[-1]
    assert early[1:3] == (QUIET.talk, True)
    undone = played(MOVE, run("mv a.txt b.txt"), run("mv b.txt c.txt"), say("Done."), config=QUIET)[-1]
    assert undone[1:3] == (QUIET.talk, True), "what counts is how it stands in the end"
    wrote = played(DOUBLE, edit(START.replace("pass", "return n")), config=QUIET)[-1]
    assert wrote[:3] == ("wrote d.py", 0.0, False)
    on = played(MOVE, run("mv a.txt b.txt"), run("ls"), run("ls"), config=QUIET)[-1]
    assert (on[1], on[3], on[4]["passed"]) == (QUIET.talk, True, False), "never said to be done"


def test_a_share_of_the_tasks_is_quiet():
    tasks = [replace(MOVE, name=f"move-{i}") for i in range(400)]
    assert 90 < sum(waits(task, EnvConfig(quiet=0.3)) for task in tasks) < 150
    assert not any(waits(task, EnvConfig()) for task in tasks)
    assert waits(COUNT, EnvConfig())


def test_naming_every_answer_is_no_answer():
    assert not played(COUNT, say(" ".join(map(str, range(20)))))[-1][4]["passed"]


MALFORMED = [
    "",
    "hello",
    "1",
    "[]",
    "null",
    '{"action": "DANCE"}',
    '{"action": "CMD"}',
    '{"action": "CMD", "command": 3}',
    "{",
]


@pytest.mark.parametrize("reply", MALFORMED)
def test_a_malformed_reply_costs_and_is_told_why(reply):
    ((seen, reward, terminated, truncated, info),) = played(DOUBLE, reply)
    assert reward == pytest.approx(-0.5)
    assert seen.startswith("SYSTEM_MSG: Invalid format:")
    assert '{"action":' in seen
    assert not (terminated or truncated or info["valid"])


@pytest.mark.parametrize(
    "path", ["../d.py", "/etc/x", "d.py/x", "in", ".", "a" * 300, "/".join("a" * 40)], ids=range(7)
)
def test_an_edit_that_cannot_stand_is_refused(path):
    task = Task("t", "Do.", MOVE.check, {**MOVE.files, "d.py": "x"})
    for before in ([], [run("true")]):
        seen, reward, terminated, *_ = played(task, *before, edit("y", path))[-1]
        assert reward == pytest.approx(-0.1)
        assert "refused" in seen
        assert not terminated


def test_turns_run_out():
    steps = played(DOUBLE, say("a"), say("b"), config=EnvConfig(max_turns=2))
    assert [step[3] for step in steps] == [False, True]


def test_a_step_after_the_end_is_an_error():
    with CodingEnv(config=EnvConfig(max_turns=1)) as env:
        with pytest.raises(TaskError, match="reset"):
            env.step(say("a"))
        env.reset(options={"task": DOUBLE})
        env.step(say("a"))
        with pytest.raises(TaskError, match="reset"):
            env.step(say("a"))


def test_output_is_capped_at_both_ends():
    ((seen, *_),) = played(MOVE, run("seq 100000"), config=EnvConfig(max_output=300))
    assert len(seen) < 400
    assert "100000" in seen
    assert "characters left out" in seen


@given(st.text(), st.integers(1, 50))
def test_a_clipped_text_keeps_its_ends(text, room):
    made = clip(text, room)
    assert made == text or len(made) <= room + 60
    assert made[: room * 2 // 3] == text[: room * 2 // 3]


def test_what_takes_too_long_is_stopped():
    config = EnvConfig(wall_s=0.5)
    command, code = played(
        DOUBLE, run("sleep 30"), edit("def double(n):\n    while n: pass\n"), config=config
    )
    assert command[0] == "stopped: timeout"
    assert "0 of 2 pass" in code[0]
    assert code[1] == pytest.approx(0.3)


def test_a_task_may_ask_for_other_limits():
    task = replace(MOVE, limits={"wall_s": 0.3})
    assert played(task, run("sleep 30"))[0][0] == "stopped: timeout"
    with pytest.raises(TaskError, match="elbow"):
        played(replace(MOVE, limits={"elbow_room": 3}), run("true"))


def test_a_full_disk_is_the_commands_own_fault():
    seen, _, terminated, _, info = played(
        MOVE, run("head -c 9000000 /dev/zero > big"), config=EnvConfig(disk=1 << 20)
    )[0]
    assert not terminated
    assert not info["masked"]
    assert seen.splitlines()[0] in ("exit 1", "stopped: disk")


def test_shaping_pays_a_share_once():
    half = "def double(n):\n    return 4\n"
    first, second = played(DOUBLE, edit(half), edit(half + "\n"), config=EnvConfig(partial=0.2, turn=-0.01))
    assert first[4]["rewards"] == {"turn": -0.01, "partial": 0.1, "parses": 0.3}
    assert second[4]["rewards"] == {"turn": -0.01}


def test_the_level_asked_for_is_that_of_the_verdict(level):
    config = EnvConfig(level=level, at_least=level)
    ((*_, info),) = played(DOUBLE, edit(RIGHT), config=config)
    assert info["level"] == level
    with pytest.raises(ConfigError, match=f"{level} is weaker than ns") if level != "ns" else nullcontext():
        judge(DOUBLE, {"d.py": RIGHT}, level=level, at_least="ns")


def test_the_sandbox_cannot_be_switched_off():
    for options in ({"level": "off"}, {"at_least": "off"}):
        with pytest.raises(ConfigError, match="off"):
            EnvConfig(**options)


def test_a_seed_draws_a_task():
    with CodingEnv() as env:
        drawn = [env.reset(seed=seed)[1]["task"] for seed in range(30)]
        assert drawn == [env.reset(seed=seed)[1]["task"] for seed in range(30)]
        assert len(set(drawn)) > 5


def test_an_empty_task_set_is_an_error(tmp_path):
    with pytest.raises(TaskError, match="no tasks"):
        CodingEnv(tmp_path).reset(seed=0)


BROKEN = """
import json, os, resource, sys
from rusty_r2.gym.env import CodingEnv
from rusty_r2.task import Task
task = Task.from_dict(json.loads(sys.argv[1]))
env = CodingEnv()
env.reset(options={"task": task})
limit = len(os.listdir("/proc/self/fd")) - 1
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
seen, reward, terminated, truncated, info = env.step(sys.argv[2])
print(json.dumps([reward, terminated, truncated, info["masked"], info["passed"]]))
"""


@pytest.mark.parametrize(
    ("task", "reply"), [(DOUBLE, edit(RIGHT)), (MOVE, run("mv a.txt b.txt"))], ids=["edit", "command"]
)
def test_a_broken_sandbox_masks_the_episode(task, reply):
    """A machine that has run out of descriptors: nobody's score, whatever the reply was."""
    command = [sys.executable, "-c", BROKEN, json.dumps(task.to_dict()), reply]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [0.0, False, True, True, False]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=40), st.builds(say, st.text("ab 3", max_size=5))), max_size=4))
def test_any_reply_has_an_observation(replies):
    with CodingEnv(config=EnvConfig(max_turns=9)) as env:
        env.reset(options={"task": MOVE})
        for reply in replies:
            seen, reward, *_ = env.step(reply)
            assert isinstance(seen, str)
            assert isinstance(reward, float)
