"""The gate: what is worse, what is not sure, and what nobody could count."""

import pytest

from rusty_r2 import files
from rusty_r2.errors import ConfigError
from rusty_r2.loop import demo, gate
from rusty_r2.loop.config import LoopConfig
from rusty_r2.loop.run import go
from rusty_r2.loop.stages import Made
from rusty_r2.registry import Registry
from rusty_r2.train.progress import Progress

from .helpers import LightMind, helper


@pytest.mark.parametrize(
    ("answer", "right"),
    [("It is Paris.", True), ("paris", True), ("Parisian food", False), ("H2O!", False), ("", False)],
)
def test_a_right_answer_holds_the_word(answer, right):
    assert gate.is_right(answer, ["Paris"]) is right


def solved(count, total=32, first=0):
    """So many of so many tasks solved, from the `first` on."""
    return {f"t{at}": first <= at < first + count for at in range(total)}


def test_worse_is_more_than_chance():
    lost = gate.Measured("questions", solved(21), solved(2))
    same = gate.Measured("questions", solved(21), solved(19))
    assert lost.verdict == "worse" and same.verdict == "no sure difference"
    assert gate.Measured("questions", solved(2), solved(21)).verdict == "better"
    assert gate.conclude("x", measured=[lost]).worse
    assert not gate.conclude("x", measured=[same]).worse
    assert gate.conclude("x", run={"worse": True}).reasons == ("its own held-out rows: worse than its base",)
    assert not gate.conclude("x", file_problems=["tokens differ"]).passed


def test_few_rows_are_said_before_training_and_what_they_cannot_tell_is_left_to_a_person(tmp_path, capsys):
    class Doubtful(LightMind):
        def train(self, folder, rows):
            Progress(1).say("after: 1 of 2\nnext: rusty train merge run")
            return Made({"before_after": {"doubtful": True, "rows": 2}}, super().train(folder, rows).outputs)

    source = demo.write(tmp_path, "demo")
    done = go(LoopConfig(source=source, out=tmp_path / "loop", max_rows=8), mind=Doubtful())
    said = capsys.readouterr().err
    assert "of training, which changes little" in said and said.index("--max-steps") < said.index("after: 1")
    assert "next: " not in said, "only the command that was typed says what comes next"
    assert not done.promoted and done.in_use == "" and "perhaps by chance" in done.reasons[0]
    assert Registry().promote("agent").number == 1, "a person may"
    assert go(LoopConfig(source=source, out=tmp_path / "more"), mind=LightMind()).promoted
    assert "changes little" not in capsys.readouterr().err


def test_the_same_tasks_tell_more_than_two_rates_do():
    """Five of 20 lost and nothing gained is no chance; ten lost and five gained may be."""
    from rusty_r2.eval.rates import Rate, better

    assert not better(Rate(18, 20), Rate(13, 20)), "as two rates it would be chance"
    assert gate.conclude("x", measured=[gate.Measured("tasks", solved(18, 20), solved(13, 20))]).worse
    mixed = gate.Measured("tasks", solved(12, 20), solved(7, 20, first=10))
    assert (mixed.pairs.lost, mixed.pairs.gained) == (10, 5) and mixed.verdict == "no sure difference"


def test_small_losses_do_not_add_up_over_rounds():
    """Three tasks a round are chance each time; beside the best that was ever in use they are not."""
    kept, refused = {}, []
    for number, count in enumerate((100, 97, 94, 91, 88), 1):
        one = gate.Measured("tasks", solved(min(100, count + 3), 100), solved(count, 100))
        said = gate.conclude("x", measured=[one], before=kept)
        assert one.verdict == "no sure difference"
        if said.worse:
            refused.append(said.reasons[0])
        else:
            kept[f"agent@{number}"] = {"tasks": one.new}
    assert len(kept) == 3 and all("agent@1, the best so far, had 100.0%" in why for why in refused)
    other = {"agent@1": {"questions": solved(100, 100), "tasks": {"elsewhere": True}}}
    small = gate.Measured("tasks", solved(91, 100), solved(88, 100))
    assert not gate.conclude("x", measured=[small], before=other).worse, "other tasks are no comparison"


def test_the_loop_keeps_what_was_solved_and_looks_at_all_that_were_in_use(tmp_path):
    class Playing(LightMind):
        def gate(self, folder, artefact, merged, run):
            made = super().gate(folder, artefact, merged, run)
            one = gate.Measured("tasks", solved(9, 12), solved(8, 12))
            return Made({**made.facts, "measured": [one.facts()]})

    registry = Registry()
    for rows in (20, 30):
        config = LoopConfig(source=demo.write(tmp_path, "demo"), out=tmp_path / "loop", max_rows=rows)
        assert go(config, mind=Playing()).promoted
    assert list(gate.outcomes_before(registry, "agent")) == ["agent@1", "agent@2"]
    registry.rollback("agent")
    assert gate.outcomes_before(registry, "agent") == {"agent@1": {"tasks": solved(8, 12)}}
    assert "1 lost, 0 gained" in (tmp_path / "loop" / "round-001" / "report.html").read_text()


@pytest.mark.parametrize(("base", "method", "tasks"), [("rusty", "sft", 200), ("smollm2", "kto", 12)])
def test_how_many_tasks_are_played_where_nothing_is_said(base, method, tasks):
    assert LoopConfig(base=base, method=method).played == tasks
    assert LoopConfig(base=base, method=method, tasks=0).played == 0


def test_the_tasks_of_a_gate_have_names_of_their_own():
    from rusty_r2.eval import gym

    assert len({task.name for task in gym.tasks(200)}) == 200


@pytest.mark.parametrize("counts", [(9, 0), (0, 9), (0, 0)])
def test_where_nothing_could_be_counted_nothing_is_passed(counts):
    """Tasks that the sandbox could not play are no tasks that were solved."""
    old, new = (solved(total, total) for total in counts)
    said = gate.conclude("x", measured=[gate.Measured("tasks", old, new)])
    assert not said.passed and "rusty doctor" in said.reasons[0]


def test_the_shipped_questions_are_whole_and_a_wrong_file_is_one_line(tmp_path):
    assert len(gate.read_probes(gate.PROBES)) >= 30
    for text in ("", "[[probe]]\nask = 'x'\n", "[[probe]]\nask = 1\nany = ['a']\n"):
        (tmp_path / "p.toml").write_text(text)
        with pytest.raises(ConfigError, match="p.toml"):
            gate.read_probes(tmp_path / "p.toml")


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
