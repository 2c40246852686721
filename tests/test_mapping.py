"""The page that maps the two documents to this project is run, block by block, at a small size."""

import ast
import asyncio
import builtins
import importlib.util
import io
import os
import pickle
import re
import shlex
import sysconfig
from pathlib import Path

import pytest

from rusty_r2 import cli
from rusty_r2.config import home
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "mapping.md").read_text(encoding="utf-8")
SHELL = re.findall(r"```bash\n(.*?)```", PAGE, re.S)
COMMANDS = [" ".join(block.replace("\\\n", " ").split()) for block in SHELL]
SAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.S)
SHARED = Path(os.environ.get("RUSTY_SHARED", ROOT.parent / "shared")) / "seeds"
TRAIN = "--max_steps 2 --batch_size 2 --grad_accum_steps 1 --seq_len 32 --preset nano --eval_tokens 200"
PPO = "--total_timesteps 4 --num_steps 4 --ppo_epochs 1 --num_minibatches 1 --max_turns 1 --eval_tasks 2"
SMALL = {
    "data download": "--dry_run",
    "lm tokenizer": "--vocab_size 600",
    "train supervised": f"{TRAIN} --sample_tokens 0 --device cpu",
    "train ppo": f"{PPO} --constrain --max_new_tokens 8 --slots 4 --device cpu",
    "chat": "--max_new_tokens 8 --no_store",
    "lm generate": "--max_new_tokens 5 --device cpu",
}


def shrunk(command: str) -> list[str]:
    """The words of a command, with a small model's sizes and the CPU instead of what the page says."""
    words = shlex.split(command)[1:]
    name = next(name for name in SMALL if words[: len(name.split())] == name.split())
    for option in re.findall(r"--\w+(?: [^-]\S*)?", SMALL[name]):
        key, _, value = option.partition(" ")
        if key in words:
            words[words.index(key) + 1] = value
        else:
            words += option.split()
    return [word.replace("step_050000", "step_000002") for word in words if word != "--compile"]


def test_the_commands_run_one_after_another(tmp_path, monkeypatch, capsys):
    for module in ("torch", "tokenizers", "llguidance"):
        pytest.importorskip(module, reason="pip install 'rusty-r2[train]'")
    monkeypatch.chdir(tmp_path)
    for folder in ("data/raw", "data/hf"):
        Path(folder).mkdir(parents=True)
    library = Path(sysconfig.get_path("stdlib"))
    for name in ("argparse.py", "textwrap.py", "shlex.py", "queue.py"):
        (Path("data/raw") / name).write_text((library / name).read_text())
    monkeypatch.setattr("sys.stdin", io.StringIO(":q\n"))
    assert {" ".join(words.split()[1:3]).removesuffix(" --model") for words in COMMANDS} == {*SMALL}
    for command in COMMANDS:
        code = cli.main(shrunk(command))
        said = capsys.readouterr().err
        offline = "download" in command and "could not be asked for" in said
        assert code == 0 or offline, f"{command}\n{said}"
    assert (tmp_path / "tokenizer" / "tokenizer.json").is_file()
    assert (tmp_path / "checkpoints_r2_supervised" / "step_000002").is_dir()
    assert any((tmp_path / "runs_ppo_r2").iterdir())


def test_every_option_of_the_documents_commands_is_on_the_page():
    """The README's own words: each long option of its commands stands in a counterpart."""
    seed = next(iter(SHARED.glob("000_*.txt")), None)
    if seed is None:
        pytest.skip(f"the document is not here: {SHARED}")
    told = {word for command in COMMANDS for word in command.split() if word.startswith("--")}
    asked = set(re.findall(r"^\s+(--\w+)", seed.read_text(encoding="utf-8"), re.M))
    assert asked and asked <= told


def test_every_sample_of_the_document_is_on_the_page():
    seed = next(iter(SHARED.glob("004_*.txt")), None)
    if seed is None:
        pytest.skip(f"the document is not here: {SHARED}")
    blocks = re.findall(r"```python\n(.*?)```", seed.read_text(encoding="utf-8"), re.S)
    lines = {line.strip() for sample in SAMPLES for line in sample.splitlines()}
    for block in blocks:
        if not _is_code(block) or "recommended_batch_size" in block or '"prompt"' in block:
            continue  # outlines of a format or of settings
        wanted = [line.strip() for line in block.splitlines() if line.strip()]
        missing = [line for line in wanted if line not in lines and not _may_differ(line)]
        assert not missing, missing


def _is_code(block: str) -> bool:
    try:
        compile(block, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        return "ExecutionTrace(" in block
    return True


def _may_differ(line: str) -> bool:
    """Import lines; the name of the agent and the dots in an example; a sample given twice."""
    return line.startswith(
        ("from toolboxv2", "agent_name=", "reasoning_steps=", "TrainingConfig(", "# Example")
    )


class FlowAgent:
    name = "isaa"

    async def a_run(self, query, session_id="default"):
        return f"{query} done"


def helper(name):
    path = ROOT / "tests" / "export" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"mapping_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOOD = "```python\ndef add(a, b):\n    return a + b\nprint(add(1, 2))\n```"
BAD = "```python\nprint(add(\n```"


def fill_the_store():
    with TraceStore() as store:
        for agent in ("agent_name", "isaa"):
            for number in range(3):
                for text in (GOOD, BAD):
                    asked = f"Write a Python function called add, number {number}."
                    store.append(ExecutionTrace(user_query=asked, final_response=text, agent_name=agent))


def save_a_checkpoint():
    folder = home() / "Agents" / "checkpoint" / "DiscordKernelAssistant"
    folder.mkdir(parents=True)
    talk = [
        {"role": "user", "content": "Hey bist du online?"},
        {"role": "assistant", "content": "Ja, ich bin online!"},
    ]
    (folder / "a.pkl").write_bytes(pickle.dumps({"session_data": {"s1": {"history": talk}}}))


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """What stands for Qwen2.5-1.5B: a Llama of two layers."""
    for module, extra in (("trl", "lora"), ("xllamacpp", "export")):
        pytest.importorskip(module, reason=f"pip install 'rusty-r2[{extra}]'")
    return helper("models").make(tmp_path_factory.mktemp("models") / "small", steps=20)


def run(sample, names):
    code = compile(sample, "docs/mapping.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(code, names)
    if made is not None:
        asyncio.run(made)
    for name in ("collector", "pipeline"):
        store = getattr(names.get(name), "store", names.get(name))
        if hasattr(store, "close"):
            store.close()


HEAVY = ("RLTrainer", "TrainingPipeline", "GGUFExporter")
LIGHT = [
    sample for sample in SAMPLES if not any(f"import {n}" in sample or f", {n}" in sample for n in HEAVY)
]


@pytest.mark.parametrize("sample", LIGHT, ids=lambda s: s.splitlines()[0].partition("import ")[2][:40])
def test_a_sample_runs(sample, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fill_the_store()
    save_a_checkpoint()
    monkeypatch.setattr(builtins, "input", lambda prompt: "y")
    traces = [
        ExecutionTrace(user_query="Write a Python function called add.", final_response=t)
        for t in (GOOD, BAD)
    ]
    names = {"agent": FlowAgent(), "FlowAgent": lambda amd: FlowAgent(), "amd": None}
    names |= {"trace": traces[0], "traces": traces}
    run(sample, names)
    if "kto_examples" in names:
        assert names["kto_examples"] and names["grpo_examples"]
    if "normalized" in names:
        assert names["normalized"][0] > names["normalized"][1] and names["label"] is True
    if "all_traces" in names:
        assert "Extracted 1 conversation traces" in capsys.readouterr().out


def heavy(word):
    return next(sample for sample in SAMPLES if word in sample.splitlines()[0])


@pytest.fixture
def qwen(small_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("Qwen").mkdir()
    Path("Qwen/Qwen2.5-1.5B-Instruct").symlink_to(small_model)
    Path("merged-model").symlink_to(small_model)
    return tmp_path


@pytest.mark.filterwarnings("ignore:bf16 on this CPU")
def test_the_training_sample_runs(qwen):
    groups = [
        {"prompt": f"User: list {n}", "completions": ["import os", "class x: pass"], "rewards": [0.8, -0.8]}
        for n in range(2)
    ]
    run(heavy("RLTrainer"), {"dataset": groups})
    assert (qwen / "rl_output" / "final" / "model.safetensors").is_file()


def test_the_export_sample_runs(qwen, monkeypatch):
    with helper("ollama_standin").stand_in() as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        run(heavy("GGUFExporter"), {})
        assert list(server.models) == ["toolbox-agent:latest"]


def test_the_pipeline_sample_runs(qwen, monkeypatch, capsys):
    fill_the_store()
    with helper("ollama_standin").stand_in() as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        names = {}
        run(heavy("TrainingPipeline"), names)
    assert "Model deployed: ollama run" in capsys.readouterr().out
    assert names["results"]["promoted"] in (True, False)
