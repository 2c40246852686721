"""From a folder or a store of mixed traces to rows of every kind, in one command."""

import json
import random

import pytest

from rusty_r2.agent.collector import store_path
from rusty_r2.data.pipeline import DatasetPipeline, RowsConfig, build
from rusty_r2.data.validate import check_file
from rusty_r2.errors import ConfigError, DataError
from rusty_r2.rewards.redteam import CHEATS, REQUESTS, failing, honest
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace


def mixed(count, seed=0):
    """Honest, failing and cheating traces of every kind of request."""
    rng = random.Random(seed)
    for number in range(count):
        request = REQUESTS[number % len(REQUESTS)]
        policy = rng.choice([honest, honest, failing, rng.choice(list(CHEATS.values())[:5])])
        trace = policy(request)
        trace.trace_id = f"{number:012x}"
        if trace.final_response.strip():
            trace.final_response += f"\n\nThat was case {rng.randrange(10**6)}."
        trace.user_query += f" (variant {number // 25})"
        yield trace


@pytest.fixture
def folder(tmp_path):
    where = tmp_path / "traces"
    where.mkdir()
    for trace in mixed(100):
        (where / f"{trace.trace_id}.json").write_text(json.dumps(trace.to_dict()))
    (where / "broken.json").write_text("{")
    return where


def test_one_command_makes_rows_of_every_kind(folder, tmp_path):
    config = RowsConfig(source=folder, output_dir=tmp_path / "rows", eval_share=0.2)
    told = build(config)
    assert "passed over" in told
    assert "broken.json" in told
    for kind in ("kto", "grpo", "sft", "dpo"):
        found = check_file(tmp_path / "rows" / f"{kind}.jsonl")
        assert (found.kind, found.faults) == (kind, [])
        assert found.rows > 3
    assert told.splitlines()[-1].startswith("next: rusty train kto")
    before = {path.name: path.read_bytes() for path in (tmp_path / "rows").iterdir()}
    build(config)
    assert {path.name: path.read_bytes() for path in (tmp_path / "rows").iterdir()} == before


def test_rows_go_into_the_asked_kinds_only(folder, tmp_path):
    build(RowsConfig(source=folder, output_dir=tmp_path / "rows", kinds=("grpo",), eval_share=0.0))
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["grpo.jsonl"]


def test_secrets_in_files_do_not_reach_the_rows(tmp_path):
    key = "sk-" + "proj-" + "a1B2c3D4e5F6g7H8i9J0k1L2"
    trace = ExecutionTrace(user_query=f"Is {key} my key?", final_response=f"Yes, {key} it is.")
    (tmp_path / "t.jsonl").write_text(json.dumps(trace.to_dict()))
    build(
        RowsConfig(source=tmp_path / "t.jsonl", output_dir=tmp_path / "rows", kinds=("kto",), eval_share=0.0)
    )
    text = (tmp_path / "rows" / "kto.jsonl").read_text()
    assert key not in text
    assert "[redacted:" in text


def test_nothing_to_read_is_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no traces"):
        build(RowsConfig(source=tmp_path / "empty"))
    with pytest.raises(ConfigError, match="exclude each other"):
        RowsConfig(source=tmp_path, store="x.db")
    with pytest.raises(ConfigError, match="eval-share"):
        RowsConfig(eval_share=1.5)


def test_a_reward_of_ones_own_takes_part(folder, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from rusty_r2.rl import BaseReward, RewardResult\n"
        "class Mine(BaseReward):\n    name = 'mine'\n    weight = 5.0\n"
        "    def compute(self, trace):\n        return RewardResult(0.0, True)\n"
    )
    build(
        RowsConfig(
            source=folder, output_dir=tmp_path / "r", kinds=("grpo",), eval_share=0, reward=(str(own),)
        )
    )
    row = json.loads((tmp_path / "r" / "grpo.jsonl").read_text().splitlines()[0])
    assert all(parts["mine"] == 0.0 for parts in row["parts"])


@pytest.fixture
def pipeline(tmp_path):
    made = DatasetPipeline("ada", storage_path=tmp_path / "store")
    yield made
    made.store.close()


def test_the_documented_class(pipeline, tmp_path):
    for trace in mixed(50):
        trace.agent_name = "ada"
        pipeline.store.append(trace)
    pipeline.store.append(ExecutionTrace(user_query="q", final_response="other", agent_name="bob"))
    assert {trace.agent_name for trace in pipeline.collect_all_traces()} == {"ada"}
    kto = pipeline.build_kto_dataset(str(tmp_path / "kto_data.jsonl"))
    grpo = pipeline.build_grpo_dataset(str(tmp_path / "grpo_data.jsonl"))
    assert len(kto) == check_file(tmp_path / "kto_data.jsonl").rows > 10
    assert len(grpo) == check_file(tmp_path / "grpo_data.jsonl").rows > 5
    waiting = pipeline.get_unlabeled_for_review(limit=3)
    assert len(waiting) == 3
    pipeline.label_trace(waiting[0].trace_id, False, notes="wrong")
    assert pipeline.store.get(waiting[0].trace_id).manual_review
    told = pipeline.get_pipeline_statistics()
    assert (told["traces"]["total"], told["traces"]["labeled"]) == (50, 1)


def test_where_the_store_is(tmp_path):
    assert store_path(None) is None
    assert store_path("postgresql://x/y") == "postgresql://x/y"
    assert store_path(tmp_path) == tmp_path / "traces.db"
    assert store_path(tmp_path / "a.db") == tmp_path / "a.db"
    with TraceStore(store_path(tmp_path / "new")) as store:
        assert store.count() == 0
