"""Asked side by side, a mind says what it says alone."""

import itertools
import json
import math

import numpy as np
import pytest

from rusty_r2.agent.address import MindOptions, open_policy
from rusty_r2.eval import contamination, text
from rusty_r2.eval.gym import tasks
from rusty_r2.eval.job import EvalConfig, Job
from rusty_r2.eval.mind import Ask, Borrowed, Speech, is_action, open_mind
from rusty_r2.gym.env import EnvConfig
from rusty_r2.trace import ExecutionTrace

ASKS = [Ask("List all files"), Ask("hi"), Ask("How many lines has notes.txt, and how many words?"), Ask("hi")]


def test_our_model_answers_a_batch_as_it_answers_alone(nano):
    mind = open_mind(str(nano), batch=3)
    speech = Speech(max_new_tokens=24)
    said = dict(mind.answer(ASKS, speech))
    alone = open_policy(str(nano), MindOptions(temperature=0, top_k=0, max_new_tokens=24))
    from rusty_r2.agent.prompt import SYSTEM

    for place, ask in enumerate(ASKS):
        trace = ExecutionTrace(system_prompt=SYSTEM, user_query=ask.request)
        assert said[place] == alone.reply(trace).text
    assert all(text.startswith('{"action"') for text in said.values())
    free = dict(mind.answer(ASKS, Speech(grammar=False, max_new_tokens=24)))
    assert not any(map(is_action, free.values())), "an untrained model knows no protocol"


def test_our_model_plays_and_other_minds_play_the_same_way(nano, tmp_path):
    wanted = tasks(3)
    found = open_mind(str(nano)).play(enumerate(wanted), Speech(max_new_tokens=16), EnvConfig(max_turns=2))
    played = sorted(found, key=lambda one: one.number)
    assert [one.task.name for one in played] == [task.name for task in wanted]
    assert not any(one.passed for one in played) and all(len(one.replies) == 2 for one in played)
    script = tmp_path / "script"
    script.write_text('{"action": "CMD", "command": "ls"}\nnonsense\n')
    (one,) = Borrowed(f"script:{script}", "cpu").play([(7, wanted[0])], Speech(), EnvConfig(max_turns=2))
    assert (one.number, one.valid, one.passed, len(one.replies)) == (7, 1, False, 2)


def test_bits_are_those_of_the_distribution(nano, tmp_path):
    from rusty_r2.lm.tokenizer import BOS

    mind = open_mind(str(nano))
    bits = text.scorer(Job(mind, EvalConfig(out=tmp_path)))
    ids = [BOS, *mind.tokenizer.encode("import sys\nprint(1)\n")]
    state = mind.engine.new_state(1)
    total = 0.0
    for now, then in itertools.pairwise(ids):
        logits = mind.engine.step([now], state).logits[0].astype(np.float64)
        total -= logits[then] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    assert bits("import sys\nprint(1)\n") == pytest.approx(total / math.log(2), rel=1e-3)


def test_held_out_documents_are_those_the_corpus_holds_out(tmp_path):
    import json

    from rusty_r2.data.dedup import rank_of

    rows = [f"document number {n}, long enough to be counted as one" for n in range(600)]
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    chosen = EvalConfig(out=tmp_path / "out", text=(path,))
    held = [row for row in rows if rank_of(row) < 0.01]
    assert held and sorted(text.texts(chosen)) == sorted(held)
    path.unlink()
    assert sorted(text.texts(chosen)) == sorted(held), "found once, then kept"


def test_half_a_character_in_a_document_stops_nobody(tmp_path):
    rows = [{"text": f"half \ud800 {n}" + " words" * 20} for n in range(400)]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = text.texts(EvalConfig(text=(tmp_path / "odd.jsonl",), out=tmp_path / "out"))
    assert found and all(one.startswith("half ? ") for one in found)
    seen = contamination.overlap({"odd": [(rows[7]["text"],)]}, [tmp_path / "odd.jsonl"], workers=1)
    assert seen == {"odd": [True]}


def test_near_duplicates_of_what_is_trained_on_can_be_left_out(nano, tmp_path):
    import json
    import random

    from rusty_r2.data.dedup import rank_of

    rng = random.Random(2)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 8))) for _ in range(3000)]
    rows = [" ".join(rng.choices(words, k=60)) for _ in range(700)]
    held = sorted((row for row in rows if rank_of(row) < 0.01), key=rank_of)
    rows.append("Copied with another end: " + held[1] + " and more")
    assert len(held) > 2 and rank_of(rows[-1]) >= 0.01
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    chosen = EvalConfig(out=tmp_path / "out", text=(path,), limit=3, fresh_text=True)
    assert text.copies(chosen, held) == [0.0, 1.0, *(0.0 for _ in held[2:])]
    whole, fresh = text.measure(Job(open_mind(str(nano)), chosen))
    assert (whole.count, fresh.count) == (3, 2) and "without 1 of 3" in fresh.note


def test_a_hugging_face_model_answers_a_batch_as_it_answers_alone(small_transformer):
    from rusty_r2.agent.hf import HFPolicy
    from rusty_r2.agent.prompt import SYSTEM
    from rusty_r2.eval.batched import Batched
    from rusty_r2.eval.mind import history

    shots = (("Show the free memory", '{"action": "CMD", "command": "free -h"}'),)
    asks = [Ask(ask.request, shots) for ask in ASKS[:3]]
    mind = Batched(small_transformer, "hf:small", batch=2)
    policy = HFPolicy(small_transformer, MindOptions(temperature=0, top_k=0, max_new_tokens=14))
    said = dict(mind.answer(asks, Speech(max_new_tokens=14)))
    for place, ask in enumerate(asks):
        trace = ExecutionTrace(system_prompt=SYSTEM, user_query=ask.request, history=history(shots))
        assert said[place] == policy.reply(trace).text
    played = list(mind.play(enumerate(tasks(3)), Speech(max_new_tokens=14), EnvConfig(max_turns=2), shots))
    assert sorted(one.number for one in played) == [0, 1, 2] and {len(one.replies) for one in played} == {2}
    small_transformer.close()
