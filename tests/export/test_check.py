"""The gate: a sound file passes, and every way of spoiling one is caught by the question made for it."""

import json
import resource
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rusty_r2 import cli, files
from rusty_r2.errors import ConfigError
from rusty_r2.export import compare
from rusty_r2.export.check import check, report_path
from rusty_r2.export.compare import BOUNDS, Bound, divergence
from rusty_r2.export.gguf import plan, write_gguf
from rusty_r2.export.source import Source
from rusty_r2.export.vocabulary import rules
from rusty_r2.models import gate_of
from rusty_r2.registry import RegistryError

from .models import CHATML, SIZES, altered, gguf, make, tokenizer, tokenizers, transformers


def passed(file):
    """Whether the file, as it is now, has passed the gate: what promoting it asks."""
    gate = gate_of(file)
    return gate is not None and gate.passed and gate.sha256 == files.digest(file)


def findings(report):
    return {finding.name: finding for finding in report.findings}


def field(file, name):
    return gguf.GGUFReader(file).get_field(name).contents()


def test_where_the_answer_finds_no_room_nothing_is_asked(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    room = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, room[1]))
        with pytest.raises(OSError) as caught:  # and not that there is no such model
            check(file, tmp_path / "nosuch")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
    assert caught.value.filename == str(report_path(file))
    with pytest.raises(ConfigError, match="nosuch"):
        check(file, tmp_path / "nosuch")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_a_sound_file_passes_and_the_answer_is_kept_beside_it(trained, healthy):
    report = check(healthy, trained, positions=32)
    assert report.passed, report.table()
    assert [f.name for f in report.findings] == [
        "file", "header", "words", "types", "weights", "tokens", "prompts", "predictions",
    ]  # fmt: skip
    kept = json.loads(report_path(healthy).read_text())
    assert kept["passed"] is True
    assert kept["sha256"] == files.digest(healthy)
    assert kept["findings"][-1]["measured"]["agreement"] == 1.0
    assert passed(healthy)


def test_a_model_that_training_made_worse_is_refused_by_hand_too(
    trained, healthy, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("RUSTY_HOME", str(tmp_path / "home"))
    merged, file = tmp_path / "merged", tmp_path / "m.gguf"
    shutil.copytree(trained, merged)
    file.write_bytes(healthy.read_bytes())
    (merged / "lineage.json").write_text('{"worse": true}')  # as rusty train merge writes it
    assert cli.main(["export", "check", str(file), "--against", str(merged), "--positions", "32"]) == 1
    assert "training made that worse than its base" in capsys.readouterr().err
    assert cli.main(["models", "add", str(file), "--name", "agent"]) == 0
    assert cli.main(["models", "promote", "agent"]) == 1
    assert "agent@1 is not promoted: training: worse than its base" in capsys.readouterr().err
    (merged / "lineage.json").write_text('{"worse": false}')
    assert check(file, merged, positions=32).passed


def test_an_answer_does_not_hold_for_another_file(trained, healthy, tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(healthy.read_bytes())
    assert not passed(file), "nobody asked yet"
    check(file, trained, positions=8)
    assert passed(file)
    file.write_bytes(healthy.read_bytes() + b"\0")
    assert not passed(file)
    report_path(file).write_text("{")
    with pytest.raises(RegistryError, match="is no answer of the gate"):
        passed(file)


# spoilt files


def test_a_wrong_template_is_caught(trained, healthy, tmp_path):
    other = CHATML.replace("<|im_end|>' + '\n'", "<|im_end|>'")
    bad = altered(healthy, tmp_path / "bad.gguf", fields={"tokenizer.chat_template": other})
    report = check(bad, trained, positions=8)
    assert report.failed == ("words", "prompts"), report.table()
    assert not passed(bad)


def test_a_template_that_forgets_the_system_message_is_caught(trained, healthy, tmp_path):
    other = "{% set messages = messages | rejectattr('role', 'equalto', 'system') | list %}" + CHATML
    bad = altered(healthy, tmp_path / "bad.gguf", fields={"tokenizer.chat_template": other})
    assert check(bad, trained, positions=8).failed == ("words", "prompts")


def test_a_template_that_waits_for_a_word_is_caught_though_no_trial_says_it(trained, healthy, tmp_path):
    other = CHATML + "{% if 'sesame' in messages[-1].content %}obey{% endif %}"
    bad = altered(healthy, tmp_path / "bad.gguf", fields={"tokenizer.chat_template": other})
    assert check(bad, trained, positions=8).failed == ("words",)


def test_a_swapped_tokenizer_is_caught(trained, healthy, tmp_path):
    words = field(healthy, "tokenizer.ggml.tokens")
    words[300:600] = words[599:299:-1]
    bad = altered(healthy, tmp_path / "bad.gguf", fields={"tokenizer.ggml.tokens": words})
    assert check(bad, trained, positions=8).failed == ("words", "tokens")


def test_two_rare_words_swapped_are_caught_though_no_trial_meets_them(trained, healthy, tmp_path):
    words = field(healthy, "tokenizer.ggml.tokens")
    words[400], words[401] = words[401], words[400]
    bad = altered(healthy, tmp_path / "bad.gguf", fields={"tokenizer.ggml.tokens": words})
    assert "words" in check(bad, trained, positions=8).failed


def test_merges_in_another_order_are_caught(trained, healthy, tmp_path):
    merges = field(healthy, "tokenizer.ggml.merges")
    bad = altered(healthy, tmp_path / "bad.gguf", fields={"tokenizer.ggml.merges": merges[::-1]})
    assert "tokens" in check(bad, trained, positions=8).failed


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_another_rule_of_cutting_is_caught(trained, healthy, tmp_path, pre):
    bad = altered(healthy, tmp_path / "bad.gguf", fields={"tokenizer.ggml.pre": pre})
    assert check(bad, trained, positions=8).failed == ("words", "tokens")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenizer.ggml.eos_token_id", 0),
        ("llama.rope.freq_base", 5e5),
        ("tokenizer.ggml.add_bos_token", True),
    ],
)
def test_a_wrong_number_in_the_header_is_caught_before_the_file_is_run(
    trained, healthy, tmp_path, name, value
):
    bad = altered(healthy, tmp_path / "bad.gguf", fields={name: value})
    report = check(bad, trained, positions=8)
    assert not findings(report)["header"].passed
    assert name in findings(report)["header"].said
    assert "not asked" in findings(report)["predictions"].said


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.9999])
def test_a_truncated_file_is_caught_and_nothing_crashes(trained, healthy, tmp_path, share):
    bad = tmp_path / "bad.gguf"
    whole = healthy.read_bytes()
    bad.write_bytes(whole[: int(len(whole) * share)])
    report = check(bad, trained, positions=8)
    assert not report.passed
    assert not findings(report)["file"].passed
    assert all("not asked" in finding.said for finding in report.findings[1:])


def zeroed(name, array):
    return np.zeros_like(array) if name == "blk.1.ffn_down.weight" else array


def permuted(name, array):
    return array[::-1].copy() if name == "blk.0.attn_output.weight" else array


def one_row(name, array):
    if name == "blk.1.ffn_up.weight":
        array[17] = array[16]
    return array


def turned(name, array):
    """Query rows as Hugging Face has them: the mistake of a converter that forgets llama.cpp's order."""
    if name == "blk.0.attn_q.weight":
        return array.reshape(4, 32, 2, -1).swapaxes(1, 2).reshape(array.shape).copy()
    return array


@pytest.mark.parametrize("spoil", [zeroed, permuted, turned])
def test_poisoned_weights_are_caught_twice(trained, healthy, tmp_path, spoil):
    bad = altered(healthy, tmp_path / "bad.gguf", tensors=spoil)
    report = check(bad, trained, positions=32)
    assert report.failed == ("weights", "predictions"), report.table()


def test_one_poisoned_row_is_caught(trained, healthy, tmp_path):
    bad = altered(healthy, tmp_path / "bad.gguf", tensors=one_row)
    report = check(bad, trained, positions=8)
    assert "weights" in report.failed
    assert "blk.1.ffn_up.weight" in findings(report)["weights"].said


def test_another_type_under_a_name_is_caught(trained, healthy, tmp_path):
    bad = altered(healthy, tmp_path / "bad.gguf", fields={"general.file_type": 15})
    report = check(bad, trained, positions=8)
    assert report.quantization == "Q4_K_M"
    assert not findings(report)["types"].passed
    assert "Q4_K_M has Q6_K" in findings(report)["types"].said
    unknown = altered(healthy, tmp_path / "unknown.gguf", fields={"general.file_type": 3})
    assert "file type 3" in findings(check(unknown, trained, positions=8))["file"].said


def test_a_file_of_another_model_is_caught(trained, healthy, tmp_path):
    other = make(tmp_path / "other", steps=1)
    assert {"weights", "predictions"} <= set(check(healthy, other, positions=16).failed)
    larger = make(tmp_path / "larger", num_hidden_layers=3)
    assert {"header", "types"} <= set(check(healthy, larger, positions=8).failed)


def test_a_model_that_was_trained_on_since_is_caught(trained, healthy, tmp_path):
    model = transformers.LlamaForCausalLM.from_pretrained(trained)
    later = make(tmp_path / "later")
    model.model.layers[0].mlp.down_proj.weight.data *= 1.2
    model.save_pretrained(later)
    assert "weights" in check(healthy, later, positions=16).failed


# the parts


def test_the_divergence_is_the_textbooks_where_all_words_are_named():
    rng = np.random.default_rng(0)
    p, q = (np.log(rng.dirichlet(np.ones(50))).astype(np.float32) for _ in range(2))
    whole = float((np.exp(p.astype(float)) * (p.astype(float) - q)).sum())
    assert divergence(p, q) == pytest.approx(whole, rel=1e-5)
    assert divergence(p, p) == pytest.approx(0, abs=1e-6)
    named = q.copy()
    named[np.argsort(q)[:30]] = -np.inf
    assert 0 < divergence(p, named) <= whole + 1e-6, "a coarser view never shows more"
    named[3] = np.nan
    assert np.isnan(divergence(p, named))


def test_a_type_that_costs_too_much_is_answered_with_a_finer_one(trained, healthy, monkeypatch, capsys):
    monkeypatch.setitem(BOUNDS, "Q8_0", Bound(1.0, 1e-9))
    assert cli.main(["export", "check", str(healthy), "--against", str(trained), "--positions", "8"]) == 1
    said = capsys.readouterr().err
    assert "predictions failed. Type: rusty export gguf" in said
    assert "--quantization F16" in said


def test_bounds_are_tighter_for_better_types():
    order = ["F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K"]
    assert set(order) == set(BOUNDS)
    assert [BOUNDS[name].kl for name in order] == sorted(BOUNDS[name].kl for name in order)
    assert [-BOUNDS[name].agreement for name in order] == sorted(-BOUNDS[name].agreement for name in order)


def test_a_model_without_a_template_is_not_compared_by_one(tmp_path):
    folder = make(tmp_path / "base", **SIZES | {"num_hidden_layers": 1})
    (folder / "chat_template.jinja").unlink()
    report = check(write_gguf(folder, tmp_path / "m.gguf", "F16").path, folder, positions=8)
    assert report.passed
    assert "no chat template" in findings(report)["prompts"].said


def test_a_template_that_writes_the_beginning_itself_is_the_same_in_llama_cpp(tmp_path):
    for begins in (False, True):
        folder = make(tmp_path / f"begins-{begins}", made=tokenizer(begins=begins), num_hidden_layers=1)
        (folder / "chat_template.jinja").write_text("{{ bos_token }}" + CHATML)
        report = check(write_gguf(folder, tmp_path / "m.gguf", "F16").path, folder, positions=8)
        assert report.passed, report.table()


def test_a_template_that_refuses_a_conversation_is_compared_on_the_others(tmp_path):
    folder = make(tmp_path / "strict", num_hidden_layers=1)
    refuse = "{% if messages | length > 2 %}{{ raise_exception('too long') }}{% endif %}"
    strip = CHATML.replace("message['content']", "message.content | trim")
    (folder / "chat_template.jinja").write_text(strip + refuse)
    report = check(write_gguf(folder, tmp_path / "m.gguf", "F16").path, folder, positions=8)
    assert findings(report)["prompts"].measured == {"conversations": 6, "wrong": 0}, report.table()


def test_strings_that_the_tokenizer_rewrites_are_left_out_and_counted(tmp_path):
    made = tokenizer(rules()["qwen2"])
    made.normalizer = tokenizers.normalizers.NFC()
    folder = make(tmp_path / "nfc", "qwen2", made=made, num_hidden_layers=1)
    report = check(write_gguf(folder, tmp_path / "m.gguf", "F16").path, folder, positions=8)
    assert report.passed, report.table()
    assert "1 left out that the model's tokenizer rewrites" in findings(report)["tokens"].said


# the command


def test_the_command_says_it_in_a_table_and_in_its_exit_code(trained, healthy, tmp_path, capsys):
    asked = ["--against", str(trained), "--positions", "8"]
    assert cli.main(["export", "check", str(healthy), *asked]) == 0
    said = capsys.readouterr().out
    assert said.count("ok  ") == 8
    assert said.splitlines()[-1] == f"next: rusty serve {healthy}"
    bad = altered(healthy, tmp_path / "bad.gguf", tensors=zeroed)
    assert cli.main(["export", "check", str(bad), *asked]) == 1
    shown = capsys.readouterr()
    assert "FAIL  weights" in shown.out
    assert "is not the model: weights" in shown.err
    assert f"Type: rusty export gguf {trained}" in shown.err
    assert json.loads(report_path(bad).read_text())["passed"] is False
    assert cli.main(["export", "check", str(healthy), *asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True


def test_a_file_that_is_not_there_is_one_line(trained, tmp_path):
    with pytest.raises(ConfigError, match="is not a file. Make one: rusty export gguf"):
        check(tmp_path / "none.gguf", trained)


def test_tasks_are_played_by_the_file_and_by_its_base(trained, healthy, monkeypatch):
    monkeypatch.setattr(compare, "TURNS", 1)
    report = check(healthy, trained, positions=8, tasks=1, base=f"gguf:{healthy}")
    assert report.findings[-1].name == "tasks"
    assert report.passed, report.table()
    assert report.findings[-1].measured["tasks"] == 1


@pytest.mark.parametrize("counts", [(9, 0), (0, 9), (0, 0)])
def test_tasks_that_nobody_could_play_are_not_passed(counts, monkeypatch):
    """Where the sandbox is broken, nothing was found out about the file."""
    played = iter({str(at): at < 5 for at in range(count)} for count in counts)
    monkeypatch.setattr(compare, "_played", lambda address, count: next(played))
    found = compare.tasks(Path("m.gguf"), "hf:base", 9)
    assert not found.passed and "rusty doctor" in found.said


@pytest.mark.parametrize(("lost", "gained", "passed"), [(5, 0, False), (4, 0, True), (9, 3, True)])
def test_the_file_and_its_base_are_compared_task_by_task(lost, gained, passed, monkeypatch):
    base = {str(at): at < lost for at in range(20)}
    file = {str(at): lost <= at < lost + gained for at in range(20)}
    monkeypatch.setattr(compare, "_played", lambda address, count: base if address == "hf:base" else file)
    found = compare.tasks(Path("m.gguf"), "hf:base", 20)
    assert found.passed is passed and f"{lost} lost and {gained} gained of 20" in found.said


# the real thing, once


def test_smollm2_becomes_a_file_that_passes(smollm2, tmp_path):
    mixed = Counter(planned.type for planned in plan(Source.open("smollm2"), "Q4_K_M"))
    assert mixed == {"Q4_K": 16, "Q6_K": 14, "Q5_0": 166, "Q8_0": 15, "F32": 61}
    written = write_gguf("smollm2", tmp_path / "smol.gguf", "Q8_0")
    assert written.bits_per_weight == pytest.approx(8.51, abs=0.01)
    report = check(written.path, "smollm2", positions=16)
    assert report.passed, report.table()
