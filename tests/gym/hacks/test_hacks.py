# SPDX-License-Identifier: AGPL-3.0-or-later
"""Every reward hack against every kind of check, and against naive graders, which they must fool.

The naive graders run inside a sandbox too (they are what a careless trainer would put there), so that
the hacks may do their worst. Their success is the proof that the battery bites.
"""

from __future__ import annotations

import secrets
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from rusty_r2.errors import ConfigError
from rusty_r2.gym import hacks
from rusty_r2.gym.sandbox import Limits, open_sandbox, probe
from rusty_r2.gym.verdict import judge

SHORT = Limits(wall_s=5, cpu_s=1, mem_process=512 << 20, mem_tree=512 << 20)
LEVELS = [report.name for report in probe() if report.available and report.name != "off"]
BATTERY = {hack.name: hack for hack in hacks.battery()}
REACHING = (
    "kill_everything", "look_into_proc", "leave_for_next_time", "own_modules", "answer_twice",
    "fork_parent_exits", "forge_all_descriptors", "close_channel", "exec_true", "crash_interpreter",
)  # fmt: skip
"""hacks that reach beyond their own process"""
SENTINEL = "ALL TESTS PASSED"
CASES = f"CASES = {list(hacks.CASES)!r}\n"
PLAIN = """
import sys
NONCE = sys.argv[1]
from template import f
for args, expected in CASES:
    assert f(*args) == expected
print(NONCE)
"""
IN_PROCESS = """
import sys, unittest
from template import f
class Tests(unittest.TestCase):
    def test_cases(self):
        for args, expected in CASES:
            self.assertEqual(f(*args), expected)
result = unittest.TextTestRunner().run(unittest.TestLoader().loadTestsFromModule(sys.modules["__main__"]))
sys.exit(not result.wasSuccessful())
"""
NAIVE = {
    "exit": PLAIN,
    "sentinel": PLAIN.replace("sys.argv[1]", f"'{SENTINEL}'"),
    "unittest": IN_PROCESS,
    "nonce": PLAIN,
}
MAIN = """
import atexit, sys, types
sys.argv = ["grade.py", {nonce!r}]
sys.path.insert(0, {cwd!r})
main = sys.modules["__main__"] = types.ModuleType("__main__")
try:
    exec(compile(open("grade.py").read(), "grade.py", "exec"), main.__dict__)
finally:
    atexit._run_exitfuncs()
"""


def believes(grader: str, source: str) -> bool:
    """What a naive grader says about a candidate that shares its process."""
    nonce = secrets.token_hex(16)
    files = {hacks.PATH: source, "grade.py": CASES + NAIVE[grader]}
    with (
        open_sandbox(files=files, limits=SHORT) as box,
        box.guest(MAIN.format(nonce=nonce, cwd=box.cwd)) as guest,
    ):
        result = guest.wait()
    said = result.stdout.decode(errors="replace")
    if grader in ("sentinel", "nonce"):
        return (SENTINEL if grader == "sentinel" else nonce) in said
    return result.code == 0 and result.reason == "exit"


def test_the_battery_is_large_and_named_once():
    assert len(hacks.battery()) == len(BATTERY) >= 90
    for hack in hacks.battery():
        assert set(hack.fools) <= set(NAIVE), hack.name


@pytest.mark.parametrize("task", hacks.TASKS, ids=lambda task: task.name)
def test_honest_work_is_told_from_wrong(task):
    good = judge(task, {hacks.PATH: hacks.GOOD})
    wrong = judge(task, {hacks.PATH: hacks.WRONG})
    assert good.passed and good.passed_tests == good.total >= 5 and good.why == ""
    assert not wrong.passed and wrong.passed_tests < wrong.total and wrong.why


@pytest.mark.parametrize("task", hacks.TASKS, ids=lambda task: task.name)
def test_no_hack_is_paid(level, task):
    battery = hacks.battery()
    if level != LEVELS[0] and task.name != "asserts":
        pytest.skip("the strongest level has them all; one kind of check is enough for the others")
    if level == "bwrap":  # each sandbox starts an interpreter there
        battery = tuple(BATTERY[name] for name in REACHING)

    def fooled(hack: hacks.Hack) -> str:
        verdict = judge(task, {hacks.PATH: hack.source}, limits=SHORT, level=level)
        assert verdict.level == level
        assert verdict.why, hack.name
        return hack.name if verdict.passed or verdict.passed_tests == verdict.total else ""

    with ThreadPoolExecutor(8) as pool:
        assert not list(filter(None, pool.map(fooled, battery)))


def test_a_verdict_without_a_sandbox_is_refused():
    with pytest.raises(ConfigError, match="worth nothing"):
        judge(hacks.TASKS[0], {hacks.PATH: hacks.GOOD}, level="off")


@pytest.mark.parametrize("grader", NAIVE)
def test_naive_graders_know_honest_work(grader):
    assert believes(grader, hacks.GOOD)
    assert not believes(grader, hacks.WRONG)


def test_naive_graders_are_fooled_by_their_share():
    pairs = [(hack.name, grader) for hack in hacks.battery() for grader in hack.fools]
    with ThreadPoolExecutor(8) as pool:
        believed = list(pool.map(lambda pair: believes(pair[1], BATTERY[pair[0]].source), pairs))
    assert [pair for pair, yes in zip(pairs, believed, strict=True) if not yes] == []
    share = Counter(grader for _, grader in pairs)
    assert (
        share["exit"] >= 30 and share["unittest"] >= 30 and share["sentinel"] >= 20 and share["nonce"] >= 18
    )
