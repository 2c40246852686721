"""The loop: killed anywhere it goes on, what is served is whole, and what is not better is not used."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rusty_r2 import cli, files
from rusty_r2.data.judged import SourceConfig
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.export.ollama_api import OllamaError
from rusty_r2.loop import demo, gathering
from rusty_r2.loop.config import LoopConfig
from rusty_r2.loop.run import go, open_round
from rusty_r2.registry import Gate, Registry, RegistryError
from rusty_r2.trace import ExecutionTrace, Step

from .helpers import LightMind, helper, stand_in

STAGES = ("collect", "reward", "rows", "train", "merge", "export", "gate", "promote", "deploy")


# ── options ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": "../x"}, "no name for a model"),
        ({"base": "rusty", "method": "kto"}, "sft or ppo"),
        ({"method": "ppo"}, "ppo is for our own model"),
        ({"source": Path("x"), "play": 3}, "give one of them"),
        ({"tasks": -1}, "--tasks cannot be negative"),
        ({"positions": 0}, "--positions is 8 or more"),
        ({"max_rows": 0}, "--max-rows 1 or more"),
        ({"max_rows": -1}, "--max-rows 1 or more"),
    ],
)
def test_options_that_contradict_each_other(options, why):
    with pytest.raises(ConfigError, match=why):
        LoopConfig(**options)


@pytest.mark.parametrize("method", ["kto", "grpo", "dpo", "sft"])
def test_every_method_takes_at_most_so_many_rows(tmp_path, method):
    source = SourceConfig(source=demo.write(tmp_path, "demo"))
    traces = gathering.collect(tmp_path, source, least=4).outputs[0]
    judged = gathering.reward(tmp_path, traces, source).outputs[0]
    for most in (None, 3):
        asked = gathering.RowsAsked(method, source, max_rows=most)
        found = gathering.make_rows(tmp_path, traces, judged, asked).facts
        assert found["rows"] + found["held out"] == 3 if most else found["rows"] > 3


def test_what_our_own_model_does_not_learn_is_counted_as_held_out(tmp_path):
    from rusty_r2.data.episode import read
    from rusty_r2.protocol import Msg, render

    traces = [
        ExecutionTrace(
            trace_id=f"t{number}", user_query=f"Say {number}", label=True, manual_review=True,
            steps=[Step(render(Msg(f"It is {number}.")))],
        )
        for number in range(20)
    ]  # fmt: skip
    path = files.write(tmp_path / "t.jsonl", "".join(json.dumps(one.to_dict()) + "\n" for one in traces))
    judged = gathering.reward(tmp_path, path, SourceConfig(source=path)).outputs[0]
    for share in (0.0, 0.4):
        source = SourceConfig(source=path, eval_share=share)
        asked = gathering.RowsAsked("sft", source)
        made = gathering.make_episodes(tmp_path, path, judged, asked)
        found = {split: len(list(read(made.outputs[0], split))) for split in ("train", "dev")}
        assert (made.facts["rows"], made.facts["held out"]) == (found["train"], found["dev"])
        assert bool(found["dev"]) is bool(share) and sum(found.values()) == 20
    with pytest.raises(DataError, match="all 20 are held out by --eval-share"):
        everything = gathering.RowsAsked("sft", SourceConfig(source=path, eval_share=0.9999))
        gathering.make_episodes(tmp_path, path, judged, everything)


def test_a_name_stays_with_one_kind_of_model(tmp_path):
    path = helper("tiny_gguf").tiny_gguf(tmp_path / "m.gguf")
    Registry().add("agent", path, gate=Gate(True, files.digest(path)))
    Registry().promote("agent")
    with pytest.raises(ConfigError, match="agent@1 is a GGUF file, and --base rusty is not"):
        go(LoopConfig(name="agent", base="rusty", method="sft", out=tmp_path / "loop"))


def test_no_traces_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["loop", "--name", "agent"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "holds no traces" in said and "rusty trace list" in said


def test_a_source_that_is_not_there_makes_no_round(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["loop", "--source", "nosuch"]) == 1
    assert "--source nosuch does not exist" in capsys.readouterr().err
    assert not (tmp_path / "loops").exists()


def test_too_few_traces_is_one_line(tmp_path):
    source = tmp_path / "t.jsonl"
    source.write_text(json.dumps(ExecutionTrace(user_query="q", final_response="a").to_dict()) + "\n")
    with pytest.raises(DataError, match="1 traces are too few"):
        go(LoopConfig(source=source, out=tmp_path / "loop"))


def test_the_stores_password_is_not_written_down(tmp_path):
    config = LoopConfig(store="postgresql://me:hush@db/traces", out=tmp_path / "loop")
    told = (open_round(config) / "config.json").read_text()
    assert "me@db/traces" in told and "hush" not in told


def test_rounds_are_in_the_order_of_their_numbers(tmp_path):
    config = LoopConfig(out=tmp_path)
    for name in ("round-002", "round-999", "round-1000", "round-3-old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "finished.json").write_text("{}")
    assert open_round(config).name == "round-1001"
    assert open_round(config).name == "round-1001", "begun, and not finished"


# ── killed at every stage, with a mind that costs nothing ────────────────────────────────────────────

ROUND = """
import json, os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from light_mind import LightMind
from rusty_r2.loop import run
from rusty_r2.loop.config import LoopConfig
from rusty_r2.loop.stages import Stages

kill = []

def die(stage, moment):
    if [stage, moment] == kill:
        os.kill(os.getpid(), signal.SIGKILL)

class Dying(Stages):
    def _do(self, folder, name, asked, work):
        def wrapped(place):
            die(name, "begin")
            made = work(place)
            die(name, "end")
            return made
        return super()._do(folder, name, asked, wrapped)

run.Stages = Dying
for line in sys.stdin:  # each round in a process of its own, without importing everything again
    source, *kill = json.loads(line)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        said = open(writer, "w")
        os.dup2(writer, 2)
        config = LoopConfig(
            name="agent", source=Path(source), out=Path(sys.argv[1]), ollama=True, ollama_host=sys.argv[2]
        )
        try:
            done = run.go(config, mind=LightMind())
            facts = [done.promoted, done.label, done.in_use, done.deployed, str(done.folder)]
            print("OUTCOME", json.dumps(facts), file=said, flush=True)
        except BaseException as error:
            print("ERROR", error, file=said, flush=True)
            os._exit(1)
        os._exit(0)
    os.close(writer)
    told = open(reader).read()
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told]), flush=True)
"""


class Rounds:
    """Runs rounds of a loop in other processes, and kills them where asked."""

    def __init__(self, folder, url):
        program = ROUND.format(tests=str(Path(__file__).parent.parent / "export"))
        words = [sys.executable, "-c", program, str(folder), url]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()

    def __call__(self, source, *kill):
        """The exit status, what was said on the way, and the outcome."""
        self.process.stdin.write(json.dumps([str(source), *kill]) + "\n")
        self.process.stdin.flush()
        status, told = json.loads(self.process.stdout.readline())
        outcome = [line[8:] for line in told.splitlines() if line.startswith("OUTCOME ")]
        return status, told, json.loads(outcome[0]) if outcome else None


def test_killed_at_every_stage_it_goes_on_and_what_is_served_is_whole(tmp_path):
    from rusty_r2.export.ollama import OllamaDeployer

    registry = Registry()
    with stand_in() as server, Rounds(tmp_path / "loop", server.url) as one_round:
        deployer = OllamaDeployer(host=server.url)
        status, told, _ = one_round(demo.write(tmp_path, "demo"))
        assert status == 0, told
        old_file, old_answer = registry.resolve("agent").path.read_bytes(), deployer.run_model("agent", "Hi")
        source = tmp_path / "more.jsonl"
        lines = (tmp_path / "demo.jsonl").read_text().splitlines(keepends=True)
        source.write_text("".join(lines[:60]))
        kills = [(stage, when) for stage in STAGES for when in ("begin", "end")]
        for kill in kills:
            status, told, _ = one_round(source, *kill)
            assert status == -signal.SIGKILL, (kill, told)
            current = registry.current("agent")
            assert not registry.damage(current)
            promoted = kills.index(kill) >= kills.index(("promote", "end"))
            assert current.number == (2 if promoted else 1), kill
            assert (registry.resolve("agent").path.read_bytes() == old_file) is (not promoted)
            served = kills.index(kill) >= kills.index(("deploy", "end"))
            assert (deployer.run_model("agent", "Hi") == old_answer) is (not served), kill
        status, told, outcome = one_round(source)
        assert status == 0, told
        promoted, label, in_use, deployed, folder = outcome
        assert (promoted, label, in_use, deployed) == (True, "agent@2", "agent@2", "agent")
        assert folder.endswith("round-002"), "one round, however often it was killed"
        assert told.count("done before") == len(STAGES) - 1, "only the stage that was killed is done"
        assert [one.number for one in registry.versions("agent")] == [1, 2]
        assert cli.main(["models", "rollback", "agent"]) == 0
        assert deployer.run_model("agent", "Hi") == old_answer
        assert registry.resolve("agent").path.read_bytes() == old_file
        assert [name for name in server.models if "rusty-" in name] == []


def test_no_server_stops_before_deploying_and_the_same_command_goes_on(tmp_path):
    source = demo.write(tmp_path, "demo")
    with Rounds(tmp_path / "loop", "http://127.0.0.1:9") as one_round:
        status, told, _ = one_round(source)
    assert status == 1 and "no Ollama server answers" in told
    assert Registry().current("agent").number == 1, "promoted already, served later"
    with stand_in() as server, Rounds(tmp_path / "loop", server.url) as one_round:
        status, told, outcome = one_round(source)
        assert status == 0 and outcome[3] == "agent", told
    assert told.count("done before") == len(STAGES) - 1


def test_the_model_in_use_plays_first_and_goes_on_after_a_kill(tmp_path):
    from rusty_r2.loop.gathering import play
    from rusty_r2.store import TraceStore

    script = files.write(tmp_path / "s.txt", '{"action": "MSG", "message": "No."}\n' * 200)
    assert play(tmp_path, f"script:{script}", 3, "", "agent", 0) == 3
    assert play(tmp_path, f"script:{script}", 5, "", "agent", 0) == 5, "two more"
    with TraceStore() as store:
        found = store.find(limit=None)
    assert len(found) == 5 == len({trace.task_name for trace in found})
    assert all(trace.agent_name == "agent" and trace.steps for trace in found)


def test_another_version_promoted_meanwhile_is_not_overrun(tmp_path):
    from rusty_r2.errors import RustyError

    registry = Registry()
    tiny = helper("tiny_gguf").tiny_gguf

    class Rival(LightMind):
        def gate(self, folder, artefact, merged, run):
            other = tiny(tmp_path / "rival.gguf", salt="rival")
            made = registry.add("agent", other, gate=Gate(True, files.digest(other)))
            registry.promote("agent", made.number)
            return super().gate(folder, artefact, merged, run)

    config = LoopConfig(source=demo.write(tmp_path, "demo"), out=tmp_path / "loop")
    with pytest.raises(RustyError, match="promoted meanwhile"):
        go(config, mind=Rival())
    assert registry.current("agent").number == 1
    assert go(config, mind=LightMind()).label == "agent@2", "tried against the rival, and promoted"


def test_nobody_comes_between_the_last_look_and_the_promotion(tmp_path):
    """Whoever promotes while a round enters its candidate waits until it is in use."""
    program = "from rusty_r2.registry import Registry\nRegistry().promote('agent', 1)\n"
    rivals = []

    class Looking(Registry):
        def add(self, *words, **more):
            if self.names():
                rivals.append(subprocess.Popen([sys.executable, "-c", program]))
                with pytest.raises(subprocess.TimeoutExpired):
                    rivals[-1].wait(2)
            return super().add(*words, **more)

    source = demo.write(tmp_path, "demo")
    for rows in (20, 30):
        config = LoopConfig(source=source, out=tmp_path / "loop", max_rows=rows)
        assert go(config, registry=Looking(), mind=LightMind()).promoted
    assert rivals[0].wait(30) == 0
    told = [(one["what"], one["version"]) for one in Registry().history("agent")]
    assert told[-2:] == [("promoted", 2), ("promoted", 1)]


def test_a_registry_that_refuses_a_green_candidate_stops_the_round(tmp_path):
    class Torn(Registry):
        def damage(self, version):
            return "the disk is damaged"

    config = LoopConfig(source=demo.write(tmp_path, "demo"), out=tmp_path / "loop")
    with pytest.raises(RegistryError, match="the disk is damaged"):
        go(config, registry=Torn(), mind=LightMind())
    assert go(config, mind=LightMind()).label == "agent@1", "the same command goes on"


def test_what_was_rolled_back_before_it_was_served_is_not_served(tmp_path):
    source = demo.write(tmp_path, "demo")
    go(LoopConfig(source=source, out=tmp_path / "loop", max_rows=20), mind=LightMind())
    with stand_in() as server:
        config = {"source": source, "out": tmp_path / "loop", "ollama": True}
        with pytest.raises(OllamaError):
            go(LoopConfig(**config, ollama_host="http://127.0.0.1:9"), mind=LightMind())
        Registry().rollback("agent")
        done = go(LoopConfig(**config, ollama_host=server.url), mind=LightMind())
        assert done.deployed == "" and done.in_use == "agent@1" and not server.models


def test_other_questions_in_the_same_file_are_asked_again(tmp_path):
    """Broken off after its gate: a gate is passed by what it asked, not by a file's name."""
    tried = []

    class Counting(LightMind):
        def gate(self, *words):
            tried.append(words)
            return super().gate(*words)

    probes = files.write(tmp_path / "p.toml", "[[probe]]\nask = 'x'\nany = ['y']\n")
    config = LoopConfig(
        source=demo.write(tmp_path, "demo"), out=tmp_path / "loop", probes=str(probes), ollama=True,
        ollama_host="http://127.0.0.1:9",
    )  # fmt: skip
    for ask, times in (("x", 1), ("x", 1), ("other", 2)):
        files.write(probes, f"[[probe]]\nask = '{ask}'\nany = ['y']\n")
        with pytest.raises(OllamaError, match="no Ollama server"):
            go(config, mind=Counting())
        assert len(tried) == times


def test_questions_that_cannot_be_read_are_said_before_anything_is_done(tmp_path):
    config = LoopConfig(
        source=demo.write(tmp_path, "demo"), out=tmp_path / "loop", probes=str(tmp_path / "none.toml")
    )
    with pytest.raises(ConfigError, match="none.toml"):
        go(config, mind=LightMind())
    assert not (tmp_path / "loop").exists()


def test_the_demonstration_is_the_same_at_every_call():
    assert demo.traces() == demo.traces() and demo.traces(poison=True) != demo.traces()
    assert len({one.trace_id for one in [*demo.traces(), *demo.traces(poison=True)]}) == 4 * len(demo.ANSWERS)
