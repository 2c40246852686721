"""`rusty models`: from a file to promote and rollback, on the server too, or one line."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rusty_r2 import cli, files
from rusty_r2.registry import Gate, Registry

_spec = importlib.util.spec_from_file_location("shelf", Path(__file__).with_name("shelf.py"))
shelf = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shelf)
add, checked, stand_in, tiny_gguf = shelf.add, shelf.checked, shelf.stand_in, shelf.tiny_gguf


@pytest.fixture
def registry():
    return Registry()


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


def test_a_file_that_failed_its_check_is_not_offered_for_promotion(tmp_path, capsys):
    failed = [("file", "it is cut short"), *((name, "not asked: …") for name in ("words", "types"))]
    findings = [{"name": name, "passed": False, "said": said} for name, said in failed]
    path = checked(tiny_gguf(tmp_path / "m.gguf"), passed=False, findings=findings)
    assert rusty("models", "add", str(path), "--name", "agent") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "next: rusty models agent"
    assert rusty("models", "promote", "agent") == 1
    told = capsys.readouterr().err
    assert "file: it is cut short" in told and "not asked" not in told


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
