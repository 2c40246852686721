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
from rusty_r2.registry import Gate, Registry, RegistryError, artefact_digest


def helper(name):
    """A helper of the export's tests."""
    path = Path(__file__).parent / "export" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"helper_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tiny_gguf, stand_in = helper("tiny_gguf").tiny_gguf, helper("ollama_standin").stand_in


def green(path, **more):
    return Gate(True, artefact_digest(path), **more)


@pytest.fixture
def registry():
    return Registry()


def checked(path, *, passed=True, sha256=None, findings=()):
    """What `rusty export check` leaves beside a file."""
    said = {"passed": passed, "sha256": sha256 or files.digest(path), "findings": list(findings)}
    path.with_suffix(".check.json").write_text(json.dumps(said))
    return path


def add(registry, tmp_path, salt, **gate):
    path = tiny_gguf(tmp_path / f"{salt}.gguf", salt=salt)
    return registry.add("agent", path, gate=green(path, **gate), lineage={"base": "smollm2"})


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
    assert rusty("models", "gc") == 0
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


# ── the commands ─────────────────────────────────────────────────────────────────────────────────────


def rusty(*words):
    return cli.main(list(words))


def test_the_commands_from_file_to_rollback(tmp_path, capsys):
    assert rusty("models") == 0
    assert "holds no models yet" in capsys.readouterr().out
    for salt in "12":
        path = checked(tiny_gguf(tmp_path / f"{salt}.gguf", salt=salt))
        assert rusty("models", "add", str(path), "--name", "agent", "--base", "smollm2") == 0
        assert rusty("models", "promote", "agent") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "next: rusty chat --model agent"
    assert rusty("models") == 0
    table = capsys.readouterr().out
    assert "agent" in table and "@2" in table and "smollm2" in table and "green" in table
    assert rusty("models", "rollback", "agent") == 0
    assert "agent@1 is in use again" in capsys.readouterr().out
    assert rusty("models", "agent") == 0
    shown = capsys.readouterr().out
    assert "* @1" in shown and "rolled back @1" in shown
    assert rusty("models", "agent", "--json") == 0
    assert json.loads(capsys.readouterr().out)["current"] == 1


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (None, "never went through the gate"),
        (
            {"passed": False, "findings": [{"name": "tokens", "passed": False, "said": "differ"}]},
            "tokens: differ",
        ),
        ({"sha256": "0" * 64}, "tried another file"),
    ],
)
def test_the_command_refuses_without_a_green_check(tmp_path, capsys, said, why):
    path = tiny_gguf(tmp_path / "m.gguf")
    if said is not None:
        checked(path, **said)
    assert rusty("models", "add", str(path), "--name", "agent") == 0
    assert rusty("models", "promote", "agent") == 1
    told = capsys.readouterr().err
    assert why in told and told.count("\n") == 1


def test_a_check_that_is_no_check_is_one_line(tmp_path, capsys):
    path = tiny_gguf(tmp_path / "m.gguf")
    path.with_suffix(".check.json").write_text("{}")
    assert rusty("models", "add", str(path), "--name", "agent") == 1
    assert "is no answer of the gate" in capsys.readouterr().err
    assert rusty("models", "add", str(tmp_path / "nothing.gguf"), "--name", "agent") == 1


def test_an_adapter_that_made_our_own_model_worse_is_refused_though_it_plays_as_well(
    registry, tmp_path, monkeypatch, capsys
):
    from rusty_r2.loop import gate

    solved = {"move": True, "sort": False}
    monkeypatch.setattr(gate, "play", lambda old, new, count: [gate.Measured("gym", solved, solved)])
    merged = tmp_path / "merged"
    merged.mkdir()
    (merged / "model.safetensors").write_bytes(b"weights")
    (merged / "lineage.json").write_text('{"worse": true}')
    assert rusty("models", "add", str(merged), "--name", "mine", "--tasks", "9") == 0
    assert rusty("models", "promote", "mine") == 1
    assert "its own held-out rows: worse than its base" in capsys.readouterr().err


def test_rollback_restores_the_old_answer_bytes_on_the_server_too(registry, tmp_path, capsys):
    from rusty_r2.config import resolved
    from rusty_r2.export.hosting import OllamaHostingProfile
    from rusty_r2.export.ollama import OllamaDeployer

    with stand_in() as server:
        deployer = OllamaDeployer(host=server.url)
        answers = []
        profile = OllamaHostingProfile(num_thread=2)
        for salt in "12":
            made = add(registry, tmp_path, salt)
            registry.promote("agent")
            deployer.create_model(
                "agent", registry.resolve("agent").path, "Be brief.", replace=True, profile=profile
            )
            said = {"system_prompt": "Be brief.", "profile": resolved(profile)}
            registry.note_deployed("agent", made.number, host=server.url, model="agent", said=said)
            answers.append(deployer.run_model("agent", "Hi"))
        assert answers[0] != answers[1]
        assert rusty("models", "rollback", "agent") == 0
        assert deployer.run_model("agent", "Hi") == answers[0]
        assert registry.deployed("agent")["version"] == 1
        assert "serves agent@1 as agent" in capsys.readouterr().out
    registry.promote("agent", 2)
    assert rusty("models", "rollback", "agent") == 1, "the server is gone: nothing moves"
    assert "no Ollama server answers" in capsys.readouterr().err
    assert registry.current("agent").number == 2


def test_promote_serves_it_too_where_the_model_is_served(registry, tmp_path, capsys):
    from rusty_r2.export.ollama import OllamaDeployer

    with stand_in() as server:
        deployer = OllamaDeployer(host=server.url)
        add(registry, tmp_path, "1"), add(registry, tmp_path, "2")
        assert rusty("models", "promote", "agent", "--version", "1") == 0, "not served anywhere yet"
        deployer.create_model("agent", registry.resolve("agent").path)
        registry.note_deployed("agent", 1, host=server.url, model="agent", said={})
        first = deployer.run_model("agent", "Hi")
        assert rusty("models", "promote", "agent") == 0
        assert "serves agent@2 as agent" in capsys.readouterr().out
        assert deployer.run_model("agent", "Hi") != first and registry.deployed("agent")["version"] == 2
        path = tiny_gguf(tmp_path / "3.gguf", salt="3")
        registry.add("agent", path, gate=Gate(True, files.digest(path), worse=True))
        assert rusty("models", "promote", "agent") == 1 and registry.deployed("agent")["version"] == 2
    assert rusty("models", "promote", "agent", "--version", "1") == 1, "the server is gone: nothing moves"
    assert registry.current("agent").number == 2


@pytest.mark.parametrize("verb", ["promote", "rollback"])
def test_serving_and_pointing_are_one_step_for_others(registry, tmp_path, monkeypatch, verb):
    """While one of them serves, nobody else can move the pointer or serve another."""
    from rusty_r2 import models

    add(registry, tmp_path, "1"), add(registry, tmp_path, "2"), add(registry, tmp_path, "3")
    registry.promote("agent", 1), registry.promote("agent", 2)
    seen = []

    def serve(_, version):
        program = "from rusty_r2.registry import Registry\nRegistry().promote('agent', 3)\n"
        other = subprocess.Popen([sys.executable, "-c", program])
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(2)
        seen.append((other, version.number))
        return []

    monkeypatch.setattr(models, "redeploy", serve)
    words = ["--version", "1"] if verb == "promote" else []
    assert rusty("models", verb, "agent", *words) == 0
    ((other, served),) = seen
    assert served == 1 and other.wait(30) == 0
    assert [one["version"] for one in registry.history("agent")][-2:] == [1, 3]


@pytest.mark.parametrize("words", [("promote",), ("rollback",), ("gc",)])
def test_a_name_nobody_gave_is_one_line_and_makes_nothing(registry, capsys, words):
    assert rusty("models", *words, "nobody") == 1
    assert "there is no model 'nobody'. Type: rusty models" in capsys.readouterr().err
    assert not registry.root.exists()


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
