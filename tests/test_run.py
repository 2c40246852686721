"""A run folder: atomic, resumable, readable by TensorBoard, and honest about damage."""

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from rusty_r2 import files, run
from rusty_r2.errors import CheckpointError, ConfigError
from rusty_r2.run import Run


@dataclass(frozen=True)
class Options:
    lr: float = 0.1
    max_steps: int = 10
    seed: int = 7


def save(a_run, step, text="weights"):
    with a_run.checkpoint(step) as folder:
        (folder / "model").write_text(text)


def test_a_run_leaves_config_metrics_provenance_and_checkpoints(tmp_path):
    with Run.start("toy", Options(), folder=tmp_path / "toy") as a:
        a.log(1, {"loss/total": 2.5, "loss/bad": float("nan")})
        save(a, 1)
    assert json.loads((a.folder / "config.json").read_text()) == {"lr": 0.1, "max_steps": 10, "seed": 7}
    facts = json.loads((a.folder / "run.json").read_text())
    assert facts["ended"] == "done" and facts["seed"] == 7 and facts["version"] and facts["python"]
    (line,) = run.metrics(a.folder)
    assert line["step"] == 1 and line["loss/total"] == 2.5 and line["loss/bad"] is None
    assert run.newest(a.folder) == a.folder / "step_000001"


def test_a_secret_that_was_typed_is_not_written_down(tmp_path, monkeypatch):
    plain = ["train", "kto", "--data", f"{tmp_path}/a-folder/with_2_words/kto.jsonl", "--lr", "1e-4"]
    monkeypatch.setattr(sys, "argv", ["rusty", *plain, "--store", "postgresql://me:hush42@db/traces"])
    Run.start("toy", Options(), folder=tmp_path / "toy").close()
    told = (tmp_path / "toy" / "run.json").read_text()
    assert "hush42" not in told and " ".join(plain) in told


def test_a_second_start_in_the_same_folder_is_refused_with_the_way_out(tmp_path):
    Run.start("toy", Options(), folder=tmp_path / "toy").close()
    with pytest.raises(ConfigError, match="--resume auto"):
        Run.start("toy", Options(), folder=tmp_path / "toy")


def test_resume_goes_on_from_the_newest_whole_checkpoint(tmp_path):
    folder = tmp_path / "toy"
    with Run.start("toy", Options(), folder=folder) as a:
        for step in (1, 2, 3):
            a.log(step, {"loss": step})
            save(a, step, f"weights {step}")
    (folder / "step_000003" / "model").write_text("half a checkp")
    with Run.start("toy", Options(max_steps=99), folder=folder, resume="auto", may_change=["max_steps"]) as b:
        assert b.resumed_from == folder / "step_000002"
        assert [line["step"] for line in run.metrics(folder)] == [1, 2]


def test_a_line_that_a_full_disk_garbled_is_passed_over(tmp_path):
    with Run.start("toy", Options(), folder=tmp_path) as a:
        a.log(1, {"loss": 1})
        save(a, 1)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "ti{"step": 3, "time": 1}\n\0\0\n7\n')
    (tmp_path / "run.json").write_text('{"ended": "don')
    assert [line["step"] for line in run.metrics(tmp_path)] == [1]
    Run.start("toy", Options(), folder=tmp_path, resume="auto").close()
    assert [line["step"] for line in run.metrics(tmp_path)] == [1]


def test_resume_with_other_options_is_refused(tmp_path):
    with Run.start("toy", Options(), folder=tmp_path / "toy") as a:
        save(a, 1)
    with pytest.raises(ConfigError, match="lr was 0.1 and is 0.2"):
        Run.start("toy", Options(lr=0.2), folder=tmp_path / "toy", resume="auto")


def test_a_damaged_checkpoint_is_never_loaded_by_name(tmp_path):
    with Run.start("toy", Options(), folder=tmp_path / "toy") as a:
        save(a, 1)
    (a.folder / "step_000001" / "model").unlink()
    with pytest.raises(CheckpointError, match="missing"):
        Run.start("other", Options(), folder=tmp_path / "other", resume=str(a.folder / "step_000001"))


def test_old_checkpoints_go(tmp_path):
    with Run.start("toy", Options(), folder=tmp_path / "toy") as a:
        for step in range(5):
            with a.checkpoint(step, keep=2) as folder:
                (folder / "model").write_text("x")
    assert [path.name for path in run.checkpoints(a.folder)] == ["step_000003", "step_000004"]


def test_a_copy_somebody_made_of_a_checkpoint_is_in_nobodys_way(tmp_path):
    with Run.start("toy", Options(), folder=tmp_path) as a:
        save(a, 2)
    (tmp_path / "step_000002.bak").mkdir()
    (tmp_path / "step_last").mkdir()
    assert run.newest(tmp_path) == tmp_path / "step_000002"
    Run.start("toy", Options(), folder=tmp_path, resume="auto").close()


def test_a_failed_save_leaves_nothing(tmp_path):
    with Run.start("toy", Options(), folder=tmp_path / "toy") as a:
        with pytest.raises(OSError, match="disk full"), a.checkpoint(1):
            raise OSError("disk full")
        assert not list(a.folder.glob("*step_*"))


def test_names_are_numbered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = []
    for _ in range(3):
        with Run.start("toy", Options()) as a:
            names.append(a.folder.name)
    assert names == ["toy-1", "toy-2", "toy-3"]


def test_runs_that_begin_at_the_same_moment_get_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    together = threading.Barrier(8)

    def begin(_):
        together.wait(60)
        with Run.start("toy", Options()) as a:
            return int(a.folder.name.removeprefix("toy-"))

    with ThreadPoolExecutor(8) as pool:
        numbers = [number for _ in range(12) for number in pool.map(begin, range(8))]
    assert sorted(numbers) == list(range(1, 97))


def test_a_start_that_is_refused_takes_no_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="no readable checksums"):
        Run.start("toy", Options(), resume="nowhere")
    assert not (tmp_path / "runs").exists()


def test_killed_while_saving_every_named_checkpoint_is_whole(tmp_path):
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from rusty_r2 import files
        for step in range(100000):
            with files.whole_folder(Path(sys.argv[1]) / f"step_{step:06d}") as folder:
                for n in range(3):
                    (folder / f"part{n}").write_bytes(bytes(50_000))
            print(step, flush=True)
    """)
    for kill in range(6):
        folder = tmp_path / str(kill)
        child = subprocess.Popen([sys.executable, "-c", program, folder], stdout=subprocess.PIPE, text=True)
        assert child.stdout
        for _ in range(2 + kill):
            child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        acknowledged = 2 + kill + len(child.stdout.read().splitlines())
        child.stdout.close()
        child.wait()
        found = run.checkpoints(folder)
        assert len(found) >= acknowledged
        assert [files.verify(path) for path in found] == [""] * len(found)


def test_what_a_killed_process_left_is_taken_away_by_the_next_and_a_living_one_is_not_disturbed(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = [tmp_path / f".tmp-{word}merged-{gone.pid}-0123abcd" for word in ("", "old-")]
    others = [tmp_path / f".tmp-merged-{os.getppid()}-0123abcd", tmp_path / f".tmp-other-{gone.pid}-0123abcd"]
    for path in (*dead, *others):
        path.mkdir()
        (path / "model.safetensors").write_bytes(b"half")
    with files.whole_folder(tmp_path / "merged") as folder:
        (folder / "model.safetensors").write_bytes(b"whole")
    assert not any(path.exists() for path in dead) and all(path.exists() for path in others)
    assert {path.name for path in tmp_path.iterdir()} == {"merged", *(path.name for path in others)}


def test_tensorboard_itself_reads_the_events(tmp_path):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="pip install tensorboard"
    )
    with Run.start("toy", Options(), folder=tmp_path / "toy") as a:
        for step in range(300):
            a.log(step, {"loss/total": step / 2})
        a.text(7, "sample", "hé\nworld")
    seen = reader.EventAccumulator(str(a.folder))
    seen.Reload()
    assert [(e.step, e.value) for e in seen.Scalars("loss/total")][-1] == (299, 149.5)
    assert len(seen.Scalars("loss/total")) == 300
    (text,) = seen.Tensors("sample")
    assert text.tensor_proto.string_val[0].decode() == "hé\nworld"


def test_only_what_was_written_whole_is_ever_replaced(tmp_path):
    ours = tmp_path / "ours"
    assert files.may_replace(ours)
    with files.whole_folder(ours) as folder:
        (folder / "rows").write_text("r")
    assert files.may_replace(ours)
    (ours / "notes.txt").write_text("a person's own")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    assert not files.may_replace(ours) and not files.may_replace(tmp_path / "file")
    assert not files.may_replace(tmp_path) and files.may_replace(tmp_path / "empty")


def test_what_finds_no_room_names_its_file_and_leaves_nothing(tmp_path):
    room = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "rows.jsonl"
    files.write(path, "before")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, room[1]))
        with pytest.raises(OSError) as caught:
            files.write(path, "x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
    assert caught.value.filename == str(path)
    assert [one.name for one in tmp_path.iterdir()] == ["rows.jsonl"] and path.read_text() == "before"
