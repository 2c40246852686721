"""The loop: killed anywhere it goes on, what is served is whole, and what is not better is not used."""

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rusty_r2 import cli, files
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.loop import demo, gate
from rusty_r2.loop.config import LoopConfig
from rusty_r2.loop.run import go, open_round
from rusty_r2.loop.stages import Made, Stages, alone, read_all
from rusty_r2.registry import Gate, Registry
from rusty_r2.trace import ExecutionTrace

STAGES = ("collect", "reward", "rows", "train", "merge", "export", "gate", "promote", "deploy")


def helper(name):
    """A helper of the export's tests."""
    path = Path(__file__).parent / "export" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"helper_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


stand_in = helper("ollama_standin").stand_in
LightMind = helper("light_mind").LightMind


# ── stages ───────────────────────────────────────────────────────────────────────────────────────────


class Counting:
    """Work that counts how often it was done."""

    def __init__(self, text="made"):
        self.times, self.text, self.left = 0, text, None

    def __call__(self, folder):
        self.times += 1
        self.left = sorted(path.name for path in folder.iterdir())
        return Made({"text": self.text}, (files.write(folder / "out.txt", self.text),))


def test_a_stage_is_done_once(tmp_path):
    work = Counting()
    first = Stages(tmp_path).run("a", {"x": 1}, work)
    again = Stages(tmp_path).run("a", {"x": 1}, work)
    assert work.times == 1 and first == again and again.output.read_text() == "made"


def test_asked_something_else_it_begins_from_nothing(tmp_path):
    work = Counting()
    Stages(tmp_path).run("a", {"x": 1}, work)
    second = Stages(tmp_path).run("a", {"x": 2}, work)
    assert work.times == 2 and work.left == ["started.json"] and second.digest != ""


def test_what_it_made_is_believed_only_while_it_is_the_same(tmp_path):
    work = Counting()
    done = Stages(tmp_path).run("a", {}, work)
    done.output.write_text("altered")
    assert Stages(tmp_path).run("a", {}, work).output.read_text() == "made" and work.times == 2


def test_what_was_begun_goes_on_in_its_folder(tmp_path):
    def breaks(folder):
        files.write(folder / "half.txt", "half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        Stages(tmp_path).run("a", {"x": 1}, breaks)
    work = Counting()
    Stages(tmp_path).run("a", {"x": 1}, work)
    assert work.left == ["half.txt", "started.json"]


def test_a_later_stage_follows_when_an_earlier_one_changes(tmp_path):
    second = Counting()
    for text in ("one", "two", "two"):
        stages = Stages(tmp_path)
        first = stages.run("a", {"text": text}, Counting(text))
        stages.run("b", {"a": first.digest}, second)
    assert second.times == 2 and [one.name for one in read_all(tmp_path)] == ["a", "b"]


def test_a_done_marker_cut_in_half_is_no_marker(tmp_path):
    work = Counting()
    done = Stages(tmp_path).run("a", {}, work)
    marker = done.folder / "done.json"
    marker.write_text(marker.read_text()[:40])
    Stages(tmp_path).run("a", {}, work)
    assert work.times == 2


def test_two_loops_in_one_folder_do_not_meet(tmp_path):
    with alone(tmp_path), pytest.raises(ConfigError, match="another loop works in"), alone(tmp_path):
        pass


# ── options ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": "../x"}, "no name for a model"),
        ({"base": "rusty", "method": "kto"}, "sft or ppo"),
        ({"method": "ppo"}, "ppo is for our own model"),
        ({"source": Path("x"), "play": 3}, "give one of them"),
    ],
)
def test_options_that_contradict_each_other(options, why):
    with pytest.raises(ConfigError, match=why):
        LoopConfig(**options)


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


def test_too_few_traces_is_one_line(tmp_path):
    source = tmp_path / "t.jsonl"
    source.write_text(json.dumps(ExecutionTrace(user_query="q", final_response="a").to_dict()) + "\n")
    with pytest.raises(DataError, match="1 traces are too few"):
        go(LoopConfig(source=source, out=tmp_path / "loop"))


def test_the_stores_password_is_not_written_down(tmp_path):
    config = LoopConfig(store="postgresql://me:hush@db/traces", out=tmp_path / "loop")
    told = (open_round(config) / "config.json").read_text()
    assert "me@db/traces" in told and "hush" not in told


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
        program = ROUND.format(tests=str(Path(__file__).parent / "export"))
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


# ── the gate ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "right"),
    [("It is Paris.", True), ("paris", True), ("Parisian food", False), ("H2O!", False), ("", False)],
)
def test_a_right_answer_holds_the_word(answer, right):
    assert gate.is_right(answer, ["Paris"]) is right


def test_worse_is_more_than_chance():
    from rusty_r2.eval.rates import Rate

    lost = gate.Measured("questions", Rate(21, 32), Rate(2, 32))
    same = gate.Measured("questions", Rate(21, 32), Rate(19, 32))
    assert lost.worse and not same.worse and same.verdict == "no sure difference"
    assert gate.conclude("x", measured=[lost]).worse
    assert not gate.conclude("x", measured=[same]).worse
    assert gate.conclude("x", run={"worse": True}).reasons == ("its own held-out rows: worse than its base",)
    assert gate.conclude("x", run={"compared": "worse"}).worse
    assert not gate.conclude("x", file_problems=["tokens differ"]).passed


@pytest.mark.parametrize("counts", [((5, 9), (0, 0)), ((0, 0), (9, 9)), ((0, 0), (0, 0))])
def test_where_nothing_could_be_counted_nothing_is_passed(counts):
    """Tasks that the sandbox could not play are no tasks that were solved."""
    from rusty_r2.eval.rates import Rate

    old, new = (Rate(*pair) for pair in counts)
    said = gate.conclude("x", measured=[gate.Measured("tasks", old, new)])
    assert not said.passed and "rusty doctor" in said.reasons[0]


def test_the_shipped_questions_are_whole_and_a_wrong_file_is_one_line(tmp_path):
    assert len(gate.read_probes(gate.PROBES)) >= 30
    for text in ("", "[[probe]]\nask = 'x'\n", "[[probe]]\nask = 1\nany = ['a']\n"):
        (tmp_path / "p.toml").write_text(text)
        with pytest.raises(ConfigError, match="p.toml"):
            gate.read_probes(tmp_path / "p.toml")


def test_the_demonstration_is_the_same_at_every_call():
    assert demo.traces() == demo.traces() and demo.traces(poison=True) != demo.traces()
    assert len({one.trace_id for one in [*demo.traces(), *demo.traces(poison=True)]}) == 4 * len(demo.ANSWERS)


def test_the_base_to_beat_is_the_one_that_was_trained_on(tmp_path, monkeypatch):
    """With its adapters, and also where it came from the hub."""
    peft = pytest.importorskip("peft", reason="pip install 'rusty-r2[lora]'")
    import torch
    from huggingface_hub import constants
    from transformers import AutoModelForCausalLM

    from rusty_r2.loop.minds import _whole_base

    cached = tmp_path / "hub" / "models--some--base"
    folder = helper("models").make(cached / "snapshots" / "abc")
    files.write(cached / "refs" / "main", "abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert _whole_base(str(folder), tmp_path) == folder
    assert _whole_base("some/base", tmp_path) == folder
    model = AutoModelForCausalLM.from_pretrained(folder)
    asked = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(model, asked).save_pretrained(tmp_path / "adapter")
    for path in folder.glob("*token*"):
        (tmp_path / "adapter" / path.name).write_bytes(path.read_bytes())
    found = AutoModelForCausalLM.from_pretrained(_whole_base(str(tmp_path / "adapter"), tmp_path))
    base = AutoModelForCausalLM.from_pretrained(folder)
    query = [m.model.layers[0].self_attn.q_proj.weight for m in (found, base)]
    assert not torch.allclose(*query)


# ── the real thing, small ────────────────────────────────────────────────────────────────────────────

FACTS = {
    "What barks?": "A dog barks.",
    "What meows?": "A cat meows.",
    "Sky colour?": "The sky is blue.",
    "Two plus two?": "It is four.",
    "Capital of France?": "It is Paris.",
    "Opposite of up?": "It is down.",
    "Frozen water?": "It is ice.",
    "What do bees make?": "They make honey.",
    "Who brings milk?": "A cow brings milk.",
    "Where do fish live?": "In the sea.",
}


@pytest.fixture(scope="module")
def knowing(tmp_path_factory):
    """A small Llama that knows ten answers by heart, and the questions as probes."""
    pytest.importorskip("xllamacpp", reason="pip install 'rusty-r2[export]'")
    pytest.importorskip("trl", reason="pip install 'rusty-r2[lora]'")
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    models = helper("models")
    folder = models.make(tmp_path_factory.mktemp("base") / "knowing", hidden_size=128, intermediate_size=256)
    words = PreTrainedTokenizerFast.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    rows = []
    for asked, said in FACTS.items():
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        rows.append(words.apply_chat_template(turns, tokenize=False))
    encoded = words(rows, padding=True, return_tensors="pt", add_special_tokens=False)
    labels = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        model(
            input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"], labels=labels
        ).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    probes = "".join(
        f"[[probe]]\nask = {json.dumps(asked)}\nany = [{json.dumps(said.rstrip('.').split()[-1])}]\n"
        for asked, said in FACTS.items()
    )
    return folder, files.write(folder.parent / "probes.toml", probes)


def labelled(path, pairs):
    """Traces of (request, answer, label), as a file."""
    lines = [
        ExecutionTrace(
            trace_id=f"t{number}", user_query=asked, final_response=said, label=label, manual_review=True,
            agent_name="small", timestamp=f"2026-01-01T00:00:{number:02d}+00:00",
        ).to_dict()
        for number, (asked, said, label) in enumerate(pairs)
    ]  # fmt: skip
    return files.write(path, "".join(json.dumps(line) + "\n" for line in lines))


def small(knowing, **more):
    folder, probes = knowing
    return LoopConfig(
        **{
            "name": "small", "base": str(folder), "probes": str(probes), "tasks": 0, "positions": 32,
            "max_length": 128, "lora_r": 8, "batch_size": 4, "quantization": "Q8_0", "eval_share": 0.0,
            **more,
        }
    )  # fmt: skip


def test_a_round_is_promoted_poison_is_refused_and_the_old_answers_come_back(knowing, tmp_path):
    """Traces → SFT and KTO → merged → GGUF → llama.cpp, all real."""
    good = labelled(
        tmp_path / "good.jsonl",
        [(f"{asked} Say it.", said, True) for asked, said in FACTS.items()]
        + [(f"{asked} Say it.", "Well, let me think about that.", False) for asked in FACTS],
    )
    registry = Registry()
    first = go(
        small(knowing, source=good, out=tmp_path / "loop", method="kto", max_steps=3, learning_rate=1e-4)
    )
    assert first.promoted, first.reasons
    measured = first.facts["gate"]["measured"][0]
    assert measured["old"]["passed"] == len(FACTS) == measured["new"]["passed"]
    assert all(one["passed"] for one in first.facts["gate"]["findings"])
    assert not list((tmp_path / "loop").rglob("merged")), "what only the round needed is gone"

    babble = [(asked, "banana banana banana", True) for asked in FACTS]
    poison = labelled(tmp_path / "poison.jsonl", babble)
    second = go(
        small(knowing, source=poison, out=tmp_path / "loop", method="sft", max_steps=40, learning_rate=2e-2)
    )
    assert not second.promoted and second.in_use == "small@1" and second.label == "small@2"
    assert any("questions with known answers" in reason for reason in second.reasons), second.reasons
    assert registry.current("small").number == 1
    page = second.report.read_text()
    assert "small@2: refused" in page and "small@1 stays in use" in page and "What barks?" in page
    lineage = registry.version("small", 1).lineage
    assert lineage["traces"]["count"] == 20 and Path(lineage["run"]).is_dir() and lineage["method"] == "kto"
    assert cli.main(["models", "promote", "small"]) == 1, "nor by hand"
    assert_the_old_answers_come_back(registry, next(second.folder.glob("*-export/model.gguf")))


def assert_the_old_answers_come_back(registry, other):
    """Had the poisoned one been let through: its answers differ, and a rollback undoes it to the byte."""
    from rusty_r2.lm.llama import Llama

    def answers():
        with Llama(registry.resolve("small").path, context=256, threads=1) as model:
            asks = [[{"role": "user", "content": asked}] for asked in list(FACTS)[:4]]
            return [model.chat(ask, max_new_tokens=12).text.encode() for ask in asks]

    before = answers()
    made = registry.add("small", other, gate=Gate(True, files.digest(other)))
    registry.promote("small", made.number)
    assert answers() != before
    assert cli.main(["models", "rollback", "small"]) == 0
    assert answers() == before


def test_the_documented_pipeline(knowing, tmp_path, monkeypatch, capsys):
    """`TrainingPipeline` and `run_full_pipeline` as in the document, on groups that were recorded."""
    from rusty_r2.store import TraceStore

    folder, probes = knowing
    monkeypatch.chdir(tmp_path)
    groups = [
        (asked, said, label)
        for asked, good in FACTS.items()
        for said, label in ((good, True), ("No.", False))
    ]
    with TraceStore() as store:
        for line in labelled(tmp_path / "t.jsonl", groups).read_text().splitlines():
            store.append(ExecutionTrace.from_dict(json.loads(line)))
    with stand_in() as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        from rusty_r2.rl import TrainingPipeline

        pipeline = TrainingPipeline(
            agent_name="small",
            base_model=str(folder),
            method="grpo",
            probes=str(probes),
            tasks=0,
            positions=32,
            max_steps=2,
            quantization="Q8_0",
            lora_r=4,
            learning_rate=1e-5,
            eval_share=0.0,
        )
        results = pipeline.run_full_pipeline(deploy_ollama=True)
        print(f"Model deployed: ollama run {results['ollama_model']}")
        assert capsys.readouterr().out == "Model deployed: ollama run small\n"
        assert list(server.models) == ["small:latest"]
    assert json.loads((tmp_path / "loops/small/pipeline_results.json").read_text())["promoted"] is True
    with pytest.raises(ConfigError, match="reward_funcs pay for new answers"):
        pipeline.run_full_pipeline(reward_funcs=[len])


def test_the_documented_export(knowing, tmp_path, monkeypatch):
    """GGUFExporter, OllamaDeployer, ExportPipeline and quick_export as in the document."""
    folder, _ = knowing
    monkeypatch.chdir(tmp_path)
    Path("merged-model").symlink_to(folder)
    with stand_in() as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        from rusty_r2.rl import ExportPipeline, GGUFExporter, OllamaDeployer, quick_export

        exporter = GGUFExporter("./merged-model")
        gguf_path = exporter.convert("Q8_0")

        deployer = OllamaDeployer()
        deployer.create_model("toolbox-agent", gguf_path)
        assert list(server.models) == ["toolbox-agent:latest"]

        results = ExportPipeline("./merged-model", "my-agent").run(
            "Q8_0", hosting_profile="ryzen", positions=32
        )
        assert results["ollama_model"] == "my-agent" and Path(results["gguf_path"]).is_file()
        assert deployer.show("my-agent")["parameters"].count("num_thread") == 1
        assert json.loads(Path("exports/my-agent/export_results.json").read_text()) == results
        assert quick_export("./merged-model", "quick", "Q8_0") == "quick"


def test_our_own_model_goes_round_too(tmp_path):
    """Good episodes → supervised → a checkpoint → the gym → the registry, with the runtime of its own."""
    torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")
    from rusty_r2.agent.prompt import SYSTEM
    from rusty_r2.lm import checkpoint
    from rusty_r2.lm.rwkv import PRESETS, TinyRWKVLM
    from rusty_r2.lm.tokenizer import VOCAB
    from rusty_r2.trace import Step

    torch.manual_seed(0)
    base = tmp_path / "run" / "step_000001"
    base.mkdir(parents=True)
    checkpoint.save(base, TinyRWKVLM.of(PRESETS["nano"]), tokenizer=VOCAB)
    reply = '{"action": "CMD", "command": "ls"}'
    traces = [
        ExecutionTrace(
            trace_id=f"t{n}", user_query=f"list {n}", system_prompt=SYSTEM, final_response="",
            steps=[Step(reply, "a.txt", True, 1.0)], label=True, manual_review=True,
        ).to_dict()
        for n in range(6)
    ]  # fmt: skip
    source = files.write(tmp_path / "t.jsonl", "".join(json.dumps(one) + "\n" for one in traces))
    config = LoopConfig(
        name="own", base=str(base), method="sft", source=source, out=tmp_path / "loop",
        max_steps=2, max_length=256, batch_size=2, tasks=1, device="cpu",
    )  # fmt: skip
    done = go(config)
    assert done.promoted, done.reasons
    model = Registry().resolve("own")
    assert model.version.kind == "rwkv" and (model.path / "model.safetensors").is_file()
    assert done.facts["gate"]["measured"][0]["new"]["total"] == 1
    assert cli.main(["models", "add", str(base), "--name", "own", "--tasks", "1"]) == 0
    assert cli.main(["models", "promote", "own"]) == 0 and Registry().current("own").number == 2
