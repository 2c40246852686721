"""KTO on borrowed minds: it learns, stops and goes on exactly, and refuses what it cannot learn from."""

import json
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("trl", reason="pip install 'rusty-r2[lora]'")

from rusty_r2 import run
from rusty_r2.errors import CheckpointError, ConfigError, DataError
from rusty_r2.train import lora
from rusty_r2.train.kto import KTO, KTOConfig, train

WORDS = ("alpha", "bread", "cloud", "delta", "earth", "flame", "grass", "house", "inner", "joint")


def turn(role, content):
    return {"role": role, "content": content}


def row(number, label):
    said = f"import {WORDS[number % 10]}" if label else f"class {WORDS[number % 10]}: pass"
    asked = [turn("user", f"write {WORDS[number % 10]} {number}")]
    return {
        "prompt": asked,
        "completion": [turn("assistant", said)],
        "label": label,
        "trace_id": f"t{number}{label}",
    }


@pytest.fixture
def rows(tmp_path):
    """Good rows import, bad ones define; some of other prompts are held out beside."""
    path = tmp_path / "kto.jsonl"
    write(path, [row(n, label) for n in range(12) for label in (True, False)])
    write(tmp_path / "kto.eval.jsonl", [row(n, label) for n in range(20, 26) for label in (True, False)])
    return path


def write(path, rows):
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def quick(base, data, folder, **more):
    options = {
        "max_steps": 6,
        "lora_r": 4,
        "learning_rate": 2e-2,
        "batch_size": 2,
        "accumulate": 2,
        "seed": 1,
    }
    return KTOConfig(base_model=str(base), data=data, output_dir=folder, device="cpu", **{**options, **more})


def losses(folder):
    return [line["loss/train"] for line in run.metrics(folder) if "loss/train" in line]


def test_it_learns_what_is_good_and_says_so_in_the_run(tiny_llama, rows, tmp_path, capsys):
    folder = train(quick(tiny_llama, rows, tmp_path / "run", max_steps=8))
    told = json.loads((folder / "run.json").read_text())
    before, after = (told["before_after"]["margin"][when][0] for when in ("before", "after"))
    assert after > before + 0.05
    assert told["worse"] is False and told["before_after"]["sure"] is True
    assert told["before_after"]["rows"] == 12 and told["before_after"]["held_out"] is True
    assert told["ended"] == "done" and told["lineage"]["traces"] == 24
    logged = [line for line in run.metrics(folder) if "loss/train" in line]
    assert [line["step"] for line in logged] == list(range(1, 9))
    assert logged[0]["rewards/margins"] == pytest.approx(0, abs=1e-4) and logged[-1]["rewards/margins"] > 0.1
    assert any("eval/margin" in line for line in run.metrics(folder))
    assert list(folder.glob("events.out.*")) and run.newest(folder).name == "step_000008"
    said = capsys.readouterr()
    assert "step 8/8" in said.err and "tok/s" in said.err and "better than its base" in said.err
    assert f"next: rusty train merge {folder}" in said.err
    assert "{'loss'" not in said.out + said.err, "the library talks over us"


def test_a_result_worse_than_its_base_is_marked(tiny_llama, rows, tmp_path, capsys):
    """Held-out rows that say the contrary of what was learned."""
    held = write(
        tmp_path / "held.jsonl", [{**row(n, n % 2 == 0), "label": n % 2 == 1} for n in range(20, 30)]
    )
    folder = train(quick(tiny_llama, rows, tmp_path / "run", eval_data=held, max_steps=4))
    assert json.loads((folder / "run.json").read_text())["worse"] is True
    assert "by margin the result is worse than its base" in capsys.readouterr().err
    assert "not to be promoted" in (folder / "README.md").read_text()


def test_our_own_rwkv_is_a_base_like_any_other(tiny_rwkv, rows, tmp_path):
    folder = train(quick(tiny_rwkv, rows, tmp_path / "run", max_steps=4))
    told = json.loads((folder / "run.json").read_text())
    assert told["worse"] is False and told["before_after"]["margin"]["change"][0] > 0
    adapter = json.loads((run.newest(folder) / "adapter_config.json").read_text())
    assert set(adapter["target_modules"]) == {"key", "value", "receptance", "output"}


def test_stopped_and_resumed_is_never_stopped(tiny_llama, rows, tmp_path, monkeypatch):
    short = {"max_steps": 4, "eval_rows": 0}
    whole = train(quick(tiny_llama, rows, tmp_path / "whole", **short))
    from rusty_r2.train.fit import RunCallback

    heard = RunCallback.on_step_end

    def at_two(self, args, state, control, **more):
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return heard(self, args, state, control, **more)

    monkeypatch.setattr(RunCallback, "on_step_end", at_two)
    first = train(quick(tiny_llama, rows, tmp_path / "cut", **short))
    assert json.loads((first / "run.json").read_text())["ended"] == "stopped"
    assert run.newest(first).name == "step_000002" and len(losses(first)) == 2
    monkeypatch.setattr(RunCallback, "on_step_end", heard)
    again = train(quick(tiny_llama, rows, tmp_path / "cut", resume="auto", **short))
    assert again == first and losses(first) == losses(whole)
    weights = [(run.newest(folder) / "adapter_model.safetensors").read_bytes() for folder in (first, whole)]
    assert weights[0] == weights[1]


def test_resuming_with_other_rows_is_refused(tiny_llama, rows, tmp_path):
    folder = train(quick(tiny_llama, rows, tmp_path / "run", max_steps=1, eval_rows=0))
    write(rows, [row(n, label) for n in range(14) for label in (True, False)])
    with pytest.raises(ConfigError, match="dataset was"):
        train(quick(tiny_llama, rows, folder, resume="auto", max_steps=2))
    with pytest.raises(ConfigError, match="holds a run already"):
        train(quick(tiny_llama, rows, folder, max_steps=2))


def test_the_same_rows_and_base_by_another_path_are_the_same(tiny_llama, rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tiny_llama.parent)
    folder = train(quick(tiny_llama.name, rows, tmp_path / "run", max_steps=1, eval_rows=0))
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for path in (rows, rows.with_name("kto.eval.jsonl")):
        path.rename(moved / path.name)
    monkeypatch.chdir(tmp_path)
    assert lora.find_base(str(folder)).path == str(tiny_llama), "an adapter knows its base from anywhere"
    train(quick(tiny_llama, moved / rows.name, folder, resume="auto", max_steps=2, eval_rows=0))
    assert run.newest(folder).name == "step_000002"


def test_what_tools_said_is_read_and_not_learned(tiny_llama):
    from rusty_r2.train.collators import unpaired
    from rusty_r2.train.encoded import encode
    from rusty_r2.train.lora import find_base, open_tokenizer

    tokenizer = open_tokenizer(find_base(str(tiny_llama)))
    prompt = [turn("user", "list it")]
    completion = [turn("assistant", "import os"), turn("observation", "class x"), turn("assistant", "def y")]
    said = encode(tokenizer, prompt, completion)
    learned = [word for word, own in zip(said.completion, said.own, strict=True) if own]
    assert tokenizer.decode(learned) == " import os<|end|> def y<|end|>"
    example = {"prompt_ids": said.prompt, "completion_ids": said.completion, "label": True, "own": [said.own]}
    short = {"prompt_ids": said.prompt, "completion_ids": [5, 6], "label": False, "own": [[True, True]]}
    swapped = {**example, "KL_completion_ids": [5, 6]}, {**short, "KL_completion_ids": said.completion}
    batch = unpaired(tokenizer, 512)(list(swapped))
    assert batch["input_ids"][0][batch["completion_mask"][0] == 1].tolist() == learned
    assert batch["KL_input_ids"][1][batch["KL_completion_mask"][1] == 1].tolist() == learned
    assert batch["KL_completion_mask"][0].sum() == 2


def test_fewer_good_rows_weigh_more():
    weights = KTO(KTOConfig(data=None)).weights
    assert weights([True, False, False, False]) == (3.0, 1.0)
    assert weights([True, True, False]) == (1.0, 2.0)
    assert weights([True, False]) == (1.0, 1.0)
    assert KTO(KTOConfig(data=None, desirable_weight=1.5)).weights([True, False, False]) == (1.5, 1.0)


# ── bad input: one line, before anything heavy is loaded ────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file holds no rows"),
        (json.dumps({**row(1, True), "label": "True"}), "label: must be true or false"),
        ("\n".join(json.dumps(row(n, True)) for n in range(30)), "every row is good"),
        ("\n".join(json.dumps(row(n, False)) for n in range(30)), "every row is bad"),
        ("not json", "no JSON"),
    ],
)
def test_rows_that_teach_nothing_are_one_line(tmp_path, content, said):
    path = tmp_path / "kto.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=said) as caught:
        train(KTOConfig(base_model="no/such", data=path, output_dir=tmp_path / "run"))
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_a_base_model_that_does_not_exist(rows, tmp_path):
    with pytest.raises(ConfigError, match="neither a folder nor OWNER/NAME"):
        train(quick(tmp_path / "nothing", rows, tmp_path / "run"))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CheckpointError, match="holds no model"):
        train(quick(empty, rows, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_no_disk_is_said_first(tiny_llama, rows, tmp_path, monkeypatch):
    from rusty_r2.train import tuning

    monkeypatch.setattr(tuning, "NEEDED_MB", 1 << 40)
    with pytest.raises(ConfigError, match=r"MB free, a run needs"):
        train(quick(tiny_llama, rows, tmp_path / "run"))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"batch_size": 1}, {"learning_rate": 0.0}, {"epochs": -1.0}, {"warmup": 2.0}, {"clip": -1.0}),
        *({"beta": -0.1}, {"eval_interval": -1}, {"max_minutes": -1.0}, {"lora_targets": ("no",)}),
        {"patience": 3},  # counts readings, and there are none
    ],
)
def test_options_that_cannot_be(tiny_llama, rows, tmp_path, wrong):
    with pytest.raises(ConfigError):
        train(quick(tiny_llama, rows, tmp_path / "run", **wrong))
    assert not (tmp_path / "run").exists()


def test_rows_over_the_length_are_left_out_and_counted(tiny_llama, rows, tmp_path, capsys):
    long = {**row(3, True), "completion": [turn("assistant", "import " * 400)]}
    write(rows, [*map(json.loads, rows.read_text().splitlines()), long])
    plan = train(quick(tiny_llama, rows, tmp_path / "run", max_length=200, dry_run=True))
    assert "24 rows, 1 left out (over 200 tokens)" in plan
    with pytest.raises(DataError, match=r"over 8 tokens: they have \d+ to (8\d\d)\. Type: --max-length \1"):
        train(quick(tiny_llama, rows, tmp_path / "run", max_length=8))


def test_a_dry_run_says_what_it_would_cost_and_leaves_nothing(tiny_llama, rows, tmp_path):
    plan = train(quick(tiny_llama, rows, tmp_path / "run", dry_run=True))
    assert '"beta": 0.1' in plan and "6 steps" in plan and "GB free, about" in plan
    assert not (tmp_path / "run").exists()


def test_nothing_heavy_is_loaded_for_a_file_that_is_not_there(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom rusty_r2.errors import DataError\n"
        "from rusty_r2.train.kto import KTOConfig, train\n"
        "try: train(KTOConfig(data=Path('nothing.jsonl'), base_model='smollm2'))\n"
        "except DataError: print(sorted({'torch', 'trl', 'transformers'} & set(sys.modules)))\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert said.stdout.strip() == "[]", said.stderr


def test_readings_that_do_not_gain_end_the_run(tiny_llama, rows, tmp_path, capsys):
    """Nothing is gained at a rate of almost nothing, so the second reading without a gain is the last."""
    more = {"eval_interval": 1, "patience": 2, "max_steps": 9, "learning_rate": 1e-12}
    folder = train(quick(tiny_llama, rows, tmp_path / "run", **more))
    told = json.loads((folder / "run.json").read_text())
    gains = [line["eval/gain"] for line in run.metrics(folder) if "eval/gain" in line]
    assert told["ended"] == "done" and 3 <= len(gains) < 9 and "worse" in told
    assert f"ended at step {len(gains)}: no gain for 2 readings" in capsys.readouterr().err
