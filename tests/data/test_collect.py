"""Several minds play the same tasks: rows know who, engines change nothing, groups can be learned from."""

import json

import pytest

from rusty_r2.cli import main
from rusty_r2.data.collect import CollectConfig, collect, parcels, play
from rusty_r2.data.validate import check_file
from rusty_r2.errors import ConfigError, PolicyError
from rusty_r2.executor import open_executor
from rusty_r2.store import TraceStore

TASK = {"tasks": 1, "families": ("remove",), "times": 2, "max_turns": 2}


@pytest.fixture
def minds(tmp_path):
    """One that solves the first task of the family, one that only looks."""
    (tmp_path / "good.txt").write_text('{"action": "CMD", "command": "rm notion-backup.txt"}\n')
    (tmp_path / "idle.txt").write_text('{"action": "CMD", "command": "ls"}\nhello\n')
    return f"script:{tmp_path / 'good.txt'}", f"script:{tmp_path / 'idle.txt'}"


def test_rows_know_who_said_what_and_what_it_was_worth(minds, tmp_path):
    made = collect(CollectConfig(models=minds, **TASK, output=tmp_path / "groups.jsonl"))
    (row,) = [json.loads(line) for line in made.read_text().splitlines()]
    good, idle = minds
    assert row["models"] == [good, good, idle, idle] and row["task"] == "remove-1-train-0"
    assert row["raw_rewards"] == pytest.approx([1.0, 1.0, -0.5, -0.5])
    assert sum(row["rewards"]) == pytest.approx(0) and row["rewards"][0] > 0 > row["rewards"][2]
    assert [turn["role"] for turn in row["completions"][2]] == ["assistant", "tool", "assistant"]
    found = check_file(made)
    assert found.kind == "grpo" and not found.faults
    with TraceStore() as store:
        kept = store.find(agent=idle)
    assert {trace.trace_id for trace in kept} == set(row["trace_ids"][2:])
    assert all(trace.model and trace.task_name == row["task"] for trace in kept)


def test_workers_and_engines_change_nothing(minds):
    config = CollectConfig(models=minds, tasks=2, families=("remove",), times=2, max_turns=2, parcel=2)
    wanted = parcels(config)
    assert len(wanted) == 4 and len({parcel.options.seed for parcel in wanted}) == 4
    wanted = [parcel for parcel in wanted if "remove-1-train-0" in parcel.tasks]
    with open_executor("local", workers=2) as pool:
        there = pool.map(play, wanted)
    here = [play(parcel) for parcel in wanted]
    words = [
        [
            [(step.reply, step.observation, step.reward) for step in trace.steps]
            for some in part
            for trace in some
        ]
        for part in (here, there)
    ]
    assert words[0] == words[1]


def test_our_own_mind_plays_and_its_tokens_are_kept(tmp_path):
    pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")
    given = {"tasks": 1, "families": ("remove",), "times": 2, "max_turns": 1, "max_new_tokens": 24}
    config = CollectConfig(models=("rusty",), **given, output=tmp_path / "groups.jsonl")
    row = json.loads(collect(config).read_text())
    for words, chances in zip(row["token_ids"], row["logprobs"], strict=True):
        assert len(words) == 1 and len(words[0]) == len(chances[0]) > 0
    again = json.loads(collect(config).read_text())
    assert again["token_ids"] == row["token_ids"] and again["trace_ids"] != row["trace_ids"]


def test_an_address_that_leads_nowhere_is_said_before_anybody_plays(tmp_path, capsys):
    with pytest.raises(PolicyError, match="neither a folder nor an address"):
        collect(CollectConfig(models=("nobody",), **TASK))
    with pytest.raises(ConfigError, match="each once"):
        CollectConfig(models=("rusty", "rusty"))
    with pytest.raises(ConfigError, match="--times"):
        CollectConfig(times=0)
    assert main(["trace", "collect", "--models", "nobody", "--tasks", "1"]) == 1
    assert "nobody" in capsys.readouterr().err
