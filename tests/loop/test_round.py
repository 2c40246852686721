"""Whole rounds with real models, small."""

import json
from pathlib import Path

import pytest

from rusty_r2 import cli, files
from rusty_r2.errors import ConfigError
from rusty_r2.loop import demo
from rusty_r2.loop.config import LoopConfig
from rusty_r2.loop.run import go
from rusty_r2.registry import Gate, Registry
from rusty_r2.trace import ExecutionTrace

from .helpers import FACTS, labelled, stand_in


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
    assert {path.name for path in model.path.iterdir()} - {path.name for path in base.iterdir()} == {
        "record.json",
        "checksums.json",
    }, "no moments of the optimizer"
    assert done.facts["gate"]["measured"][0]["new"]["total"] == 1
    assert cli.main(["models", "add", str(base), "--name", "own", "--tasks", "1"]) == 0
    assert cli.main(["models", "promote", "own"]) == 0 and Registry().current("own").number == 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_our_own_model_practises_in_a_round(tmp_path, capsys):
    """`--method ppo`: the shipped model plays in the gym, and what came of it is tried, kept and named."""
    pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")
    pytest.importorskip("llguidance", reason="pip install 'rusty-r2[train]'")
    config = LoopConfig(
        name="own", base="rusty", method="ppo", source=demo.write(tmp_path, "demo"), out=tmp_path / "loop",
        max_steps=6, tasks=1, device="cpu",
    )  # fmt: skip
    done = go(config)
    assert done.label == "own@1" and done.facts["gate"]["measured"][0]["new"]["total"] == 1
    assert Registry().version("own", 1).lineage["method"] == "ppo"
    asked = json.loads(next((tmp_path / "loop").glob("round-001/*-train/run/config.json")).read_text())
    assert asked["num_steps"] == asked["total_timesteps"] == 6
