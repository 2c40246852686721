# SPDX-License-Identifier: AGPL-3.0-or-later
"""Functions with a docstring become "write this function" episodes.

From any Python text: top-level functions of a few lines that stand alone (builtins, their own names and the
standard library; the imports they need come along). The request is the docstring's first line, or the
function's head to complete, as benchmarks ask; the reply is an EDIT of the whole file, in which a docstring
of several lines is left out (as in data/programs.py).
"""

from __future__ import annotations

import ast
import builtins
import random
import re
import sys
from collections.abc import Iterable, Iterator
from string import Template

from rusty_r2.data.dedup import digest_of
from rusty_r2.data.episode import Episode
from rusty_r2.data.played import asked
from rusty_r2.lm.documents import Document
from rusty_r2.task import Code, Task

SHORTEST, LONGEST = 3, 30
"""lines of a function"""
WORDINGS = (
    "Write $call in $file: $says",
    "In $file, write the function $name. $says",
    "Implement $call in $file. $says",
    "$file needs a function $call. $says",
    "Write a function $name($args). $says Put it in $file.",
)
FILES = ("solution.py", "main.py", "tools.py", "helpers.py", "utils.py", "lib.py")

_PLAIN = re.compile(r"^[A-Za-z][^*|<>\\]{15,160}$")
_BUILTINS = frozenset(dir(builtins))
_LIBRARY = frozenset(getattr(sys, "stdlib_module_names", ())) - {"__future__", "typing_extensions"}


def functions(documents: Iterable[Document], rng: random.Random) -> Iterator[Episode]:
    """One EDIT episode for each usable function, none twice."""
    seen: set[bytes] = set()
    for document in documents:
        for task in tasks_of(document, rng):
            digest = digest_of(next(iter(task.solution.values())) or "")
            if digest not in seen:
                seen.add(digest)
                yield asked(task, document.source, document.licence)


def tasks_of(document: Document, rng: random.Random) -> Iterator[Task]:
    """The functions of a document that can be asked for."""
    if "\ndef " not in document.text or document.path.endswith((".gz", ".md", ".rst", ".txt")):
        return
    try:
        tree = ast.parse(document.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    imports = _imports(tree)
    lines = document.text.splitlines()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            task = _task(node, imports, lines[node.lineno - 1 : node.end_lineno], rng)
            if task is not None:
                yield task


def _task(
    node: ast.FunctionDef, imports: dict[str, str], lines: list[str], rng: random.Random
) -> Task | None:
    if node.name.startswith("_") or not SHORTEST <= len(lines) <= LONGEST or len(node.body) < 2:
        return None
    source = "\n".join(lines)
    first = (ast.get_docstring(node) or "").strip().partition("\n")[0].strip()
    if len(source) > 1200 or not _PLAIN.match(first) or not source.isascii():
        return None
    needed = _free_names(node)
    if not needed <= imports.keys():
        return None
    head = "".join(sorted({f"{imports[name]}\n" for name in needed}))
    return _worded(node, first, head, source + "\n", rng)


def _worded(node: ast.FunctionDef, first: str, head: str, source: str, rng: random.Random) -> Task:
    file = rng.choice(FILES)
    args = ast.unparse(node.args)
    body = head + "\n\n" * bool(head) + source
    if rng.random() < 0.35:  # as HumanEval asks: the head with its docstring, to be completed
        cut = node.body[1].lineno - node.lineno
        start = head + "\n\n" * bool(head) + "".join(line + "\n" for line in source.splitlines()[:cut])
        if node.body[0].end_lineno != node.body[0].lineno:  # a long docstring need not be said again
            body = _bare(node, head)
        prompt, files = f"Complete the function {node.name} in {file}:\n\n{start}", {file: start}
    else:
        body = body if rng.random() < 0.5 else _bare(node, head)
        says = first if first.endswith(".") else first + "."
        words = {"name": node.name, "args": args, "call": f"{node.name}({args})", "file": file, "says": says}
        prompt, files = Template(rng.choice(WORDINGS)).substitute(words), {}
    return Task(node.name, prompt, Code(file, ""), files=files, solution={file: body})


def _bare(node: ast.FunctionDef, head: str) -> str:
    """The function without its docstring: shorter to write, and what the request asked for."""
    bare = ast.FunctionDef(**{**vars(node), "body": node.body[1:]})
    return head + "\n\n" * bool(head) + ast.unparse(ast.fix_missing_locations(bare)) + "\n"


def _imports(tree: ast.Module) -> dict[str, str]:
    """Names that a module imports from the standard library, and the line that does it."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            continue  # from the package itself
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in _LIBRARY and "." not in alias.name:
                    found[alias.asname or alias.name] = ast.unparse(ast.Import([alias]))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _LIBRARY:
            for alias in node.names:
                line = ast.unparse(ast.ImportFrom(node.module, [alias], 0))
                found[alias.asname or alias.name] = line
    return found


def _free_names(node: ast.FunctionDef) -> set[str]:
    """Names a function reads that it does not make itself."""
    made: set[str] = set()
    read: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            (read if isinstance(inner.ctx, ast.Load) else made).add(inner.id)
        elif isinstance(inner, ast.arg):
            made.add(inner.arg)
        elif isinstance(inner, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.ExceptHandler)):
            made.add(inner.name or "")
        elif isinstance(inner, (ast.Import, ast.ImportFrom)):
            made |= {(alias.asname or alias.name).partition(".")[0] for alias in inner.names}
    return read - made - _BUILTINS
