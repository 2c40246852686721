"""The house has floors: a file imports from its own room, or from a floor below it."""

import ast
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[1] / "rusty_r2"
FLOORS = [
    # ground
    {"closing", "errors", "files", "events", "machine", "redact"},
    {"config", "executor"},
    {"hardware"},
    {"run"},
    # words
    {"protocol", "task"},
    {"trace"},
    {"tables"},
    {"store"},
    {"archive", "registry"},
    # rooms
    {"lm", "gym"},
    {"agent", "rewards"},
    {"data"},
    {"eval"},
    {"train", "export"},
    {"loop"},
    # doors
    {"doctor", "rl", "web", "traces", "models"},
    {"cli", "welcome"},
]
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
HEAVY = {"torch", "transformers", "peft", "trl", "datasets", "accelerate"}
HEAVY_ROOMS = {"lm", "train", "export"}


def names_in(path: Path) -> set[str]:
    """Every module a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "rusty_r2":
            found |= {f"rusty_r2.{alias.name}" for alias in node.names if not alias.name.startswith("_")}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def room_of(path: Path) -> str:
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


files = sorted(path for path in HOUSE.rglob("*.py") if "gym/tasks" not in path.as_posix())


@pytest.mark.parametrize("path", files, ids=lambda p: p.relative_to(HOUSE).as_posix())
def test_imports_point_down(path):
    here = room_of(path)
    if here in ("__init__", "__main__"):
        return
    for module in names_in(path):
        if module.startswith("rusty_r2."):
            there = module.split(".")[1]
            assert there == here or FLOOR[there] < FLOOR[here], f"{here} imports {module}, from above"


@pytest.mark.parametrize("path", files, ids=lambda p: p.relative_to(HOUSE).as_posix())
def test_heavy_libraries_live_in_few_rooms_and_files_open_with_a_word_to_the_reader(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{path} has no opening docstring"
    top = {name.partition(".")[0] for node in tree.body for name in _imports(node)}
    if room_of(path) not in HEAVY_ROOMS:
        assert not top & HEAVY, f"{path} imports {top & HEAVY} on top"


def _imports(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.parametrize("path", files, ids=lambda p: p.relative_to(HOUSE).as_posix())
def test_files_and_functions_stay_readable(path):
    text = path.read_text()
    assert text.count("\n") <= 400, f"{path} has {text.count(chr(10))} lines; make it two"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
            length = node.end_lineno - node.lineno + 1
            most = 90 if "kernels" in path.parts else 60  # a GPU kernel is one function
            assert length <= most, f"{path}:{node.lineno} {node.name} has {length} lines"
