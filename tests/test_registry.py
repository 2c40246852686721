"""The registry: only what passed its gate is used, and the one before comes back byte for byte."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rusty_r2 import cli, files
from rusty_r2.registry import Gate, Registry, RegistryError

_spec = importlib.util.spec_from_file_location("shelf", Path(__file__).with_name("shelf.py"))
shelf = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shelf)
add, green, tiny_gguf = shelf.add, shelf.green, shelf.tiny_gguf


@pytest.fixture
def registry():
    return Registry()


def test_a_copy_somebody_laid_beside_the_versions_is_none(registry, tmp_path):
    made = add(registry, tmp_path, "1")
    shutil.copytree(registry.folder_of(made), registry.root / "agent" / "v0001-old")
    (registry.root / "other" / "v1-old").mkdir(parents=True)
    assert registry.names() == ["agent"] and registry.versions("agent") == [made]


# ── promote and rollback ─────────────────────────────────────────────────────────────────────────────


def test_promote_rollback_and_back(registry, tmp_path):
    first, second = add(registry, tmp_path, "1"), add(registry, tmp_path, "2")
    assert registry.current("agent") is None
    registry.promote("agent", 1)
    old = registry.resolve("agent").path.read_bytes()
    registry.promote("agent")
    assert registry.resolve("agent").version.number == 2
    assert registry.resolve("agent").path.read_bytes() != old
    registry.rollback("agent")
    assert registry.resolve("agent").path.read_bytes() == old
    with pytest.raises(RegistryError, match="nothing is before it"):
        registry.rollback("agent")
    registry.promote("agent", 2)
    assert [one["what"] for one in registry.history("agent")] == [
        *("added", "added", "promoted", "promoted", "rolled back", "promoted"),
    ]
    assert (first.number, second.number) == (1, 2)
    assert registry.resolve("agent@1").address == f"gguf:{registry.resolve('agent@1').path}"


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        (lambda digest: None, "never went through the gate"),
        (lambda digest: Gate(False, digest, reasons=("tokens: 3 of 90 differ",)), "3 of 90 differ"),
        (lambda digest: Gate(True, digest, worse=True, reasons=("tasks: 1% where 9%",)), "1% where 9%"),
        (lambda digest: Gate(True, "0" * 64), "tried another file"),
    ],
)
def test_without_a_green_gate_nothing_is_promoted(registry, tmp_path, gate, why):
    add(registry, tmp_path, "1")
    registry.promote("agent")
    path = tiny_gguf(tmp_path / "2.gguf", salt="2")
    registry.add("agent", path, gate=gate(files.digest(path)))
    with pytest.raises(RegistryError, match=why):
        registry.promote("agent")
    assert registry.current("agent").number == 1
    assert registry.history("agent")[-1]["what"] == "refused"


def test_a_file_altered_after_its_gate_is_not_used(registry, tmp_path):
    add(registry, tmp_path, "1")
    stored = registry.root / "agent" / "v0001" / "model.gguf"
    stored.write_bytes(stored.read_bytes()[:-1] + b"x")
    with pytest.raises(RegistryError, match="damaged"):
        registry.promote("agent")


def test_a_rollback_to_damaged_weights_is_refused_and_changes_nothing(registry, tmp_path):
    add(registry, tmp_path, "1"), add(registry, tmp_path, "2")
    registry.promote("agent", 1), registry.promote("agent", 2)
    (registry.root / "agent" / "v0001" / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(RegistryError, match="agent@1 cannot come back"):
        registry.rollback("agent")
    assert registry.current("agent").number == 2


def test_exporting_over_the_file_does_not_change_what_was_taken_in(registry, tmp_path):
    path = tiny_gguf(tmp_path / "m.gguf", salt="1")
    registry.add("agent", path, gate=green(path))
    files.write(path, b"something else")
    registry.promote("agent")
    assert registry.resolve("agent").path.read_bytes().startswith(b"GGUF")


def test_writing_into_the_file_does_not_change_what_was_taken_in(registry, tmp_path):
    path = tiny_gguf(tmp_path / "a.gguf", salt="1")
    kept = registry.add("agent", path, gate=green(path))
    registry.promote("agent")
    old = path.read_bytes()
    with open(path, "r+b") as file:  # as `cp new a.gguf` does: the same file, other bytes
        file.write(b"gone")
    assert registry.resolve("agent").path.read_bytes() == old and kept is not None


def test_adding_the_same_twice_is_one_version(registry, tmp_path):
    assert add(registry, tmp_path, "1") == add(registry, tmp_path, "1")
    assert len(registry.versions("agent")) == 1


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a b", "a\n", "x" * 200])
def test_a_name_cannot_leave_the_folder(registry, tmp_path, name):
    with pytest.raises(RegistryError, match="no name for a model"):
        registry.add(name, tiny_gguf(tmp_path / "m.gguf"))


def test_our_own_checkpoints_are_models_too(registry, tmp_path):
    for number in (1, 2):
        folder = tmp_path / f"step_{number:06d}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights %d" % number)
        (folder / "config.json").write_text("{}")
        registry.add("rusty", folder, gate=green(folder))
        registry.promote("rusty")
    assert registry.resolve("rusty").address == str(registry.root / "rusty" / "v0002")
    registry.rollback("rusty")
    assert (registry.resolve("rusty").path / "model.safetensors").read_bytes() == b"weights 1"
    with pytest.raises(RegistryError, match="neither a GGUF file nor a folder with weights"):
        registry.add("rusty", Path(__file__).parent / "export")


def test_what_is_not_there_is_one_line(registry, tmp_path):
    with pytest.raises(RegistryError, match="no model 'nobody'"):
        registry.resolve("nobody")
    add(registry, tmp_path, "1")
    for name, why in (
        ("agent", "no version of agent is in use"),
        ("agent@7", "no version 7"),
        ("agent@x", "number"),
    ):
        with pytest.raises(RegistryError, match=why):
            registry.resolve(name)
    (registry.root / "agent" / "v0001" / "record.json").write_text('{"name": "agent"}')
    with pytest.raises(RegistryError, match="cannot be understood"):
        registry.versions("agent")


KILLED = """
import os, signal, sys
from pathlib import Path
from rusty_r2 import files
from rusty_r2.registry import Gate, Registry, artefact_digest
path, count, verb = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
seen = 0
def fsync(handle, true=os.fsync):
    global seen
    seen += 1
    if seen == count:
        os.kill(os.getpid(), signal.SIGKILL)
    true(handle)
os.fsync = fsync
registry = Registry()
if verb == "promote":
    made = registry.add("agent", path, gate=Gate(True, artefact_digest(path)))
    registry.promote("agent", made.number)
else:
    registry.rollback("agent")
print("through", seen)
"""


@pytest.mark.parametrize("verb", ["promote", "rollback"])
def test_killed_at_any_moment_there_is_a_whole_model_in_use(registry, tmp_path, verb):
    """Killed at each flush to the disk in turn, until one try gets through."""
    add(registry, tmp_path, "1"), add(registry, tmp_path, "2")
    registry.promote("agent", 1), registry.promote("agent", 2)
    third = tiny_gguf(tmp_path / "3.gguf", salt="3")
    wanted = {1, 2} if verb == "rollback" else {2, 3}
    for count in range(1, 40):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(third), str(count), verb], capture_output=True, text=True
        )
        current = registry.current("agent")
        assert current.number in wanted and not registry.damage(current)
        assert [one.number for one in registry.versions("agent")][:2] == [1, 2]
        if done.returncode == 0:
            assert current.number == (1 if verb == "rollback" else max(wanted))
            return
        assert done.returncode == -signal.SIGKILL, done.stderr
        if verb == "rollback" and current.number == 1:  # it was through, only its note was not
            return
    pytest.fail("never got through")


# ── collecting ───────────────────────────────────────────────────────────────────────────────────────


def test_gc_keeps_what_is_needed_and_every_record(registry, tmp_path, capsys):
    for salt in "1234":
        add(registry, tmp_path, salt)
        registry.promote("agent")
    refused = tiny_gguf(tmp_path / "5.gguf", salt="5")
    for name in ("agent", "other"):
        registry.add(name, refused, gate=Gate(True, files.digest(refused), worse=True))
        assert cli.main(["models", name]) == 0
    after = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next: ")]
    assert after == ["next: rusty models rollback agent", "next: rusty loop --name other"]
    shutil.rmtree(registry.root / "other")
    assert cli.main(["models", "gc", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "agent@1" in said and "agent@2" in said and "agent@5" in said and "agent@4" not in said
    assert "3 versions" in said and "would be freed" in said
    assert all((registry.root / "agent" / f"v000{n}" / "model.gguf").exists() for n in range(1, 6))
    assert cli.main(["models", "gc"]) == 0
    assert [one.collected for one in registry.versions("agent")] == [True, True, False, False, True]
    assert registry.rollback("agent").number == 3
    with pytest.raises(RegistryError, match="agent@2 cannot come back: its weights were collected"):
        registry.rollback("agent")
    with pytest.raises(RegistryError, match="collected"):
        registry.promote("agent", 1)


def test_gc_frees_what_a_kill_left_of_a_collected_version(registry, tmp_path, capsys):
    for salt in "123":
        add(registry, tmp_path, salt)
        registry.promote("agent")
    program = (
        "import os, signal; from pathlib import Path; from rusty_r2.registry import Registry\n"
        "Path.unlink = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "Registry().forget_weights(Registry().version('agent', 1))\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGKILL
    first = registry.version("agent", 1)
    assert first.collected and (left := registry.weight(first)), "killed after its record, before its weights"
    assert cli.main(["models", "gc"]) == 0
    assert f"1 versions, {left / 1e6:,.1f} MB freed" in capsys.readouterr().out
    assert [path.name for path in registry.folder_of(first).iterdir()] == ["record.json"]
    assert registry.collect("agent") == [] and registry.history("agent")[-1]["freed"] == left


def test_what_came_into_use_meanwhile_is_not_thrown_away(registry, tmp_path):
    for salt in "123":
        add(registry, tmp_path, salt)
        registry.promote("agent")
    (going,) = registry.collect("agent")
    registry.promote("agent", going.number)
    with pytest.raises(RegistryError, match="agent@1 is in use"):
        registry.forget_weights(going)
    assert registry.damage(registry.version("agent", 1)) == ""


def test_a_line_of_history_that_was_cut_short_hides_no_other(registry, tmp_path):
    add(registry, tmp_path, "1")
    with open(registry.root / "agent" / "history.jsonl", "a") as file:
        file.write('{"at": "2026-01-0')
    registry.promote("agent")  # goes on in the cut line
    registry.note("agent", "deployed", 1)
    assert [one["what"] for one in registry.history("agent")] == ["added", "deployed"]
    assert cli.main(["models", "agent"]) == 0


def test_two_at_once_wait_for_each_other(registry, tmp_path):
    add(registry, tmp_path, "1")
    program = "from rusty_r2.registry import Registry\nRegistry().promote('agent')\n"
    with registry.locked("agent"):
        waiting = subprocess.Popen([sys.executable, "-c", program], env=os.environ)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.7)
        assert registry.current("agent") is None
    assert waiting.wait(30) == 0 and registry.current("agent").number == 1


def test_a_record_is_plain_text(registry, tmp_path):
    made = add(registry, tmp_path, "1")
    record = json.loads((registry.folder_of(made) / "record.json").read_text())
    assert record["lineage"] == {"base": "smollm2"} and record["gate"]["passed"] is True
    assert replace(made, number=1) == registry.version("agent", 1)
    assert not files.verify(registry.folder_of(made))
