"""The `rusty` command as a person meets it: light, one line for an error, and its exit codes."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import tyro

from rusty_r2 import __version__, cli
from rusty_r2.config import SPEECH
from rusty_r2.errors import ConfigError, MissingExtra, need
from rusty_r2.store import TraceStore
from rusty_r2.trace import ExecutionTrace


def rusty(*words, **how):
    command = [sys.executable, "-m", "rusty_r2.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **how)


@dataclass(frozen=True)
class Toy:
    name: str
    """who"""
    times: int = 1
    loud: bool = False
    tags: tuple[str, ...] = ()


def toy(config: Toy) -> str:
    if config.name == "nobody":
        raise ConfigError("nobody is not a name. Type: rusty toy --name somebody")
    if config.times < 1:
        raise ConfigError(f"--times must be at least 1, not {config.times}")
    if "/" in config.name:
        return Path(config.name).read_text()
    return json.dumps([config.name, config.times, config.loud, config.tags])


@pytest.fixture
def toy_command(monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "toy", (f"{__name__}:toy", "a toy"))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


def test_help_and_version():
    said = rusty("--help")
    assert said.returncode == 0 and all(f"rusty {name}" in said.stdout for name in cli.COMMANDS)
    assert rusty("--version").stdout.strip() == f"rusty {__version__}"
    assert "rusty gym check" in rusty("gym").stdout


HEAVY = {"torch", "transformers", "tokenizers", "safetensors", "sqlalchemy", "numpy", "prompt_toolkit"}
HEAVY |= {"rich.progress", "starlette", "jinja2", "uvicorn", "gymnasium"}
ARITHMETIC = ("export check", "export gguf", "lm bench", "train ppo")
"""commands whose module computes with numpy itself"""


@pytest.mark.parametrize(
    ("words", "besides"),
    [
        (["--help", "doctor", "gym --help"], set()),
        ([f"{name} --help" for name in cli.COMMANDS if name not in ARITHMETIC], set()),
        ([f"{name} --help" for name in ARITHMETIC], {"numpy"}),
    ],
    ids=["doors", "commands", "arithmetic"],
)
def test_help_loads_nothing_heavy(words, besides):
    program = f"""
import contextlib, sys
from rusty_r2 import cli
for words in {words}:
    with contextlib.suppress(SystemExit):
        cli.main(words.split())
    heavy = {HEAVY - besides} & set(sys.modules)
    assert not heavy, (words, heavy)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") >= len(words) - 1


def test_wrong_usage_is_2_and_says_what_there_is():
    said = rusty("fly", "home")
    assert (
        said.returncode == 2 and said.stderr == "rusty: there is no command 'fly home'. Type: rusty --help\n"
    )
    assert rusty("docter").stderr.endswith("Type: rusty doctor\n")
    assert "rusty trace label" in rusty("trace", "lable").stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--name a --tmes 3", "there is no --tmes; did you mean --times?"),
        ("--tmes=3", "there is no --tmes; did you mean --times?"),
        ("--name a --zzz blue", "there is no --zzz."),
        ("--name a --times x", "Error parsing --times: invalid literal for int() with base 10: 'x'."),
        ("--name a --times", "Missing value for argument '--times'. Expected 1 values."),
        ("--name a b", "Unrecognized options: b."),
        ("--times 3", "missing: --name STR who (required)."),
    ],
)
def test_a_wrong_option_is_one_line_and_2(toy_command, capsys, options, said):
    assert cli.main(["toy", *options.split()]) == 2
    told = capsys.readouterr()
    assert told.err == f"rusty toy: {said} Type: rusty toy --help\n" and told.out == ""


def test_doctor_speaks_to_people_and_to_scripts():
    assert "memory" in rusty("doctor").stdout
    facts = json.loads(rusty("doctor", "--json").stdout)
    assert facts["version"] == __version__ and facts["hardware"]["cpu_cores"] >= 1
    assert all(part["install"] for part in facts["parts"])
    assert facts["sandbox"][-1]["available"]
    tried = json.loads(rusty("doctor", "--json", "--measure").stdout)["sandbox"]
    assert [level["name"] for level in tried] == ["ns", "bwrap", "landlock", "off"]


def test_a_clear_error_is_one_line_and_1(toy_command, capsys):
    assert cli.main(["toy", "--name", "nobody"]) == 1
    assert capsys.readouterr().err == "rusty toy: nobody is not a name. Type: rusty toy --name somebody\n"


def test_an_error_that_names_no_command_leads_to_the_help(toy_command, capsys):
    assert cli.main(["toy", "--name", "a", "--times", "0"]) == 1
    said = "rusty toy: --times must be at least 1, not 0. Type: rusty toy --help\n"
    assert capsys.readouterr().err == said
    assert cli.main(["toy", "--name", f"{__file__}/a"]) == 1
    assert capsys.readouterr().err == f"rusty toy: {__file__}/a: Not a directory. Type: rusty toy --help\n"


def test_no_name_in_an_error_reaches_the_terminal_as_more_than_text(toy_command, capsys, tmp_path):
    assert cli.main(["toy", "--config", str(tmp_path / "\x1b[2J\x07.toml")]) == 1
    said = capsys.readouterr().err
    assert "\x1b" not in said and "\x07" not in said and "does not exist" in said


def test_underscores_and_dashes_are_the_same(toy_command, capsys):
    assert cli.main(["toy", "--name", "a", "--times", "3", "--loud"]) == 0
    assert json.loads(capsys.readouterr().out) == ["a", 3, True, []]


@pytest.mark.parametrize("form", ["toml", "json"])
def test_a_file_gives_defaults_and_the_command_line_wins(toy_command, capsys, tmp_path, form):
    text = 'name = "file"\ntimes = 5\nloud = true\ntags = ["x", "y"]\n'
    options = {"name": "file", "times": 5, "loud": True, "tags": ["x", "y"]}
    path = tmp_path / f"o.{form}"
    path.write_text(text if form == "toml" else json.dumps(options))
    assert cli.main(["toy", "--config", str(path), "--times", "7", "--no-loud"]) == 0
    assert json.loads(capsys.readouterr().out) == ["file", 7, False, ["x", "y"]]


def test_a_value_of_a_file_may_begin_with_a_dash(toy_command, capsys, tmp_path):
    (tmp_path / "o.json").write_text('{"name": "--loud", "times": 2}')
    assert cli.main(["toy", "--config", str(tmp_path / "o.json")]) == 0
    assert json.loads(capsys.readouterr().out) == ["--loud", 2, False, []]


@dataclass(frozen=True)
class Nameless:
    who: Annotated[tuple[str, ...], tyro.conf.Positional] = ("nobody",)
    limit: int = 0
    loud: bool = False
    tags: tuple[str, ...] = ()


def nameless(config: Nameless) -> str:
    return json.dumps([config.who, config.limit, config.loud, config.tags])


def done(words, options, folder, capsys):
    """What the toy prints when it is called with these words; FILE stands for one with these options."""
    path = folder / "o.json"
    path.write_text(options)
    assert cli.main(["toy", *words.replace("FILE", str(path)).split()]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--config FILE", [["a", "b"], 2, True, ["x"]]),
        ("--config=FILE --limit 3", [["a", "b"], 3, True, ["x"]]),
        ("c --config FILE", [["c"], 2, True, ["x"]]),
        ("--no-loud c --config FILE", [["c"], 2, False, ["x"]]),
        ("--limit 3 c --config FILE", [["c"], 3, True, ["x"]]),
        ("--config FILE --tags y z", [["a", "b"], 2, True, ["y", "z"]]),
    ],
)
def test_a_file_also_gives_what_has_no_name(toy_command, capsys, tmp_path, monkeypatch, words, told):
    monkeypatch.setitem(cli.COMMANDS, "toy", (f"{__name__}:nameless", "a toy"))
    file = '{"who": ["a", "b"], "limit": 2, "loud": true, "tags": ["x"]}'
    assert done(words, file, tmp_path, capsys) == told


@dataclass(frozen=True)
class Spoken(Nameless):
    who: Annotated[tuple[str, ...], tyro.conf.Positional, SPEECH] = ()


def spoken(config: Spoken) -> str:
    return json.dumps([" ".join(config.who), config.limit, config.loud])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("what does ls -l do", ["what does ls -l do", 0, False]),
        ("what does df -h do --loud --limit -3", ["what does df -h do", -3, True]),
        ("--limit=2 ls -l --loud - -1", ["ls -l - -1", 2, True]),
        ("--loud -- ls --all -l", ["ls --all -l", 0, True]),
        ("ls -l --config FILE", ["ls -l", 7, False]),
    ],
)
def test_what_is_said_may_have_dashes_of_its_own(toy_command, capsys, tmp_path, monkeypatch, words, told):
    monkeypatch.setitem(cli.COMMANDS, "toy", (f"{__name__}:spoken", "a toy"))
    assert done(words, '{"limit": 7}', tmp_path, capsys) == told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "what does git log --oneline -l do --limit 3",
            "there is no --oneline. If it is part of the request, "
            "type: rusty toy 'what does git log --oneline -l do' --limit 3",
        ),
        (
            "fix it --luod",
            "there is no --luod; did you mean --loud? If it is part of the request, "
            "type: rusty toy 'fix it --luod'",
        ),
        ("--zzz it", "there is no --zzz. Type: rusty toy --help"),
        ("-l what", "Unrecognized options: -l, what. Type: rusty toy --help"),
    ],
)
def test_what_looks_like_an_option_and_is_none_is_not_said(toy_command, capsys, monkeypatch, words, said):
    monkeypatch.setitem(cli.COMMANDS, "toy", (f"{__name__}:spoken", "a toy"))
    assert cli.main(["toy", *words.split()]) == 2
    assert capsys.readouterr().err == f"rusty toy: {said}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('colour = "blue"', "unknown option 'colour'"),
        ("name = ", "o.toml"),
        ("a=" + "[" * 20_000, "o.toml"),
        (None, "does not exist"),
    ],
)
def test_a_wrong_file_is_one_line_and_1(toy_command, capsys, tmp_path, text, problem):
    if text is not None:
        (tmp_path / "o.toml").write_text(text)
    assert cli.main(["toy", "--config", str(tmp_path / "o.toml")]) == 1
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1


def test_a_missing_extra_carries_its_install_line():
    with pytest.raises(MissingExtra, match=r"pip install 'rusty-r2\[web\]'"):
        need("a_module_nobody_has", extra="web")


def test_every_command_leads_to_a_function_with_one_dataclass():
    for name in cli.COMMANDS:
        command, config = cli.options_of(name)
        assert callable(command) and config.__dataclass_fields__ is not None, name


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is needed, which Linux has")
@pytest.mark.parametrize("at_once", ["", "1"])
@pytest.mark.parametrize("words", [["--help"], ["gym"], ["gym", "list"]])
def test_a_full_disk_is_one_line_and_1(words, at_once):
    env = {**os.environ, "PYTHONUNBUFFERED": at_once}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "rusty_r2.cli", *words]
        said = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert said.returncode == 1 and "No space left" in said.stderr and said.stderr.count("\n") == 1


def test_run_from_anywhere(tmp_path: Path):
    assert rusty("--help", cwd=tmp_path).returncode == 0


def test_a_reader_that_leaves_and_a_terminal_without_letters_are_no_errors(tmp_path):
    started = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(0.2); from rusty_r2.cli import main; main([])"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert started.stdout is not None and started.stderr is not None
    started.stdout.close()
    assert started.wait() == 0 and started.stderr.read() == b""
    started.stderr.close()
    with TraceStore(tmp_path / "t.db") as store:
        store.append(ExecutionTrace(user_query="naïve 名"))
    old = os.environ | {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    said = rusty("trace", "list", "--store", str(tmp_path / "t.db"), env=old)
    assert said.returncode == 0 and "na\\xefve \\u540d" in said.stdout
