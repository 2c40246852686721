"""Code is run, in the sandbox, once; code that does nothing earns nothing."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from rusty_r2.errors import ConfigError
from rusty_r2.rewards import running
from rusty_r2.rewards.code import CodeExecutionReward, SyntaxValidationReward, does_nothing
from rusty_r2.rewards.reading import blocks, prose, wants_code, wants_tools
from rusty_r2.trace import ExecutionTrace, Step

RUN = CodeExecutionReward(timeout=30)
READ = SyntaxValidationReward()
ASKED = "Write a Python function called add that adds two numbers."


def said(text, query=ASKED):
    return ExecutionTrace(user_query=query, final_response=text)


def python(source, query=ASKED):
    return said(f"```python\n{source}\n```", query)


def test_the_documented_names_and_weights():
    assert (RUN.name, RUN.weight, RUN.is_binary) == ("code_execution", 2.0, True)
    assert (READ.name, READ.weight, READ.is_binary) == ("syntax_validation", 1.0, True)
    assert CodeExecutionReward().timeout == 30


def test_code_never_runs_outside_the_sandbox():
    with pytest.raises(ConfigError, match="sandbox"):
        CodeExecutionReward(sandbox=False)


@pytest.mark.parametrize(
    ("source", "score"),
    [
        ("def add(a, b):\n    return a + b\nprint(add(1, 2))", 1),
        (
            "import sys\nadd = max\nif __name__ == '__main__':\n    sys.exit(add(0, 0))",
            1,
        ),
        ("def add(a, b):\n    return a + b\nprint(add(int(input()), int(input())))", 1),
        ("def add(a, b):\n    return a + c\nadd(1, 2)", 0),
        ("def add(a, b)\n    return a + b", 0),
        ("pass", 0),
        ("", 0),
        ("# nothing here", 0),
        ("print('hello')", 0),
        ("x = 1", 0),
        ("def add(a, b):\n    return 3", 0),
        ("def add(a, b):\n    pass", 0),
        ("def subtract(a, b):\n    return a - b", 0),
        ("import sys\nsys.exit(0)\ndef add(a, b):\n    return a + b\nadd()", 0),
        ("import os\nadd = max\nos._exit(0)", 0),
        ("add = sum\nraise SystemExit(1)", 0),
        ("add = sum\nwhile True:\n    print('x' * 1000)", 0),
        ("add = sum\ntry:\n    add(1, nothing)\nexcept Exception:\n    pass", 0),
        ("add = sum\nimport json\njson.dumps = lambda said: str([said[0], 'end', '', 0])\nnothing()", 0),
        (
            "add = sum\nimport builtins\nbuiltins.SystemExit = Exception\nimport sys\nsys.exit(0)\nnothing()",
            0,
        ),
        (
            "add = sum\nimport builtins\nbuiltins.str = lambda _: ''\nbuiltins.type = str\nnothing()",
            0,
        ),
        ("add = sum\nimport sys\nprint(sys._getframe(1).f_locals['token'])", 0),
        ("add = sum\nraise ModuleNotFoundError('no', name='torch')", 0),
        ("import nowhere_to_be_found\nadd = sum", 0),
    ],
)
def test_what_python_earns(source, score):
    assert RUN(python(source)).score == score


def test_a_program_that_hangs_earns_nothing():
    result = CodeExecutionReward(timeout=1)(python("add = sum\nimport time\ntime.sleep(60)"))
    assert (result.score, result.error) == (0, "took too long")


def test_a_library_the_sandbox_lacks_is_no_verdict():
    assert (
        running._python_outcome("import torch", ["raised", "ModuleNotFoundError: torch", "torch"]).ok is None
    )


@pytest.mark.parametrize(
    ("source", "score"),
    [
        ("for i in 1 2 3; do wc -c <<< $i; done", 1),
        ("wc -c /dev/null\nexit 0", 1),
        ("true", 0),
        ("echo done", 0),
        ("exit 0\nwc -c <<< 1", 0),
        ("for i in; then", 0),
        ("wc --no-such-option", 0),
        ("pip install requests", None),
        ("some-command-nobody-has --flag", None),
    ],
)
def test_what_shell_earns(source, score):
    assert RUN(said(f"```bash\n{source}\n```", "Write a bash script that counts.")).score == score


def test_asked_for_code_and_given_none():
    assert RUN(said("You add them with plus.")).score == 0
    assert READ(said("You add them with plus.")).score == 0
    assert RUN(said("You add them with plus.", "How do I add numbers?")).score is None
    assert READ(said("```bash\nls\n```", "Write a bash script that lists files.")).score is None
    assert RUN(said("```rust\nfn main() {}\n```", "Write a program in Rust.")).score is None


def test_a_print_that_was_asked_for_counts():
    assert (
        RUN(python("print('Hello, World!')", "Write a Python program that prints Hello, World!")).score == 1
    )


def test_blocks_build_on_each_other():
    text = "```python\ndef add(a, b):\n    return a + b\n```\nUse it:\n```python\nprint(add(1, 2))\n```"
    assert RUN(said(text)).score == 1


def test_syntax_is_checked_without_running(tmp_path):
    mark = tmp_path / "ran"
    before = running.OUTCOMES.runs
    assert READ(python(f"def add(a, b):\n    open({str(mark)!r}, 'w')\nadd(1, 2)")).score == 1
    assert READ(python("def add(a, b:\n    return")).score == 0
    assert READ(said('```json\n{"a": 1,}\n```')).score == 0
    assert not mark.exists()
    assert running.OUTCOMES.runs == before


def test_files_written_in_our_protocol_are_read():
    edit = '{"action": "EDIT", "path": "a.py", "content": "def f(:"}'
    fixed = '{"action": "EDIT", "path": "a.py", "content": "def f():\\n    return 1\\n"}'
    assert READ(ExecutionTrace(user_query="Fix a.py", steps=[Step(edit)])).score == 0
    assert READ(ExecutionTrace(user_query="Fix a.py", steps=[Step(edit), Step(fixed)])).score == 1
    empty = '{"action": "EDIT", "path": "pkg/__init__.py", "content": ""}'
    assert READ(ExecutionTrace(user_query="Add pkg/__init__.py", steps=[Step(empty)])).score == 1


def test_code_sees_neither_environment_nor_files_of_the_user(tmp_path, monkeypatch):
    secret = tmp_path / "secret.txt"
    secret.write_text("s")
    monkeypatch.setenv("API_KEY", "very-secret")
    reads = f"add = open({str(secret)!r}).read()"
    assert RUN(python(reads)).score == 0
    assert RUN(python("import os\nadd = os.environ['API_KEY']")).score == 0
    assert (
        RUN(python(f"import pathlib\nadd = pathlib.Path({str(tmp_path / 'new')!r}).write_text('x')")).score
        == 0
    )
    assert not (tmp_path / "new").exists()
    assert os.environ["API_KEY"] == "very-secret"


def test_the_same_content_runs_once_also_in_threads():
    trace = python("def add(a, b):\n    return a + b  # once\nprint(add(2, 2))")
    before = running.OUTCOMES.runs
    with ThreadPoolExecutor(8) as pool:
        scores = list(pool.map(lambda _: RUN(trace).score, range(16)))
    assert scores == [1] * 16
    assert running.OUTCOMES.runs == before + 1


def test_known_never_runs():
    trace = python("def add(a, b):\n    return a + b  # known\nprint(add(2, 3))")
    before = running.OUTCOMES.runs
    assert RUN.known(trace) is None
    assert running.OUTCOMES.runs == before
    RUN(trace)
    assert RUN.known(trace).score == 1


def test_a_failed_run_is_not_kept():
    outcomes = running.Outcomes()

    def fail():
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        outcomes.get("k", fail)
    assert outcomes.peek("k") is None
    assert outcomes.get("k", lambda: running.Outcome(True)).ok


def test_outcomes_are_bounded():
    outcomes = running.Outcomes(most=3)
    for number in range(10):
        outcomes.get(str(number), lambda: running.Outcome(True))
    assert outcomes.peek("0") is None
    assert outcomes.peek("9").ok


def test_blocks_of_every_fence():
    text = "a\n```c++\nint x;\n```\n~~~python\nx = '```'\n~~~\n````\n```\ninner\n```\n````\n```py\nopen"
    assert [(block.language, block.source) for block in blocks(text)] == [
        ("c++", "int x;\n"),
        ("python", "x = '```'\n"),
        ("", "```\ninner\n```\n"),
        ("py", "open\n"),
    ]
    assert "int x" not in prose(text)


def test_an_unmarked_block_is_judged_only_where_it_is_python():
    assert RUN(said("```\nTotal: 12 apples (4 red)\n```", "How many apples?")).score is None
    assert RUN(said("```\ndef add(a, b):\n    return a + c\nadd(1, 2)\n```")).score == 0


def test_a_warning_in_the_code_is_not_ours():
    assert READ(python("def add(a, b):\n    return '\\d' is a")).score == 1


def test_code_too_deep_to_parse_is_a_result():
    assert READ(python("x = " + "(" * 5000)).score == 0
    assert isinstance(does_nothing("x = " + "-" * 100_000 + "1", ""), str)


def test_what_is_asked_for():
    assert wants_code("Schreibe eine Python-Funktion, die addiert")
    assert not wants_code("Explain what a function is")
    assert not wants_code("How do I write a function?")
    assert wants_tools("Delete the file notes.txt")
    assert not wants_tools("How do I delete a file?")
    assert not wants_tools("What is the capital of France?")
