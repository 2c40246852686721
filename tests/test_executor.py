"""Work done elsewhere is the same work: order, results and errors of every engine."""

import operator
import os
import pickle
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from rusty_r2.errors import ConfigError, TaskError
from rusty_r2.executor import LocalExecutor, Processes, WorkerError, open_executor
from rusty_r2.gym import catalog
from rusty_r2.protocol import parse
from rusty_r2.train.grpo_rewards import Attempt, attempt

PID = "__import__('os').getpid()"


@pytest.fixture(scope="module")
def pool():
    with open_executor("local", workers=2) as executor:
        yield executor


def test_results_come_in_the_order_of_the_items(pool):
    items = list(range(50, -50, -1))
    assert pool.map(operator.neg, items) == [-item for item in items]
    assert pool.map(partial(pow, 2), range(20)) == [2**item for item in range(20)]
    assert pool.map(operator.neg, []) == []


def test_work_really_leaves_this_process(pool):
    there = set(pool.map(eval, [PID] * 8))
    assert os.getpid() not in there
    assert LocalExecutor(1).map(eval, [PID] * 3) == [os.getpid()] * 3


def test_an_error_of_ours_crosses_the_border_whole(pool):
    with pytest.raises(TaskError, match="there is no task 'nowhere'"):
        pool.map(catalog.get, ["sum_list", "nowhere"])
    with pytest.raises(Exception, match="no JSON object"):  # takes two arguments to make: does not pickle
        pool.map(parse, ["x", "y"])


def test_a_dead_worker_is_said_and_the_next_work_gets_new_ones():
    with LocalExecutor(2) as executor:
        with pytest.raises(WorkerError, match="--workers 1"):
            executor.map(os._exit, [1, 1])
        assert executor.map(operator.neg, [1, 2]) == [-1, -2]


def test_an_interrupt_is_for_the_process_that_waits_and_no_worker_dies_of_it():
    """As a terminal sends it, to all of them; else a run that wants to save first would break off."""
    interrupted = "__import__('os').kill(__import__('os').getpid(), __import__('signal').SIGINT) or 7"
    with LocalExecutor(2) as executor:
        assert executor.map(eval, [interrupted] * 2) == [7, 7]


def test_a_stream_is_in_order_read_a_little_ahead_and_says_who_died():
    taken = []

    def items():
        for number in range(100):
            taken.append(number)
            yield number

    with Processes(2) as processes:
        results = processes.stream(operator.neg, items())
        assert next(results) == 0 and len(taken) < 20
        assert list(results) == [-number for number in range(1, 100)]
        with pytest.raises(TaskError, match="nowhere"):
            list(processes.stream(catalog.get, ["nowhere"]))
        with pytest.raises(WorkerError, match="--workers 1"):
            list(processes.stream(os._exit, [1]))


HELD = """
import os, time
from rusty_r2.executor import {0}
if __name__ == "__main__":
    with {0}(2) as workers:
        own = "__import__('time').sleep(1) or __import__('os').getpid()"
        print(*workers.{1}(eval, [own, own]), flush=True)
        time.sleep(60)
"""


@pytest.mark.parametrize(("kind", "verb"), [("LocalExecutor", "map"), ("Processes", "stream")])
def test_workers_end_with_the_process_that_was_killed(tmp_path, kind, verb):
    script = tmp_path / "held.py"
    script.write_text(HELD.format(kind, verb))
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in process.stdout.readline().split()]
    process.kill()
    process.communicate()
    assert len(pids) == 2
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "workers outlive a process that was killed"
        time.sleep(0.05)


def test_tasks_and_verdicts_are_the_same_in_every_process(pool):
    names = [task.name for task in catalog.tasks("train", count=6, difficulty=1)]
    assert pool.map(catalog.get, names) == LocalExecutor(1).map(catalog.get, names)


@pytest.mark.parametrize(
    ("engine", "workers", "said"), [("spark", 1, "say local or ray"), ("local", -1, "--workers")]
)
def test_what_does_not_exist_is_refused(engine, workers, said):
    with pytest.raises(ConfigError, match=said):
        open_executor(engine, workers=workers)


TRIES = [
    Attempt("remove-1-train-0", '{"action": "CMD", "command": "rm notion-backup.txt"}'),
    Attempt("remove-1-train-0", '{"action": "CMD", "command": "ls"}'),
    Attempt("remove-1-train-0", "Sure! Here is how."),
    Attempt("rename-1-train-0", '{"action": "CMD", "command": "mv reason_friend.log bee.csv"}'),
]
RAY = """
import operator, pickle, signal, sys
from rusty_r2.errors import TaskError
from rusty_r2.executor import open_executor
from rusty_r2.gym import catalog
from rusty_r2.train.grpo_rewards import attempt

def saves_first(*_): ...

signal.signal(signal.SIGTERM, saves_first)
tries = pickle.load(sys.stdin.buffer)
with open_executor("ray", workers=1) as executor:
    held = signal.getsignal(signal.SIGTERM) is saves_first
    results = executor.map(operator.neg, range(10)), executor.map(attempt, tries)
    try:
        executor.map(catalog.get, ["nowhere"])
    except TaskError as error:
        told = str(error)
pickle.dump((held, results, told), sys.stdout.buffer)
"""


def test_a_real_ray_gives_what_the_pool_gives(pool):
    """In a process of its own: Ray leaves threads, open files and variables behind until a process ends."""
    pytest.importorskip("ray", reason="ray is not installed; to run this: pip install 'rusty-r2[ray]'")
    done = subprocess.run([sys.executable, "-c", RAY], input=pickle.dumps(TRIES), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    held, results, told = pickle.loads(done.stdout)
    assert results == (pool.map(operator.neg, range(10)), pool.map(attempt, TRIES))
    assert "there is no task 'nowhere'" in told
    assert held, "who waited for SIGTERM before Ray came still hears it"
